"""Text of others in Markdown: names of tasks, options, lines of monitors. It is data, and is shown to the letter."""

import re
from collections.abc import Sequence

from rg_env.core.text import one_line

_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&:@.-])")
_HARMLESS = re.compile(r"(?<=[\w ])([.:_+-])(?=[\w ])|(?<=\w)([.:])(?=\s|$)")

_PIPE, _BACKSLASHED = re.compile(r"(?<!\\)\|"), r"\\|"
"""One that would end a cell, in code, too."""


def text(value: object, most: int = 500) -> str:
    """One line that Markdown and HTML show as it is: no markup, no link, no line end."""
    line = one_line(value, most)
    kept = {match.start() for match in _HARMLESS.finditer(line)} if "://" not in line and "www." not in line else set()
    return "".join(_escaped(each) if at not in kept or each == "_" else each for at, each in enumerate(line))


def _escaped(character: str) -> str:
    if character in "<>&":
        return {"<": "&lt;", ">": "&gt;", "&": "&amp;"}[character]
    return f"\\{character}" if _SPECIAL.match(character) else character


def code(value: object, most: int = 200) -> str:
    """The same as code."""
    line = one_line(value, most)
    if not line:
        return ""
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    space = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{space}{line}{space}{fence}"


def block(value: str, language: str = "text") -> str:
    """Lines as they are, fenced by more backticks than stand in them."""
    lines = ["".join(each if each.isprintable() else " " for each in line) for line in value.strip("\n").split("\n")]
    fence = "`" * max(3, max(map(len, re.findall("`+", value)), default=0) + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    """Cells are Markdown; the first column is aligned left, others right if they hold numbers."""
    lines = [head, ["---", *["---:" if numbers else "---"] * (len(head) - 1)], *rows]
    return "\n".join(map(_row, lines))


def listed(rows: Sequence[tuple[str, str]]) -> str:
    """A table of two columns, of which the second is text: what there is to say, and what it is."""
    return "\n".join([*("| | |", "|---|---|"), *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_PIPE.sub(_BACKSLASHED, cell) for cell in cells)} |"
