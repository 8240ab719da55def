"""Graders of answers that are matrices, and the processes on them."""

import json
import math
import re
from typing import Any

from rg_env.core.graders import common, forms, grids
from rg_env.core.graders.types import Config, Entry, Grader

_TRUTH = {"true": True, "yes": True, "false": False, "no": False}
_ROUNDING = 0.005 + 1e-9
"""Half of the last of the two decimal places that pool_matrix asks for."""
_DECIMAL = re.compile(r"[+-]?(?:\d{1,9}(?:\.\d{0,20})?|\.\d{1,20})", re.ASCII)
_JUG_MOVE = re.compile(
    r"(?P<kind>fill|empty) (?:jug )?(?P<jug>[a-z])"
    r"|pour (?:from )?(?:jug )?(?P<source>[a-z]) ?(?:-+>|=>|→|to|into) ?(?:jug )?(?P<target>[a-z])"
)
_BULLET = re.compile(r"\A(?:\d{1,4}[.)]|[-*•])\s+")
_CHARS_PER_VERTEX = 40
_MORE_CHARS = 200
"""A map with a vertex a line takes about 16 characters for each."""
_MAX_JUG_MOVES = 1_000
"""The library's hardest puzzles need 200."""


def matrix(answer: str, entry: Entry, config: Config) -> float:
    """All cells of the matrix that comes out; partly right ones beyond those of the matrix that goes in.

    In binary_matrix these are many: a cell of 0 has the distance 0, and most of 1 have the distance 1.
    """
    return grids.grade_grid(answer, entry["metadata"]["solution"], entry["metadata"]["matrix"])


def game_of_life(answer: str, entry: Entry, config: Config) -> float:
    """All cells of the last board; partly right ones beyond those of an empty board and of the first board."""
    board = entry["question"].rpartition("\n\n")[2].removesuffix(".")
    return grids.grade_grid(answer, json.loads(entry["answer"]), json.loads(board))


def game_of_life_halting(answer: str, entry: Entry, config: Config) -> float:
    """The right one of True and False, or yes and no, in any letter case."""
    return float(_TRUTH.get(answer.strip(" \t\r\n'\"").lower()) is _TRUTH[entry["answer"].lower()])


def pool_matrix(answer: str, entry: Entry, config: Config) -> float:
    """All cells, correct to two decimal places or more; partly right ones beyond one number everywhere."""
    gold = entry["metadata"]["solution"]
    values = grids.flat(gold)
    cells = grids.shaped(grids.rows(answer, len(values)), gold)
    if cells is None:
        return 0.0
    right = sum(
        _DECIMAL.fullmatch(cell) is not None and abs(float(cell) - value) <= _ROUNDING
        for cell, value in zip(cells, values, strict=True)
    )
    given = grids.flat(entry["metadata"]["matrix"])  # as many cells for a kernel size of 1 only
    return grids.progress(right, grids.trivially_right(values, given), len(values))


def spiral_matrix(answer: str, entry: Entry, config: Config) -> float:
    """The numbers in spiral order; partly right ones beyond those of the matrix read row by row."""
    return grids.grade_line(answer, entry["metadata"]["solution"], grids.flat(entry["metadata"]["matrix"]))


def graph_color(answer: str, entry: Entry, config: Config) -> float:
    """Any map of all vertices, and of nothing else, to allowed colors that differ along each edge."""
    puzzle = entry["metadata"]["puzzle"]
    text = answer.strip()
    if len(text) > _MORE_CHARS + _CHARS_PER_VERTEX * len(puzzle["vertices"]):
        return 0.0
    colors = _colors(forms.literal(text if text.startswith("{") else "{" + text + "}"))
    if colors is None or colors.keys() != set(map(str, puzzle["vertices"])):
        return 0.0
    allowed = all(color in puzzle["color_options"] for color in colors.values())
    return float(allowed and all(colors[str(a)] != colors[str(b)] for a, b in puzzle["edges"]))


def fit_by_chance(entry: Entry) -> float:
    """The chance that a fixed colouring, which uses its colours equally often, is right on a graph_color question with
    as many vertices and edges as this one.

    `C(N - m, e) / C(N, e)`, where m of the N pairs of vertices have the same colour; divided by how many numbers of
    vertices the options allow, since a colouring has to name exactly the graph's own.
    """
    puzzle, (fewest, most) = entry["metadata"]["puzzle"], entry["metadata"]["difficulty"]["num_vertices"]
    vertices, edges, colors = len(puzzle["vertices"]), len(puzzle["edges"]), len(puzzle["color_options"])
    pairs = math.comb(vertices, 2)
    same = sum(math.comb((vertices + index) // colors, 2) for index in range(colors))
    return math.comb(pairs - same, edges) / math.comb(pairs, edges) / (most - fewest + 1)


def _colors(value: Any) -> dict[str, int | None] | None:
    """Vertex -> color, or None where it is no such map or names a vertex twice, as `0` and as `"0"`."""
    if not isinstance(value, dict):
        return None
    colors = {str(vertex).strip(): grids.whole(str(color).strip()) for vertex, color in value.items()}
    return colors if len(colors) == len(value) else None


def jugs(answer: str, entry: Entry, config: Config) -> float:
    """Any list of possible moves after which one of the jugs holds the target amount."""
    capacities: list[int] = entry["metadata"]["puzzle"]["jug_capacities"]
    moves = _jug_moves(answer)
    amounts = dict.fromkeys((chr(ord("a") + i) for i in range(len(capacities))), 0)
    room = dict(zip(amounts, capacities, strict=True))
    for text in moves:
        move = _JUG_MOVE.fullmatch(text)
        if move is None:
            return 0.0
        if move["kind"]:
            jug = move["jug"]
            if jug not in amounts:
                return 0.0
            amounts[jug] = room[jug] if move["kind"] == "fill" else 0
        else:
            source, target = move["source"], move["target"]
            if source not in amounts or target not in amounts or source == target:
                return 0.0
            poured = min(amounts[source], room[target] - amounts[target])
            amounts[source] -= poured
            amounts[target] += poured
    return float(entry["metadata"]["puzzle"]["target"] in amounts.values())


def _jug_moves(answer: str) -> list[str]:
    """The parts between commas or line ends, without brackets, quotes and bullets, in small letters; none if too many.

    The library's first jug is `A`; letter case tells nothing, for there are fewer jugs than letters.
    """
    text = answer.strip()
    if text[:1] + text[-1:] in ("[]", "()"):
        text = text[1:-1]
    parts = [part for part in re.split(r"[,;\n]", text) if part.strip()]
    if len(parts) > _MAX_JUG_MOVES:
        return []
    return [" ".join(_BULLET.sub("", part.strip()).strip(" '\".").casefold().split()) for part in parts]


GRADERS: dict[str, Grader] = {
    "binary_matrix": matrix,
    "game_of_life": game_of_life,
    "game_of_life_halting": game_of_life_halting,
    "graph_color": graph_color,
    "jugs": jugs,
    "manipulate_matrix": matrix,
    "pool_matrix": pool_matrix,
    "rotate_matrix": matrix,
    "rotten_oranges": common.exact_number,
    "spiral_matrix": spiral_matrix,
}
