"""Constant answers: the most frequent gold answers are right on few rows.

`tests/tools/test_attack_corpus.py` searches for the best formulas and colorings.
"""

import json
from collections import Counter
from typing import Any

import pytest

from rg_env.core.data.dataset import DrawnRow, build_rows
from rg_env.core.data.selection import BALANCED
from rg_env.core.grading.graders import grade

ROWS = 150
NOISE = 1.05
"""Factor by which an answer may exceed its share, because shares are rounded up to whole rows."""
OPEN = ["binary_alternation", "gcd", "letter_counting", "maze", "rotten_oranges", "self_reference", "shortest_path"]
"""Tasks with a share of their own and one right answer per question, except polynomial_equations, which is slow to
draw."""


def _rows(task: str) -> tuple[list[DrawnRow], list[DrawnRow]]:
    return build_rows(task, "train", ROWS, 5), build_rows(task, "eval", ROWS, 6)


def _entries(rows: list[DrawnRow]) -> list[dict[str, Any]]:
    return [json.loads(row["info"]["entry"]) for row in rows]


def _share(task: str, answer: str, entries: list[dict[str, Any]]) -> float:
    return sum(grade(task, {}, entry, answer) == 1.0 for entry in entries) / len(entries)


@pytest.mark.parametrize("task", OPEN)
def test_no_gold_answer_has_more_than_its_share(task: str) -> None:
    """The most frequent gold answers of training rows are right on at most one evaluation row in `BALANCED[task]`."""
    train, evaluation = _rows(task)
    common = Counter(row["answer"] for row in train).most_common(3)
    best = max(_share(task, answer, _entries(evaluation)) for answer, _ in common)
    assert best <= NOISE / BALANCED[task]


def test_copying_the_premises_is_rarely_right() -> None:
    """Premises joined by "and", even if weakened by an "or", are rarely a right answer. With `R`, they are right only
    where `R` alone is, which is limited to one row in six."""
    entries = _entries(_rows("propositional_logic")[0])
    copies = {"": 0.1, " ∨ P": 0.25, " ∨ ¬Q": 0.25, " ∧ R": 1 / 6, " ∨ (P ∧ Q)": 0.1, " ∨ ¬(P ∧ Q)": 0.25}
    for copy, most in copies.items():
        right = 0.0
        for entry in entries:
            answer = f"({' ∧ '.join(entry['metadata']['premises'])}){copy}"
            right += grade("propositional_logic", {}, entry, answer)
        assert right / len(entries) <= most, copy
