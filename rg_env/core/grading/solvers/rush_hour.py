"""Rush hour: its grader, and a solver, for the library stores no solution.

A vehicle keeps its line, so a state of the board is one number a vehicle: where on its line it begins.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rg_env.core.grading.graders.common import Config, Entry
from rg_env.core.grading.parsing import forms

_SIDE = 6
_MAX_STATES = 200_000
"""Where the solver gives up. No puzzle of the library has more than 147,355 states."""
_MOVE = re.compile(r"([A-Z])\1{0,2}([+-])(\d{1,2})")  # also `AA+1`, as the question names the red car
_SEPARATORS = re.compile(r"[\s,;'\"\[\]()]+")


@dataclass(frozen=True)
class _Board:
    walls: int
    """Cells that nothing may enter, as bits."""
    masks: list[list[int]]
    """Per vehicle and place on its line: the cells that it takes, as bits. The first is the red car."""
    start: tuple[int, ...]
    """Per vehicle: its place at the beginning."""

    def taken(self, state: Iterable[int]) -> int:
        """The cells that walls and vehicles take."""
        cells = self.walls
        for masks, place in zip(self.masks, state, strict=True):
            cells |= masks[place]
        return cells

    @property
    def exit(self) -> int:
        """The red car's last place on its line."""
        return len(self.masks[0]) - 1


def read_board(description: str) -> _Board:
    """From 36 letters, row by row: `o` is empty, `x` a wall.

    Vehicles come in the order of their letters, and the question calls them A, B, C ... in that order: not always by
    the letters in the description, which may leave some out.
    """
    cells: dict[str, list[int]] = {}
    walls = 0
    for cell, letter in enumerate(description):
        if letter == "x":
            walls |= 1 << cell
        elif letter != "o":
            cells.setdefault(letter, []).append(cell)
    masks, start = [], []
    for letter in sorted(cells):
        first, stride, size = cells[letter][0], cells[letter][1] - cells[letter][0], len(cells[letter])
        row, column = divmod(first, _SIDE)
        line, place = (row * _SIDE, column) if stride == 1 else (column, row)
        start.append(place)
        masks.append([sum(1 << line + (at + part) * stride for part in range(size)) for at in range(_SIDE - size + 1)])
    return _Board(walls, masks, tuple(start))


def rush_hour(answer: str, entry: Entry, config: Config) -> float:
    """Legal moves that leave the red car at the exit, of any number. The last one may drive it out of the board.

    A move through a vehicle, a wall or the edge is illegal. The library moves as far as it gets, and ignores the rest.
    """
    board = read_board(entry["metadata"]["board_config"])
    texts = [text for text in _SEPARATORS.split(forms.plain_digits(answer).upper()) if text]
    moves = [_MOVE.fullmatch(text) for text in texts]
    state, taken = list(board.start), board.taken(board.start)
    for number, move in enumerate(moves, start=1):
        if move is None:
            return 0.0
        vehicle, steps = ord(move[1]) - ord("A"), int(move[2] + move[3])
        if vehicle >= len(state):
            return 0.0
        place = state[vehicle] + steps
        if vehicle == 0 and number == len(moves) and place - board.exit in (1, 2):  # as long as the car
            place = board.exit
        if not 0 <= place < len(board.masks[vehicle]):
            return 0.0
        masks = board.masks[vehicle]
        others = taken ^ masks[state[vehicle]]
        low, high = sorted((place, state[vehicle]))
        if any(others & mask for mask in masks[low : high + 1]):
            return 0.0
        state[vehicle] = place
        taken = others | masks[place]
    return float(bool(moves) and state[0] == board.exit)


def solve(entry: Mapping[str, Any]) -> str | None:
    """Moves that solve the puzzle, as few as possible (a slide of any length is one), in the question's format.

    None if there are none, or too many states to try. Takes about 20 ms, up to half a second where much can move.
    """
    board = read_board(entry["metadata"]["board_config"])
    came_from: dict[tuple[int, ...], tuple[tuple[int, ...], int, int] | None] = {board.start: None}
    queue = deque([(board.start, board.taken(board.start))])
    while queue and len(came_from) < _MAX_STATES:
        state, taken = queue.popleft()
        if state[0] == board.exit:
            return _path(state, came_from)
        for vehicle, place in enumerate(state):
            masks = board.masks[vehicle]
            others = taken ^ masks[place]
            for step in (1, -1):
                at = place + step
                while 0 <= at < len(masks) and not others & masks[at]:
                    after = (*state[:vehicle], at, *state[vehicle + 1 :])
                    if after not in came_from:
                        came_from[after] = (state, vehicle, at - place)
                        queue.append((after, others | masks[at]))
                    at += step
    return None


def _path(end: tuple[int, ...], came_from: Mapping[tuple[int, ...], tuple[tuple[int, ...], int, int] | None]) -> str:
    moves = []
    step = came_from[end]
    while step is not None:
        state, vehicle, distance = step
        moves.append(f"{chr(ord('A') + vehicle)}{distance:+d}")
        step = came_from[state]
    return " ".join(reversed(moves))
