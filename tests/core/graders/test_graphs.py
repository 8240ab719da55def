"""Graders of the graphs tasks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.graders.graphs import GRADERS


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
        ("A → C → C → A → B → B", 0.0),  # C is dead in red light: the library ignores the press
        ("B → B → A → B → B", 3 / 5 / 2),  # 0, 0, 2, 4, 8
        ("A → B", 0.0),
        ("press A then B then B", 0.0),  # the library reads its letters A, B, C anywhere
        ("", 0.0),
        ("B → " * 2000, 0.0),
    ],
)
def test_quantum_lock_wants_a_shortest_sequence(answer: str, value: float) -> None:
    """Only active buttons, as few presses as possible; at most half for more."""
    assert _grade("quantum_lock", answer, "A → B → B", **LOCK) == pytest.approx(value)


def test_quantum_lock_takes_another_shortest_sequence() -> None:
    """Not only the stored sequence is right."""
    lock = {**LOCK, "target_value": 4, "solution_path": ["A", "B"]}
    lock["buttons"] = [*LOCK["buttons"], {"name": "D", "type": "add", "value": 2, "active_state": "any"}]
    assert [_grade("quantum_lock", answer, "A → B", **lock) for answer in ("A B", "D D", "A D", "B D")] == [1, 1, 1, 0]


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
    ("stored", "person", "answer", "value"),
    [
        ("mother-in-law", "Mary", "mother-in-law", 1.0),
        ("mother-in-law", "Mary", "Mother in law", 1.0),
        ("mother-in-law", "Mary", "daughter-in-law", 1.0),  # the question is what Mary is to the other
        ("mother-in-law", "Mary", "son-in-law", 0.0),
        ("father-in-law", "James", "son-in-law", 1.0),
        ("father-in-law", "James", "mother-in-law", 0.0),
        ("nephew", "Mary", "niece", 1.0),
        ("nephew", "Mary", "uncle", 0.0),
        ("niece", "Nobody", "nephew", 0.0),  # of unknown sex
        ("mother", "Mary", "daughter", 0.0),
        ("mother", "Mary", "mother", 1.0),
        ("mother", "Mary", "mother father", 0.0),
        ("mother", "Mary", "", 0.0),
    ],
)
def test_family_relationships_are_those_of_the_first_person(
    stored: str, person: str, answer: str, value: float
) -> None:
    """The stored word, and the right one where the library stores the second person's."""
    assert _grade("family_relationships", answer, stored, person1=person) == value


def test_family_relationships_reads_the_names_of_the_config() -> None:
    """Who is a man is said by the config's names, where it has some."""
    config = {"male_names": ["Mary"], "female_names": ["James"]}
    assert _grade("family_relationships", "son-in-law", "mother-in-law", config, person1="Mary") == 1.0


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
