"""Graders of the induction tasks."""

import pytest

from rg_env.core.grading.graders import grade

CASES = [
    ("acre", "on", "ON.", 1.0),
    ("acre", "undetermined", '"undetermined"', 1.0),
    ("acre", "on", "off", 0.0),
    ("acre", "on", "on off undetermined", 0.0),
    ("acre", "off", "", 0.0),
    ("list_functions", "[7, 13]", "7, 13", 1.0),
    ("list_functions", "[7, 13]", "[7,13]", 1.0),
    ("list_functions", "[7]", "7", 1.0),
    ("list_functions", "[89088, 7]", "[89{,}088, 7]", 1.0),
    ("list_functions", "[89088]", "[89,088]", 0.0),
    ("list_functions", "[]", "[ ]", 1.0),
    ("list_functions", "[]", "", 0.0),
    ("list_functions", "[]", "   ", 0.0),
    ("list_functions", "[]", "()", 0.0),
    ("list_functions", "[]", "[0]", 0.0),
    ("list_functions", "[7, 13]", "[13, 7]", 0.0),
    ("list_functions", "[7, 13]", "[7, 13, 7, 13]", 0.0),
    ("list_functions", "[7, 13]", "[7, x]", 0.0),
    ("list_functions", "[7, 13]", "the list [7, 13]", 0.0),
    ("list_functions", "[7, 13]", "7, " * 3000, 0.0),
]


@pytest.mark.parametrize(("task", "gold", "answer", "value"), CASES)
def test_grade(task: str, gold: str, answer: str, value: float) -> None:
    """Form does not matter, content does, and nothing is paid for an empty answer."""
    assert grade(task, {}, {"question": "", "answer": gold, "metadata": {}}, answer) == value
