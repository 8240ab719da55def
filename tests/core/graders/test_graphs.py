"""Graders of the graphs tasks."""

from typing import Any

from grader_cases import Row, entry, row, table
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import grade
from rg_env.core.grading.graders.move_games import is_shortest_lock

MAZE = entry(
    "", matrix=[["*", "O", "O"], ["O", "X", "O"], ["O", "O", "#"]], solution=["right", "right", "down", "down"]
)
CLOSED = entry("infeasible", matrix=[["*", "X", "#"]], solution=[])


def lock(solution: str, target: int, *buttons: tuple[str, str, int, str]) -> dict[str, Any]:
    """A lock that begins with 0 and a red light; buttons with name, type, value and active state."""
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


@table(
    row(
        "shortest_path",
        MAZE,
        [
            *("right right down down", "down down right right", "Right, Right, Down, Down"),
            *('["right", "right", "down", "down"]', "right → right -> down\ndown"),
        ],
        "right down right down | right right right down down left | right right down | right right down down please | "
        "infeasible",  # through a blocked cell, out of the grid, not far enough
        {"right left right right down down": 4 / 6 / 2},
    ),
    row("shortest_path", CLOSED, 'infeasible | Infeasible | "infeasible"', "right"),
    row(
        "quantum_lock",
        lock("ABB", 8, A, B, C),
        "A → B → B | a->b->b | A, B, B | ABB | ['A', 'B', 'B']",
        # the library ignores the second C, pressed in red light, and reads letters in any text
        ["A → C → C → A → B → B", "C → A → B → B", "A → B", "press A then B then B", "B → " * 2000],
        # a press without effect toggles the light all the same
        {"B → A → A → B → B": 3 / 5 / 2, "B → B → A → B → B": 3 / 5 / 2},
    ),
    row("quantum_lock", lock("AB", 4, A, B, C, ("D", "add", 2, "any")), "A B | D D | A D", "B D"),
    row("quantum_lock", lock("BA", 4, GREEN, UP, DOWN), "B A", "A A | A B | B B"),
    row("quantum_lock", lock("CAB", 3, GREEN, UP, DOWN), "C → A → B"),
    row("path_star", entry("1 3 5"), "1 3 5 | 1 -> 3 -> 5 | 1→3→5 | [1, 3, 5]", "1 3 5 5 | 5 3 1 | 135"),
    row("course_schedule", entry("True"), "true |  TRUE ", "False | True or False | not True | 1"),
    row("largest_island", entry("12"), "12.0 | １２ | +12", "112 | 1 2 | 12 13 | nan"),
)
def test_answers_score_what_they_are_worth(row: Row) -> None:
    """Any shortest path or sequence is right; a longer one scores half of its ratio to the shortest."""
    row.check()


def test_locks_with_a_shorter_sequence_by_the_letter_are_known() -> None:
    """`A → A` first presses a button without effect."""
    assert not is_shortest_lock(lock("CAB", 3, GREEN, UP, DOWN))
    assert is_shortest_lock(lock("BA", 4, GREEN, UP, DOWN))
    assert is_shortest_lock(lock("ABB", 8, A, B, C))


@given(st.lists(st.sampled_from(["up", "down", "left", "right"]), max_size=12))
def test_shortest_path_pays_only_what_arrives(path: list[str]) -> None:
    """Full value for exactly the two shortest ways round the block, whatever else is walked."""
    right = path in (["right", "right", "down", "down"], ["down", "down", "right", "right"])
    assert (grade("shortest_path", {}, MAZE, " ".join(path)) == 1.0) == right
