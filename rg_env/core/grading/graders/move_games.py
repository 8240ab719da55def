"""Graders for games whose answer is a list of moves. The graders replay the moves on their own board, following the
question's rules.

A list with an illegal move is wrong, except in sokoban, where a blocked step does nothing. The library does not store
solutions to rush_hour and boxnet puzzles, so `solve_rush_hour` and `solve_boxnet` find solutions.

Rush hour: a vehicle never leaves its line (a row or column), so the state of the board consists of the position of each
vehicle's first cell on that vehicle's line.

Boxnet: a plan is a list of steps. In a step, each agent can do one thing with a box that is in the agent's square when
the step starts. The agent can move the box to an adjacent square, or match it with a target of the same color in the
same square. Matching removes the box and the target.
"""

import json
import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from rg_env.core.grading.graders import forms
from rg_env.core.grading.graders.common import Config, Entry

_DISK_MOVE = re.compile(
    r"(?:(?:(?:step )?\d{1,6}[.):]|[-*])\s+)?(?:\*\*)?"
    r"move\s+disk\s*(\d{1,4})\s+from\s+peg\s*(\d{1,4})\s+to\s+peg\s*(\d{1,4})\.?",
    re.IGNORECASE,
)
_CHARS_PER_LINE = 8
_MORE_LINES = 200
"""Number of lines allowed in addition to one line per `_CHARS_PER_LINE` characters. A move takes at least 31
characters, so there is room for blank lines."""
_CHARS_PER_MOVE = 50
_MAX_HANOI_CHARS = 200_000
_KNIGHT_MOVE = re.compile(r"\b([wb])\s*,\s*([a-z]\d{1,2})\s*,\s*([a-z]\d{1,2})\b", re.IGNORECASE)
_KNIGHT_MOVES = re.compile(
    r"[\[(]?\s*(['\"]?)M\1(?:(?:\s*[,;]\s*|\s+)\1M\1)*\s*[\])]?".replace(
        "M", r"[wb]\s*,\s*[a-z]\d{1,2}\s*,\s*[a-z]\d{1,2}"
    ),
    re.IGNORECASE,
)
"""Matches a list of moves, as JSON or without brackets, with the same kind of quotes (or none) around all moves."""
_SIDE = 6
_MAX_STATES = 200_000
"""Number of states after which the solver gives up. No puzzle in the library has more than 147,355 states."""
# `AA+1` is also accepted because the question calls the red car AA.
_SLIDE = re.compile(r"([A-Z])\1{0,2}([+-])(\d{1,2})")
_ACTION = re.compile(
    r"agent\[N,N\]:move\((box_[^(),]+),(?:square\[N,N\]|(target_[^()]+))\)".replace("N", r"(\d{1,3}\.5)"), re.IGNORECASE
)

_S = TypeVar("_S")
_State = tuple[int, ...]
"""State of a rush_hour board: the place of each vehicle on its line."""
_Knights = tuple[frozenset[str], frozenset[str], str]
"""State of a knight_swap board: the squares of the side to move, the squares of the other side, and the side to
move."""
_Squares = dict[str, list[str]]
"""Items in each square. A square is named after the coordinates of its center, such as `0.5_1.5`."""


def _shortest(
    start: _S, moves: Callable[[_S], Iterable[tuple[str, _S]]], done: Callable[[_S], bool]
) -> list[str] | None:
    """Return the moves on a shortest path to a `done` state, or None if no path exists or there are too many states."""
    came_from: dict[_S, tuple[_S, str] | None] = {start: None}
    queue = deque([start])
    while queue and len(came_from) < _MAX_STATES:
        state = queue.popleft()
        if done(state):
            names = []
            while step := came_from[state]:
                state, name = step
                names.append(name)
            return names[::-1]
        for name, after in moves(state):
            if after not in came_from:
                came_from[after] = state, name
                queue.append(after)
    return None


def longest_hanoi(entry: Entry) -> int:
    """Return the length in characters of a numbered list of the moves that three pegs would require, which solve any
    tower_of_hanoi puzzle with that many disks."""
    return min(2 ** entry["metadata"]["num_disks"] * _CHARS_PER_MOVE, _MAX_HANOI_CHARS)


