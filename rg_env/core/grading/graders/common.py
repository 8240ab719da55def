"""The `Grader` type, and the graders for text, words, numbers and grids that several tasks share.

A grid gets partial credit only if it has more correct cells than a copy of the input or a constant grid would have.
Grids come in only a few formats and may be long, so this module splits them into cells instead of parsing them with
`forms.literal`.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rg_env.core.grading.graders import forms
from rg_env.core.tasks.task_table import shipped_table

Entry = Mapping[str, Any]
"""The library's item in JSON form, with `question`, `answer` and `metadata`."""
Config = Mapping[str, Any]
"""Options set by the user. Other options have the library's defaults."""
Grader = Callable[[str, Entry, Config], float]
"""Function of (answer, entry, config) that returns real progress in [0, 1]. True counts as 1.0 (a right answer). The
only error that an answer can cause is `forms.Unreadable`, which counts as 0.0."""

_TRUTH = {"true": True, "yes": True, "false": False, "no": False}


def option(task: str, config: Config, name: str) -> Any:
    """Return the user's value for an option, or the library's default."""
    return config.get(name, shipped_table()[task]["options"][name])


def text(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored answer, ignoring whitespace at line ends and around the text."""
    return forms.same_text(answer, entry["answer"])


def word(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored answer in any letter case, with any spacing, and with typographic apostrophes."""
    return _words(answer) == _words(str(entry["answer"]))


def _words(text: str) -> list[str]:
    return text.replace("’", "'").casefold().split()


def exact_number(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored decimal number in any notation."""
    return forms.number(answer) == forms.stored_number(str(entry["answer"]))


def fraction(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored number as a decimal or a fraction, reduced or not."""
    return forms.rational(answer) == forms.rational(str(entry["answer"]))


def truth(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored truth value (True, False, Yes or No) in any letter case. Yes means true, and no means false."""
    return _TRUTH.get(answer.strip().casefold()) is _TRUTH[str(entry["answer"]).casefold()]


def squeezed(text: str) -> str:
    """Return `text` without separators (whitespace, commas, quotes, hyphens and brackets)."""
    return re.sub(r"[\s,'\"`‘’“”()\[\]-]+", "", text)


def progress(right: int, given: int, total: int) -> float:
    """Return the progress from `given` to `total` right items: 1.0 if all are right, and 0.0 if at most `given` are
    right."""
    return 1.0 if right == total else max(0, right - given) / max(1, total - given)


def prefix(given: Sequence[object], gold: Sequence[object]) -> int:
    """Return the number of right items before the first wrong item."""
    for index, (one, other) in enumerate(zip(given, gold, strict=False)):
        if one != other:
            return index
    return min(len(given), len(gold))


def in_order(given: Sequence[Any], gold: Sequence[Any], start: Callable[[], Sequence[Any]]) -> float:
    """Return the progress of the list `given` from `start` (the question's list) toward `gold`, or 0.0 if `given` and
    `gold` do not contain the same items."""
    if given == gold:
        return 1.0
    return progress(prefix(given, gold), prefix(start(), gold), len(gold)) if sorted(given) == sorted(gold) else 0.0


def refuse_long(answer: str, entry: Entry) -> None:
    """Raise `Unreadable` if the answer is longer than the stored answer could be in any notation."""
    if len(answer) > 4 * len(entry["answer"]) + 200:
        raise forms.Unreadable


# Grids

_T = TypeVar("_T")
Grid = Sequence[Sequence[Any]]
Matches = Callable[[str, Any], bool]
"""Function that returns whether a cell's text represents a value."""
_CHARS_PER_CELL = 32
_MORE_CHARS = 200
"""Number of characters allowed in addition to `_CHARS_PER_CELL` per cell. JSON with one number per line takes about 12
characters per cell, or 28 if the numbers are floats at full precision."""
_LATEX = re.compile(r"\\begin\{(\w*matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_CELL = re.compile(r"[^\s,;|]+")
_WHOLE = re.compile(r"([+-]?\d{1,9})(?:\.0*)?", re.ASCII)


def rows(text: str, n_cells: int) -> list[list[str]]:
    """Parse the cells of a matrix given as lines, JSON, a Python literal, LaTeX, or rows separated by semicolons (`1 2;
    3 4`). A flat list is a single row. Text that is too long for a matrix of about `n_cells` cells is unreadable."""
    text = text.strip()
    if len(text) > _MORE_CHARS + _CHARS_PER_CELL * n_cells:
        raise forms.Unreadable
    text = forms.plain_digits(text)
    if latex := _LATEX.fullmatch(text):
        lines = latex[2].replace("&", " ").split("\\\\")
    else:
        text = text.replace("(", "[").replace(")", "]")
        inner = text.strip("[], \t\n") if text.startswith("[") and text.endswith("]") else ""
        # True if the text is a literal rather than plain lines in brackets.
        is_list = inner and ("\n" not in inner or re.search(r"\[|,[ \t]*\n", inner))
        lines = re.split(r"\][\s,;]*\[", text) if is_list else text.splitlines()
        if len(lines) == 1 and ";" in text and any(len(_CELL.findall(part)) > 1 for part in text.split(";")):
            lines = text.split(";")
    # A bracket at the wrong end is kept and makes the cell invalid.
    lines = [line.lstrip("[ \t\n").rstrip("], \t\n") for line in lines if line.strip()]
    if len(lines) > n_cells:
        raise forms.Unreadable
    return [[cell.strip("'\"") for cell in _CELL.findall(line)] for line in lines]


def whole(cell: str) -> int | None:
    """Return the whole number in a cell, such as `4` or `4.0`, or None if the cell contains anything else."""
    match = _WHOLE.fullmatch(cell)
    return int(match[1]) if match else None


def is_whole(cell: str, value: object) -> bool:
    """Whether the cell contains the whole number `value`."""
    return whole(cell) == value


def grade_grid(answer: str, gold: Grid, given: Grid = (), matches: Matches = is_whole) -> float:
    """Return the progress beyond a copy of `given` or a constant grid, whichever has more correct cells."""
    found, shape = rows(answer, sum(map(len, gold))), list(map(len, gold))
    if list(map(len, found)) != shape:
        return 0.0
    return _graded(flat(found), flat(gold), flat(given) if list(map(len, given)) == shape else (), matches)


def grade_line(answer: str, gold: Sequence[int], given: Sequence[int]) -> float:
    """Grade a flat list in the same way as `grade_grid`. The list may have brackets, and may be on one or several
    lines."""
    found = flat(rows(answer, len(gold)))
    return _graded(found, gold, given, is_whole) if len(found) == len(gold) else 0.0


def _graded(cells: Sequence[str], gold: Sequence[Any], given: Sequence[Any], matches: Matches) -> float:
    right = sum(map(matches, cells, gold))
    copied = sum(map(operator.eq, given, gold)) if len(given) == len(gold) else 0
    return progress(right, max(copied, max(Counter(gold).values())), len(gold))


def flat(grid: Sequence[Sequence[_T]]) -> list[_T]:
    """Return the cells, row by row."""
    return [cell for row in grid for cell in row]
