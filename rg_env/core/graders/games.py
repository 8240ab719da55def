"""Graders of the games tasks whose answer is a filled grid, and of `maze`. `move_games` has those that are played.

Any grid is right that keeps the givens and obeys all rules, also one that is not the stored solution. Short of that, a
grid that keeps the givens is worth its share of right cells among those to fill in, counted from what the best grid
with one and the same value in all of them gets: a constant is worth nothing. A changed given makes it 0.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rg_env.core.graders import common, forms
from rg_env.core.graders.types import Config, Entry, Grader

Grid = list[list[int]]

_MAX_CHARS_PER_CELL = 40
"""A longer answer is not read as a grid. JSON with a cell a line needs about 15, signs and rulers included."""
_SIGNS = str.maketrans({"^": "∧", "⋀": "∧", "˄": "∧", "⌃": "∧", "v": "∨", "V": "∨", "⋁": "∨", "˅": "∨", "⌄": "∨"})
_NO_SIGNS = str.maketrans(dict.fromkeys("<>∧∨", " "))


def sudoku(answer: str, entry: Entry, config: Config) -> float:
    """Rows, columns and 3x3 boxes have each digit once."""
    return _sudoku(answer, entry, 3)


def mini_sudoku(answer: str, entry: Entry, config: Config) -> float:
    """Rows, columns and 2x2 boxes have each of 1 to 4 once."""
    return _sudoku(answer, entry, 2)


def _sudoku(answer: str, entry: Entry, side: int) -> float:
    size = side * side
    starts = [(row, column) for row in range(0, size, side) for column in range(0, size, side)]

    def obeys(grid: Grid) -> bool:
        boxes = [[grid[r + i][c + j] for i in range(side) for j in range(side)] for r, c in starts]
        return _is_latin(grid) and all(map(_is_complete, boxes))

    return _value(_grid(answer, size, size), entry["metadata"], obeys)


def futoshiki(answer: str, entry: Entry, config: Config) -> float:
    """Rows and columns have each number once, and all inequalities hold.

    The answer repeats the signs between the cells or leaves them all out; changed ones are changed givens.
    """
    metadata = entry["metadata"]
    text = answer.translate(_SIGNS)
    if _signs(text) not in ("", _signs(entry["answer"])):
        return 0.0

    def obeys(grid: Grid) -> bool:
        return _is_latin(grid) and all(
            grid[r1][c1] < grid[r2][c2] if sign == "<" else grid[r1][c1] > grid[r2][c2]
            for r1, c1, r2, c2, sign in metadata["constraints"]
        )

    size = metadata["board_size"]
    return _value(_grid(text.translate(_NO_SIGNS), size, size, one_digit=size < 10), metadata, obeys)


def kakurasu(answer: str, entry: Entry, config: Config) -> float:
    """Zeros and ones with the wanted weighted sums of rows and columns."""
    metadata = entry["metadata"]

    def obeys(grid: Grid) -> bool:
        is_binary = all(cell in (0, 1) for row in grid for cell in row)
        return is_binary and _weights(grid) == metadata["row_sums"] and _weights(_columns(grid)) == metadata["col_sums"]

    return _value(_grid(answer, metadata["n_rows"], metadata["n_cols"]), metadata, obeys)


def survo(answer: str, entry: Entry, config: Config) -> float:
    """Each row and column ends in the sum of the rest, and the cells to fill have the given numbers, each once."""
    metadata = entry["metadata"]
    puzzle, size = metadata["puzzle"], metadata["board_size"]

    def obeys(grid: Grid) -> bool:
        used = [
            cell
            for row, given in zip(grid, puzzle, strict=True)
            for cell, old in zip(row, given, strict=True)
            if not old
        ]
        sums_hold = all(sum(line[:-1]) == line[-1] for line in grid + _columns(grid))
        return sums_hold and sorted(used) == sorted(metadata["candidate_numbers"])

    return _value(_grid(answer, size, size, one_digit=False), metadata, obeys)


def _value(grid: Grid | None, metadata: dict[str, Any], obeys: Callable[[Grid], bool]) -> float:
    """1.0 for a grid that keeps the givens and `obeys` the rules; else what the module's head says."""
    if grid is None:
        return 0.0
    wanted: list[int] = []
    hits = 0
    for row, givens, solved in zip(grid, metadata["puzzle"], metadata["solution"], strict=True):
        for cell, given, right in zip(row, givens, solved, strict=True):
            if not given:
                wanted.append(right)
                hits += cell == right
            elif cell != given:
                return 0.0
    if obeys(grid):
        return 1.0
    most_common = max(Counter(wanted).values(), default=0)
    return (hits - most_common) / len(wanted) if hits > most_common else 0.0


def _grid(text: str, n_rows: int, n_columns: int, one_digit: bool = True) -> Grid | None:
    """The rows of whole numbers, 0 for a blank (`_`); None for another size or other cells.

    With `one_digit` the digits of a row need no separators. Rulers between rows are skipped.
    """
    if len(text) > _MAX_CHARS_PER_CELL * n_rows * n_columns:
        return None
    rows = [row for row in forms.grid(text) or [] if set("".join(row)) - set("-+=:")]
    if one_digit:
        rows = [list("".join(row)) for row in rows]
    if len(rows) != n_rows or any(len(row) != n_columns for row in rows):
        return None
    found = [[0 if cell == "_" else forms.integer(cell) for cell in row] for row in rows]
    grid = [[cell for cell in row if cell is not None] for row in found]
    return grid if all(len(row) == n_columns for row in grid) else None


def _columns(grid: Grid) -> Grid:
    return [list(column) for column in zip(*grid, strict=True)]


def _is_complete(cells: Sequence[int]) -> bool:
    """Each of 1 to the number of cells, once."""
    return sorted(cells) == list(range(1, len(cells) + 1))


def _is_latin(grid: Grid) -> bool:
    return all(map(_is_complete, grid + _columns(grid)))


def _weights(lines: Grid) -> list[int]:
    """Of each line the sum of the positions, from 1, of its ones."""
    return [sum(position for position, cell in enumerate(line, start=1) if cell) for line in lines]


def _signs(text: str) -> str:
    return "".join(character for character in text if character in "<>∧∨")


GRADERS: dict[str, Grader] = {
    "futoshiki": futoshiki,
    "kakurasu": kakurasu,
    "maze": common.exact_number,
    "mini_sudoku": mini_sudoku,
    "sudoku": sudoku,
    "survo": survo,
}
