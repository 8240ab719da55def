"""Questions solved from their text, by code that knows neither the library's metadata nor our graders.

A solver's answer must be graded as right, and equal the gold answer if only one answer is right. Errors of the library
found this way are corrected in `core.grading.graders.gold`; questions without a single answer are listed in
`core.tasks.library_fixes.LEFT_OUT`.
"""

import json

import pytest
from audit.rows import draws

from rg_env.core.grading.graders import forms, grade
from rg_env.core.tasks.task_table import load_table, working_levels
from solvers import SOLVERS

MANY_ANSWERS = {
    *("advanced_geometry", "boxnet", "caesar_cipher", "coin_flip", "complex_arithmetic", "countdown", "cryptarithm"),
    *("decimal_arithmetic", "decimal_chain_sum", "futoshiki", "fraction_simplification", "game_of_life", "graph_color"),
    *("group_anagrams", "jugs", "kakurasu", "knight_swap", "knights_knaves", "n_queens", "number_format"),
    *("palindrome_generation", "palindrome_partitioning", "polynomial_equations", "polynomial_multiplication"),
    *("pool_matrix", "power_function", "prime_factorization", "propositional_logic", "puzzle24", "quantum_lock"),
    *("rush_hour", "shortest_path", "simple_integration", "survo", "time_intervals", "tower_of_hanoi", "tsumego"),
    "word_ladder",
}
"""Tasks with several right answers or notations, so that the solver's answer may differ from the gold answer. kakurasu
and survo may have several solutions."""
N_ALL = 300
N_SLOW = {
    **dict.fromkeys(("countdown", "futoshiki", "rush_hour"), 6),  # one futoshiki question may take minutes
    "knight_swap": 10,
    **dict.fromkeys(("advanced_geometry", "puzzle24", "quantum_lock"), 40),
    **dict.fromkeys(("rectangle_count", "sudoku", "zebra_puzzles"), 40),
    **dict.fromkeys(("game_of_life", "polynomial_equations", "polynomial_multiplication", "simple_integration"), 60),
    **dict.fromkeys(("count_primes", "game_of_life_halting", "jugs", "mini_sudoku", "n_queens"), 100),
}
"""Number of questions for each task that is slow to generate or solve."""
HARDER = {
    *("countdown", "cryptarithm", "futoshiki", "graph_color", "jugs", "kakurasu", "knight_swap", "letter_jumble"),
    *("n_queens", "puzzle24", "quantum_lock", "rectangle_count", "rush_hour", "sudoku", "survo", "tower_of_hanoi"),
    *("advanced_geometry", "count_primes", "game_of_life", "game_of_life_halting", "mini_sudoku", "modulo_grid"),
    *("polynomial_equations", "polynomial_multiplication", "simple_integration", "string_manipulation", "word_ladder"),
    "zebra_puzzles",
}
"""Tasks with higher levels that the library generates too slowly or these solvers cannot solve."""


def _check(task: str, n: int, seed: int, config: dict[str, object] | None = None) -> None:
    for item in draws().items(task, n, seed, config):
        answer, gold = SOLVERS[task](item.question), item.gold or ""
        shown = f"solved {answer!r}, gold {gold!r}: {item.question}"
        assert grade(task, config or {}, json.loads(item.entry), answer) == 1.0, shown
        same = forms.same_text(answer.casefold(), gold.casefold())
        assert same or task in MANY_ANSWERS, shown


def test_most_tasks_have_a_solver() -> None:
    """The other tasks need a dictionary, a picture or the discovery of a rule."""
    assert set(SOLVERS) <= set(load_table())
    assert len(SOLVERS) == 93


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(SOLVERS))
def test_many_solved_questions_are_graded_as_right(task: str) -> None:
    """This covers up to 300 questions of each task."""
    _check(task, N_SLOW.get(task, N_ALL), seed=21)


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(task for task in {*SOLVERS} - HARDER if working_levels(task)))
def test_harder_questions_are_graded_as_right(task: str) -> None:
    """This covers questions at level 2 of the task's curriculum, or at its highest working level below 2."""
    level = max(level for level in working_levels(task) if level <= 2)
    _check(task, 6, seed=5, config=working_levels(task)[level])
