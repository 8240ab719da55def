"""Boxnet: plans are played strictly, and the solver's plan is right."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import gold_answer, grade
from rg_env.core.grading.graders.move_games import solve_boxnet as solve


def _entry(**squares: list[str]) -> dict[str, Any]:
    empty: dict[str, list[str]] = {f"{row}.5_{column}.5": [] for row in range(2) for column in range(3)}
    named = {f"{name[1]}.5_{name[2]}.5": items for name, items in squares.items()}
    return {"question": "", "answer": None, "metadata": {"initial_state": {**empty, **named}}}


ENTRY = _entry(s00=["box_red", "box_blue"], s02=["target_red"], s10=["target_blue"])
RED = [
    {"Agent[0.5, 0.5]": "move(box_red, square[0.5, 1.5])"},
    {"Agent[0.5, 1.5]": "move(box_red, square[0.5, 2.5])"},
    {"Agent[0.5, 2.5]": "move(box_red, target_red)"},
]
BLUE = [
    {"Agent[0.5, 0.5]": "move(box_blue, square[1.5, 0.5])"},
    {"Agent[1.5, 0.5]": "move(box_blue, target_blue)"},
]
BOTH = [RED[0], {**RED[1], **BLUE[0]}, {**RED[2], **BLUE[1]}]


def _grade(plan: Any, entry: dict[str, Any] = ENTRY, partial: bool = True) -> float:
    text = plan if isinstance(plan, str) else json.dumps(plan)
    return grade("boxnet", {}, entry, text, partial_credit=partial)


def test_a_plan_that_matches_all_boxes_is_right() -> None:
    """One after the other or at once, compact or fenced, as JSON or a Python literal."""
    for plan in (
        RED + BLUE,
        BLUE + RED,
        BOTH,
        str(BOTH),
        json.dumps(BOTH, separators=(",", ":")).replace(", ", ","),
        "```json\n" + json.dumps(BOTH, indent=1) + "\n```",
        [*RED, {}, *BLUE],
    ):
        assert _grade(plan) == 1.0, plan


def test_some_boxes_are_a_part() -> None:
    """Matched ones over all; a box that stands on its target but is not matched is not counted."""
    assert _grade(RED) == 0.5
    assert _grade(RED + BLUE[:1]) == 0.5
    assert _grade(RED, partial=False) == 0.0


RED_AT_ONCE = [{**RED[0], **RED[1], **RED[2]}]


@pytest.mark.parametrize(
    "plan",
    [
        "",
        "[]",
        "{}",
        "[[]]",
        "null",
        "0",
        {},
        [[]],
        ["move(box_red, target_red)"],
        [{"Agent[0.5, 0.5]": 1}],
        [{"Agent[0.5, 0.5]": None}],
        BOTH[0],
        RED_AT_ONCE + BLUE,  # across three squares in one step
        [*BOTH, BLUE[1]],  # a box that is gone
        [{"Agent[9.5, 0.5]": "move(box_red, target_red)"}, *BOTH],
        [{"Agent[1.5, 0.5]": "move(box_red, square[1.5, 1.5])"}, *BOTH],
        [{"Agent[0.5, 0.5]": "move(box_red, target_red)"}, *BOTH],
        [{"Agent[0.5, 0.5]": "move(box_red, square[0.5, 2.5])"}, RED[2], *BLUE],
        [{"Agent[0.5, 0.5]": "move(box_red, square[0.5, 0.5])"}, *BOTH],
        [{"Agent[0.5, 2.5]": "move(target_red, square[0.5, 1.5])"}, *BOTH],
        [{"Agent[0.5, 0.5]": "move(box_red, square[-1.5, 0.5])"}, *BOTH],
        [*RED[:2], {"Agent[0.5, 2.5]": "move(box_red, target_blue)"}, *BLUE],
        [{**RED[0], "Agent[0.5,0.5]": BLUE[0]["Agent[0.5, 0.5]"]}, RED[1], BOTH[2]],  # one agent does two things
        [{"Agent[0.5, 0.5]": "wait"}, *BOTH],
        "The plan: " + json.dumps(BOTH),
        "[{" * 5_000,
    ],
)
def test_wrong(plan: Any) -> None:
    """Impossible actions anywhere, which the library skips, and what is no plan, on which it raises."""
    assert _grade(plan) == 0.0


def test_the_solver_matches_all_boxes() -> None:
    """Also several boxes of a colour, targets under boxes, and colours of two words."""
    entry = _entry(
        s00=["box_red", "box_red", "box_light blue"], s12=["target_red", "box_red", "target_red"], s01=["target_red"],
        s10=["target_light blue"],
    )  # fmt: skip
    assert _grade(solve(entry), entry) == 1.0
    assert gold_answer("boxnet", ENTRY) == solve(ENTRY)
    assert _grade(solve(ENTRY)) == 1.0


ACTIONS = [*RED, *BLUE, {"Agent[0.5, 1.5]": "move(box_red, square[0.5, 0.5])"}]
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.lists(st.sampled_from(ACTIONS), max_size=8).map(json.dumps) | JSON.map(json.dumps) | st.text(max_size=50))
def test_no_text_raises(text: str) -> None:
    """Whatever stands in the answer."""
    assert 0.0 <= _grade(text) <= 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "[" + "{}," * 3_300 + "{}]",
        json.dumps([{"Agent[0.5, 0.5]": "move(" + " " * 9_000}]),
        json.dumps([{"Agent[0.5, 0.5]": "move(box_red," + " " * 9_000 + ")"}]),
        json.dumps([{"Agent[" + " " * 9_000: "move(box_red, target_red)"}]),
        json.dumps([{f"Agent[{number}.5, 0.5]": "move(box_red, target_red)" for number in range(150)}]),
        "[" + "1" * 9_998 + "]",
    ],
)
def test_hostile_answers_cost_little(answer: str) -> None:
    """At 10,000 characters, each in far less than the limit on a quiet machine."""
    start = time.perf_counter()
    assert _grade(answer) == 0.0
    assert time.perf_counter() - start < 0.1
