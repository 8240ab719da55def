"""On rows that the shipped table was not made from, no reply found by a cheap search pays more than the table states.
The attacks are the search itself (`tools/cheap_replies.py`): thousands of replies per task, derived from the question's
text, from gold answers of other questions, and from tricks with numbers, formulas and formatting.
"""

import os
from math import sqrt

import pytest
from cheap_replies import SHORTCUTS, Found, search
from graded_rows import rows_of

from rg_env.core.grading.audit import kept
from rg_env.core.tasks.task_table import load_table

QUICK = ("coin_flip", "graph_color", "knights_knaves", "propositional_logic", "simple_integration", "sudoku")
"""Graders that had holes, or that read formulas, sentences and boards. All tasks are searched with RG_ENV_MANY set."""
ROWS = 40


def bound(share: float, rows: int) -> float:
    """Upper bound on few rows, by chance, of a fraction measured on 200 rows: four standard errors."""
    likely = max(share, 0.02)
    return likely + 4 * sqrt(likely * (1 - likely) / rows)


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(load_table()) if "RG_ENV_MANY" in os.environ else QUICK)
def test_nothing_cheap_pays_more_than_was_measured(task: str) -> None:
    """Neither in full nor with partial credit; what is above one half has a reason."""
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
    """Those that are slow to draw on twenty rows, others on up to two hundred."""
    for task, result in kept().items():
        assert result.rows >= 20, task


def test_what_pays_above_one_half_has_a_reason() -> None:
    """Every such task is listed with why it is not a hole in the grader, and no task is listed in vain."""
    above = {task for task, result in kept().items() if max(result.exploit, result.partial) > 0.5}
    assert above <= set(SHORTCUTS)
    assert set(SHORTCUTS) <= {task for task, result in kept().items() if max(result.exploit, result.partial) > 0.4}