def tower_of_hanoi(answer: str, entry: Entry, config: Config) -> float:
    """Accept any number of legal moves that bring all disks to the target peg. The question does not ask for the fewest
    moves.

    Checking a move takes constant time, and the length limit on answers bounds the number of moves.
    """
    metadata = entry["metadata"]
    pegs: dict[int, list[int]] = {peg: [] for peg in range(1, metadata["num_pegs"] + 1)}
    pegs[metadata["start_peg"]] = list(range(metadata["num_disks"], 0, -1))
    if sum(map(answer.count, "\n,;")) >= len(answer) // _CHARS_PER_LINE + _MORE_LINES:
        return 0.0
    lines = [line.strip(" \t\r[]\"'*") for line in re.split(r"[\n,;]", forms.plain_digits(answer))]
    parsed: dict[str, list[int]] = {}  # long answers repeat a few moves
    for line in filter(None, lines):
        if line not in parsed:
            parsed[line] = [int(number) for number in forms.matched(_DISK_MOVE, line).groups()]
        disk, source, target = parsed[line]
        if source not in pegs or target not in pegs or pegs[source][-1:] != [disk]:
            return 0.0
        pegs[source].pop()
        if pegs[target] and pegs[target][-1] < disk:
            return 0.0
        pegs[target].append(disk)
    return len(pegs[metadata["target_peg"]]) == metadata["num_disks"]


def knight_swap(answer: str, entry: Entry, config: Config) -> float:
    """Accept any sequence of legal moves by alternating sides that swaps the colors, or "No" if that is impossible.

    According to the question, a legal move is a knight's move to an empty square. To make a puzzle impossible, the
    library forbids a move without mentioning this rule in the question. If the puzzle is still possible under the
    question's rules, `graders.gold` provides a solution.
    """
    if answer.strip(" \t\r\n\"'[].").lower() in ("no", "impossible", "not possible", "no, it is not possible"):
        return entry["answer"] == "No"
    answer = re.sub(r"(?i)^\s*yes[.,:]?\s+", "", answer)
    answer = forms.matched(_KNIGHT_MOVES, forms.plain_digits(answer).strip())[0].upper()
    state, moves, goals = _knights(entry["metadata"]["pieces"], entry["metadata"]["start_turn"])
    for given in _KNIGHT_MOVE.findall(answer):
        after = next((after for move, after in moves(state) if move.upper() == ",".join(given)), None)
        if after is None:
            return 0.0
        state = after
    return state in goals


def _knights(
    pieces: Mapping[str, str | None], first: str
) -> tuple[_Knights, Callable[[_Knights], Iterator[tuple[str, _Knights]]], set[_Knights]]:
    """Return the initial state of a board, a function that yields each possible move from a state together with the
    resulting state, and the states in which the colors are swapped."""

    def adjacent(one: str, other: str) -> bool:
        return {abs(ord(one[0]) - ord(other[0])), abs(int(one[1:]) - int(other[1:]))} == {1, 2}

    jumps = {here: [to for to in pieces if adjacent(here, to)] for here in pieces}
    white, black = (frozenset(square for square, piece in pieces.items() if piece == color) for color in "wB")

    def moves(state: _Knights) -> Iterator[tuple[str, _Knights]]:
        own, other, side = state
        for here in sorted(own):
            for to in jumps[here]:
                if to not in own and to not in other:
                    yield f"{side},{here},{to}", (other, own - {here} | {to}, "B" if side == "w" else "w")

    start = (white, black, "w") if first == "w" else (black, white, "B")
    return start, moves, {(black, white, "w"), (white, black, "B")}


@lru_cache(maxsize=1024)
def solve_knight_swap(pieces: tuple[tuple[str, str], ...], first: str) -> str:
    """Return a shortest list of moves that swaps the knights, or "No" if there is no such list.

    The library's boards have at most 12 squares, so the search visits at most 70,000 states.
    """
    start, moves, goals = _knights(dict(pieces), first)
    found = _shortest(start, moves, goals.__contains__)
    return "No" if found is None else json.dumps(found)


