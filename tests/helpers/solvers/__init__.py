"""Solvers that use only a question's text, independent of the library's metadata and of our graders.

    SOLVERS["gcd"]("Find the Greatest Common Divisor (GCD) of these numbers: 355, 215. ...")       # "5"

A solver returns an answer as a person would write it. If this answer differs from the gold answer of a row, or is not
graded as right, the library, the grader or the solver is wrong.
"""

from collections.abc import Callable

from rg_env.core.tasks.task_table import load_table
from solvers import algebra, arithmetic, boards, codes, dates, games, grids, houses, numbers, people, puzzles, words

Solver = Callable[[str], str]

MODULES = algebra, arithmetic, boards, codes, dates, games, grids, houses, numbers, people, puzzles, words
SOLVERS: dict[str, Solver] = {
    task: getattr(module, task) for task in sorted(load_table()) for module in MODULES if hasattr(module, task)
}
"""Functions of these modules that are named after a task."""
