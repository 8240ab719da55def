"""Grading one answer against one entry: which grader each task gets. Callers use `core.scoring` instead.

All graders here are the project's own. They never evaluate the model's text, take a few milliseconds at most for any
answer of up to `scoring.MAX_ANSWER_CHARS` characters, and return real progress in [0, 1]: 1.0 for what a user would
call right, and less only for a measurable part of it. `library` has Reasoning Gym's own, for comparison.
"""

from collections.abc import Mapping
from typing import Any

from rg_env.core.graders.forms import candidates
from rg_env.core.graders.gold import SOLVED, STORED_ELSEWHERE
from rg_env.core.graders.gold import gold_answer as gold_answer
from rg_env.core.graders.table import GRADERS


def grade(
    task: str, config: Mapping[str, Any], entry: Mapping[str, Any], answer: str, *, partial_credit: bool = False
) -> float:
    """How right `answer` is: 1.0 for right and 0.0 for all else, or real progress with `partial_credit`.

    `entry` is the library's item in JSON form. Raises whatever a broken `entry` makes a grader raise: `core.scoring`
    tells that apart from a wrong answer.
    """
    grader = GRADERS[task]
    best = 0.0
    for text in candidates(answer):
        value = grader(text, entry, config)
        if value >= 1.0:
            return 1.0
        best = max(best, value)
    return best if partial_credit else 0.0


def fault_of(task: str, config: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Why no answer to `entry` can be right, for its own gold answer is not; empty if that is right, or not known."""
    if task in SOLVED:  # where a grader raises on what a solver cannot take
        return ""
    why = "its entry was edited, or is of another reasoning-gym version"
    try:
        gold = gold_answer(task, entry)
        if gold is None and entry["answer"] is None and task not in STORED_ELSEWHERE:
            return f"the row has no gold answer: {why}"
        if not gold or not gold.strip() or grade(task, config, entry, gold.strip()) == 1.0:
            return ""
    except Exception as error:
        return f"the row's own gold answer cannot be graded: {why} ({type(error).__name__}: {error})"
    return f"the row's own gold answer scores 0: {why}"
