"""Graders of the games about a board, cards or a hidden text."""

import re
from collections.abc import Iterator

from rg_env.core.graders import common, forms
from rg_env.core.graders.types import Config, Entry, Grader

Point = tuple[int, int]
_MOVE = re.compile(r"\(?\s*([A-Za-z])\s*(?:[-,]\s*)?(\d{1,2})\s*\)?")
_EMPTY = ("_", ".")
_MAX_CHARS_A_CELL = 20  # of a written board, its quotes and white space included


def n_queens(answer: str, entry: Entry, config: Config) -> float:
    """Any full board that keeps the given queens and on which no two attack each other: lines, JSON or Python list."""
    puzzle = entry["metadata"]["puzzle"]
    size = len(puzzle)
    board = forms.grid(answer) if len(answer) <= _MAX_CHARS_A_CELL * size**2 else None
    if board is None or len(board) != size:
        return 0.0
    rows = [list(row[0]) if len(row) == 1 else row for row in board]  # `_Q__` as well as `_ Q _ _`
    if any(len(row) != size or any(cell not in (*_EMPTY, "Q", "q") for cell in row) for row in rows):
        return 0.0
    queens = [(r, c) for r in range(size) for c in range(size) if rows[r][c] in "Qq"]
    given = {(r, c) for r in range(size) for c in range(size) if puzzle[r][c] == "Q"}
    lines = [{r for r, _ in queens}, {c for _, c in queens}, {r + c for r, c in queens}, {r - c for r, c in queens}]
    return float(len(queens) == size and given <= set(queens) and all(len(line) == size for line in lines))


def tsumego(answer: str, entry: Entry, config: Config) -> float:
    """A move that captures as many white stones as any does.

    The library's random stones may give the white group of its problem another liberty, so that the stored move
    captures nothing. Then another is right (`graders.corrections`), or the question has no answer and is no row.
    """
    board = entry["metadata"]["board"]
    move, taken = _point(answer, len(board)), captures(board)
    if not taken:
        return float(move is not None and move == _point(str(entry["answer"]), len(board)))
    return float(move is not None and taken.get(move) == max(taken.values()))


def _point(text: str, size: int) -> Point | None:
    """Row and column, from the top left, of `C4`: rows are numbered from below."""
    match = _MOVE.fullmatch(forms.plain_digits(text.strip()))
    if match is None:
        return None
    row, column = size - int(match[2]), ord(match[1].upper()) - ord("A")
    return (row, column) if 0 <= row < size and 0 <= column < size else None


def captures(board: list[list[str]]) -> dict[Point, int]:
    """By move of Black that captures, how many white stones it takes: those of the groups with that liberty alone."""
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


GRADERS: dict[str, Grader] = {
    "emoji_mystery": common.word,
    "mahjong_puzzle": common.word,
    "n_queens": n_queens,
    "tsumego": tsumego,
}
