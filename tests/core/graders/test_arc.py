"""The graders of the arc tasks."""

from typing import Any

import pytest

from rg_env.core.grading.graders.arc import GRADERS

LINE = {
    "question": "",
    "answer": "0 2 2 2 0",
    "metadata": {"test_example": {"input": [2, 0, 2, 0, 0], "output": [0, 2, 2, 2, 0]}},
}
BOARD: dict[str, Any] = {
    "question": "",
    "answer": "0 0 1\n0 2 1",
    "metadata": {"input": [[0, 0, 0], [0, 2, 0]], "output": [[0, 0, 1], [0, 2, 1]]},
}
LETTERS = {"board_format_opts": {"alphabet": list("abcdefghij"), "col_delimiter": "", "row_delimiter": "/"}}
SWAPPED = {"board_format_opts": {"alphabet": list("1023456789")}}


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("0 2 2 2 0", 1.0),
        ("[0, 2, 2, 2, 0]", 1.0),
        ("[[0, 2, 2, 2, 0]]", 1.0),
        ("Output: 0 2 2 2 0", 1.0),
        ("2 0 2 0 0", 0.0),
        ("2 2 2 2 2", 0.0),
        ("0 2 2 0 0", 0.5),  # 4 of 5, where a constant line gets 3
        ("0 2 2 2 0 0", 0.0),
        ("0 2 2 2", 0.0),
        ("The answer is 0 2 2 2 0", 0.0),
        ("", 0.0),
    ],
)
def test_arc_1d(answer: str, value: float) -> None:
    """The whole line, or progress beyond the input and beyond a constant line of the same length."""
    assert GRADERS["arc_1d"](answer, LINE, {}) == pytest.approx(value)


@pytest.mark.parametrize("task", ["arc_agi", "rearc"])
@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("0 0 1\n0 2 1", 1.0),
        ("0 0 1 \n\n0 2 1", 1.0),
        ("[[0, 0, 1], [0, 2, 1]]", 1.0),
        ("Output:\n0 0 1\n0 2 1", 1.0),
        ("0 0 0\n0 2 0", 0.0),
        ("0 0 0\n0 0 0", 0.0),
        ("0 0 1\n0 2 0", 0.5),
        ("0 0\n1 0\n2 1", 0.0),
        ("0 0 1 0 2 1", 0.0),
        ("Input:\n0 0 0\n0 2 0\nOutput:\n0 0 1\n0 2 1", 0.0),
        ("0", 0.0),
        ("", 0.0),
        ("\x00", 0.0),
    ],
)
def test_boards(task: str, answer: str, value: float) -> None:
    """The whole board, or progress beyond the input; the library pays 0.05 for anything."""
    assert GRADERS[task](answer, BOARD, {}) == pytest.approx(value)


@pytest.mark.parametrize(
    ("config", "gold", "answer", "value"),
    [
        (LETTERS, "aab/acb", "aab/acb", 1.0),
        (LETTERS, "aab/acb", "a a b\na c b", 1.0),
        (LETTERS, "aab/acb", '[["a", "a", "b"], ["a", "c", "b"]]', 1.0),
        (LETTERS, "aab/acb", "aab/aca", 0.5),
        (LETTERS, "aab/acb", "0 0 1\n0 2 1", 0.0),
        (SWAPPED, "1 1 0\n1 2 0", "[[1, 1, 0], [1, 2, 0]]", 1.0),
        (SWAPPED, "1 1 0\n1 2 0", "0 0 1\n0 2 1", 0.0),
    ],
)
def test_boards_in_the_signs_of_the_question(config: dict[str, Any], gold: str, answer: str, value: float) -> None:
    """The user's signs count, also where they are digits of another meaning."""
    assert GRADERS["rearc"](answer, {**BOARD, "answer": gold}, config) == pytest.approx(value)
