"""Rows that several tests use for grading."""

import json

SORTING = {
    "rg_task": "number_sorting",
    "config": "{}",
    "entry": json.dumps(
        {
            "question": "?",
            "answer": "['1', '2', '3', '4']",
            "metadata": {
                "original_numbers": ["3", "1", "2", "4"],
                "direction": "ascending",
                "sorted_numbers": ["1", "2", "3", "4"],
            },
        }
    ),
}
