"""Graders of the logic tasks."""

import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders.logic import GRADERS


def _grade(task: str, answer: str, gold: str | None, **metadata: Any) -> float:
    return GRADERS[task](answer, {"question": "?", "answer": gold, "metadata": metadata}, {})


ISLAND = {
    "names": ["Ann", "Bob", "Cid"],
    "solution": [True, False, True],
    "knight_knave_terms": {"knight": "hero", "knave": "villain", "a_knight": "a hero", "a_knave": "a villain"},
}


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Ann is a hero, Bob is a villain, and Cid is a hero.", 1.0),
        ("cid is a HERO and bob is a villain and ann is a hero", 1.0),
        ("Ann: hero\nBob: villain\nCid: hero", 1.0),
        ("**Ann** is a hero; **Bob** is a villain; **Cid** is a hero", 1.0),
        ("Ann and Cid are heroes, Bob is a villain", 1.0),
        ("So Ann is a hero, while Bob is a villain, Cid is a hero", 1.0),
        ("Ann is a hero, Bob is a villain, and Cid is a hero. Cid is a hero", 1.0),
        ("Ann is a hero, Bob is a villain", 0.0),
        ("Ann is a hero, Bob is a villain, and Cid is a villain.", 0.0),
        ("Ann is a hero/villain, Bob is a villain/hero, Cid is a hero/villain", 0.0),
        ("Ann is a hero or villain, Bob is a villain, Cid is a hero", 0.0),
        ("Ann is a hero, villain, Bob is a villain, Cid is a hero", 0.0),  # the library pays this
        ("Ann is a hero, Ann is a villain, Bob is a villain, Cid is a hero", 0.0),
        ("Ann is not a hero, Bob is a villain, Cid is a hero", 0.0),
        ("It is false that Ann is a hero, Bob is a villain, Cid is a hero", 0.0),
        ("Ann, Bob, Cid: hero villain hero", 0.0),
        ("Ann is a knight, Bob is a knave, and Cid is a knight.", 0.0),
        ("hero villain hero", 0.0),
        ("Ann Bob Cid", 0.0),
        ("", 0.0),
    ],
)
def test_knights_knaves_wants_every_role(answer: str, value: float) -> None:
    """All roles right in any order and plain wording; two roles for one person are none."""
    assert _grade("knights_knaves", answer, "-", **ISLAND) == value


@given(st.lists(st.sampled_from(["Ann", "Bob", "Cid", "hero", "villain", "is", "are", "and", "not", "x"]), max_size=14))
def test_knights_knaves_is_never_right_with_one_role_alone(words: list[str]) -> None:
    """Any text is read, and what is right names everybody and both roles."""
    if _grade("knights_knaves", " ".join(words), "-", **ISLAND):
        assert {"Ann", "Bob", "Cid", "hero", "villain"} <= set(words)


CHAIN = {"variables": ["P", "Q", "R", "S"], "premises": ["(P → Q)", "(Q → R)", "P"], "example_answer": "(R ∨ S)"}


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("(R ∨ S)", 1.0),
        ("R", 1.0),  # derived in two steps; the library calls single variables trivial
        ("P → R", 1.0),
        ("P -> R", 1.0),
        ("∴ P → R", 1.0),
        (r"P \to R", 1.0),
        ("Q ∧ R", 1.0),
        ("Q ∧ P", 0.0),  # `P` is a premise
        ("¬P ∨ Q", 0.0),  # a premise in other words
        ("¬Q → ¬P", 0.0),
        ("¬R → ¬P", 1.0),
        ("P ∨ S", 0.0),  # implied by a premise
        ("S", 0.0),
        ("R → P ∧ S", 0.0),
        ("P ∨ ¬P", 0.0),
        ("P", 0.0),
        ("¬¬P", 0.0),
        ("P ∧ P", 0.0),
        ("P → Q", 0.0),
        ("(P → Q) ∧ (Q → R) ∧ P", 0.0),
        ("P ∧ ((Q → R) ∧ (P → Q))", 0.0),
        ("(P → Q) ∨ P", 0.0),
        ("(P → Q) ∨ S", 0.0),
        ("S → (P → Q)", 0.0),
        ("S → (¬P ∨ Q)", 0.0),  # the premise in other words
        ("¬¬(P → Q) ∧ R", 0.0),
        ("P → (Q ∧ (S ∨ ¬S))", 0.0),  # a premise, padded
        ("P ∨ (P ∧ S)", 0.0),
        ("T ∨ P", 0.0),
        ("(Q ∨ Q) (Q", 0.0),
        ("We conclude R", 0.0),
        ("None", 0.0),
        ("", 0.0),
    ],
)
def test_propositional_logic_wants_a_conclusion(answer: str, value: float) -> None:
    """What follows, and holds nothing that one premise says, is right."""
    assert _grade("propositional_logic", answer, None, **CHAIN) == value


def test_propositional_logic_is_quick_with_many_variables() -> None:
    """Sixteen variables and the longest answers stay far below what a table row by row would take."""
    names = [chr(ord("P") + i) for i in range(16)]
    entry = {"variables": names, "premises": [f"({a} → {b})" for a, b in pairwise(names)]}
    answers = [" ∨ ".join(names * 12), " → ".join("PQRS" * 49), "(" * 5000, "¬" * 10_000, "P ∧ (Q ∨ " * 1000]
    start = time.perf_counter()
    for answer in answers:
        _grade("propositional_logic", answer, None, example_answer="P", **entry)
    assert time.perf_counter() - start < 0.5
    assert _grade("propositional_logic", "P → R", None, example_answer="P", **entry) == 1.0


@given(st.text(alphabet="PQRS()¬∧∨→↔ ", max_size=50))
def test_propositional_logic_reads_any_text(answer: str) -> None:
    """Any text of the language's signs gets a value."""
    assert _grade("propositional_logic", answer, None, **CHAIN) in (0.0, 1.0)


@pytest.mark.parametrize(
    ("task", "gold", "right", "wrong"),
    [
        ("aiw", "5", ["5.0", "５"], ["15", "5 or 6", "", "five"]),
        ("circuit_logic", "0", ["0", "0.0"], ["1", "0 1", "00 or 1", "", "[0]"]),
        ("self_reference", "2", ["2", "+2"], ["20", "1 2 3", "", "9" * 10_000]),
        ("syllogism", "Yes", ["yes", "YES "], ["No", "Yes and No", "Yes No", "not yes", ""]),
        ("zebra_puzzles", "bob", ["Bob", " BOB\n"], ["bobby", "bob alice", "alice, bob", ""]),
    ],
)
def test_single_values(task: str, gold: str, right: list[str], wrong: list[str]) -> None:
    """One value in any way of writing it, and nothing around it."""
    assert [_grade(task, answer, gold) for answer in right] == [1.0] * len(right)
    assert [_grade(task, answer, gold) for answer in wrong] == [0.0] * len(wrong)