def sokoban(answer: str, entry: Entry, config: Config) -> float:
    """Accept a sequence of the letters U, D, L and R that pushes all boxes onto goals. Blocked steps do nothing."""
    moves = re.sub("[ \t\r\n,;'\"[\\]]", "", answer).upper()
    several = answer.lstrip().startswith("[") and re.search(r"\w\w['\"]?\s*[,;]", answer)  # a list of solutions
    if several or not moves or set(moves) - set("UDLR"):
        return 0.0
    rows = entry["metadata"]["gamestr"].replace(" ", "").strip().splitlines()
    stride = max(map(len, rows)) + 1  # an empty column keeps steps from wrapping around to the next row
    cells = {y * stride + x: cell for y, row in enumerate(rows) for x, cell in enumerate(row)}
    floor = {at for at, cell in cells.items() if cell != "+"}
    goals = {at for at, cell in cells.items() if cell in "X$%"}
    boxes = {at for at, cell in cells.items() if cell in "@$"}
    player = next(at for at, cell in cells.items() if cell in "*%")
    steps = {"U": -stride, "D": stride, "L": -1, "R": 1}
    for move in moves:
        step = steps[move]
        ahead = player + step
        if ahead in boxes:
            beyond = ahead + step
            if beyond in boxes or beyond not in floor:
                continue
            boxes.remove(ahead)
            boxes.add(beyond)
        elif ahead not in floor:
            continue
        player = ahead
    return boxes <= goals


class _Board(NamedTuple):
    walls: int
    """Bit mask of the walls."""
    masks: list[list[int]]
    """For each vehicle, bit masks of the cells that it occupies at each place on its line. The red car is first."""
    start: tuple[int, ...]
    """Initial place of each vehicle."""

    def taken(self, state: Iterable[int]) -> int:
        """Return the bit mask of the cells occupied by walls and vehicles."""
        cells = self.walls
        for masks, place in zip(self.masks, state, strict=True):
            cells |= masks[place]
        return cells

    def reach(self, taken: int, vehicle: int, place: int) -> Iterator[int]:
        """Yield the places to which a vehicle can slide in either direction before it meets a wall or another vehicle.
        `taken` is the bit mask of all occupied cells."""
        masks = self.masks[vehicle]
        others = taken ^ masks[place]
        for step in (1, -1):
            at = place + step
            while 0 <= at < len(masks) and not others & masks[at]:
                yield at
                at += step


def read_board(description: str) -> _Board:
    """Parse a board from 36 letters, row by row, where `o` is an empty cell and `x` is a wall.

    Vehicles are sorted by letter, and the question calls them A, B, C, ... in that order. These names can differ from
    the letters in the description, which may skip some letters.
    """
    cells: dict[str, list[int]] = {}
    for cell, letter in enumerate(description):
        cells.setdefault(letter, []).append(cell)
    walls = sum(1 << cell for cell in cells.pop("x", []))
    cells.pop("o", None)
    masks, start = [], []
    for letter in sorted(cells):
        first, stride, size = cells[letter][0], cells[letter][1] - cells[letter][0], len(cells[letter])
        row, column = divmod(first, _SIDE)
        line, place = (row * _SIDE, column) if stride == 1 else (column, row)
        start.append(place)
        masks.append([sum(1 << line + (at + part) * stride for part in range(size)) for at in range(_SIDE - size + 1)])
    return _Board(walls, masks, tuple(start))


def rush_hour(answer: str, entry: Entry, config: Config) -> float:
    """Accept any number of legal moves that bring the red car to the exit. The last move may drive the red car off the
    board.

    Any other move through a vehicle, a wall or the edge is illegal, even though the library's own grader merely
    shortens such a move.
    """
    board = read_board(entry["metadata"]["board_config"])
    moves = [forms.matched(_SLIDE, text) for text in forms.parts(forms.plain_digits(answer).upper())]
    state, last = list(board.start), len(board.masks[0]) - 1
    for number, move in enumerate(moves, start=1):
        vehicle, steps = ord(move[1]) - ord("A"), int(move[2] + move[3])
        if vehicle >= len(state):
            return 0.0
        here = state[vehicle]
        place = here + steps
        if vehicle == 0 and number == len(moves) and place - last in (1, 2):  # the red car occupies two cells
            place = last
        if place != here and place not in board.reach(board.taken(state), vehicle, here):
            return 0.0
        state[vehicle] = place
    return bool(moves) and state[0] == last


