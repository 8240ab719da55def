"""Text that a reply can copy or compute from a question without understanding it: `parts(question)`.

Every part is a string with a name such as "last number of the last line" or "first grid, transposed". A name has the
same meaning in every question, so each name is a strategy, and `search` looks for names whose parts score.
Nothing in this module is specific to a task.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache

from .changes import TABLES

MOST_CHARS = 4_000
"""Maximum length of a part. A longer part contains most of a long question; such a part never scores and is slow to
grade."""
_MOST_VALUES = 400
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_KINDS = {"number": _NUMBER, **{kind: re.compile(pattern) for kind, pattern in TABLES["kinds"].items()}}


def parts(question: str) -> dict[str, str]:
    """Return the parts of `question` by name, excluding blank parts and those longer than `MOST_CHARS`."""
    return dict(_parts(question))


@lru_cache(maxsize=1024)
def _parts(question: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for scope, text in _scopes(question).items():
        found[f"the {scope}"] = text
        for kind, pattern in _KINDS.items():
            values = [next(filter(None, match.groups()), match[0]).strip() for match in pattern.finditer(text)]
            values = [value for value in values if value][:_MOST_VALUES]
            for name, value in _picked(values):
                found[f"{name.format(kind)} of the {scope}"] = value
        numbers = [Fraction(text) for text in _NUMBER.findall(text)[:60]]
        for name, value in _computed(numbers):
            found[f"{name} of the numbers of the {scope}"] = value
    for name, value in _of_grids(question):
        found[name] = value
    return tuple((name, text.strip()) for name, text in found.items() if text.strip() and len(text) <= MOST_CHARS)


def _scopes(question: str) -> dict[str, str]:
    """Return the entire question, and its sections that often contain the data, by name."""
    text = question.strip()
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if part.strip()]
    lines = [line for line in text.splitlines() if line.strip()]
    found = {
        "question": text,
        "first line": lines[0] if lines else "",
        "last line": lines[-1] if lines else "",
        "first paragraph": paragraphs[0] if paragraphs else "",
        "last paragraph": paragraphs[-1] if paragraphs else "",
        "next to last paragraph": paragraphs[-2] if len(paragraphs) > 1 else "",
        "text after the last colon": text.rpartition(":")[2],
        "text after the last colon of a line": text.rpartition(":\n")[2],
        "text before the last colon": text.rpartition(":")[0],
        "longest paragraph": max(paragraphs, key=len, default=""),
    }
    seen: dict[str, str] = {}
    for name, piece in found.items():
        if piece.strip() and piece.strip() not in seen.values():
            seen[name] = piece.strip()
    return seen


def _picked(values: list[str]) -> Iterator[tuple[str, str]]:
    """Yield names and texts of single values, of counts, and of all values in several orders. `{}` in a name is a
    placeholder for the kind of value."""
    if not values:
        return
    for place, index in (("first", 0), ("second", 1), ("third", 2), ("fourth", 3), ("fifth", 4)):
        if index < len(values):
            yield f"{place} {{}}", values[index]
            yield f"{place} to last {{}}" if index else "last {}", values[-1 - index]
    common = Counter(values).most_common()
    yield "longest {}", max(values, key=len)
    yield "shortest {}", min(values, key=len)
    yield "most frequent {}", common[0][0]
    yield "least frequent {}", common[-1][0]
    yield "smallest {} by alphabet", min(values)
    yield "largest {} by alphabet", max(values)
    yield "count of every {}", str(len(values))
    yield "count of every distinct {}", str(len(common))
    yield "largest count of a {}", str(common[0][1])
    orders: dict[str, Sequence[str]] = {
        "in order": values,
        "sorted": sorted(values),
        "in reverse": values[::-1],
        "sorted in reverse": sorted(values, reverse=True),
        "by length": sorted(values, key=len),
        "once": [value for value, _ in common],
        "but the first": values[1:],
        "but the last": values[:-1],
        "with both ends exchanged": [values[-1], *values[1:-1], values[0]],
    }
    for order, those in orders.items():
        for how, separator in (("by spaces", " "), ("by commas", ", "), ("by lines", "\n"), ("closely", "")):
            yield f"every {{}} {order}, joined {how}", separator.join(those)
        if order in ("in order", "sorted", "in reverse", "once"):
            yield f"every {{}} {order}, as JSON", json.dumps(those, ensure_ascii=False)


def _computed(numbers: list[Fraction]) -> Iterator[tuple[str, str]]:
    """Yield names and results of arithmetic on all numbers, and on pairs of numbers."""
    if not numbers:
        return
    whole = [int(number) for number in numbers if number.denominator == 1]
    last, first = numbers[-1], numbers[0]
    results: dict[str, Fraction | int | float] = {
        "sum": sum(numbers),
        "sum but the first": sum(numbers[1:]),
        "sum but the last": sum(numbers[:-1]),
        "product": math.prod(numbers) if len(numbers) <= 12 else 0,
        "minimum": min(numbers),
        "maximum": max(numbers),
        "range": max(numbers) - min(numbers),
        "mean": sum(numbers) / len(numbers),
        "median": sorted(numbers)[len(numbers) // 2],
        "alternating sum": sum(numbers[::2]) - sum(numbers[1::2]),
        "first minus the rest": first - sum(numbers[1:]),
        "last minus the rest": last - sum(numbers[:-1]),
        "count of even ones": sum(number % 2 == 0 for number in whole),
        "count of odd ones": sum(number % 2 == 1 for number in whole),
        "count of positive ones": sum(number > 0 for number in numbers),
        "greatest common divisor": math.gcd(*whole),
        "least common multiple": math.lcm(*whole) if len(whole) <= 12 else 0,
        "last one and one": last + 1,
        "last one less one": last - 1,
        "square of the last": last * last,
    }
    pairs = {"first and last": (first, last), "first two": numbers[:2], "last two": numbers[-2:]}
    for which, (one, other) in pairs.items() if len(numbers) > 1 else ():
        results |= {
            f"sum of the {which}": one + other,
            f"difference of the {which}": one - other,
            f"reversed difference of the {which}": other - one,
            f"product of the {which}": one * other,
            f"step on from the {which}": 2 * other - one,
        }
        if one and other:
            results |= {
                f"quotient of the {which}": one / other,
                f"reversed quotient of the {which}": other / one,
                f"integer quotient of the {which}": one // other,
                f"remainder of the {which}": one % other,
                f"reversed remainder of the {which}": other % one,
            }
    for name, value in results.items():
        yield name, shown(value)
    for name, ordered in (("ascending", sorted(numbers)), ("descending", sorted(numbers, reverse=True))):
        for how, separator in (("by spaces", " "), ("by commas", ", ")):
            yield f"{name} order, joined {how},", separator.join(map(shown, ordered))


def shown(value: Fraction | int | float) -> str:
    """Return a number as a model would write it: as an integer, or with up to ten decimals."""
    exact = Fraction(value)
    if exact.denominator == 1:
        return str(exact.numerator) if abs(exact) < 10**300 else "0"
    return f"{float(exact):.10f}".rstrip("0")


_BLANKS = "_?❔.·0*"
Grid = list[list[str]]


def _of_grids(question: str) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the question's first, largest and last grids: unchanged, rotated, cropped, filled."""
    grids = list(_grids(question))
    if not grids:
        return
    largest = max(grids, key=lambda item: len(item[0]))
    for which, (grid, separator) in {"first": grids[0], "largest": largest, "last": grids[-1]}.items():
        for name, changed in _changed_grids(grid):
            rows = [separator.join(row) for row in changed]
            yield f"{which} grid, {name}", "\n".join(rows)
            if all(re.fullmatch(r"-?\d+", cell) for row in changed for cell in row):
                yield f"{which} grid, {name}, as JSON", json.dumps([[int(cell) for cell in row] for row in changed])
        cells = [cell for row in grid for cell in row]
        yield f"{which} grid in one line", " ".join(cells)
        yield f"rows of the {which} grid", str(len(grid))
        yield f"columns of the {which} grid", str(len(grid[0]))
        for rank, (cell, count) in enumerate(Counter(cells).most_common(4), start=1):
            yield f"cell {rank} by frequency of the {which} grid", cell
            yield f"count of cell {rank} by frequency of the {which} grid", str(count)


