"""Games with moves: the solvers that provide gold answers, and paths and locks."""

import time

from grader_cases import cases, entry
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import gold_answer, grade
from rg_env.core.grading.graders.move_games import is_shortest_lock

CASES = cases()
TRAFFIC = entry(None, board_config="oooooo" + "ooooCo" + "AAooCo" + "oooooo" + "oxHHHo" + "IIoooo")
HARD_TRAFFIC = entry(None, board_config="IBBxoo" + "IooLDD" + "JAALoo" + "JoKEEM" + "FFKooM" + "GGHHHM")


MANY_BOXES = {
    "0.5_0.5": ["box_red", "box_red", "box_light blue"],
    "0.5_1.5": ["target_red"],
    "0.5_2.5": [],
    "1.5_0.5": ["target_light blue"],
    "1.5_1.5": [],
    "1.5_2.5": ["target_red", "box_red", "target_red"],
}


def test_the_solver_of_rush_hour_finds_the_shortest_solution() -> None:
    """A slide of any length is one move. A wall in front of the car has no solution; a solved board needs no moves."""
    assert gold_answer("rush_hour", TRAFFIC) == "B-1 A+4"
    start = time.perf_counter()
    solution = gold_answer("rush_hour", HARD_TRAFFIC)
    assert time.perf_counter() - start < 2.0
    assert solution is not None
    assert len(solution.split()) == 60  # as the library's table of puzzles lists
    assert grade("rush_hour", {}, HARD_TRAFFIC, solution) == 1.0
    for line, gold in (("AAoxoo", None), ("ooooAA", "")):
        assert gold_answer("rush_hour", entry(None, board_config="o" * 12 + line + "o" * 18)) == gold


def test_the_solver_of_boxnet_matches_all_boxes() -> None:
    """The plan matches several boxes of a color, targets under boxes, and colors of two words."""
    item = entry(None, initial_state=MANY_BOXES)
    assert grade("boxnet", {}, item, gold_answer("boxnet", item) or "") == 1.0


def test_locks_with_a_shorter_sequence_by_the_letter_are_known() -> None:
    """The sequence of the last lock is too long under the literal reading, because the first press of `A → A` has no
    effect but toggles the light."""
    locks = [case.entry for _, case in CASES if case.task == "quantum_lock"]
    assert [is_shortest_lock(lock) for lock in locks] == [True, True, True, False]


@given(st.lists(st.sampled_from(["up", "down", "left", "right"]), max_size=12))
def test_shortest_path_pays_only_what_arrives(path: list[str]) -> None:
    """Only the two shortest ways around the block get full value, among all paths tried."""
    right = path in (["right", "right", "down", "down"], ["down", "down", "right", "right"])
    maze = next(case.entry for _, case in CASES if case.task == "shortest_path")
    assert (grade("shortest_path", {}, maze, " ".join(path)) == 1.0) == right
