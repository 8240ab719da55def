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
    def moved(squares: frozenset[str], start: str, end: str) -> frozenset[str]:
        # Which of several shortest solutions is found depends on the order of the library's sets.
        return frozenset(square if square != start else end for square in squares)

    def solve_swap(
        board: Mapping[str, list[str]], pieces: Mapping[str, str | None], start_turn: str = "w"
    ) -> list[tuple[str, str, str]] | None:
        white, black = (frozenset(square for square, piece in pieces.items() if piece == color) for color in "wB")
        # A state: the squares of the color that moves next and of the other color, and the color that moves next.
        states: list[Any] = [(white, black, "w") if start_turn == "w" else (black, white, "B")]
        before: dict[Any, Any] = {states[0]: None}
        for state in states:
            own, other, color = state
            if (own, other) == ((black, white) if color == "w" else (white, black)):
                path = []
                while before[state]:
                    state, move = before[state]
                    path.append(move)
                return path[::-1]
            for start in own:
                for end in board[start]:
                    if end not in own and end not in other:
                        after = other, moved(own, start, end), "B" if color == "w" else "w"
                        if after not in before:
                            before[after] = state, (color, start, end)
                            states.append(after)
        return None

    module.KnightSwapLogic.solve_swap = staticmethod(solve_swap)


def sokoban(module: Any) -> None:
    search: Any = importlib.import_module("reasoning_gym.games.contrib.sokoban.src.astar")
    player: Any = importlib.import_module("reasoning_gym.games.contrib.sokoban.src.player")
    moves = {"D": (1, 0), "U": (-1, 0), "L": (0, -1), "R": (0, 1)}

    def astar(matrix: Any, start: tuple[int, int], *, max_depth: int, **_: Any) -> tuple[str | None, int]:
        """Search as the library does, whose order of equal states decides which solution is found."""
        shape, state = matrix.shape, search.get_state(matrix)
        heap: list[Any] = [(0, search.manhattan_sum(state, start, shape), state, start, 0, "")]
        seen, costs = {None}, dict[str, int]()
        while heap:
            _, cost, state, place, depth, path = heapq.heappop(heap)
            seen.add(state)
            for name, move in moves.items():
                after, move_cost = search.can_move(state, shape, place, move)
                if after in seen:
                    continue
                there = place[0] + move[0], place[1] + move[1]
                if after not in costs:
                    costs[after] = _sokoban_cost(after, there, shape)
                if costs[after] < 0:
                    continue
                if "@" not in after:
                    return path + name, depth + 1
                heapq.heappush(heap, (move_cost + cost, costs[after], after, there, depth + 1, path + name))
            if depth > max_depth:
                break
        return None, -1

    search.astar, search.can_move = astar, lru_cache(maxsize=1 << 16)(search.can_move)
    player.ReversePlayer.get_state = lambda self: "".join([cell.char for cell in self.game.puzzle.flat])


def _sokoban_cost(state: str, player: tuple[int, int], shape: tuple[int, int]) -> int:
    """Return the library's estimate of a state's cost, from the distances of the player to a box and of each box to a
    goal, or -1 if the state is a deadlock."""
    height, width = shape
    boxes = [at for at, cell in enumerate(state) if cell == "@"]
    edges = [state[at + 1 : at + width - 1] for at in (width, width * (height - 2))]
    edges += [state[at : width * (height - 1) : width] for at in (width + 1, 2 * width - 2)]
    for edge in edges:
        if edge.count("@") > edge.count("X") + edge.count("%"):
            return -1
    for box in boxes:
        for side, across in ((-1, -width), (1, -width), (-1, width), (1, width)):
            near, other = state[box + side], state[box + across]
            if near in "@+$" and other in "@+$" and (near == other == "+" or state[box + side + across] in "@+$"):
                return -1
    goals = [divmod(at, width) for at, cell in enumerate(state) if cell in "X%"]
    cost = len(boxes) * height * width
    for targets, places in (([player], boxes), *((goals, [box]) for box in boxes)):
        cost += min([abs(x - at // width) + abs(y - at % width) for at in places for x, y in targets], default=0)
    return cost


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
    coefficients are not 0."""
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
        case [_, _, _, _]:
            from sympy import Poly, Symbol, roots

            found = roots(Poly(coefficients[::-1], Symbol("x")))
            return [float(root.evalf()) for root in found if root.is_real]
    return []


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
