"""Graders of the cognition tasks.

rubiks_cube turns a cube of any size as a permutation of its stickers. A sticker is a point: the cube's centre is the
origin, x goes right, y up, z to the front, and layers are 2 apart, so a cube of size n has stickers at ±n on one axis
and at -(n-1), ..., n-1 on the two others. All turns are quarter turns of a run of layers around one axis.
"""

import re
from collections.abc import Callable
from functools import cache
from operator import itemgetter

from rg_env.core.grading.graders import arc, common
from rg_env.core.grading.graders.common import Config, Entry, Grader
from rg_env.core.grading.parsing import forms

_QUOTES = "\"'“”‘’"
_EMOJI_STYLE = "\N{VARIATION SELECTOR-16}"
MAX_MOVES = 1_000
"""A beginner's method takes about 150 on a cube of size 3."""

State = tuple[int, ...]
Point = tuple[int, int, int]
_MOVE = re.compile(
    r"(?P<layer>[1-9])?(?:(?P<face>[LRDUBF])(?P<wide>w)?|(?P<small>[lrdubf]))(?P<tail>'[1-9]?|[1-9]'?)?"
    r"|(?P<whole>[XYZMESxyz])(?P<rest>'[1-9]?|[1-9]'?)?"
)
_PRIME = re.compile("[’‘′`´ʼ]")
_BETWEEN_MOVES = re.compile(r"[\s(),;]+")
_AXES = {"L": 0, "R": 0, "M": 0, "X": 0, "D": 1, "U": 1, "E": 1, "Y": 1, "B": 2, "F": 2, "S": 2, "Z": 2}
_CLOCKWISE = "RUFXYZS"
"""Moves that are clockwise as seen from the positive end of their axis; M goes with L and E with D."""


def _bare(text: str) -> str:
    """Letters without letter case, white space, and quotes around them."""
    return "".join(text.split()).strip(_QUOTES).casefold()


def color_cube_rotation(answer: str, entry: Entry, config: Config) -> float:
    """The color in any letter case; grey is gray."""
    return float(_bare(answer).replace("grey", "gray") == _bare(entry["answer"]))


def figlet_font(answer: str, entry: Entry, config: Config) -> float:
    """The word in any letter case, its letters apart or not, as the question may draw them."""
    word = _bare(entry["answer"])
    return float(_bare(answer) == word) if word else float(forms.same_text(answer, entry["answer"]))


def modulo_grid(answer: str, entry: Entry, config: Config) -> float:
    """All signs of the grid, with or without separators."""
    gold = entry["answer"].splitlines()
    rows = arc.rows(answer.replace(_EMOJI_STYLE, ""), sum(map(len, gold)))
    return float(rows is not None and ["".join(row) for row in rows] == gold)


def needle_haystack(answer: str, entry: Entry, config: Config) -> float:
    """A name of which the text says what is asked for; in a long one that may be true of several."""
    asked = entry["metadata"]["question"].removeprefix("Who ").removesuffix("? Reply only with a name.")
    statements = entry["question"].split("\n")[0].split(". ")
    names = {name.removesuffix(f" {asked}") for name in statements if name.endswith(f" {asked}")}
    return float(_bare(answer) in {_bare(name) for name in (*names, entry["answer"])})


def rubiks_cube(answer: str, entry: Entry, config: Config) -> float:
    """Any moves that solve the cube, in Singmaster notation; combined ones (`U2`) too."""
    return float(solves(entry["metadata"]["cube_size"], entry["metadata"]["scramble_moves"], answer))


def solves(size: int, scramble: str, answer: str) -> bool:
    """Whether `answer`, moves in Singmaster notation, makes each face of the scrambled cube one color.

    False if there are no moves, too many, or one that the cube does not have.
    """
    moves = _moves(answer)
    if not moves:
        return False
    turns = {text: _turn(size, text) for text in dict.fromkeys(moves)}
    state = turned(size, scramble.split())
    for text in moves:
        turn = turns[text]
        if turn is None:
            return False
        state = turn(state)
    area = size * size
    return all(len(set(state[face * area : (face + 1) * area])) == 1 for face in range(6))


