"""Rush hour: moves are played strictly, and the solver finds the shortest solution."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import gold_answer, grade
from rg_env.core.grading.graders.move_games import solve_rush_hour as solve


def _entry(*rows: str) -> dict[str, Any]:
    return {"question": "", "answer": None, "metadata": {"board_config": "".join(rows)}}


# The question shows C, H, I as B, C, D: letters there leave none out.
BOARD = _entry("oooooo", "ooooCo", "AAooCo", "oooooo", "oxHHHo", "IIoooo")


def _grade(answer: str, entry: dict[str, Any] = BOARD) -> float:
    return grade("rush_hour", {}, entry, answer, partial_credit=True)


@pytest.mark.parametrize(
    "answer",
    [
        "B-1 A+4",
        "b-1, a+4",
        "['B-1', 'A+4']",
        "B−1\nA+4",
        "B-1 AA+4",
        "B+0 B-1 A+2 A+2",
        "B-1 A+5",
        "B-1 A+6",
        "B+1 B-2 A+4",
        "D+4 B-1 A+4",
    ],
)
def test_solved(answer: str) -> None:
    """In any letter case and separation, with as many moves as one likes; the last may drive the car out."""
    assert _grade(answer) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " ",
        "solved",
        "A+4",  # through B
        "A+999999999999",
        "A+99999999999999999999999999 " * 300,
        "B-1 A+7",
        "B-1 A+5 D+1",  # the car is out of the board
        "B-2 A+4",  # out of the board, where the library moves as far as it gets
        "B+2 A+4",  # through C
        "B-1 A+3",
        "B-1 A+4 A-1",
        "C-1 B-1 A+4",  # into the wall
        "H-1 B-1 A+4",  # the description's letter, not the question's
        "E-1 B-1 A+4",
        "X-1 B-1 A+4",
        "B-1 AB+4",
        "B-1 A4",
        "B-1 A+ 4",
        "I move B-1 A+4",
        "B-1 A+4!",
        "A+0",
    ],
)
def test_wrong(answer: str) -> None:
    """Illegal moves, vehicles that are not there, unfinished ones, other text."""
    assert _grade(answer) == 0.0


def test_the_solver_finds_the_shortest_solution() -> None:
    """A slide of any length is one move; the answer is gold and right."""
    assert solve(BOARD) == gold_answer("rush_hour", BOARD) == "B-1 A+4"
    hard = _entry("IBBxoo", "IooLDD", "JAALoo", "JoKEEM", "FFKooM", "GGHHHM")
    start = time.perf_counter()
    solution = solve(hard)
    assert time.perf_counter() - start < 2.0
    assert solution is not None
    assert len(solution.split()) == 60  # as the library's table of puzzles says
    assert _grade(solution, hard) == 1.0


def test_no_solution() -> None:
    """A wall before the car, and a board that is solved from the start."""
    assert solve(_entry("oooooo", "oooooo", "AAoxoo", "oooooo", "oooooo", "oooooo")) is None
    assert solve(_entry("oooooo", "oooooo", "ooooAA", "oooooo", "oooooo", "oooooo")) == ""


@given(
    st.text(max_size=50) | st.lists(st.from_regex(r"[A-F][+-][0-9]{1,3}", fullmatch=True), max_size=20).map(" ".join)
)
def test_no_text_raises(text: str) -> None:
    """Whatever stands in the answer."""
    assert _grade(text) in (0.0, 1.0)


@pytest.mark.parametrize("answer", ["B-1 B+1 " * 1_250, "A+1" * 3_333, "A" * 10_000, "+9" * 5_000, " " * 9_999 + "!"])
def test_hostile_answers_cost_little(answer: str) -> None:
    """At 10,000 characters, each in far less than the limit on a quiet machine."""
    start = time.process_time()
    assert _grade(answer) == 0.0
    assert time.process_time() - start < 0.1
