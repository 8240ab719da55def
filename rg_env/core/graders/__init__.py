"""Grading one answer against one entry. `grade` decides which grader a task gets; callers use `core.scoring` instead.

The library's own graders of nine tasks run the model's text as code (`eval`, or sympy's parser, which is built on it).
Those graders are never called with model text: `exact` stands in for them. All other tasks go to the library.
"""

import math
from collections.abc import Mapping
from typing import Any

from rg_env.core.graders import exact, library
from rg_env.core.graders.gold import gold_answer as gold_answer

RUN_TEXT_AS_CODE = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
"""Tasks whose library grader runs the answer as code."""


def grade(task: str, config: Mapping[str, Any], entry: Mapping[str, Any], answer: str) -> float:
    """How right `answer` is: a plain float in [0, 1], 1.0 for right.

    `entry` is the library's item in JSON form. Whatever the grader raises goes through: `core.scoring` tells it apart
    from a wrong answer.
    """
    if task in RUN_TEXT_AS_CODE:
        return exact.grade(task, entry, answer)
    value = library.grade(task, config, entry, answer)
    if not math.isfinite(value):
        raise ValueError(f"the grader of {task} returned {value}")
    return float(min(max(value, 0.0), 1.0))
