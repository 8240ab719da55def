"""Graders of the arc tasks, and the functions that read and compare grids for all tasks.

An output is right as a whole. Partial credit is the fraction of right cells beyond those right in a copy of the input.
Grids have few forms and may be long, so they are split, not parsed by `forms.literal`.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rg_env.core.grading.graders import forms
from rg_env.core.grading.graders.common import Config, Entry, Grader, progress

_DIGITS = [str(digit) for digit in range(10)]
_LABEL = re.compile(r"\A\s*output(?: grid)?:", re.IGNORECASE)
"""Label before each output grid in the questions."""


def arc_1d(answer: str, entry: Entry, config: Config) -> float:
    """All numbers of the output; partial credit for right ones beyond those of the unchanged input."""
    example = entry["metadata"]["test_example"]
    return grade_line(_LABEL.sub("", answer), example["output"], example["input"])


def arc_2d(answer: str, entry: Entry, config: Config) -> float:
    """All cells of the output in the question's signs; partial credit for right ones beyond the unchanged input.

    A board may use the question's format (option `board_format_opts`) or any format `rows` can read.
    """
    if forms.same_text(answer, entry["answer"]):
        return 1.0
    options: dict[str, Any] = config.get("board_format_opts") or {}
    signs: list[str] = options.get("alphabet", _DIGITS)
    gold, given = ([[signs[cell] for cell in row] for row in entry["metadata"][board]] for board in ("output", "input"))
    text = _LABEL.sub("", answer)
    boards = (text, _usual_form(text, options)) if options else (text,)
    return max(grade_grid(board, gold, given, operator.eq) for board in boards)


def _usual_form(text: str, options: dict[str, Any]) -> str:
    """A board with the user's delimiters as lines of cells with spaces between them."""
    row_delimiter: str = options.get("row_delimiter", "\n")
    column_delimiter: str = options.get("col_delimiter", " ")
    lines = text.split(row_delimiter) if row_delimiter else [text]
    if column_delimiter:
        return "\n".join(line.replace(column_delimiter, " ") for line in lines)
    return "\n".join(" ".join(line.strip().strip("[]")) for line in lines)


GRADERS: dict[str, Grader] = {"arc_1d": arc_1d, "arc_agi": arc_2d, "rearc": arc_2d}


T = TypeVar("T")
Grid = Sequence[Sequence[Any]]
Matches = Callable[[str, Any], bool]
"""Whether a cell, as text, has a value."""
_CHARS_PER_CELL = 32
_MORE_CHARS = 200
"""Additional characters allowed. JSON with one number per line takes about 12 per cell, 28 with all decimal places."""
_LATEX = re.compile(r"\\begin\{(\w*matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_BETWEEN_ROWS = re.compile(r"\][\s,]*\[")
_LIST = re.compile(r"\[|,[ \t]*\n")
_CELL = re.compile(r"[^\s,;|]+")
_WHOLE = re.compile(r"([+-]?\d{1,9})(?:\.0*)?", re.ASCII)


def rows(text: str, n_cells: int) -> list[list[str]] | None:
    """Cells of a matrix: lines, JSON, a Python literal, a LaTeX matrix. A flat list is one row.

    None for a text too long to be a matrix of about `n_cells` cells.
    """
    text = text.strip()
    if len(text) > _MORE_CHARS + _CHARS_PER_CELL * n_cells:
        return None
    text = forms.plain_digits(text)
    if latex := _LATEX.fullmatch(text):
        lines = latex[2].replace("&", " ").split("\\\\")
    else:
        text = text.replace("(", "[").replace(")", "]")
        inner = text.strip("[], \t\n") if text.startswith("[") and text.endswith("]") else ""
        is_list = inner and ("\n" not in inner or _LIST.search(inner))  # not lines between brackets
        lines = _BETWEEN_ROWS.split(text) if is_list else text.splitlines()
    lines = [line for line in lines if line.strip()]
    return [_cells(line) for line in lines] if len(lines) <= n_cells else None


def _cells(line: str) -> list[str]:
    # A bracket at the wrong end stays and makes the cell invalid.
    return [cell.strip("'\"") for cell in _CELL.findall(line.lstrip("[ \t\n").rstrip("], \t\n"))]


def whole(cell: str) -> int | None:
    """The whole number in a cell, also as `4.0`."""
    match = _WHOLE.fullmatch(cell)
    return int(match[1]) if match else None


def is_whole(cell: str, value: object) -> bool:
    """Whether the cell has this whole number."""
    return whole(cell) == value


def grade_grid(answer: str, gold: Grid, given: Grid = (), matches: Matches = is_whole) -> float:
    """The fraction of right cells beyond those right in a copy of `given` or in a constant grid."""
    found, shape = rows(answer, sum(map(len, gold))), list(map(len, gold))
    if found is None or list(map(len, found)) != shape:
        return 0.0
    return _graded(flat(found), flat(gold), flat(given) if list(map(len, given)) == shape else (), matches)


def grade_line(answer: str, gold: Sequence[int], given: Sequence[int]) -> float:
    """`grade_grid` for a flat list, in brackets or not, in one line or several."""
    found = rows(answer, len(gold))
    return 0.0 if found is None or sum(map(len, found)) != len(gold) else _graded(flat(found), gold, given, is_whole)


def _graded(cells: Sequence[str], gold: Sequence[Any], given: Sequence[Any], matches: Matches) -> float:
    right = sum(map(matches, cells, gold))
    copied = sum(map(operator.eq, given, gold)) if len(given) == len(gold) else 0
    return progress(right, max(copied, max(Counter(gold).values())), len(gold))


def flat(grid: Sequence[Sequence[T]]) -> list[T]:
    """The cells, row after row."""
    return [cell for row in grid for cell in row]