def solve_rush_hour(entry: Mapping[str, Any]) -> str | None:
    """Return a shortest solution in the question's format. A slide of any length counts as one move.

    The result is None if no solution exists, or if there are too many states to search. The search takes about 20 ms,
    or up to 0.5 s if many vehicles can move.
    """
    board = read_board(entry["metadata"]["board_config"])
    # A state is the place of each vehicle, in three bits.
    start = sum(place << 3 * vehicle for vehicle, place in enumerate(board.start))
    exit_place = len(board.masks[0]) - 1
    came_from: dict[int, tuple[int, int, int]] = {start: (start, 0, 0)}
    queue = deque([(start, board.taken(board.start))])
    vehicles = [(vehicle, 3 * vehicle, masks, len(masks)) for vehicle, masks in enumerate(board.masks)]
    while queue and len(came_from) < _MAX_STATES:
        state, taken = queue.popleft()
        if state & 7 == exit_place:
            moves = []
            while state != start:
                state, vehicle, steps = came_from[state]
                moves.append(f"{chr(ord('A') + vehicle)}{steps:+d}")
            return " ".join(reversed(moves))
        for vehicle, shift, masks, places in vehicles:
            place = state >> shift & 7
            others = taken ^ masks[place]
            for step in (1, -1):
                at = place + step
                while 0 <= at < places and not others & masks[at]:
                    after = state + (at - place << shift)
                    if after not in came_from:
                        came_from[after] = state, vehicle, at - place
                        queue.append((after, others | masks[at]))
                    at += step
    return None


def boxnet(answer: str, entry: Entry, config: Config) -> float:
    """Accept any plan that matches all boxes, not only the shortest plan. Partial credit is the share of matched boxes.

    A plan with an impossible action is wrong, even though the library's own grader merely skips the action.
    """
    squares = {name: list(items) for name, items in entry["metadata"]["initial_state"].items()}
    n_boxes = _n_boxes(squares)
    steps = forms.literal(answer) if answer.lstrip().startswith("[") else None
    if not isinstance(steps, list) or not all(isinstance(step, dict) and _do(step, squares) for step in steps):
        return 0.0
    return (n_boxes - _n_boxes(squares)) / n_boxes


def _do(step: dict[Any, Any], squares: _Squares) -> bool:
    """Perform all actions of a step simultaneously. Returns False if an action is impossible."""
    acted = set()
    arrivals = []
    for agent, action in step.items():
        text = re.sub(r" ?([][(),:]) ?", r"\1", " ".join(f"{agent}:{action}".split()))
        found = forms.matched(_ACTION, text)
        here, box, there, target = f"{found[1]}_{found[2]}", found[3], f"{found[4]}_{found[5]}", found[6]
        if here in acted or box not in squares.get(here, ()):
            return False
        acted.add(here)
        squares[here].remove(box)
        if target:
            if target != _target_of(box) or target not in squares[here]:
                return False
            squares[here].remove(target)
        elif there in squares and _distance(here, there) == 1:
            arrivals.append((there, box))
        else:
            return False
    for there, box in arrivals:
        squares[there].append(box)
    return True


def solve_boxnet(entry: Mapping[str, Any]) -> str:
    """Return a plan that matches all boxes, with one action per step. Each box in turn moves to the nearest remaining
    target of its color."""
    squares: _Squares = entry["metadata"]["initial_state"]
    targets = [(item, name) for name, items in squares.items() for item in items if item.startswith("target_")]
    plan = []
    for name, items in squares.items():
        for box in items:
            if not box.startswith("box_"):
                continue
            goal = min(
                (pair for pair in targets if pair[0] == _target_of(box)), key=lambda pair: _distance(name, pair[1])
            )
            targets.remove(goal)
            path = _route(name, goal[1])
            destinations = [*(f"square[{square.replace('_', ', ')}]" for square in path[1:]), goal[0]]
            for here, destination in zip(path, destinations, strict=True):
                plan.append({f"Agent[{here.replace('_', ', ')}]": f"move({box}, {destination})"})
    return json.dumps(plan)


def _route(start: str, end: str) -> list[str]:
    """Return the squares from `start` to `end`, inclusive, first along one axis and then along the other."""
    at, goal = [float(part) for part in start.split("_")], [float(part) for part in end.split("_")]
    path = [start]
    for axis in (0, 1):
        while at[axis] != goal[axis]:
            at[axis] += 1 if goal[axis] > at[axis] else -1
            path.append(f"{at[0]}_{at[1]}")
    return path


