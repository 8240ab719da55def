"""The answer that an entry itself holds, in the form that scores 1.0."""

import json
from collections.abc import Mapping
from typing import Any

from rg_env.core.graders import boxnet, rush_hour

SOLVED = ("rush_hour", "boxnet")
"""Tasks whose gold answers are found by a solver, which trusts its entry."""
STORED_ELSEWHERE = (*SOLVED, "graph_color", "propositional_logic", "rubiks_cube")
"""Tasks whose entries have no `answer`."""


def gold_answer(task: str, entry: Mapping[str, Any]) -> str | None:
    """The right answer stored in `entry`, or None where the library stores none.

    graph_color, rubiks_cube and propositional_logic keep an example of a right answer in their metadata instead.
    rush_hour and boxnet have none at all, and are solved here, which takes tens of milliseconds for a rush_hour.
    """
    metadata = entry["metadata"]
    if task == "graph_color":
        return json.dumps(metadata["possible_answer"])
    if task == "rubiks_cube":
        return metadata["example_correct_answer"] or None  # only 3x3 cubes have one
    if task == "rush_hour":
        return rush_hour.solve(entry)
    if task == "boxnet":
        return boxnet.solve(entry)
    if task == "propositional_logic":
        # The library gives up after 100 tries and stores the first variable, which need not follow from the premises.
        # A conclusion that it found is never a single variable.
        example: str = metadata["example_answer"]
        return None if example in metadata["variables"] else example
    answer = entry["answer"]
    if task == "jugs" and "No solution" in answer:
        return None  # its solver looks at three jugs only
    if task in ("simple_integration", "intermediate_integration") and "Integral(" in answer:
        return None  # the library could not solve it, and stores the question
    return None if answer is None else str(answer)
