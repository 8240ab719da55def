"""Graders for games whose answer is a filled grid, a board, a single value or an arithmetic expression. `move_games`
contains the graders for games whose answer is a list of moves.

Any grid that keeps the givens and obeys all rules is right, even if it is not the stored solution. Any other grid that
keeps the givens gets partial credit. The credit is the share of empty cells that the grid fills correctly, minus the
share that would be right if every empty cell held the best constant, but never less than 0. A grid that changes any of
the givens scores 0.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, cast

from rg_env.core.grading.graders import common, forms
from rg_env.core.grading.graders.common import Config, Entry
from rg_env.core.grading.graders.expressions import Node, exact, parse

Board = list[list[int]]

_SIGNS = str.maketrans(
    {"^": "∧", "⋀": "∧", "˄": "∧", "⌃": "∧", "Λ": "∧", "v": "∨", "V": "∨", "⋁": "∨", "˅": "∨", "⌄": "∨"}
)


def sudoku(answer: str, entry: Entry, config: Config) -> float:
    """Accept a grid with each digit once per row, column and 3x3 box."""
    return _sudoku(answer, entry, 3)


def mini_sudoku(answer: str, entry: Entry, config: Config) -> float:
    """Accept a grid with each number from 1 to 4 once per row, column and 2x2 box."""
    return _sudoku(answer, entry, 2)


def _sudoku(answer: str, entry: Entry, side: int) -> float:
    size = side * side
    starts = [(row, column) for row in range(0, size, side) for column in range(0, size, side)]

    def obeys(grid: Board) -> bool:
        boxes = [[grid[r + i][c + j] for i in range(side) for j in range(side)] for r, c in starts]
        return _is_latin(grid) and all(map(_is_complete, boxes))

    return _value(_grid(answer, size, size), entry["metadata"], obeys)


def futoshiki(answer: str, entry: Entry, config: Config) -> float:
    """Accept a grid that satisfies all inequalities and has each number once per row and column.

    The answer must repeat all signs between the cells, or only those within the rows, or none. An answer that changes a
    sign or a given scores 0.
    """
    metadata = entry["metadata"]
    text = answer.translate(_SIGNS)
    signs = _signs(entry["answer"])
    if _signs(text) not in ("", signs, re.sub("[∧∨]", "", signs)):
        return 0.0

    def obeys(grid: Board) -> bool:
        return _is_latin(grid) and all(
            grid[r1][c1] < grid[r2][c2] if sign == "<" else grid[r1][c1] > grid[r2][c2]
            for r1, c1, r2, c2, sign in metadata["constraints"]
        )

    size = metadata["board_size"]
    grid = _grid(re.sub("[<>∧∨]", " ", text), size, size, one_digit=size < 10)
    return _value(grid, metadata, obeys)


def kakurasu(answer: str, entry: Entry, config: Config) -> float:
    """Accept a grid of zeros and ones whose rows and columns have the required weighted sums."""
    metadata = entry["metadata"]

    def obeys(grid: Board) -> bool:
        is_binary = all(cell in (0, 1) for row in grid for cell in row)
        return is_binary and _weights(grid) == metadata["row_sums"] and _weights(_columns(grid)) == metadata["col_sums"]

    return _value(_grid(answer, metadata["n_rows"], metadata["n_cols"]), metadata, obeys)


def survo(answer: str, entry: Entry, config: Config) -> float:
    """Accept a grid in which the last cell of each row and column is the sum of the others, and each candidate number
    fills exactly one empty cell."""
    metadata = entry["metadata"]
    puzzle, size = metadata["puzzle"], metadata["board_size"]

    def obeys(grid: Board) -> bool:
        used = [cell for cell, given in zip(common.flat(grid), common.flat(puzzle), strict=True) if not given]
        sums_hold = all(sum(line[:-1]) == line[-1] for line in grid + _columns(grid))
        return sums_hold and sorted(used) == sorted(metadata["candidate_numbers"])

    return _value(_grid(answer, size, size, one_digit=False), metadata, obeys)


def _value(grid: Board, metadata: dict[str, Any], obeys: Callable[[Board], bool]) -> float:
    """Return 1.0 for a grid that keeps the givens and `obeys` the rules, and the partial credit described in the module
    docstring for any other grid."""
    boards = map(common.flat, (grid, metadata["puzzle"], metadata["solution"]))
    cells = list(zip(*boards, strict=True))
    if any(cell != given for cell, given, _ in cells if given):
        return 0.0
    if obeys(grid):
        return 1.0
    empty = [(cell, right) for cell, given, right in cells if not given]
    hits = sum(cell == right for cell, right in empty)
    most_common = max(Counter(right for _, right in empty).values(), default=0)
    return (hits - most_common) / len(empty) if hits > most_common else 0.0


def _grid(text: str, n_rows: int, n_columns: int, one_digit: bool = True) -> Board:
    """Parse the grid into rows of whole numbers, with 0 for a blank (`_`). A grid that does not have `n_rows` rows and
    `n_columns` columns is unreadable.

    With `one_digit`, the digits in a row do not need separators. Separator lines between rows are skipped.
    """
    rows = [row for row in common.rows(text, n_rows * n_columns) if set("".join(row)) - set("-+=:")]
    if one_digit:
        rows = [list("".join(row)) for row in rows]
    grid = [[0 if cell == "_" else common.whole(cell) for cell in row] for row in rows]
    if [len(row) for row in grid] != [n_columns] * n_rows or None in common.flat(grid):
        raise forms.Unreadable
    return cast(Board, grid)


def _columns(grid: Board) -> Board:
    return [list(column) for column in zip(*grid, strict=True)]


def _is_complete(cells: Sequence[int]) -> bool:
    """Whether the cells contain each number from 1 to their count exactly once."""
    return sorted(cells) == list(range(1, len(cells) + 1))


def _is_latin(grid: Board) -> bool:
    return all(map(_is_complete, grid + _columns(grid)))


def _weights(lines: Board) -> list[int]:
    """Return the sum of the positions of the ones in each line. Positions are counted from 1."""
    return [sum(position for position, cell in enumerate(line, start=1) if cell) for line in lines]


def _signs(text: str) -> str:
    return "".join(character for character in text if character in "<>∧∨")


Point = tuple[int, int]
_MOVE = re.compile(
    r"(?:yes[,.] )?(?:(?:by |black )?(?:should )?play(?:s|ing)? )?(?:at )?\(?\s*([a-z])\s*(?:[-,]\s*)?(\d{1,2})\s*\)?",
    re.IGNORECASE,
)


def n_queens(answer: str, entry: Entry, config: Config) -> float:
    """Accept any board with one queen per row, including the given queens, on which no two queens attack each other."""
    puzzle = entry["metadata"]["puzzle"]
    size = len(puzzle)
    board = common.rows(answer.replace("\\_", "_"), size**2)
    if len(board) != size:
        return 0.0
    rows = [list(row[0]) if len(row) == 1 else row for row in board]  # accepts `_Q__` as well as `_ Q _ _`
    if any(len(row) != size or any(cell not in ("_", ".", "Q", "q") for cell in row) for row in rows):
        return 0.0
    queens = [(r, c) for r in range(size) for c in range(size) if rows[r][c] in "Qq"]
    given = {(r, c) for r in range(size) for c in range(size) if puzzle[r][c] == "Q"}
    lines = [{r for r, _ in queens}, {c for _, c in queens}, {r + c for r, c in queens}, {r - c for r, c in queens}]
    return len(queens) == size and given <= set(queens) and all(len(line) == size for line in lines)


def tsumego(answer: str, entry: Entry, config: Config) -> float:
    """Accept a move that captures the most white stones.

    The stones that the library adds at random may give the white group another liberty. If the stored move captures
    nothing for this reason, either another move is right (see `graders.gold`), or the question has no answer and is
    excluded.
    """
    board = entry["metadata"]["board"]
    move, taken = _point(answer, len(board)), captures(board)
    if not taken:
        return move == _point(str(entry["answer"]), len(board))
    return taken.get(move) == max(taken.values())


def _point(text: str, size: int) -> Point:
    """Parse a point such as `C4`, with rows numbered from the bottom, into its row and column counted from the top
    left."""
    match = forms.matched(_MOVE, forms.plain_digits(text.strip()))
    return size - int(match[2]), ord(match[1].upper()) - ord("A")


def captures(board: list[list[str]]) -> dict[Point, int]:
    """Return the number of white stones captured by each capturing move. A move captures the white groups whose last
    liberty it fills."""
    size = len(board)
    left = {(r, c) for r in range(size) for c in range(size) if board[r][c] == "O"}
    found: dict[Point, int] = {}
    while left:
        open_points = [left.pop()]
        n_stones = 1
        liberties: set[Point] = set()
        while open_points:
            for row, column in _neighbours(open_points.pop(), size):
                if board[row][column] == ".":
                    liberties.add((row, column))
                elif (row, column) in left:
                    left.remove((row, column))
                    open_points.append((row, column))
                    n_stones += 1
        if len(liberties) == 1:
            (liberty,) = liberties
            found[liberty] = found.get(liberty, 0) + n_stones
    return found


def _neighbours(point: Point, size: int) -> Iterator[Point]:
    row, column = point
    for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
        if 0 <= r < size and 0 <= c < size:
            yield r, c


_FOUR_OPERATIONS = ("number", "negative", "inverse", "sum", "product")


def _made_of(answer: str, numbers: Collection[int], target: int) -> Node:
    """Parse an expression, which must use exactly the given numbers, each once, and equal the target.

    The numbers are compared before anything is computed, so an answer cannot cause expensive arithmetic.
    """
    left, equals, right = answer.partition("=")
    node = parse(left)
    parts = list(_parts(node))
    used = sorted(part[1] for part in parts if part[0] == "number")
    if used != sorted(map(str, numbers)) or not all(part[0] in _FOUR_OPERATIONS for part in parts):
        raise forms.Unreadable
    try:
        values = {exact(node), forms.integer(right) if equals else target}
    except ZeroDivisionError:
        raise forms.Unreadable from None
    if values != {target}:
        raise forms.Unreadable
    return node


def _parts(node: Node) -> Iterator[Node]:
    """Yield the node and its descendants, except the descendants of powers and functions."""
    yield node
    if node[0] in _FOUR_OPERATIONS[1:]:
        for part in node[1:]:
            yield from _parts(part)


def _operators(node: Node) -> set[str]:
    """Return the operators used in the expression."""
    used = set()
    for kind, *parts in _parts(node):
        if kind in ("negative", "inverse"):
            used.add("-" if kind == "negative" else "/")
        elif kind == "sum" and any(part[0] != "negative" for part in parts[1:]):
            used.add("+")
        elif kind == "product" and any(part[0] != "inverse" for part in parts[1:]):
            used.add("*")
    return used


def countdown(answer: str, entry: Entry, config: Config) -> float:
    """Accept an expression that uses each given number once and equals the target, with or without a trailing
    `= target`.

    Every wording of the question requires that all numbers be used.
    """
    metadata = entry["metadata"]
    _made_of(answer, metadata["numbers"], int(metadata["target"]))
    return 1.0


def puzzle24(answer: str, entry: Entry, config: Config) -> float:
    """Accept an expression that uses each given number once, uses only allowed operators, and equals 24."""
    node = _made_of(answer, entry["metadata"]["numbers"], 24)
    named = re.search(r"operators ([-+*/, ]+)\.", str(entry["question"]))
    allowed = set(named[1].replace(",", "").split() if named else "+-*/")
    stored = forms.attempt(parse, str(entry["answer"]))  # the generator replaces an inexact division with `-`
    return _operators(node) <= allowed | (_operators(stored) if stored else set())