def turned(size: int, moves: list[str]) -> State:
    """The face from which each sticker comes, 0 to 5, after `moves` on a solved cube. `ValueError` for no move."""
    state = tuple(face for face in range(6) for _ in range(size * size))
    for text in moves:
        turn = _turn(size, text)
        if turn is None:
            raise ValueError(f"a cube of size {size} has no move {text!r}")
        state = turn(state)
    return state


def _moves(answer: str) -> list[str]:
    """The moves, separated by white space or commas, in brackets or not, in quotes or not; none if too many."""
    text = answer.strip()
    if text[:1] + text[-1:] == "[]":
        text = text[1:-1]
    moves = [move for move in _BETWEEN_MOVES.split(_PRIME.sub("'", text)) if move]
    if len(moves) > MAX_MOVES:
        return []
    # A list has its moves in double quotes if one of them ends in a prime, and may have them in single ones if not.
    return [move[1:-1] if move[0] == move[-1] and move[0] in "\"'" and len(move) > 2 else move for move in moves]


def _turn(size: int, text: str) -> Callable[[State], State] | None:
    """What a move does to a state, None if it is no move of a cube of this size."""
    move = _MOVE.fullmatch(text) if len(text) <= 5 else None
    if move is None:
        return None
    if whole := move["whole"]:
        face = whole.upper()
        if face in "XYZ":
            first, last = 1, size
        elif size % 2:
            first = last = size // 2 + 1
        else:
            return None
    else:
        face = move["face"] or move["small"].upper()
        wide = move["wide"] or move["small"]
        last = int(move["layer"] or (2 if wide else 1))
        first = 1 if wide else last
    if last > size:
        return None
    if face in "LDB":  # their layers are counted from the negative end of the axis, where ours begin
        first, last = size + 1 - last, size + 1 - first
    tail = move["tail"] or move["rest"] or ""
    quarters = int(tail.strip("'") or 1) * (1 if face in _CLOCKWISE else -1) * (-1 if "'" in tail else 1)
    return _quarters(size, _AXES[face], first, last, quarters % 4)


@cache
def _quarters(size: int, axis: int, first: int, last: int, quarters: int) -> Callable[[State], State]:
    """Clockwise quarter turns of the layers from `first` to `last`, counted from the positive end of the axis."""
    sources = tuple(range(6 * size * size))
    for layer in range(first, last + 1):
        for _ in range(quarters):
            sources = _quarter(size, axis, layer)(sources)
    return itemgetter(*sources)


@cache
def _quarter(size: int, axis: int, layer: int) -> Callable[[State], State]:
    points, places = _stickers(size)
    second, third = (axis + 1) % 3, (axis + 2) % 3
    height = size + 1 - 2 * layer
    sources = list(range(len(points)))
    for source, point in enumerate(points):
        if max(1 - size, min(size - 1, point[axis])) == height:
            turned = list(point)
            turned[second], turned[third] = point[third], -point[second]
            sources[places[turned[0], turned[1], turned[2]]] = source
    return itemgetter(*sources)


@cache
def _stickers(size: int) -> tuple[list[Point], dict[Point, int]]:
    """The stickers, face after face, and the place of each in that list."""
    layers = range(1 - size, size, 2)
    points: list[Point] = []
    for axis in range(3):
        for side in (-size, size):
            for a in layers:
                for b in layers:
                    cycle = (side, a, b)
                    points.append((cycle[-axis % 3], cycle[(1 - axis) % 3], cycle[(2 - axis) % 3]))
    return points, {point: place for place, point in enumerate(points)}


GRADERS: dict[str, Grader] = {
    "color_cube_rotation": color_cube_rotation,
    "figlet_font": figlet_font,
    "modulo_grid": modulo_grid,
    "needle_haystack": needle_haystack,
    "number_sequence": common.exact_number,
    "rectangle_count": common.exact_number,
    "rubiks_cube": rubiks_cube,
}
