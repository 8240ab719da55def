"""Graders of the games about a board, cards or a hidden text."""

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders.games import GRADERS


def _grade(task: str, answer: str, gold: str, **metadata: Any) -> float:
    return GRADERS[task](answer, {"question": "?", "answer": gold, "metadata": metadata}, {})


def _board(columns: tuple[int, ...]) -> list[list[str]]:
    return [["Q" if c == column else "_" for c in range(len(columns))] for column in columns]


def _lines(board: list[list[str]]) -> str:
    return "\n".join(" ".join(row) for row in board)


EMPTY = [["_"] * 4 for _ in range(4)]
ONE, OTHER = _board((1, 3, 0, 2)), _board((2, 0, 3, 1))


@pytest.mark.parametrize(
    "answer",
    [
        _lines(ONE),
        _lines(OTHER),
        json.dumps(ONE),
        str(ONE),
        _lines(ONE).replace(" ", ""),
        _lines(ONE).replace("\n", "  \n"),
        "\n".join(f"| {' | '.join(row)} |" for row in ONE),
        str(["".join(row) for row in ONE]).replace("', '", "\n").strip("[]'"),
    ],
)
def test_n_queens_takes_any_solution_in_any_form(answer: str) -> None:
    """Both solutions of an empty 4 x 4 board, as lines, JSON, a Python list or a table."""
    assert _grade("n_queens", answer, _lines(ONE), puzzle=EMPTY) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        _lines(OTHER),  # moves the given queen
        _lines(EMPTY),
        _lines([*ONE, *ONE]),
        _lines(ONE[:3]),
        _lines(ONE) + "\n\nQ",
        "[[Q]]",
        "__import__('time').sleep(60)",
        "[['Q']*4]*4",
        "Q" * 16,
        "[" * 5000,
        "",
    ],
)
def test_n_queens_wrong_boards(answer: str) -> None:
    """Given queens stay, the size is right, and no text is run."""
    puzzle = [["_", "Q", "_", "_"], *EMPTY[:3]]
    assert _grade("n_queens", answer, _lines(ONE), puzzle=puzzle) == 0.0


def test_n_queens_knows_all_solutions() -> None:
    """Of all ways to put a queen in each row of a 5 x 5 board, ten are right."""
    boards = [_board(columns) for columns in itertools.product(range(5), repeat=5)]
    empty = [["_"] * 5 for _ in range(5)]
    assert sum(_grade("n_queens", _lines(board), "", puzzle=empty) for board in boards) == 10


GO = [
    list(row)
    for row in (
        ".XX..",
        "XOO.X",
        ".XX..",
        "XO...",
        ".....",
    )
]


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("D4", 1.0),
        ("d4", 1.0),
        ("D 4", 1.0),
        ("(D, 4)", 1.0),
        ("D-4", 1.0),
        ("D5", 0.0),
        ("B2", 0.0),  # a stone lies there
        ("B4", 0.0),
        ("4D", 0.0),
        ("D4 D5", 0.0),
        ("D44", 0.0),
        ("Z9", 0.0),
        ("", 0.0),
        ("D" + " " * 9000 + "x", 0.0),
    ],
)
def test_tsumego_wants_the_capture(answer: str, value: float) -> None:
    """The stored move in any way of writing it; nothing for a move that only looks like one."""
    assert _grade("tsumego", answer, "D4", board=GO) == value


def test_tsumego_takes_an_equal_or_better_capture_only() -> None:
    """Another move that takes as many stones is right, one that takes fewer is not."""
    board = [list(row) for row in ("XOO.X", "OXX..", "X....", ".....", "XOO..")]
    assert [_grade("tsumego", move, "D5", board=board) for move in ("D5", "D1", "B5")] == [1.0, 0.0, 0.0]
    board = [list(row) for row in ("XOO.X", ".XX..", "X....", ".XX..", "XOO.X")]
    assert _grade("tsumego", "D1", "D5", board=board) == 1.0
    board = [list(row) for row in ("XO..X", ".X...", "X....", ".XX..", "XOO.X")]
    assert [_grade("tsumego", move, stored, board=board) for move, stored in [("C5", "D1"), ("D1", "C5")]] == [0, 1]


def test_tsumego_does_not_pay_a_stored_move_that_captures_nothing() -> None:
    """The library's random stones may free its group: where another move captures, that one is right."""
    board = [list(row) for row in ("XO..X", ".X...", "X....", ".....", ".....")]
    assert [_grade("tsumego", move, "A1", board=board) for move in ("A1", "C5", "B1")] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("task", "gold", "right", "wrong"),
    [
        ("mahjong_puzzle", "Peng", ["peng", " PENG "], ["Pass", "Peng or Chi", "Peng Chi Pass", ""]),
        (
            "emoji_mystery",
            '"  Was it he?',
            ['"  Was it he?', '" was it he?'],
            ['"  Was it we?', "Was it he", "", "x" * 13, '"  Was it he? "  Was it he?'],
        ),
    ],
)
def test_single_texts(task: str, gold: str, right: list[str], wrong: list[str]) -> None:
    """The text in any letter case and spacing; the library pays part of it for texts of the same length."""
    assert [_grade(task, answer, gold) for answer in right] == [1.0] * len(right)
    assert [_grade(task, answer, gold) for answer in wrong] == [0.0] * len(wrong)


@given(st.text(alphabet="[]()'\", \nQ_.|0", max_size=60))
def test_n_queens_reads_any_text(answer: str) -> None:
    """Text of the signs of boards never raises, and is right only if it has the queens."""
    value = _grade("n_queens", answer, "", puzzle=EMPTY)
    assert value == 0.0 or answer.count("Q") == 4


def test_long_answers_take_little_time() -> None:
    """Repeated signs do not make the readers slow."""
    start = time.perf_counter()
    for text in ("\n" * 10_000, "C" + " " * 9_999, "Q\n" * 5_000, "[" * 10_000, "(" * 10_000):
        _grade("n_queens", text, "", puzzle=EMPTY)
        _grade("tsumego", text, "D4", board=GO)
    assert time.perf_counter() - start < 1.0
