"""Solvers of tasks about grids."""

import json
import operator
import re
from collections import deque
from collections.abc import Iterator
from itertools import product

import numpy as np

Grid = list[list[str]]


def _grid(question: str) -> Grid:
    """Return the last block of lines with single signs or numbers."""
    blocks: list[Grid] = [[]]
    for line in question.splitlines():
        cells = line.split()
        if cells and all(re.fullmatch(r"-?\d+|[XO*#_Q]", cell) for cell in cells):
            blocks[-1].append(cells)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block][-1]


def text(grid: list[list[object]]) -> str:
    return "\n".join(" ".join(map(str, row)) for row in grid)


def _turned(grid: Grid) -> Grid:
    """Rotate the grid by a quarter turn clockwise."""
    return [list(row) for row in zip(*grid[::-1], strict=True)]


def around(at: tuple[int, int], grid: Grid) -> Iterator[tuple[int, int]]:
    for step in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        r, c = at[0] + step[0], at[1] + step[1]
        if 0 <= r < len(grid) and 0 <= c < len(grid[r]):
            yield r, c


def distances(grid: Grid, starts: list[tuple[int, int]], open_signs: str) -> dict[tuple[int, int], int]:
    found = dict.fromkeys(starts, 0)
    queue = deque(starts)
    while queue:
        at = queue.popleft()
        for r, c in around(at, grid):
            if (r, c) not in found and grid[r][c] in open_signs:
                found[r, c] = found[at] + 1
                queue.append((r, c))
    return found


def places(grid: Grid, sign: str) -> list[tuple[int, int]]:
    return [(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell == sign]


def rotate_matrix(question: str) -> str:
    grid = _grid(question)
    for _ in range(int(re.findall(r"by (\d+) degrees", question)[0]) // 90 % 4):
        grid = _turned(grid)
    return text(grid)


def spiral_matrix(question: str) -> str:
    grid, found = _grid(question), []
    while grid:
        found += grid[0]
        grid = _turned(_turned(_turned(grid[1:]))) if grid[1:] else []
    return " ".join(found)


def binary_matrix(question: str) -> str:
    grid = _grid(question)
    found = distances(grid, places(grid, "0"), "1")
    return text([[found[r, c] for c in range(len(row))] for r, row in enumerate(grid)])


def pool_matrix(question: str) -> str:
    kind, size = re.findall(r"Perform (max|average) pooling .* kernel size of (\d+)", question)[0]
    cells, k = np.array(_grid(question), int), int(size)
    pool = np.max if kind == "max" else np.mean
    rows, columns = (range(0, length, k) for length in cells.shape)
    return text([[f"{pool(cells[top : top + k, left : left + k]):.2f}" for left in columns] for top in rows])


def _manipulated(grid: Grid, step: str) -> Grid:
    numbers = [int(n) for n in re.findall(r"\d+", step)]
    if "Rotate" in step:
        for _ in range(numbers[0] // 90 % 4):
            grid = _turned(grid)
        return grid
    if "Horizontally mirror" in step:
        return grid[::-1]
    if "Vertically mirror" in step:
        return [row[::-1] for row in grid]
    if "counterdiagonal" in step:
        return _turned(_turned(_manipulated(grid, "diagonal")))
    if "diagonal" in step:
        return [list(row) for row in zip(*grid, strict=True)]
    if "Map" in step:
        return [[str(numbers[1]) if int(cell) == numbers[0] else cell for cell in row] for row in grid]
    if "divisible" in step:
        return [["0" if int(cell) % numbers[0] == 0 else cell for cell in row] for row in grid]
    if "Crop" in step:
        top, bottom, left, right = numbers[:4]
        return [row[left - 1 : right] for row in grid[top - 1 : bottom]]
    if "row" in step:
        return [row for at, row in enumerate(grid, start=1) if at % numbers[0]]
    if "column" in step:
        return [[cell for at, cell in enumerate(row, start=1) if at % numbers[0]] for row in grid]
    assert "Identity" in step, step
    return grid


def manipulate_matrix(question: str) -> str:
    grid = _grid(question.partition("Perform")[0])
    for step in re.findall(r"^- (.*)$", question, re.MULTILINE):
        grid = _manipulated(grid, step)
    return text(grid)


def largest_island(question: str) -> str:
    grid, most = _grid(question), 0
    left = set(places(grid, "1"))
    while left:
        island = set(distances(grid, [left.pop()], "1"))
        left -= island
        most = max(most, len(island))
    return str(most)


def rotten_oranges(question: str) -> str:
    grid = _grid(question)
    minutes = distances(grid, places(grid, "2"), "1")
    return str(max(minutes.values(), default=0) if set(places(grid, "1")) <= set(minutes) else -1)


def maze(question: str) -> str:
    start, goal = re.findall(r"from '(.)' \(start\) to '(.)' \(goal\)", question)[0]
    passage = re.findall(r"'(.)' = Passage", question)[0]
    lines = re.findall(r"```\n(.*?)\n```\n", question, re.DOTALL)[0].splitlines()
    grid = [list(line) for line in lines]
    return str(distances(grid, places(grid, start), passage + goal)[places(grid, goal)[0]])


def shortest_path(question: str) -> str:
    grid = _grid(question)
    start, goal = places(grid, "*")[0], places(grid, "#")[0]
    left = distances(grid, [goal], "O*")
    if start not in left:
        return "infeasible"
    names = {(-1, 0): "up", (1, 0): "down", (0, -1): "left", (0, 1): "right"}
    at, moves = start, []
    while at != goal:
        after = next(place for place in around(at, grid) if left.get(place) == left[at] - 1)
        moves.append(names[after[0] - at[0], after[1] - at[1]])
        at = after
    return " ".join(moves)


Life = list[list[int]]


def _after(board: Life, steps: int) -> Life:
    cells = np.array(board)
    for _ in range(steps):
        near = sum(np.roll(cells, shift, (0, 1)) for shift in product((-1, 0, 1), repeat=2) if any(shift))
        cells = ((near == 3) | ((near == 2) & (cells == 1))).astype(int)
    return cells.tolist()


def game_of_life(question: str) -> str:
    steps = int(re.findall(r"after (\d+) steps", question)[0])
    board = json.loads(question.rpartition("\n\n")[2].rstrip("."))
    return json.dumps(_after(board, steps))


def game_of_life_halting(question: str) -> str:
    steps = int(re.findall(r"at or before (\d+) steps", question)[0])
    rows = re.findall(r"\[([01 ]+)\]", question.rpartition("board:")[2])
    board = [[int(cell) for cell in row.split()] for row in rows]
    return str(not any(map(any, _after(board, steps))))


def modulo_grid(question: str) -> str:
    """Search for a function of column and row with one remainder in all marked cells and other remainders elsewhere."""
    rows = re.findall(r"^[✅❌❔]+$", question, re.MULTILINE)
    cells = {(x, y): sign for y, row in enumerate(rows) for x, sign in enumerate(row)}
    for of, divisor in product((operator.add, operator.sub, operator.mul, operator.pow), range(1, 30)):
        remainders = {at: abs(of(*at)) % divisor for at in cells}
        marked, others = ({remainders[at] for at in cells if cells[at] == sign} for sign in "✅❌")
        if len(marked) == 1 and not marked & others:
            return "\n".join(
                "".join("✅" if remainders[x, y] in marked else "❌" for x in range(len(row)))
                for y, row in enumerate(rows)
            )
    raise ValueError("no pattern")
