"""Tests that, on new rows, no reply found by a cheap search scores more than the shipped table states.

The attacks are the search itself (`tools/audit/search.py`): thousands of replies per task, derived from the question's
text, from gold answers to other questions, and from tricks with numbers, formulas and formatting.
"""

import os
from math import sqrt

import pytest
from audit.rows import rows_of
from audit.search import SHORTCUTS, Found, search

from rg_env.core.grading.audit import kept
from rg_env.core.tasks.task_table import load_table

QUICK = ("coin_flip", "graph_color", "knights_knaves", "propositional_logic", "simple_integration", "sudoku")
"""Tasks whose graders had holes, or read formulas, sentences or boards. With RG_ENV_MANY, all tasks are searched."""
ROWS = 40


def bound(share: float, rows: int) -> float:
    """Return an upper bound, four standard errors above `share`, for the fraction measured on `rows` rows."""
    likely = max(share, 0.02)
    return likely + 4 * sqrt(likely * (1 - likely) / rows)


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(load_table()) if "RG_ENV_MANY" in os.environ else QUICK)
def test_no_cheap_reply_scores_more_than_was_measured(task: str) -> None:
    """Neither strict scores nor partial credit exceed the measured ones."""
    train, held_out = rows_of(task, ROWS, ROWS, seed=77)
    found = search(task, train, held_out, seed=77, most_graded=15_000)
    known = kept()[task]

    def within(what: Found | None, share: float, partial: bool) -> None:
        if what is not None:
            paid = what.paid.partial if partial else what.paid.strict
            assert paid <= bound(share, len(held_out)), f"{paid:.2f}, {share:.2f} is known: {what.strategy.name}"

    within(found.constant, known.constant, partial=False)
    within(found.exploit, max(known.exploit, known.constant), partial=False)
    within(found.partial, max(known.partial, known.exploit, known.constant), partial=True)


def test_every_task_was_searched() -> None:
    """Each result is based on at least twenty rows."""
    for task, result in kept().items():
        assert result.rows >= 20, task


def test_scores_above_one_half_have_a_reason() -> None:
    """SHORTCUTS explains why a score above one half is not a hole in the grader."""
    above = {task for task, result in kept().items() if max(result.exploit, result.partial) > 0.5}
    assert above <= set(SHORTCUTS)
    assert set(SHORTCUTS) <= {task for task, result in kept().items() if max(result.exploit, result.partial) > 0.4}
