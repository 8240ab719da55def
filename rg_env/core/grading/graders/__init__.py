"""The grader of each task, which grades one answer against one entry. Callers should use `core.grading.scoring`.

All graders here are the project's own. They never evaluate the model's text, and take time linear in the answer: a few
milliseconds for `scoring.MAX_ANSWER_CHARS` characters. They return real progress in [0, 1]: 1.0 for an answer a user
would call right, and less only for measurable partial progress. `core.grading.upstream` has the library's graders.
"""

from collections.abc import Mapping
from typing import Any

from rg_env.core.grading.graders import (
    algebra,
    algorithmic,
    arc,
    arithmetic,
    cognition,
    games,
    graphs,
    logic,
    move_games,
)
from rg_env.core.grading.graders.common import Grader
from rg_env.core.grading.graders.forms import candidates
from rg_env.core.grading.graders.gold import SOLVED, STORED_ELSEWHERE, corrected
from rg_env.core.grading.graders.gold import gold_answer as gold_answer

_CATEGORIES = algebra, algorithmic, arc, arithmetic, cognition, games, graphs, logic, move_games
GRADERS: dict[str, Grader] = {task: grader for category in _CATEGORIES for task, grader in category.GRADERS.items()}
"""Each task's grader."""
QUOTED = frozenset({"codeio"})
"""Tasks where quotes turn the answer into a different value, a string."""
COMPOSED = frozenset({
    "ab", "arc_1d", "arc_agi", "binary_matrix", "boxnet", "cryptarithm", "futoshiki", "game_of_life", "graph_color",
    "group_anagrams", "jugs", "kakurasu", "knight_swap", "knights_knaves", "list_functions", "manipulate_matrix",
    "mini_sudoku", "modulo_grid", "n_queens", "number_filtering", "number_sorting", "palindrome_partitioning",
    "path_star", "pool_matrix", "propositional_logic", "quantum_lock", "rearc", "rotate_matrix", "rubiks_cube",
    "rush_hour", "shortest_path", "sokoban", "spiral_matrix", "string_splitting", "string_synthesis", "sudoku",
    "survo", "tower_of_hanoi", "word_ladder", "word_sequence_reversal", "word_sorting",
})  # fmt: skip
"""Tasks whose answers are lists, grids, moves or claims, not single values; `The answer is` is not removed there."""
BRACKETED = frozenset({"bf", "codeio", "intermediate_integration", "simple_integration"})
"""Tasks where brackets around the answer change its value, belong to a program's output, or are parsed."""


def grade(
    task: str, config: Mapping[str, Any], entry: Mapping[str, Any], answer: str, *, partial_credit: bool = False
) -> float:
    """Grade `answer`: 1.0 if right and 0.0 otherwise, or real progress in [0, 1] with `partial_credit`.

    `entry` is the library's item in JSON form. Errors caused by an invalid `entry` propagate; `scoring` distinguishes
    them from wrong answers.
    """
    grader = GRADERS[task]
    entry = corrected(task, entry, config)
    best = 0.0
    texts = candidates(answer, label=task not in COMPOSED, quotes=task not in QUOTED, brackets=task not in BRACKETED)
    for text in texts:
        value = grader(text, entry, config)
        if value >= 1.0:
            return 1.0
        best = max(best, value)
    return best if partial_credit else 0.0


def fault_of(task: str, config: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Why the entry's own gold answer is not graded as right; empty if it is, or if the reason is unknown."""
    if task in SOLVED:  # these graders raise on entries that the solver cannot handle
        return ""
    why = "its entry was edited, or is of another reasoning-gym version"
    try:
        gold = gold_answer(task, entry, config)
        if gold is None and entry["answer"] is None and task not in STORED_ELSEWHERE:
            return f"the row has no gold answer: {why}"
        if not gold or not gold.strip() or grade(task, config, entry, gold.strip()) == 1.0:
            return ""
    except Exception as error:
        return f"the row's own gold answer cannot be graded: {why} ({type(error).__name__}: {error})"
    return f"the row's own gold answer scores 0: {why}"
