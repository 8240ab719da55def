"""Strict text match for tasks whose library grader would run the answer as code.

Strict means: 1.0 for the stored answer, letter for letter, apart from white space at the ends of lines and around the
whole, and 0.0 for all else. Other right forms (another countdown expression, reordered terms of a polynomial, a matrix
written as a Python list) are not accepted yet. n_queens accepts each of its stored solutions.
"""

from collections.abc import Mapping
from typing import Any


def grade(task: str, entry: Mapping[str, Any], answer: str) -> float:
    """1.0 if `answer` is one of the stored right answers of `entry`, else 0.0."""
    right = entry["metadata"]["valid_answers"] if task == "n_queens" else [entry["answer"]]
    return float(_lines(answer) in [_lines(text) for text in right])


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
