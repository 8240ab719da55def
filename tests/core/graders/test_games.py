"""The graders of filled grids: any grid by the rules is right, givens stay, a constant is worth nothing."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import games, grade

MINI: dict[str, Any] = {
    "question": "",
    "answer": "3 1 2 4\n2 4 3 1\n4 3 1 2\n1 2 4 3",
    "metadata": {
        "puzzle": [[0, 0, 2, 0], [0, 4, 0, 1], [4, 3, 0, 0], [0, 0, 0, 0]],
        "solution": [[3, 1, 2, 4], [2, 4, 3, 1], [4, 3, 1, 2], [1, 2, 4, 3]],
    },
}
ROWS = [
    "534678912",
    "672195348",
    "198342567",
    "859761423",
    "426853791",
    "713924856",
    "961537284",
    "287419635",
    "345286179",
]
SOLVED = [[int(digit) for digit in row] for row in ROWS]
SUDOKU: dict[str, Any] = {
    "question": "",
    "answer": "\n".join(" ".join(row) for row in ROWS),
    "metadata": {"puzzle": [[0] * 9 for _ in ROWS[:2]] + SOLVED[2:], "solution": SOLVED},
}
FUTOSHIKI: dict[str, Any] = {
    "question": "",
    "answer": "4 < 5 > 2   1   3\n                ∧\n2   3   1   5   4\n                 \n5   2   3   4   1\n"
    "                 \n3   1   4   2   5\n                 \n1   4   5   3   2",
    "metadata": {
        "puzzle": [[0, 5, 0, 0, 0], [0, 3, 0, 0, 4], [0] * 5, [0] * 5, [1, 0, 0, 0, 0]],
        "constraints": [[0, 0, 0, 1, "<"], [0, 1, 0, 2, ">"], [0, 4, 1, 4, "<"]],
        "solution": [[4, 5, 2, 1, 3], [2, 3, 1, 5, 4], [5, 2, 3, 4, 1], [3, 1, 4, 2, 5], [1, 4, 5, 3, 2]],
        "board_size": 5,
    },
}
KAKURASU: dict[str, Any] = {
    "question": "",
    "answer": "1 0 0\n0 1 0\n0 0 1",
    "metadata": {
        "puzzle": [[0] * 3] * 3,
        "solution": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        "row_sums": [1, 2, 3],
        "col_sums": [1, 2, 3],
        "n_rows": 3,
        "n_cols": 3,
    },
}
SURVO: dict[str, Any] = {
    "question": "",
    "answer": "1 2 7 10\n2 1 8 11\n3 3 3 9\n6 6 18 30",
    "metadata": {
        "puzzle": [[0, 0, 7, 10], [0, 0, 8, 11], [3, 3, 3, 9], [6, 6, 18, 30]],
        "solution": [[1, 2, 7, 10], [2, 1, 8, 11], [3, 3, 3, 9], [6, 6, 18, 30]],
        "candidate_numbers": [2, 1, 1, 2],
        "board_size": 4,
    },
}
ENTRIES: dict[str, dict[str, Any]] = {
    "sudoku": SUDOKU,
    "mini_sudoku": MINI,
    "futoshiki": FUTOSHIKI,
    "kakurasu": KAKURASU,
    "survo": SURVO,
}


def _grade(task: str, answer: str, partial: bool = True) -> float:
    return grade(task, {}, ENTRIES[task], answer, partial_credit=partial)


@pytest.mark.parametrize("task", sorted(ENTRIES))
def test_the_form_of_a_grid_does_not_matter(task: str) -> None:
    """Lists, bars, commas, tables and fences are the same grid as the stored text."""
    gold = ENTRIES[task]["metadata"]["solution"]
    rows = [[str(cell) for cell in row] for row in gold]
    ruler = "|" + "---|" * len(rows[0])
    for answer in (
        ENTRIES[task]["answer"],
        f"```\n{ENTRIES[task]['answer']}\n```",
        str(gold),
        str(rows),
        "\n".join(map(str, gold)),
        json.dumps(rows, indent=4),
        "\n".join(", ".join(row) for row in rows),
        "\n\n".join("  ".join(row) + "  " for row in rows),
        "\n".join("| " + " | ".join(row) + " |" for row in rows),
        "\n".join(["|" + "|".join(rows[0]) + "|", ruler, *("|" + "|".join(row) + "|" for row in rows[1:])]),
    ):
        assert _grade(task, answer) == 1.0, answer


@pytest.mark.parametrize("task", sorted(ENTRIES))
def test_what_is_no_such_grid_is_worth_nothing(task: str) -> None:
    """Missing and extra rows and cells, words, and grids full of one value."""
    gold = [[str(cell) for cell in row] for row in ENTRIES[task]["metadata"]["solution"]]
    puzzle = ENTRIES[task]["metadata"]["puzzle"]
    text = "\n".join(map(" ".join, gold))
    constants = ["\n".join(" ".join(str(cell or value) for cell in row) for row in puzzle) for value in range(10)]
    for answer in (
        "",
        "0",
        "\n".join(map(" ".join, gold[1:])),
        text + "\n" + " ".join(gold[0]),
        text + " 1",
        text.replace("1", "one", 1),
        text.replace("1", "1.5", 1),
        text.replace("\n", " "),
        "the answer is " + text,
        *(constants if task != "kakurasu" else ["0 0 0\n" * 3, "1 1 1\n" * 3]),
        "\n".join(" ".join("_" for _ in row) for row in gold),
    ):
        assert _grade(task, answer) == 0.0, answer


def test_sudoku_rows_as_runs_of_digits_and_with_box_lines() -> None:
    """The usual ways to write one."""
    assert _grade("sudoku", "\n".join(ROWS)) == 1.0
    boxed = [f"{row[:3]} | {row[3:6]} | {row[6:]}" for row in ROWS]
    assert (
        _grade("sudoku", "\n".join([*boxed[:3], "----+-----+----", *boxed[3:6], "----+-----+----", *boxed[6:]])) == 1.0
    )


def test_any_grid_by_the_rules_is_right() -> None:
    """Not only the stored one, also where the library pays nothing for it."""
    assert _grade("survo", "2 1 7 10\n1 2 8 11\n3 3 3 9\n6 6 18 30") == 1.0
    metadata = {"puzzle": [[0] * 4 for _ in range(4)], "solution": MINI["metadata"]["solution"]}
    other = "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1"
    assert games.mini_sudoku(other, {"answer": "", "metadata": metadata}, {}) == 1.0
    latin_only = "1 2 3 4\n2 3 4 1\n3 4 1 2\n4 1 2 3"
    assert games.mini_sudoku(latin_only, {"answer": "", "metadata": metadata}, {}) < 1.0


@pytest.mark.parametrize("task", ["sudoku", "mini_sudoku", "futoshiki", "survo"])
def test_a_changed_given_is_worth_nothing(task: str) -> None:
    """Even if all other cells are right."""
    metadata = ENTRIES[task]["metadata"]
    row, column = next((r, c) for r, cells in enumerate(metadata["puzzle"]) for c, cell in enumerate(cells) if cell)
    grid = [list(cells) for cells in metadata["solution"]]
    grid[row][column] = grid[row][column] % 4 + 1
    assert _grade(task, str(grid)) == 0.0


def test_partial_values_count_the_cells_that_were_to_fill_in() -> None:
    """One wrong cell of many is worth less than 1; without partial credit nothing. Blanks may stay."""
    wrong = SUDOKU["answer"].replace("5 3 4 6", "5 3 4 4", 1)
    assert _grade("sudoku", wrong) == pytest.approx((17 - 2) / 18)
    assert _grade("sudoku", wrong, partial=False) == 0.0
    assert _grade("sudoku", "_" + SUDOKU["answer"][1:]) == pytest.approx((17 - 2) / 18)
    # 8 of 9 cells are right, where zeros alone give 6.
    assert _grade("kakurasu", "1 0 0\n0 1 0\n0 0 0") == pytest.approx(2 / 9)


def test_futoshiki_obeys_inequalities_and_keeps_the_signs() -> None:
    """Signs may be left out or be ASCII, but not changed; a latin square that breaks one is wrong."""
    text: str = FUTOSHIKI["answer"]
    assert _grade("futoshiki", text.replace("∧", "^")) == 1.0
    assert _grade("futoshiki", text.replace(" ", "")) == 1.0
    assert _grade("futoshiki", text.replace("<", ">")) == 0.0
    assert _grade("futoshiki", text.replace("∧", "∨")) == 0.0
    entry = {"answer": "", "metadata": {**FUTOSHIKI["metadata"], "puzzle": [[0] * 5] * 5}}
    swapped = "5 4 2 1 3\n3 2 1 5 4\n2 5 3 4 1\n1 3 4 2 5\n4 1 5 3 2"
    assert games.futoshiki(swapped, entry, {}) < 1.0


def test_futoshiki_larger_than_nine_has_cells_of_two_digits() -> None:
    """Digits are then not taken apart."""
    grid = [[(row + column) % 11 + 1 for column in range(11)] for row in range(11)]
    metadata = {"puzzle": [[0] * 11] * 11, "solution": grid, "constraints": [[0, 0, 0, 1, "<"]], "board_size": 11}
    text = "\n".join(" ".join(map(str, row)) for row in grid)
    assert games.futoshiki(text.replace("1 2", "1 < 2", 1), {"answer": "1 < 2", "metadata": metadata}, {}) == 1.0
    assert games.futoshiki(text.replace(" ", ""), {"answer": "1 < 2", "metadata": metadata}, {}) == 0.0


def test_kakurasu_wants_zeros_and_ones_and_both_sums() -> None:
    """Row sums alone do not do, nor other digits."""
    assert _grade("kakurasu", "100\n010\n001") == 1.0
    assert _grade("kakurasu", "1 0 0\n0 1 0\n1 1 0") < 1.0
    assert _grade("kakurasu", "2 0 0\n0 1 0\n0 0 1") < 1.0


def test_survo_uses_the_given_numbers_each_once() -> None:
    """Right sums of other numbers are wrong."""
    assert _grade("survo", "0 3 7 10\n3 0 8 11\n3 3 3 9\n6 6 18 30") == 0.0
    assert _grade("survo", "-1 4 7 10\n4 -1 8 11\n3 3 3 9\n6 6 18 30") == 0.0


def test_maze_takes_the_number_only() -> None:
    """The library pays a part for any text with the number in it."""
    entry = {"question": "", "answer": "12", "metadata": {}}
    assert grade("maze", {}, entry, " **12**. ") == 1.0
    for answer in ("1 2", "12 or 13", "112", "-12", "1e400", "nan", ""):
        assert grade("maze", {}, entry, answer, partial_credit=True) == 0.0, answer


@given(st.text(alphabet="0123456789 \n_|[],<>∧v-", max_size=200))
def test_no_text_raises_and_values_stay_in_range(text: str) -> None:
    """Whatever stands in the answer."""
    assert all(0.0 <= _grade(task, text) < 1.0 for task in ENTRIES)


HOSTILE = [
    "1 " * 5_000,
    "1\n" * 5_000,
    "[" * 10_000,
    "[" + "1," * 4_999,
    "9" * 10_000,
    "[[1]," * 2_000,
    "|" * 10_000,
    "1e400 " * 1_600,
]


@pytest.mark.parametrize("task", sorted(ENTRIES))
def test_hostile_answers_cost_little(task: str) -> None:
    """At 10,000 characters, each in far less than the limit on a quiet machine."""
    for answer in HOSTILE:
        start = time.perf_counter()
        assert getattr(games, task)(answer, ENTRIES[task], {}) == 0.0
        assert time.perf_counter() - start < 0.1, answer[:20]
