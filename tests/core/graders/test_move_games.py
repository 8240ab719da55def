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
    """A slide of any length is one move. A board with a wall in front of the car has no solution; a solved one needs no
    moves."""
    assert gold_answer("rush_hour", TRAFFIC) == "B-1 A+4"
    start = time.process_time()
    solution = gold_answer("rush_hour", HARD_TRAFFIC)
    assert time.process_time() - start < 5.0
    assert solution is not None
    assert len(solution.split()) == 60  # as listed in the library's table of puzzles
    assert grade("rush_hour", {}, HARD_TRAFFIC, solution) == 1.0
    for line, gold in (("AAoxoo", None), ("ooooAA", "")):
        assert gold_answer("rush_hour", entry(None, board_config="o" * 12 + line + "o" * 18)) == gold


def test_the_solver_of_boxnet_matches_all_boxes() -> None:
    """The plan handles several boxes of a color, targets under boxes, and colors of two words."""
    item = entry(None, initial_state=MANY_BOXES)
    assert grade("boxnet", {}, item, gold_answer("boxnet", item) or "") == 1.0


def test_locks_with_a_shorter_literal_solution_are_recognized() -> None:
    """Read literally, the rules allow a shorter sequence for the last lock, because the first press of `A → A` changes
    nothing but the light."""
    locks = [case.entry for _, case in CASES if case.task == "quantum_lock"]
    assert [is_shortest_lock(lock) for lock in locks] == [True, True, True, False]


@given(st.lists(st.sampled_from(["up", "down", "left", "right"]), max_size=12))
def test_only_the_shortest_paths_get_full_value(path: list[str]) -> None:
    """Of all paths tried, only the two shortest ones around the obstacle get full value."""
    right = path in (["right", "right", "down", "down"], ["down", "down", "right", "right"])
    maze = next(case.entry for _, case in CASES if case.task == "shortest_path")
    assert (grade("shortest_path", {}, maze, " ".join(path)) == 1.0) == right