def _distance(one: str, other: str) -> float:
    return sum(abs(float(a) - float(b)) for a, b in zip(one.split("_"), other.split("_"), strict=True))


def _target_of(box: str) -> str:
    return "target_" + box.removeprefix("box_")


def _n_boxes(squares: _Squares) -> int:
    return sum(item.startswith("box_") for items in squares.values() for item in items)


# Paths and presses

_STEPS = {"right": (0, 1), "down": (1, 0), "left": (0, -1), "up": (-1, 0)}
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
}


def path_star(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored path, which is the only correct path because the branches of a star do not meet."""
    return forms.parts(answer.casefold()) == str(entry["answer"]).split()


def shortest_path(answer: str, entry: Entry, config: Config) -> float:
    """Accept any shortest path through open cells, or `infeasible` if no path exists. A longer path scores at most
    0.5."""
    shortest = entry["metadata"]["solution"]
    path = forms.parts(answer.casefold())
    if not shortest:
        return path == ["infeasible"]
    cells = {(r, c): cell for r, line in enumerate(entry["metadata"]["matrix"]) for c, cell in enumerate(line)}
    at = next(point for point, cell in cells.items() if cell == "*")
    for word in path:
        down, right = _STEPS.get(word, (0, 0))
        at = at[0] + down, at[1] + right
        if word not in _STEPS or cells.get(at, "X") == "X":
            return 0.0
    return _worth(path, len(shortest)) if cells[at] == "#" else 0.0


def _worth(steps: list[str], shortest: int) -> float:
    return 1.0 if len(steps) == shortest else shortest / len(steps) / 2


def quantum_lock(answer: str, entry: Entry, config: Config) -> float:
    """Accept any sequence of buttons that reaches the target in as few presses as possible. A longer sequence scores at
    most 0.5.

    In the question, the light toggles "whenever you press a button." Taken literally, this wording includes a button
    for a color other than the light's, which leaves the number unchanged. The library's search never presses such a
    button, and the library's grader ignores such a press. The library's shortest sequence also reaches the target under
    the literal reading. If the literal reading allows a shorter sequence (see `is_shortest_lock`), the question has two
    possible answers and is excluded.
    """
    metadata = entry["metadata"]
    buttons = {button["name"].casefold(): button for button in metadata["buttons"]}
    presses = list("".join(forms.parts(answer.casefold())))  # names are single letters, so `ABA` means `A → B → A`
    shortest = len(metadata["solution_path"])
    if not shortest <= len(presses) <= 4 * shortest or not buttons.keys() >= set(presses):
        return 0.0
    state = metadata["initial_value"], metadata["initial_state"]
    for name in presses:
        state = _pressed(state, buttons[name])
    return _worth(presses, shortest) if state[0] == metadata["target_value"] else 0.0


def _pressed(state: tuple[int, str], button: Mapping[str, Any]) -> tuple[int, str]:
    """Return the number and the light's color after a button is pressed."""
    value, color = state
    if button["active_state"] in ("any", color):
        value = OPERATIONS[button["type"]](value, button["value"])
    return value, {"red": "green", "green": "red"}[color]


def is_shortest_lock(entry: Entry) -> bool:
    """Whether the stored sequence is still a shortest solution if every button press toggles the light."""
    metadata = entry["metadata"]
    target = metadata["target_value"]
    buttons = metadata["buttons"]
    edge = {(metadata["initial_value"], metadata["initial_state"])}
    seen = set(edge)
    for left in reversed(range(len(metadata["solution_path"]) - 1)):
        edge = {_pressed(state, button) for state in edge for button in buttons} - seen
        edge = {state for state in edge if in_reach(state[0], target, left, buttons)}
        if any(value == target for value, _ in edge):
            return False
        seen |= edge
    return True


def in_reach(value: int, target: int, presses: int, buttons: Iterable[Mapping[str, Any]]) -> bool:
    """Return False if the number cannot become the target, which is positive, by that many presses of buttons: above
    the target, only subtraction helps, and a number that is not positive must become positive by addition."""
    if 0 < value <= target:
        return True
    kind = "add" if value <= 0 else "subtract"
    most = presses * max((button["value"] for button in buttons if button["type"] == kind), default=0)
    return value + most > 0 if value <= 0 else value - most <= target
