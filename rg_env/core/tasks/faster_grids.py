"""sudoku and futoshiki: whether a clue can be removed is decided by one search for another solution."""

import random
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

_NINE = 0b1111111110
"""Bit mask of the digits from 1 to 9."""


class Placement:
    """Placements of digits in cells such that peers differ and some cells have a smaller digit than others.

    A domain is a bit mask of the digits that are possible in a cell.
    """

    def __init__(self, peers: Sequence[Sequence[int]], less: Iterable[tuple[int, int]] = ()) -> None:
        self._peers = peers
        self._above: list[list[int]] = [[] for _ in peers]
        self._below: list[list[int]] = [[] for _ in peers]
        for low, high in less:
            self._above[low].append(high)
            self._below[high].append(low)

    def has_other(self, digits: Sequence[int], cell: int, everything: int) -> bool:
        """Whether the puzzle without its digit in `cell` has a solution with another digit there. `digits` has 0 for
        empty cells, and a single solution. `everything` is the domain of an empty cell."""
        bits = [1 << digit if digit else 0 for digit in digits]
        domains = bits.copy()
        changed = []
        for at in [cell, *(at for at, digit in enumerate(digits) if not digit)]:
            domain = everything ^ bits[cell] if at == cell else everything
            for peer in self._peers[at]:
                if peer != cell:
                    domain &= ~bits[peer]
            if not domain:
                return False
            domains[at] = domain
            if not domain & (domain - 1):
                changed.append(at)
        changed += [at for at in range(len(digits)) if self._above[at] or self._below[at]]
        return self.possible(domains, changed)

    def possible(self, domains: list[int], changed: Iterable[int]) -> bool:
        """Whether there is a placement. `changed` are the cells whose domains affect others. Changes `domains`."""
        if not self._narrow(domains, list(changed)):
            return False
        cell, fewest = -1, 99
        for at, domain in enumerate(domains):
            if domain & (domain - 1) and (count := domain.bit_count()) < fewest:
                cell, fewest = at, count
                if count == 2:
                    break
        if cell < 0:
            return True
        left = domains[cell]
        while left:
            digit = left & -left
            left ^= digit
            tried = domains.copy()
            tried[cell] = digit
            if self.possible(tried, (cell,)):
                return True
        return False

    def _narrow(self, domains: list[int], changed: list[int]) -> bool:
        """Remove digits that the changed domains exclude elsewhere. Return False if a cell has no digit left."""
        while changed:
            cell = changed.pop()
            domain = domains[cell]
            if not domain & (domain - 1):
                for peer in self._peers[cell]:
                    if domains[peer] & domain:
                        domains[peer] ^= domain
                        if not (left := domains[peer]):
                            return False
                        if not left & (left - 1) or self._above[peer] or self._below[peer]:
                            changed.append(peer)
            for high in self._above[cell]:
                if cut := domains[high] & (((domain & -domain) << 1) - 1):
                    domains[high] ^= cut
                    if not domains[high]:
                        return False
                    changed.append(high)
            for low in self._below[cell]:
                if cut := domains[low] & -(1 << (domain.bit_length() - 1)):
                    domains[low] ^= cut
                    if not domains[low]:
                        return False
                    changed.append(low)
        return True


def _latin_peers(size: int, box: int = 0) -> list[list[int]]:
    """Return the cells in the same row, column or box (of `box` by `box` cells, if any) as each cell."""
    cells = [(row, column) for row in range(size) for column in range(size)]
    return [
        [
            at
            for at, (r, c) in enumerate(cells)
            if (r, c) != (row, column)
            and (r == row or c == column or (box and (r // box, c // box) == (row // box, column // box)))
        ]
        for row, column in cells
    ]


def sudoku(module: Any) -> None:
    cls = module.SudokuDataset
    placement = Placement(_latin_peers(9, 3))

    def find_empty(self: Any, board: list[list[int]]) -> tuple[int, int] | None:
        for number, row in enumerate(board):
            if 0 in row:
                return number, row.index(0)
        return None

    def possible_values(self: Any, board: list[list[int]], row: int, column: int) -> set[int]:
        top, left = row // 3 * 3, column // 3 * 3
        box = [digit for line in board[top : top + 3] for digit in line[left : left + 3]]
        return set(range(1, 10)) - {*board[row], *[line[column] for line in board], *box}

    def create_puzzle(self: Any, solved: list[list[int]], num_empty: int, rng: random.Random) -> list[list[int]]:
        digits = [digit for row in solved for digit in row]
        cells = [(row, column) for row in range(9) for column in range(9)]
        rng.shuffle(cells)
        removed = 0
        for row, column in cells:
            if not placement.has_other(digits, row * 9 + column, _NINE):
                digits[row * 9 + column] = 0
                removed += 1
                if removed == num_empty:
                    break
        return [digits[start : start + 9] for start in range(0, 81, 9)]

    cls._find_empty, cls._get_possible_values, cls._create_puzzle = find_empty, possible_values, create_puzzle


def futoshiki(module: Any) -> None:
    cls = module.FutoshikiDataset

    def remove_clues(
        self: Any, grid: list[list[int]], constraints: Mapping[Any, str], rng: random.Random
    ) -> list[list[int]]:
        size = len(grid)
        pairs = [((a * size + b, c * size + d), sign) for ((a, b), (c, d)), sign in constraints.items()]
        placement = Placement(_latin_peers(size), [pair if sign == "<" else pair[::-1] for pair, sign in pairs])
        everything = (1 << size + 1) - 2
        target = int(0.1 * (size * size))
        coords = [(row, column) for row in range(size) for column in range(size)]
        filled = size * size
        for attempt in range(2):
            if attempt and filled <= 2 * target:
                break
            rng.shuffle(coords)
            for row, column in coords:
                if filled <= target:
                    break
                digits = [digit for line in grid for digit in line]
                saved = grid[row][column]
                if saved == 0 or placement.has_other(digits, row * size + column, everything):
                    continue
                grid[row][column] = 0
                # Some of the library's rules are wrong, and it keeps a clue if it finds no solution without it.
                if self._solve(grid, constraints) is None:
                    grid[row][column] = saved
                else:
                    filled -= 1
        return grid

    def generate_random_solution(self: Any, size: int, rng: random.Random) -> list[list[int]] | None:
        def filled(grid: list[list[int]], row: list[int], left: list[int]) -> list[list[int]] | None:
            """Try the orders of the digits that the row lacks as `itertools.permutations` does, without conflicts."""
            if not left:
                grid, row, left = [*grid, row] if row else grid, [], list(range(1, size + 1))
                if len(grid) == size:
                    return grid
                rng.shuffle(left)
            for number, digit in enumerate(left):
                is_free = all(above[len(row)] != digit for above in grid)
                if is_free and (found := filled(grid, [*row, digit], left[:number] + left[number + 1 :])):
                    return found
            return None

        return filled([], [], [])

    cls._remove_clues, cls._generate_random_solution = remove_clues, generate_random_solution
    module.copy = SimpleNamespace(deepcopy=lambda grid: [row.copy() for row in grid])