def _changed_grids(grid: Grid) -> Iterator[tuple[str, Grid]]:
    columns = [list(column) for column in zip(*grid, strict=True)]
    height, width = len(grid), len(grid[0])
    common = [cell for cell, _ in Counter(cell for row in grid for cell in row).most_common()]
    yield "as it is", grid
    yield "transposed", columns
    yield "turned right", [row[::-1] for row in columns]
    yield "turned left", columns[::-1]
    yield "upside down", [row[::-1] for row in grid[::-1]]
    yield "mirrored", [row[::-1] for row in grid]
    yield "flipped", grid[::-1]
    yield "rows sorted", sorted(grid)
    yield "cells of rows sorted", [sorted(row) for row in grid]
    yield "left half", [row[: (width + 1) // 2] for row in grid]
    yield "right half", [row[width // 2 :] for row in grid]
    yield "upper half", grid[: (height + 1) // 2]
    yield "lower half", grid[height // 2 :]
    yield "inside", [row[1:-1] for row in grid[1:-1]]
    yield "first row", grid[:1]
    yield "last row", grid[-1:]
    yield "upper left 3x3", [row[:3] for row in grid[:3]]
    yield "most frequent cell everywhere", [[common[0]] * width for _ in grid]
    yield "most frequent cell, 3x3", [[common[0]] * 3 for _ in range(3)]
    for rank, cell in enumerate(common[1:4], start=2):
        yield f"cell {rank} by frequency everywhere", [[cell] * width for _ in grid]
    if len(common) > 1:
        swap = {common[0]: common[1], common[1]: common[0]}
        yield "two most frequent cells exchanged", [[swap.get(cell, cell) for cell in row] for row in grid]
    full = [cell for cell in common if cell not in _BLANKS]
    for blank in (cell for cell in common if cell in _BLANKS):
        for filling in ("0", "1", "2", "3", "4", "Q", *full[:3], *full[-1:]):
            yield f"every {blank} made {filling}", [[filling if c == blank else c for c in row] for row in grid]
        yield (
            f"{blank} by counting",
            [
                [str((r + c) % width + 1) if cell == blank else cell for c, cell in enumerate(row)]
                for r, row in enumerate(grid)
            ],
        )
        yield f"{blank} by what its row lacks", [_completed(row, blank, full) for row in grid]


def _completed(row: list[str], blank: str, values: list[str]) -> list[str]:
    """Return the row with its blanks filled with the missing values, in order."""
    lacking = iter(sorted(set(values) - set(row)))
    return [next(lacking, values[0] if values else blank) if cell == blank else cell for cell in row]


def _grids(question: str) -> Iterator[tuple[Grid, str]]:
    """Yield grids (consecutive lines with the same number of cells), each with its cell separator."""
    run: Grid = []
    kind = ""
    for line in [*question.splitlines(), ""]:
        text = line.strip().strip("[],.")
        cells, separator = _cells(text)
        if run and (len(cells) != len(run[0]) or separator != kind):
            if len(run) > 1:
                yield run, kind
            run = []
        if len(cells) > 1:
            run.append(cells)
            kind = separator


def _cells(text: str) -> tuple[list[str], str]:
    """Return the cells of a line and their separator; no cells if the line is not part of a grid."""
    separator = "," if "," in text else " "
    cells = [cell for cell in re.split(r"[,\s]+", text) if cell]
    if len(cells) > 1:
        return (cells, separator) if all(len(cell) <= 4 for cell in cells) else ([], "")
    return (list(text), "") if len(set(text)) <= 12 and len(text) > 2 else ([], "")
