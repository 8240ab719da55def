"""Games with moves: the solvers that provide gold answers, and paths and locks."""

import time
from typing import Any

from grader_cases import entry
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import gold_answer, grade
from rg_env.core.grading.graders.move_games import is_shortest_lock

TRAFFIC = entry(None, board_config="oooooo" + "ooooCo" + "AAooCo" + "oooooo" + "oxHHHo" + "IIoooo")
HARD_TRAFFIC = entry(None, board_config="IBBxoo" + "IooLDD" + "JAALoo" + "JoKEEM" + "FFKooM" + "GGHHHM")


def boxes(**squares: list[str]) -> dict[str, Any]:
    """Items of squares named like s02."""
    empty: dict[str, list[str]] = {f"{row}.5_{column}.5": [] for row in range(2) for column in range(3)}
    named = {f"{name[1]}.5_{name[2]}.5": items for name, items in squares.items()}
    return entry(None, initial_state={**empty, **named})


MANY_BOXES = boxes(
    s00=["box_red", "box_red", "box_light blue"],
    s12=["target_red", "box_red", "target_red"],
    s01=["target_red"],
    s10=["target_light blue"],
)


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
    assert grade("boxnet", {}, MANY_BOXES, gold_answer("boxnet", MANY_BOXES) or "") == 1.0


MAZE = entry(
    "", matrix=[["*", "O", "O"], ["O", "X", "O"], ["O", "O", "#"]], solution=["right", "right", "down", "down"]
)


def lock(solution: str, target: int, *buttons: tuple[str, str, int, str]) -> dict[str, Any]:
    """A lock that starts with 0 and a red light. Buttons have name, type, value and active state."""
    keys = ("name", "type", "value", "active_state")
    return entry(
        " → ".join(solution),
        initial_value=0,
        initial_state="red",
        target_value=target,
        solution_path=list(solution),
        buttons=[dict(zip(keys, button, strict=True)) for button in buttons],
    )


A, B, C = ("A", "add", 2, "red"), ("B", "multiply", 2, "any"), ("C", "subtract", 1, "green")
GREEN, UP, DOWN = ("A", "add", 3, "green"), ("B", "add", 1, "any"), ("C", "subtract", 1, "any")


def test_locks_with_a_shorter_sequence_by_the_letter_are_known() -> None:
    """`A → A` is shorter under the literal reading: its first press has no effect but toggles the light."""
    assert not is_shortest_lock(lock("CAB", 3, GREEN, UP, DOWN))
    assert is_shortest_lock(lock("BA", 4, GREEN, UP, DOWN))
    assert is_shortest_lock(lock("ABB", 8, A, B, C))


@given(st.lists(st.sampled_from(["up", "down", "left", "right"]), max_size=12))
def test_shortest_path_pays_only_what_arrives(path: list[str]) -> None:
    """Only the two shortest ways around the block get full value, among all paths tried."""
    right = path in (["right", "right", "down", "down"], ["down", "down", "right", "right"])
    assert (grade("shortest_path", {}, MAZE, " ".join(path)) == 1.0) == right
