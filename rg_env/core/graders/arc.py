"""Graders of the arc tasks: the whole output grid, or the share of it beyond copying the input."""

import re
from typing import Any

from rg_env.core.graders import forms, grids
from rg_env.core.graders.types import Config, Entry, Grader

_DIGITS = [str(digit) for digit in range(10)]
_LABEL = re.compile(r"\A\s*output(?: grid)?:", re.IGNORECASE)
"""The word before each output grid in the questions."""


def arc_1d(answer: str, entry: Entry, config: Config) -> float:
    """All numbers of the output; partly right ones beyond those of the unchanged input."""
    example = entry["metadata"]["test_example"]
    return grids.grade_line(_LABEL.sub("", answer), example["output"], example["input"])


def arc_2d(answer: str, entry: Entry, config: Config) -> float:
    """All cells of the output in the signs that the question uses; partly right ones beyond the unchanged input.

    A board counts in the form of the question (option `board_format_opts`) and in any that `grids.rows` reads.
    """
    if forms.same_text(answer, entry["answer"]):
        return 1.0
    options: dict[str, Any] = config.get("board_format_opts") or {}
    signs: list[str] = options.get("alphabet", _DIGITS)
    gold, given = ([[signs[cell] for cell in row] for row in entry["metadata"][board]] for board in ("output", "input"))
    text = _LABEL.sub("", answer)
    values = grids.flat(gold)
    copied = grids.flat(given) if list(map(len, given)) == list(map(len, gold)) else []
    trivial = grids.trivially_right(values, copied)
    best = 0.0
    for board in (text, _usual_form(text, options)) if options else (text,):
        cells = grids.shaped(grids.rows(board, len(values)), gold)
        if cells is not None:
            right = sum(cell == sign for cell, sign in zip(cells, values, strict=True))
            best = max(best, grids.progress(right, trivial, len(values)))
    return best


def _usual_form(text: str, options: dict[str, Any]) -> str:
    """A board with the user's delimiters as lines of cells with spaces between them."""
    row_delimiter: str = options.get("row_delimiter", "\n")
    column_delimiter: str = options.get("col_delimiter", " ")
    lines = text.split(row_delimiter) if row_delimiter else [text]
    if column_delimiter:
        return "\n".join(line.replace(column_delimiter, " ") for line in lines)
    return "\n".join(" ".join(line.strip().strip("[]")) for line in lines)


GRADERS: dict[str, Grader] = {"arc_1d": arc_1d, "arc_agi": arc_2d, "rearc": arc_2d}
