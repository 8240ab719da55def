"""Faster versions of the library's slowest generators, for generation processes. The items are the same, byte for byte.

Each function in `FASTER` replaces the hot part of one generator with an equivalent one. Where an item depends on the
order of a Python set, the faster version keeps that order. A replacement is used only if the library's code is the code
that it was written for (`REPLACED` has the hashes), so another release of the library draws its own items.

`core.tasks.faster_grids` has sudoku and futoshiki. `benchmarks/rows.py` compares both versions.
"""

import hashlib
import heapq
import importlib
import math
import operator
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache, partialmethod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from rg_env.core.grading.graders.move_games import OPERATIONS, in_reach
from rg_env.core.tasks.faster_grids import futoshiki, sudoku


def speed_up(task: str, module: ModuleType) -> None:
    """Replace the generator of `task` in its `module` of the library, if there is a faster version of it."""
    if task in FASTER and source_hash(task, module) == REPLACED[task]:
        FASTER[task](module)


def source_hash(task: str, module: ModuleType) -> str:
    """Return a hash of the library's code that the faster version of `task` replaces or relies on."""
    digest = hashlib.sha256()
    for each in (module, *(importlib.import_module(f"reasoning_gym.{name}") for name in _ALSO.get(task, ()))):
        digest.update(Path(str(each.__file__)).read_bytes())
    return digest.hexdigest()[:16]


# Searches on cheaper states


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


# sympy only for what becomes a question


_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


class _Steps:
    """A stand-in for the number puzzles' sympy expressions, in which an operator and a symbol follow the expression
    before. It computes with integers, and sympy builds the text once for all expressions with the same operators."""

    def __init__(self, names: tuple[str, ...], steps: str = "") -> None:
        self._names, self._steps = names, steps

    def _and(self, step: str, symbol: "_Steps") -> "_Steps":
        return _Steps(self._names + symbol._names, self._steps + step)

    __add__, __sub__ = partialmethod(_and, "+"), partialmethod(_and, "-")
    __mul__, __truediv__ = partialmethod(_and, "*"), partialmethod(_and, "/")

    def subs(self, numbers: Mapping["_Steps", int]) -> int:
        """Return the value, given the numbers in the order of the symbols. Divisions have no remainder."""
        value, *others = numbers.values()
        for step, number in zip(self._steps, others, strict=True):
            value = value // number if step == "/" else _OPERATORS[step](value, number)
        return value

    def __str__(self) -> str:
        return _text(self._names, self._steps)


@lru_cache(maxsize=1 << 16)
def _text(names: tuple[str, ...], steps: str) -> str:
    from sympy import Symbol

    built, *terms = map(Symbol, names)
    for step, term in zip(steps, terms, strict=True):
        built = _OPERATORS[step](built, term)
    return str(built)


def number_puzzle(module: Any) -> None:
    def symbols(names: str) -> tuple[_Steps, ...]:
        stem, count = names.split(":")  # "x:4" or "x_0:4"
        return tuple(_Steps((f"{stem.rstrip('0')}{number}",)) for number in range(int(count)))

    module.symbols = symbols


def polynomial_equations(module: Any) -> None:
    solve = module.solve

    class Polynomial:
        """Integer coefficients by exponent. sympy builds only the polynomials that become questions."""

        def __init__(self, variable: str, coefficients: Mapping[int, int]) -> None:
            self.variable = variable
            self.coefficients = {exponent: each for exponent, each in coefficients.items() if each}

        def built(self) -> Any:
            from sympy import Add, Symbol

            x = Symbol(self.variable)
            return Add(*(each * x**exponent for exponent, each in self.coefficients.items()))

        def __str__(self) -> str:
            return str(self.built())

    def polynomial(self: Any, rng: random.Random, variable: str, degree: int, num_terms: int) -> Polynomial:
        exponents = [degree, *(rng.randint(0, degree) for _ in range(num_terms - 1))]
        coefficients = dict.fromkeys(exponents, 0)
        for exponent in exponents:
            each = rng.randint(self.config.min_value, self.config.max_value)
            coefficients[exponent] += -each if "-" in self.config.operators and rng.random() < 0.5 else each
        return Polynomial(variable, coefficients)

    def solutions(found: Polynomial, variable: str, **options: Any) -> list[Any]:
        lowest, highest = (pick(found.coefficients, default=0) for pick in (min, max))
        if highest - lowest > 3:
            return list(solve(found.built(), variable, **options))
        roots = _real_roots([found.coefficients.get(each, 0) for each in range(lowest, highest + 1)])
        zero = {0.0} if lowest else set()
        return [SimpleNamespace(is_real=True, evalf=lambda root=root: root) for root in {*zero, *roots}]

    module.PolynomialEquationsDataset._generate_polynomial_expr = polynomial
    module.expand = lambda found: found
    module.Eq = lambda found, zero: found
    module.solve = solutions


