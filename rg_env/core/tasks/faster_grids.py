"""sudoku and futoshiki: whether a clue can be removed is decided by one search for another solution."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, permutations
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
    # The order in which the library tries the digits that are left, for each mask of the used ones.
    orders = [tuple(set(range(1, 10)) - {0, *(d for d in range(1, 10) if used >> d & 1)}) for used in range(1 << 10)]

    def solve(self: Any, board: list[list[int]]) -> bool:
        rows, columns, boxes = [0] * 9, [0] * 9, [0] * 9
        empty = []
        for row in range(9):
            for column in range(9):
                if digit := board[row][column]:
                    rows[row] |= 1 << digit
                    columns[column] |= 1 << digit
                    boxes[row // 3 * 3 + column // 3] |= 1 << digit
                else:
                    empty.append((row, column, row // 3 * 3 + column // 3))

        def fill(number: int) -> bool:
            if number == len(empty):
                return True
            row, column, box = empty[number]
            for digit in orders[rows[row] | columns[column] | boxes[box]]:
                bit = 1 << digit
                rows[row] |= bit
                columns[column] |= bit
                boxes[box] |= bit
                if fill(number + 1):
                    board[row][column] = digit
                    return True
                rows[row] ^= bit
                columns[column] ^= bit
                boxes[box] ^= bit
            return False

        return fill(0)

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

    cls._solve, cls._create_puzzle = solve, create_puzzle


def futoshiki(module: Any) -> None:
    cls = module.FutoshikiDataset

    def remove_clues(
        self: Any, grid: list[list[int]], constraints: Mapping[Any, str], rng: random.Random
    ) -> list[list[int]]:
        size = len(grid)
        digits = [digit for row in grid for digit in row]
        pairs = [(a * size + b, c * size + d, sign == "<") for ((a, b), (c, d)), sign in constraints.items()]
        placement = Placement(_latin_peers(size), [(a, b) if less else (b, a) for a, b, less in pairs])
        solver = _FutoshikiSolver(size, pairs)
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
                at = row * size + column
                saved = digits[at]
                if saved == 0 or placement.has_other(digits, at, everything):
                    continue
                digits[at] = 0
                filled -= 1
                if not solver.solves(digits):
                    digits[at] = saved
                    filled += 1
        return [digits[start : start + size] for start in range(0, size * size, size)]

    def generate_random_solution(self: Any, size: int, rng: random.Random) -> list[list[int]]:
        grid: list[list[int]] = []
        used = [0] * size

        def rows(left: list[int]) -> Iterator[list[int]]:
            """Yield the orders of the digits without a conflict, in the order of `itertools.permutations`."""
            column = size - len(left)
            if not left:
                yield []
            for number, digit in enumerate(left):
                if not used[column] >> digit & 1:
                    for rest in rows(left[:number] + left[number + 1 :]):
                        yield [digit, *rest]

        def fill() -> bool:
            if len(grid) == size:
                return True
            digits = list(range(1, size + 1))
            rng.shuffle(digits)
            for row in rows(digits):
                grid.append(row)
                for column, digit in enumerate(row):
                    used[column] ^= 1 << digit
                if fill():
                    return True
                for column, digit in enumerate(grid.pop()):
                    used[column] ^= 1 << digit
            return False

        if not fill():
            raise ValueError("Could not generate a random solution.")
        return grid

    cls._remove_clues, cls._generate_random_solution = remove_clues, generate_random_solution


class _FutoshikiSolver:
    """The library's solver, which keeps a clue if it finds no solution without it. Some of its rules are wrong, so a
    correct solver would keep other clues. Candidates are bit masks of digits. Only one of the library's sets is not in
    ascending order: a set made of a pair.

    `pairs` has the two cells of each constraint, and whether the first has the smaller digit.
    """

    def __init__(self, size: int, pairs: Sequence[tuple[int, int, bool]]) -> None:
        self._size = size
        self._pairs = pairs
        rows = [[row * size + column for column in range(size)] for row in range(size)]
        columns = [[row * size + column for row in range(size)] for column in range(size)]
        self._lines = rows, columns
        cells = range(size * size)
        self._others = [[[other for other in lines[at] if other != cell] for lines, at in
            ((rows, cell // size), (columns, cell % size))] for cell in cells]  # fmt: skip

    def solves(self, digits: Sequence[int]) -> bool:
        """Whether the library finds digits for all cells."""
        grid, candidates = self._deduced(digits)
        if 0 not in grid:
            return True
        at = grid.index(0)
        for digit in range(1, self._size + 1):
            if candidates[at] >> digit & 1 and self._is_valid(grid, at, digit):
                grid[at] = digit
                if self.solves(grid):
                    return True
                grid[at] = 0
        return False

    def _is_valid(self, grid: list[int], at: int, digit: int) -> bool:
        if any(grid[other] == digit for others in self._others[at] for other in others):
            return False
        tried = [*grid[:at], digit, *grid[at + 1 :]]
        return all(
            not (tried[a] and tried[b]) or (tried[a] < tried[b] if less else tried[a] > tried[b])
            for a, b, less in self._pairs
        )

    def _deduced(self, digits: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the digits and candidates that the library's rules lead to, in its order of the rules."""
        size = self._size
        everything = (1 << size + 1) - 2
        grid = list(digits)
        candidates = [1 << digit if digit else everything for digit in grid]
        orders: dict[int, tuple[int, ...]] = {}
        for a, _, less in self._pairs:
            candidates[a] &= ~(1 << size if less else 2)
        progress = True
        while progress:
            progress = self._exclude_placed(grid, candidates)
            self._place(grid, candidates)
            progress |= self._compare(grid, candidates)
            self._place(grid, candidates)
            self._hidden_singles(grid, candidates, orders)
            if self._place(grid, candidates):
                break
            progress |= self._naked_pairs(grid, candidates)
            self._place(grid, candidates)
            self._hidden_pairs(grid, candidates, orders)
            self._place(grid, candidates)
            for lines, across in (self._lines, self._lines[::-1]):
                progress |= self._x_wings(candidates, lines, across)
            if self._place(grid, candidates):
                break
        return grid, candidates

    @staticmethod
    def _place(grid: list[int], candidates: list[int]) -> bool:
        """Fill cells that have a single candidate. Return whether all cells are filled."""
        complete = True
        for at, digit in enumerate(grid):
            if not digit:
                own = candidates[at]
                if own and not own & (own - 1):
                    grid[at] = own.bit_length() - 1
                else:
                    complete = False
        return complete

    def _exclude_placed(self, grid: list[int], candidates: list[int]) -> bool:
        progress = False
        for at, digit in enumerate(grid):
            if digit:
                bit = 1 << digit
                for others in self._others[at]:
                    for other in others:
                        if candidates[other] & bit:
                            candidates[other] ^= bit
                            progress = True
        return progress

    def _compare(self, grid: list[int], candidates: list[int]) -> bool:
        progress = False
        for a, b, less in self._pairs:
            low, high = (a, b) if less else (b, a)
            if grid[low] and grid[high]:
                continue
            if grid[low] and (cut := candidates[high] & ((2 << grid[low]) - 1)):
                candidates[high] ^= cut
                progress = True
            if grid[high] and (cut := candidates[low] & -(1 << grid[high])):
                candidates[low] ^= cut
                progress = True
        return progress

    def _hidden_singles(self, grid: list[int], candidates: list[int], orders: dict[int, tuple[int, ...]]) -> None:
        for at, digit in enumerate(grid):
            if digit:
                continue
            single = 0
            for others in self._others[at]:
                elsewhere = 0
                for other in others:
                    elsewhere |= candidates[other]
                single |= candidates[at] & ~elsewhere
            if single:
                first = next(digit for digit in _ordered(at, candidates[at], orders) if single >> digit & 1)
                candidates[at] = 1 << first

    def _naked_pairs(self, grid: list[int], candidates: list[int]) -> bool:
        progress = False
        for at, digit in enumerate(grid):
            if digit or candidates[at].bit_count() != 2:
                continue
            for others in self._others[at]:
                for twin in others:
                    if candidates[twin] == candidates[at]:
                        for other in others:
                            if other != twin and candidates[other] & candidates[at]:
                                candidates[other] &= ~candidates[at]
                                progress = True
        return progress

    def _hidden_pairs(self, grid: list[int], candidates: list[int], orders: dict[int, tuple[int, ...]]) -> None:
        for at, digit in enumerate(grid):
            if digit:
                continue
            for others in self._others[at]:
                for twin in others:
                    if twin < at or grid[twin]:
                        continue
                    mine = _ordered(at, candidates[at], orders)
                    theirs = candidates[twin]
                    if len(mine) < 2 or not (theirs >> mine[0] & 1 and theirs >> mine[1] & 1):
                        continue
                    for pair in _common_pairs(mine, _ordered(twin, theirs, orders)):
                        both = 1 << pair[0] | 1 << pair[1]
                        if any(candidates[other] & both == both for other in others if other != twin):
                            continue
                        candidates[at] = candidates[twin] = both
                        orders[at] = orders[twin] = tuple(set(pair))

    def _x_wings(self, candidates: list[int], lines: list[list[int]], across: list[list[int]]) -> bool:
        progress = False
        for digit in range(1, self._size + 1):
            bit = 1 << digit
            twice = {}
            for number, line in enumerate(lines):
                places = [place for place, at in enumerate(line) if candidates[at] & bit]
                if len(places) == 2:
                    twice[number] = places
            for one, other in combinations(twice, 2):
                if twice[one] == twice[other]:
                    for place in twice[one]:
                        for number, at in enumerate(across[place]):
                            if number not in (one, other) and candidates[at] & bit:
                                candidates[at] ^= bit
                                progress = True
        return progress


def _ordered(cell: int, mask: int, orders: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the digits of a set in the order in which Python iterates over it."""
    order = orders.get(cell)
    return order if order and mask == 1 << order[0] | 1 << order[1] else _ascending(mask)


@lru_cache(maxsize=1 << 10)
def _ascending(mask: int) -> tuple[int, ...]:
    return tuple(digit for digit in range(1, 10) if mask >> digit & 1)


@lru_cache(maxsize=1 << 16)
def _common_pairs(mine: tuple[int, ...], theirs: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the pairs that the library finds in both sets. It searches each pair only behind the one before, because
    it uses up an iterator."""
    remaining = permutations(theirs, 2)
    return [pair for pair in permutations(mine, 2) if pair in remaining]
