"""knight_swap, sokoban, quantum_lock and zebra_puzzles: the library's searches on cheaper states."""

import heapq
import importlib
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from rg_env.core.grading.graders.move_games import OPERATIONS, in_reach


def knight_swap(module: Any) -> None:
    @lru_cache(maxsize=1 << 16)
    def moved(squares: tuple[str, ...], start: str, end: str) -> tuple[str, ...]:
        # Which of several shortest solutions is found depends on the order of the library's sets.
        return tuple(frozenset(square if square != start else end for square in squares))

    def solve_swap(
        board: Mapping[str, list[str]], pieces: Mapping[str, str | None], start_turn: str = "w"
    ) -> list[tuple[str, str, str]] | None:
        bits = {square: 1 << number for number, square in enumerate(board)}
        white, black = (
            tuple(frozenset(square for square, piece in pieces.items() if piece == color)) for color in "wB"
        )
        own, other = (sum(bits[square] for square in squares) for squares in (white, black))
        if start_turn == "B":
            white, black, own, other = black, white, other, own
        width = len(bits)
        goal = {0: (other, own), 1: (own, other)}  # the sides as seen by the color that moves next
        # Each state: squares and mask of the side that moves, those of the other side, whose turn it is (0: the
        # color that starts), the state before and the move.
        states: list[Any] = [(white, own, black, other, 0, 0, None)]
        seen = {own | other << width}
        for number, (mine, my_mask, theirs, their_mask, before, _, _) in enumerate(states):
            taken = my_mask | their_mask
            turn = 1 - before
            for start in mine:
                for end in board[start]:
                    if bits[end] & taken:
                        continue
                    mask = my_mask ^ bits[start] ^ bits[end]
                    key = their_mask | mask << width | turn << 2 * width
                    if key in seen:
                        continue
                    seen.add(key)
                    states.append((theirs, their_mask, moved(mine, start, end), mask, turn, number, (start, end)))
                    if (their_mask, mask) == goal[turn]:
                        return _path(states, start_turn)
        return None

    def _path(states: Sequence[Any], start_turn: str) -> list[tuple[str, str, str]]:
        path = []
        state = states[-1]
        while state[6]:
            path.append(state[6])
            state = states[state[5]]
        colors = ("w", "B") if start_turn == "w" else ("B", "w")
        return [(colors[number % 2], start, end) for number, (start, end) in enumerate(reversed(path))]

    module.KnightSwapLogic.solve_swap = staticmethod(solve_swap)


