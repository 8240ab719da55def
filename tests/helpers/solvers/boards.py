"""Solvers of puzzles that fill a board, by search."""

import re
from collections.abc import Callable, Iterator
from itertools import permutations, product

from solvers import grids
from solvers.grids import text
from solvers.search import assign

Board = list[list[int]]


def _rows(question: str, signs: str = r"[\d_]") -> list[list[str]]:
    lines = [line.split() for line in question.splitlines()]
    return [cells for cells in lines if cells and all(re.fullmatch(rf"{signs}+", cell) for cell in cells)]


def _latin(board: Board, regions: list[list[tuple[int, int]]], fits: Callable[[Board, int, int], bool]) -> Board | None:
    """Fill in the zeros so that each region has each number once, starting with the cell with the fewest choices."""
    size, best = len(board), None
    for r, c in product(range(size), repeat=2):
        if not board[r][c]:
            taken = {board[i][j] for region in regions if (r, c) in region for i, j in region}
            choices = []
            for n in set(range(1, size + 1)) - taken:
                board[r][c] = n
                if fits(board, r, c):
                    choices.append(n)
            board[r][c] = 0
            if best is None or len(choices) < len(best[2]):
                best = r, c, choices
    if best is None:
        return board
    r, c, choices = best
    for n in choices:
        board[r][c] = n
        if found := _latin(board, regions, fits):
            return found
    board[r][c] = 0
    return None


def _lines(size: int) -> list[list[tuple[int, int]]]:
    across = [[(r, c) for c in range(size)] for r in range(size)]
    return across + [[(r, c) for r in range(size)] for c in range(size)]


def sudoku(question: str) -> str:
    rows = [row for row in _rows(question, r"[\d_]") if len(row) in (4, 9)]
    board = [[0 if cell == "_" else int(cell) for cell in row] for row in rows]
    side = 3 if len(board) == 9 else 2
    starts = product(range(0, side * side, side), repeat=2)
    boxes = [[(r + i, c + j) for i in range(side) for j in range(side)] for r, c in starts]
    found = _latin(board, _lines(len(board)) + boxes, lambda *_: True)
    return text(found or [])


def futoshiki(question: str) -> str:
    lines = question.partition("puzzle:\n\n")[2].partition("\n\nEnsure")[0].splitlines()
    board = [[0 if cell == "_" else int(cell) for cell in re.findall(r"[_\d]", line)] for line in lines[::2]]
    less: list[tuple[int, int, int, int]] = []  # row and column of the smaller number, then of the larger number
    for at, line in enumerate(lines):
        for found in re.finditer(r"[<>∧∨]", line):
            r, c = at // 2, found.start() // 4
            other = (r, c + 1) if at % 2 == 0 else (r + 1, c)
            less.append((r, c, *other) if found[0] in "<∧" else (*other, r, c))

    def fits(board: Board, r: int, c: int) -> bool:
        return all(
            not board[i][j] or not board[k][m] or board[i][j] < board[k][m]
            for i, j, k, m in less
            if (r, c) in ((i, j), (k, m))
        )

    return text(_latin(board, _lines(len(board)), fits) or [])


def _sums(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def kakurasu(question: str) -> str:
    rows, columns = map(_sums, re.findall(r"\[([\d, ]+)\]", question)[:2])
    ways = [
        [line for line in product((0, 1), repeat=len(columns)) if sum(i * n for i, n in enumerate(line, 1)) == total]
        for total in rows
    ]

    def choices(done: dict[int, tuple[int, ...]], row: int) -> Iterator[tuple[int, ...]]:
        for line in ways[row]:
            sums = [sum(i * n for i, n in enumerate(column, 1)) for column in zip(*done.values(), line, strict=True)]
            full = row + 1 == len(rows)
            if all(n == total if full else n <= total for n, total in zip(sums, columns, strict=True)):
                yield line

    return text(list(assign(range(len(rows)), choices).values()))


def survo(question: str) -> str:
    board = [[int(cell) for cell in row] for row in _rows(question, r"\d")]
    numbers = max(re.findall(r"\[([\d, ]+)\]", question), key=len)
    blanks = [(r, c) for r, row in enumerate(board) for c, cell in enumerate(row) if not cell]
    for chosen in set(permutations(_sums(numbers), len(blanks))):
        for (r, c), n in zip(blanks, chosen, strict=True):
            board[r][c] = n
        if all(sum(line[:-1]) == line[-1] for line in [*board, *zip(*board, strict=True)]):
            return text(board)
    raise ValueError("no solution")


def n_queens(question: str) -> str:
    rows = [row for row in _rows(question, r"[Q_]") if set("".join(row)) <= set("Q_") and len(row) > 1]
    size = len(rows)
    given = {r: row.index("Q") for r, row in enumerate(rows) if "Q" in row}

    def choices(done: dict[int, int], r: int) -> list[int]:
        others = {row: c for row, c in (given | done).items() if row != r}
        safe = [c for c in range(size) if all(c != o and abs(c - o) != abs(r - row) for row, o in others.items())]
        return [given[r]] if r in given else safe

    queens = assign(range(size), choices)
    return "\n".join(" ".join("Q" if queens[r] == c else "_" for c in range(size)) for r in range(size))


def tsumego(question: str) -> str:
    grid = [row.split() for row in re.findall(r"^ ?\d+ ([XO. ]+)$", question, re.MULTILINE)]
    taken: dict[tuple[int, int], int] = {}
    left = set(grids.places(grid, "O"))
    while left:
        group = set(grids.distances(grid, [left.pop()], "O"))
        left -= group
        liberties = {at for stone in group for at in grids.around(stone, grid)} & {*grids.places(grid, ".")}
        if len(liberties) == 1:
            (at,) = liberties
            taken[at] = taken.get(at, 0) + len(group)
    row, column = max(taken, key=lambda at: taken[at])
    return f"{chr(65 + column)}{len(grid) - row}"


def rectangle_count(question: str) -> str:
    """Count top left corners whose sides end at a common bottom right corner."""
    lines = question.partition("grid below?\n")[2].splitlines()
    inked = {(r, c) for r, line in enumerate(lines) for c, sign in enumerate(line) if sign in "#█"}
    doubled = {(r, c) for r, line in enumerate(lines) for c, sign in enumerate(line) if sign == "█"}

    def outline(top: int, left: int, bottom: int, right: int) -> set[tuple[int, int]]:
        across = {(r, c) for r in (top, bottom) for c in range(left, right + 1)}
        return across | {(r, c) for c in (left, right) for r in range(top, bottom + 1)}

    found = []
    for top, left in sorted(inked):
        right = left
        while (top, right + 1) in inked:
            right += 1
            bottom = top
            while (bottom + 1, left) in inked and (bottom + 1, right) in inked:
                bottom += 1
                if outline(top, left, bottom, right) <= inked:
                    found.append(outline(top, left, bottom, right))
    found.sort(key=len, reverse=True)
    counts = {at: 2 if at in doubled else 1 for at in inked}

    def cover(left: dict[tuple[int, int], int], options: list[set[tuple[int, int]]]) -> int | None:
        if not left:
            return 0
        corner = min(left)
        for option in options:
            if corner in option and all(at in left for at in option):
                rest = {at: n - (at in option) for at, n in left.items()}
                number = cover({at: n for at, n in rest.items() if n}, options)
                if number is not None:
                    return number + 1
        return None

    return str(cover(counts, found))


mini_sudoku = sudoku
