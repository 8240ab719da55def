"""What tests of graders share: entries of every task, and a check of a table of answers."""

from functools import cache
from typing import Any

from honest_answers import entries_of

from rg_env.core.grading.graders import grade

ENTRIES = 4


@cache
def entries(task: str) -> list[dict[str, Any]]:
    """The same few entries of `task` for all tests: some take a third of a second to draw."""
    return entries_of(task, ENTRIES, seed=11)


def assert_scores(task: str, entry: dict[str, Any], answers: list[str], value: float) -> None:
    """Each of the answers scores `value`, with partial credit too."""
    scores = {answer: grade(task, {}, entry, answer, partial_credit=True) for answer in answers}
    assert scores == dict.fromkeys(answers, value)