def _real_roots(coefficients: Sequence[int]) -> list[float]:
    """Return the roots that sympy recognizes as real, of a polynomial of at most the third degree whose first and last
    coefficients are not 0. The three real roots of an irreducible cubic are not among them."""
    match coefficients:
        case [b, a]:
            return [float(Fraction(-b, a))]
        case [c, b, a]:
            if (square := b * b - 4 * a * c) < 0:
                return []
            if math.isqrt(square) ** 2 == square:
                return [float(Fraction(-b + sign * math.isqrt(square), 2 * a)) for sign in (1, -1)]
            with localcontext(prec=50):
                return [float((-b + sign * Decimal(square).sqrt()) / (2 * a)) for sign in (1, -1)]
        case [d, c, b, a]:
            for denominator in _divisors(a):
                for numerator in _divisors(d):
                    for root in (Fraction(numerator, denominator), Fraction(-numerator, denominator)):
                        if ((a * root + b) * root + c) * root + d == 0:
                            rest = [a * root * root + b * root + c, a * root + b, Fraction(a)]
                            scale = math.lcm(*(each.denominator for each in rest))
                            return [float(root), *_real_roots([int(each * scale) for each in rest])]
            if 18 * a * b * c * d - 4 * b**3 * d + b * b * c * c - 4 * a * c**3 - 27 * a * a * d * d > 0:
                return []
            low, high = -(bound := 1 + max(map(abs, coefficients)) / abs(a)), bound
            for _ in range(100):
                middle = (low + high) / 2
                if (((a * middle + b) * middle + c) * middle + d > 0) == (a > 0):
                    high = middle
                else:
                    low = middle
            near = Fraction(middle)
            value, slope = ((a * near + b) * near + c) * near + d, (3 * a * near + 2 * b) * near + c
            return [float(near - value / slope)]
    return []


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, abs(number) + 1) if number % each == 0]


def intermediate_integration(module: Any) -> None:
    import sympy
    from sympy.core.function import AppliedUndef

    integrals: dict[Any, Any] = {}

    def integrate(integrand: Any, x: Any) -> Any:
        factor, rest = integrand.as_coeff_Mul()
        if rest.atoms(AppliedUndef):  # for example, sympy.Function("sin"), which sympy does not know
            return factor * sympy.Integral(rest, x)
        if (found := _by_substitution(sympy, integrand, x)) is not None:
            return found
        if sympy.sin in (functions := {each.func for each in rest.args}) and sympy.cos in functions:
            factor, rest = 1, integrand  # whether the integral is a sine or a cosine depends on the factor, too
        if rest not in integrals:
            integrals[rest] = sympy.integrate(rest, x)
        integral = integrals[rest]
        # sympy integrates a polynomial times an exponential function as a whole, so the factor ends up in the sum.
        sums = [each for each in integral.args if each.is_Add] if integral.is_Mul else []
        return integral.xreplace({sums[0]: factor * sums[0]}) if sums else factor * integral

    module.sympy = SimpleNamespace(**{**vars(sympy), "integrate": integrate})


def _by_substitution(sympy: Any, integrand: Any, x: Any) -> Any:
    """Return the integral of cos(u) sin(u)^n, sin(u) cos(u)^n (n > 1) or u' exp(u), times a number, as sympy writes it,
    or None for other integrands."""
    factor, rest = integrand.as_coeff_Mul()
    parts = [each.as_base_exp() for each in sympy.Mul.make_args(rest)]
    exponents = [inner for base, inner in parts if base is sympy.S.Exp1]
    if len(exponents) == 1 and exponents[0] != x and x in exponents[0].free_symbols:
        (u,) = exponents
        ratio = sympy.cancel(integrand / sympy.exp(u) / u.diff(x))
        return ratio * sympy.exp(u) if ratio.is_number else None
    powers = {base.func: exponent for base, exponent in parts if base.func in (sympy.sin, sympy.cos)}
    arguments = {base.args[0] for base, _ in parts if base.args}
    if len(parts) != 2 or len(powers) != 2 or len(arguments) != 1:
        return None
    (u,) = arguments
    by = factor / u.diff(x)
    if powers[sympy.cos] == powers[sympy.sin]:
        return None
    if powers[sympy.cos] == 1:
        return by * sympy.sin(u) ** (powers[sympy.sin] + 1) / (powers[sympy.sin] + 1)
    if powers[sympy.sin] == 1:
        return -by * sympy.cos(u) ** (powers[sympy.cos] + 1) / (powers[sympy.cos] + 1)
    return None


FASTER: dict[str, Callable[[Any], None]] = {
    "countdown": number_puzzle,
    "futoshiki": futoshiki,
    "intermediate_integration": intermediate_integration,
    "knight_swap": knight_swap,
    "polynomial_equations": polynomial_equations,
    "puzzle24": number_puzzle,
    "quantum_lock": quantum_lock,
    "sokoban": sokoban,
    "sudoku": sudoku,
    "zebra_puzzles": zebra_puzzles,
}
_ALSO = {
    "sokoban": [
        f"games.contrib.sokoban.src.{name}" for name in ("astar", "box", "game", "generator", "player", "utils")
    ],
    "zebra_puzzles": ["logic.contrib.logic_puzzle." + name for name in ["clues", "generate", "puzzle", "sat_utils"]],
}
"""Other modules of the library on which a task's items depend."""
REPLACED = {
    "countdown": "349cd7042a92a8b5",
    "futoshiki": "1e17d801b9695f35",
    "intermediate_integration": "74838f0224b504e3",
    "knight_swap": "a9de444d885125e0",
    "polynomial_equations": "d41b84e2daf73105",
    "puzzle24": "542f8a43867de1cc",
    "quantum_lock": "2f96d165fe0a33fb",
    "sokoban": "878ecf34088d46c4",
    "sudoku": "dcb9e0c968d33b0f",
    "zebra_puzzles": "63245dd49dd4cc19",
}
"""For each task, the hash of the library's code (see `source_hash`)."""