def sokoban(module: Any) -> None:
    generator: Any = importlib.import_module("reasoning_gym.games.contrib.sokoban.src.generator")
    moves = {"D": (1, 0), "U": (-1, 0), "L": (0, -1), "R": (0, 1)}
    # A pull walks the player in one of these directions. The order is the library's.
    pulls = [(1, 0), (-1, 0), (0, -1), (0, 1)]
    walked = {"*": "-", "%": "X", "+": "*", "-": "*", "X": "%"}

    def generate(
        rng: random.Random, min_w: int, min_h: int, max_w: int, max_h: int, min_boxes: int, max_boxes: int,
        max_depth: int,
    ) -> tuple[str, str, dict[str, int]]:  # fmt: skip
        while True:
            width, height = rng.randint(min_w, max_w), rng.randint(min_h, max_h)
            boxes = generator.num_boxes(width * height, min_boxes, max_boxes, min_w, min_h, max_w, max_h)
            cells = pulled_apart(rng, width, height, boxes)
            if cells.count("@") < boxes // 2:
                continue
            if solution := solved("".join(cells), width, height, max_depth):
                rows = ["".join(f"{cell} " for cell in cells[at : at + width]) for at in range(0, len(cells), width)]
                return "".join(f"{row} \n" for row in rows) + "\n", solution, {"width": width, "height": height}

    def pulled_apart(rng: random.Random, width: int, height: int, boxes: int) -> list[str]:
        """Return a board that is solved, and then played backwards at random."""
        cells = ["+"] * (width * height)
        column, row = generator.random_valid(rng, width, height)
        cells[row * width + column] = "*"
        goals: set[int] = set()
        while len(goals) < boxes:
            box_row, box_column = generator.random_valid(rng, height, width)
            if cells[at := box_row * width + box_column] == "+":
                cells[at] = "$"
                goals.add(at)
        visits: dict[str, int] = {}
        last = (0, 0)
        for _ in range(round(height * width * rng.uniform(1.8, 3.6))):
            (pull,) = rng.choices(pulls, weights=[0.1 if each == last else 1 for each in pulls], k=1)
            state = "".join(cells)
            visits[state] = visits.get(state, 0) + 1
            to_row, to_column = row + pull[0], column + pull[1]
            here, there = row * width + column, to_row * width + to_column
            if to_row in (0, height - 1) or to_column in (0, width - 1) or cells[there] in "@$":
                last = pull
            else:
                last = -pull[0], -pull[1]
                cells[here], cells[there] = walked[cells[here]], walked[cells[there]]
                if cells[behind := here - (there - here)] in "@$":
                    cells[behind] = "X" if behind in goals else "-"
                    cells[here] = "$" if here in goals else "@"
                row, column = to_row, to_column
            if visits[state] >= 20:
                break
        return cells

    def solved(initial: str, width: int, height: int, max_depth: int) -> str | None:
        """Search as the library does, whose order of equal states decides which solution is found."""
        size = width * height
        distances = [
            [abs(a // width - b // width) + abs(a % width - b % width) for b in range(size)] for a in range(size)
        ]
        edges = [
            slice(width + 1, 2 * width - 1),
            slice(width * (height - 2) + 1, width * (height - 1) - 1),
            slice(width + 1, width * (height - 1) + 1, width),
            slice(2 * width - 2, size - 2, width),
        ]
        squares = [(-1, -width, -width - 1), (1, -width, -width + 1), (-1, width - 1, width), (1, width + 1, width)]
        corners = {
            at
            for at in range(width, size - width)
            if "+" in (initial[at - 1], initial[at + 1]) and "+" in (initial[at - width], initial[at + width])
        }

        def cost(state: str, player: int, *, check: bool = True) -> int:
            """Return the library's estimate, or -1 if the state is a deadlock."""
            boxes = [at for at, cell in enumerate(state) if cell == "@"]
            if not boxes:
                return 0
            for box in boxes if check else ():
                if box in corners:
                    return -1
                for a, b, c in squares:
                    if state[box + a] in "@+$" and state[box + b] in "@+$" and state[box + c] in "@+$":
                        return -1
            for edge in edges if check else ():
                line = state[edge]
                if line.count("@") > line.count("X") + line.count("%"):
                    return -1
            goals = [at for at, cell in enumerate(state) if cell in "X%"]
            apart = sum(min([distances[box][goal] for goal in goals]) for box in boxes)
            return len(boxes) * size + apart + min([distances[player][box] for box in boxes])

        player = initial.index("*") if "*" in initial else initial.index("%")
        costs: dict[str, int] = {}
        seen = set()
        heap = [(0, cost(initial, player, check=False), initial, player, 0, "")]
        steps = [(name, row * width + column) for name, (row, column) in moves.items()]
        while heap:
            _, cost_before, state, player, depth, path = heapq.heappop(heap)
            seen.add(state)
            for name, step in steps:
                after, move_cost = pushed(state, player, step)
                if not after or after in seen:
                    continue
                if after not in costs:
                    costs[after] = cost(after, player + step)
                if (own_cost := costs[after]) < 0:
                    continue
                if "@" not in after:
                    return path + name
                heapq.heappush(heap, (move_cost + cost_before, own_cost, after, player + step, depth + 1, path + name))
            if depth > max_depth:
                break
        return None

    def pushed(state: str, player: int, step: int) -> tuple[str, int]:
        """Return the state after a step, or "" if it is blocked, and the library's cost of the step."""
        target, beyond = player + step, player + 2 * step
        cell = state[target]
        if cell == "+":
            return "", 0
        new = {player: "-" if state[player] == "*" else "X", target: "*" if cell in "-@" else "%"}
        move_cost = 3
        if cell in "@$":
            if state[beyond] in "+@$":
                return "", 0
            new[beyond] = "@" if state[beyond] == "-" else "$"
            move_cost = 0 if new[beyond] == "$" else 2
        parts, start = [], 0
        for at in sorted(new):
            parts += [state[start:at], new[at]]
            start = at + 1
        return "".join([*parts, state[start:]]), move_cost

    generator.generate = generate


def quantum_lock(module: Any) -> None:
    others = {"red": "green", "green": "red"}
    colors = {"any": 4, "green": 2, "red": 1}

    def generate(self: Any, rng: random.Random, difficulty: int = 1) -> dict[str, Any]:
        small = [2, 3] if difficulty >= 5 else [1, 2]
        kinds = [("add", small), ("subtract", small), ("multiply", [2, 3] if difficulty >= 7 else [2])]
        buttons: list[dict[str, Any]] = []
        while len(buttons) < 3:
            kind, values = rng.choice(kinds)
            button: dict[str, Any] = {"name": "ABC"[len(buttons)], "type": kind, "value": rng.choice(values)}
            button["active_state"] = rng.choices(list(colors), weights=list(colors.values()), k=1)[0]
            if all({**button, "name": other["name"]} != other for other in buttons):
                buttons.append(button)
        scale = 5 + difficulty**1.5
        target = max(8, int(scale + rng.randint(-int(scale * 0.2), int(scale * 0.3))))
        most = min(15, 6 + int(difficulty * 1.5))
        states: list[tuple[int, str, int, int, str]] = [(0, "red", 0, -1, "")]  # presses, the state before, the button
        seen = {(0, "red")}
        for number, (value, color, presses, _, _) in enumerate(states):
            if value == target:
                path = []
                at = number
                while at:
                    path.append(states[at][4])
                    at = states[at][3]
                return {
                    "initial_value": 0,
                    "initial_state": "red",
                    "target_value": target,
                    "buttons": buttons,
                    "max_steps": most,
                    "solution": path[::-1],
                }
            if presses == most:
                continue
            for button in buttons:
                if button["active_state"] in (color, "any"):
                    after = OPERATIONS[button["type"]](value, button["value"]), others[color]
                    if after not in seen and in_reach(after[0], target, most - presses - 1, buttons):
                        seen.add(after)
                        states.append((*after, presses + 1, number, button["name"]))
        return generate(self, rng, difficulty)

    module.QuantumLockDataset.generate_quantum_puzzle = generate


def zebra_puzzles(module: Any) -> None:
    import pycosat

    generate: Any = importlib.import_module("reasoning_gym.logic.contrib.logic_puzzle.generate")
    clues: Any = importlib.import_module("reasoning_gym.logic.contrib.logic_puzzle.clues")

    def text(clue: Any) -> str:
        own = clue.__dict__
        if "_text" not in own:
            own["_text"] = str(clue)
        return str(own["_text"])

    def clauses(puzzle: Any) -> tuple[list[list[int]], dict[Any, int], dict[Any, list[list[int]]]]:
        """Return the clauses of all puzzles of this size and one that excludes the known solution; the number of each
        literal's first variable; and the clauses of the clues (filled later)."""
        if "_clauses" not in vars(puzzle):
            n = len(puzzle.houses)
            first = {literal: 1 + number * n for number, literal in enumerate(puzzle.literals)}
            groups = [[at + house for house in range(n)] for at in first.values()]
            for kind in puzzle.element_classes:
                own = [at for literal, at in first.items() if isinstance(literal, kind)]
                groups += [[at + house for at in own] for house in range(n)]
            base = [list(group) for group in groups]
            base += [[-a, -b] for group in groups for number, a in enumerate(group) for b in group[:number]]
            base.append([-(first[literal] + house - 1) for literal, house in puzzle.solution.items()])
            puzzle._clauses = base, first, {}
        return puzzle._clauses

    def of_clue(clue: Any, first: Mapping[Any, int], n: int) -> list[list[int]]:
        if isinstance(clue, clues.found_at):
            return [[first[clue.value] + clue.house - 1]]
        a, b = first[clue.value1], first[clue.value2]
        if isinstance(clue, clues.same_house):
            return [[-(a + house), b + house] for house in range(n)]
        if isinstance(clue, clues.consecutive):
            return [[-(a + n - 1)], *([-(a + house), b + house + 1] for house in range(n - 1))]
        assert isinstance(clue, clues.beside)
        return [[-(a + house), *(b + near for near in (house - 1, house + 1) if 0 <= near < n)] for house in range(n)]

    def has_unique_solution(puzzle: Any, kept: Iterable[Any]) -> bool:
        base, first, known = clauses(puzzle)
        formula = list(base)
        for clue in {*puzzle.clues, *kept}:
            if clue not in known:
                known[clue] = of_clue(clue, first, len(puzzle.houses))
            formula += known[clue]
        return bool(pycosat.solve(formula) == "UNSAT")

    for cls in (clues.found_at, clues.same_house, clues.consecutive, clues.beside):
        _cache_hash(cls)
    clues.Clue.__lt__ = lambda self, other: text(self) < text(other)
    generate.has_unique_solution = has_unique_solution


def _cache_hash(cls: Any) -> None:
    """Let the objects of a frozen dataclass compute their hash only once."""
    compute = cls.__hash__

    def cached(self: Any) -> int:
        own = self.__dict__
        if "_hash" not in own:
            own["_hash"] = compute(self)
        return own["_hash"]

    cls.__hash__ = cached
