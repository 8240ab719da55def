"""Graders of the graphs tasks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders.graphs import GRADERS, is_shortest_lock


def _grade(task: str, answer: str, gold: str, config: dict[str, Any] | None = None, **metadata: Any) -> float:
    return GRADERS[task](answer, {"question": "?", "answer": gold, "metadata": metadata}, config or {})


MAZE: dict[str, Any] = {
    "matrix": [["*", "O", "O"], ["O", "X", "O"], ["O", "O", "#"]],
    "solution": ["right", "right", "down", "down"],
}


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("right right down down", 1.0),
        ("down down right right", 1.0),
        ("Right, Right, Down, Down", 1.0),
        ('["right", "right", "down", "down"]', 1.0),
        ("right → right -> down\ndown", 1.0),
        ("right left right right down down", 4 / 6 / 2),
        ("right down right down", 0.0),  # through a blocked cell
        ("right right right down down left", 0.0),  # leaves the grid
        ("right right down", 0.0),
        ("right right down down please", 0.0),
        ("infeasible", 0.0),
        ("", 0.0),
    ],
)
def test_shortest_path_takes_any_shortest(answer: str, value: float) -> None:
    """Any shortest path is right, a longer one at most half."""
    assert _grade("shortest_path", answer, "right right down down", **MAZE) == pytest.approx(value)


@pytest.mark.parametrize(
    ("answer", "value"), [("infeasible", 1.0), ("Infeasible", 1.0), ('"infeasible"', 1.0), ("right", 0.0), ("", 0.0)]
)
def test_shortest_path_may_be_infeasible(answer: str, value: float) -> None:
    """Where no path exists, only saying so is right."""
    assert _grade("shortest_path", answer, "infeasible", matrix=[["*", "X", "#"]], solution=[]) == value


LOCK: dict[str, Any] = {
    "initial_value": 0,
    "initial_state": "red",
    "target_value": 8,
    "solution_path": ["A", "B", "B"],
    "buttons": [
        {"name": "A", "type": "add", "value": 2, "active_state": "red"},
        {"name": "B", "type": "multiply", "value": 2, "active_state": "any"},
        {"name": "C", "type": "subtract", "value": 1, "active_state": "green"},
    ],
}


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("A → B → B", 1.0),
        ("a->b->b", 1.0),
        ("A, B, B", 1.0),
        ("ABB", 1.0),
        ("['A', 'B', 'B']", 1.0),
        ("A → C → C → A → B → B", 0.0),  # the library ignores the second C, pressed in red light
        ("C → A → B → B", 0.0),
        ("B → A → A → B → B", 3 / 5 / 2),  # the first A toggles the light and does no more
        ("B → B → A → B → B", 3 / 5 / 2),  # 0, 0, 2, 4, 8
        ("A → B", 0.0),
        ("press A then B then B", 0.0),  # the library reads its letters A, B, C anywhere
        ("", 0.0),
        ("B → " * 2000, 0.0),
    ],
)
def test_quantum_lock_wants_a_shortest_sequence(answer: str, value: float) -> None:
    """As few presses as possible; at most half for more. Each toggles the light, also one without effect."""
    assert _grade("quantum_lock", answer, "A → B → B", **LOCK) == pytest.approx(value)


def test_quantum_lock_takes_another_shortest_sequence() -> None:
    """Not only the stored sequence is right."""
    lock = {**LOCK, "target_value": 4, "solution_path": ["A", "B"]}
    lock["buttons"] = [*LOCK["buttons"], {"name": "D", "type": "add", "value": 2, "active_state": "any"}]
    assert [_grade("quantum_lock", answer, "A → B", **lock) for answer in ("A B", "D D", "A D", "B D")] == [1, 1, 1, 0]


def test_quantum_lock_takes_the_press_that_only_toggles_the_light() -> None:
    """By the letter of the question, where that is no shorter than the stored sequence."""
    buttons = [
        {"name": "A", "type": "add", "value": 3, "active_state": "green"},
        {"name": "B", "type": "add", "value": 1, "active_state": "any"},
        {"name": "C", "type": "subtract", "value": 1, "active_state": "any"},
    ]
    lock = {**LOCK, "target_value": 4, "solution_path": ["B", "A"], "buttons": buttons}
    assert [_grade("quantum_lock", answer, "B → A", **lock) for answer in ("B A", "A A", "A B", "B B")] == [1, 0, 0, 0]
    lock = {**lock, "target_value": 3, "solution_path": ["C", "A", "B"]}
    assert _grade("quantum_lock", "C → A → B", "C → A → B", **lock) == 1.0
    assert not is_shortest_lock({"metadata": lock})  # A → A
    assert is_shortest_lock({"metadata": {**lock, "target_value": 4, "solution_path": ["B", "A"]}})
    assert is_shortest_lock({"metadata": {**LOCK, "solution_path": ["A", "B", "B"]}})


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("1 3 5", 1.0),
        ("1 -> 3 -> 5", 1.0),
        ("1→3→5", 1.0),
        ("[1, 3, 5]", 1.0),
        ("1 3 5 5", 0.0),
        ("5 3 1", 0.0),
        ("135", 0.0),
        ("", 0.0),
    ],
)
def test_path_star_is_the_path(answer: str, value: float) -> None:
    """One path, in its direction, however separated."""
    assert _grade("path_star", answer, "1 3 5") == value


@pytest.mark.parametrize(
    ("task", "gold", "right", "wrong"),
    [
        ("course_schedule", "True", ["true", " TRUE "], ["False", "True or False", "not True", "", "1"]),
        ("largest_island", "12", ["12.0", "１２", "+12"], ["112", "1 2", "12 13", "", "nan"]),
    ],
)
def test_single_values(task: str, gold: str, right: list[str], wrong: list[str]) -> None:
    """One value in any way of writing it, and nothing around it."""
    assert [_grade(task, answer, gold) for answer in right] == [1.0] * len(right)
    assert [_grade(task, answer, gold) for answer in wrong] == [0.0] * len(wrong)


@given(st.lists(st.sampled_from(["up", "down", "left", "right"]), max_size=12))
def test_shortest_path_pays_only_what_arrives(path: list[str]) -> None:
    """Full value for exactly the two shortest ways round the block, whatever else is walked."""
    right = path in (["right", "right", "down", "down"], ["down", "down", "right", "right"])
    assert (_grade("shortest_path", " ".join(path), "", **MAZE) == 1.0) == right
