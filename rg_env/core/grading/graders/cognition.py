"""Graders for the cognition, code, induction and ARC tasks.

rubiks_cube treats turns of a cube of any size as permutations of stickers. A sticker is a point in a coordinate system
with its origin at the cube's center, x pointing right, y up and z toward the front. Layers are 2 units apart, so each
sticker of a cube of size n is at ±n on one axis and at one of -(n-1), -(n-3), ..., n-1 on each of the other two. Every
turn consists of quarter turns of consecutive layers around one axis.
"""

import operator
import re
from collections.abc import Callable
from functools import cache, lru_cache
from math import isclose
from operator import itemgetter
from typing import Any

from rg_env.core.grading.graders import common, forms
from rg_env.core.grading.graders.common import Config, Entry

_QUOTES = "\"'“”‘’"
MAX_MOVES = 1_000
"""Maximum number of moves. A beginner's method takes about 150 moves on a cube of size 3."""

State = tuple[int, ...]
Position = tuple[int, int, int]
_MOVE = re.compile(
    r"(?:(?P<layer>[1-9])?(?P<face>[LRDUBF]w?|[lrdubf])|(?P<whole>[XYZMESxyz]))(?P<tail>'[1-9]?|[1-9]'?)?"
)
_AXES = {"L": 0, "R": 0, "M": 0, "X": 0, "D": 1, "U": 1, "E": 1, "Y": 1, "B": 2, "F": 2, "S": 2, "Z": 2}
_CLOCKWISE = "RUFXYZS"
"""Moves that are clockwise as seen from the positive end of the axis. M turns like L, and E turns like D."""


def _bare(text: str) -> str:
    """Return `text` in lowercase, without whitespace or surrounding quotes."""
    return "".join(text.split()).strip(_QUOTES).casefold()


def color_cube_rotation(answer: str, entry: Entry, config: Config) -> float:
    """Accept the color in any letter case. Both spellings of gray are accepted."""
    return _bare(answer).replace("grey", "gray") == _bare(entry["answer"])


def figlet_font(answer: str, entry: Entry, config: Config) -> float:
    """Accept the word in any letter case, with or without spaces between its letters."""
    word = _bare(entry["answer"])
    return _bare(answer) == word if word else forms.same_text(answer, entry["answer"])


def modulo_grid(answer: str, entry: Entry, config: Config) -> float:
    """Accept the complete grid of symbols, with or without separators."""
    gold = entry["answer"].splitlines()
    rows = common.rows(answer.replace("\N{VARIATION SELECTOR-16}", ""), sum(map(len, gold)))
    return ["".join(row) for row in rows] == gold


def needle_haystack(answer: str, entry: Entry, config: Config) -> float:
    """Accept any name that answers the question according to the text. In a long text, there may be several such
    names."""
    asked = entry["metadata"]["question"].removeprefix("Who ").removesuffix("? Reply only with a name.")
    statements = entry["question"].split("\n")[0].split(". ")
    names = {name.removesuffix(f" {asked}") for name in statements if name.endswith(f" {asked}")}
    return _bare(answer) in {_bare(name) for name in (*names, entry["answer"])}


def rubiks_cube(answer: str, entry: Entry, config: Config) -> float:
    """Accept any moves that solve the cube, in Singmaster notation, including double turns (`U2`)."""
    size, scramble = entry["metadata"]["cube_size"], entry["metadata"]["scramble_moves"]
    scrambled = forms.attempt(lambda moves: turned(size, moves.split()), scramble)
    if scrambled is None:
        raise ValueError(f"a cube of size {size} does not support every move in {scramble!r}")
    state, area = turned(size, _moves(answer), scrambled), size * size
    return all(len(set(state[at : at + area])) == 1 for at in range(0, 6 * area, area))


def turned(size: int, moves: list[str], start: State | None = None) -> State:
    """Return the original face (0 to 5) of the sticker at each position after `moves` are applied to a solved cube, or
    to a cube in state `start`."""
    state = start or tuple(face for face in range(6) for _ in range(size * size))
    for move in moves:
        state = _turn(size, move)(state)
    return state


def _moves(answer: str) -> list[str]:
    """Parse moves separated by whitespace, commas or semicolons, with or without brackets and quotes."""
    moves = [move for move in re.split(r"[\s(),;→]+", re.sub("[’‘′`´ʼ]", "'", forms.unbracketed(answer))) if move]
    if not 0 < len(moves) <= MAX_MOVES:
        raise forms.Unreadable
    # Moves may be quoted one by one. `forms.candidates` removes quotes around the whole list, but removes single quotes
    # only if no move ends in a prime.
    return [move[1:-1] if move[0] == move[-1] and move[0] in "\"'" and len(move) > 2 else move for move in moves]


@lru_cache(maxsize=4096)
def _turn(size: int, text: str) -> Callable[[State], State]:
    """Return a move's effect on a state. Raises `Unreadable` if the move is not possible on a cube of this size."""
    move = forms.matched(_MOVE, text[:6])  # no move has more than five characters
    name = move["face"] or move["whole"]
    face = name[0].upper()
    if move["face"]:
        wide = name.islower() or name.endswith("w")
        last = int(move["layer"] or (2 if wide else 1))
        first = 1 if wide else last
    elif face in "XYZ":
        first, last = 1, size
    else:
        first = last = size // 2 + 1 if size % 2 else size + 1  # cubes of even size have no middle layer
    if last > size:
        raise forms.Unreadable
    # L, D and B moves number layers from the negative end of the axis, but `_quarters` numbers layers from the positive
    # end.
    if face in "LDB":
        first, last = size + 1 - last, size + 1 - first
    tail = move["tail"] or ""
    quarters = int(tail.strip("'") or 1) * (1 if face in _CLOCKWISE else -1) * (-1 if "'" in tail else 1)
    return _quarters(size, _AXES[face], first, last, quarters % 4)


@cache
def _quarters(size: int, axis: int, first: int, last: int, quarters: int) -> Callable[[State], State]:
    """Return the effect of `quarters` clockwise quarter turns of layers `first` to `last`, counted from the positive
    end of the axis."""
    points = stickers(size)
    places = {point: place for place, point in enumerate(points)}
    second, third = (axis + 1) % 3, (axis + 2) % 3
    low, high = size + 1 - 2 * last, size + 1 - 2 * first
    sources = []
    for point in points:
        before = list(point)
        if low <= max(1 - size, min(size - 1, point[axis])) <= high:
            for _ in range(quarters):
                before[second], before[third] = -before[third], before[second]
        sources.append(places[before[0], before[1], before[2]])
    return itemgetter(*sources)


@cache
def stickers(size: int) -> list[Position]:
    """Return all stickers, face by face."""
    layers = range(1 - size, size, 2)
    cycles = [(axis, (side, a, b)) for axis in range(3) for side in (-size, size) for a in layers for b in layers]
    return [(cycle[-axis % 3], cycle[(1 - axis) % 3], cycle[(2 - axis) % 3]) for axis, cycle in cycles]


_FLOAT_TOLERANCE = 1e-9
"""Relative tolerance for the last digits of a computed float."""
_MORE_SIGNS = 100
"""Number of brackets, commas and colons allowed in addition to those in the stored answer. Literals that exceed this
limit cannot be right and would be slow to parse."""


_NAMED_RETURN = re.compile(r"^[ \t*-]*`return` *\(", re.MULTILINE)
"""Matches the description of an output named `return`, in a question that asks for the output."""


def codeio(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored value as JSON or a Python literal, with keys in any order. Whole numbers must be exact, and
    floats must match to nine digits. If the question names the output `return`, `{"return": value}` is also accepted.

    If the question asks for an input, other valid inputs are not accepted because checking them would require running
    the code.
    """
    gold = _stored(entry["answer"])
    if gold is None:  # the stored value is NaN or infinity
        return common.text(answer, entry, config)
    if _n_signs(answer) <= _n_signs(entry["answer"]) + _MORE_SIGNS:
        try:
            value = forms.literal(answer)
            if _same(value, gold[0]):
                return 1.0
            if not (isinstance(value, dict) and value.keys() == {"return"} and _same(value["return"], gold[0])):
                return 0.0
            return _NAMED_RETURN.search(entry["question"].rpartition("predict the output")[0]) is not None
        except forms.Unreadable:
            pass
    return forms.plain_digits(answer.strip()) == gold[0]


def _n_signs(source: str) -> int:
    return sum(map(source.count, "[](){},:"))


@lru_cache(maxsize=256)
def _stored(answer: str) -> tuple[Any] | None:
    """Parse the stored literal and wrap it in a one-element tuple, because the literal itself may be None."""
    return forms.attempt(lambda text: (forms.literal(text),), answer)


def _same(value: Any, gold: Any) -> bool:
    """Whether the values are equal, with floats compared to nine digits. The recursion never exceeds the depth of
    `gold`, however deep `value` is."""
    if isinstance(gold, dict):
        if not isinstance(value, dict) or len(value) != len(gold):
            return False
        if not all(isinstance(key, str) or abs(key) < 10**18 for key in value):  # `str` rejects huge integers
            return False
        named = {str(key): item for key, item in value.items()}
        return named.keys() == gold.keys() and all(_same(named[key], item) for key, item in gold.items())
    if isinstance(gold, list):
        if not isinstance(value, list | tuple) or len(value) != len(gold):
            return False
        return all(map(_same, value, gold))
    if isinstance(gold, bool) or isinstance(value, bool) or not isinstance(gold, int | float):
        return type(value) is type(gold) and bool(value == gold)
    if not isinstance(value, int | float):
        return False
    if isinstance(gold, float) and not gold.is_integer() and abs(value) < 1e300:
        return isclose(value, gold, rel_tol=_FLOAT_TOLERANCE)
    return value == gold


_MAX_TEXT = 1_000
"""Maximum length of an answer in characters. A list of ten numbers takes a tenth of this length."""


def acre(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored word (`on`, `off` or `undetermined`) in any letter case, with or without quotes."""
    return common.word(answer.strip().strip("\"'"), entry, config)


def list_functions(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored numbers in the same order. Brackets are optional unless the list is empty."""
    if len(answer) > _MAX_TEXT:
        return 0.0
    numbers = forms.numbers(answer.replace("{,}", ""))
    return bool(numbers or "[" in answer) and numbers == forms.numbers(entry["answer"])


_LABEL = re.compile(r"\A\s*output(?: grid)?:", re.IGNORECASE)
"""Label before each output grid in the questions."""


def arc_1d(answer: str, entry: Entry, config: Config) -> float:
    """Accept the complete output. There is partial credit only if more numbers are correct than in a copy of the input
    or in the best constant output."""
    example = entry["metadata"]["test_example"]
    return common.grade_line(_LABEL.sub("", answer), example["output"], example["input"])


def arc_2d(answer: str, entry: Entry, config: Config) -> float:
    """Accept the complete output board, in the question's symbols. There is partial credit only if more cells are
    correct than in a copy of the input or in the best constant board.

    A board may use the question's format (option `board_format_opts`) or any format that `common.rows` can parse.
    """
    if forms.same_text(answer, entry["answer"]):
        return 1.0
    form = common.option("rearc", {}, "board_format_opts") | (config.get("board_format_opts") or {})
    gold, given = (
        [[form["alphabet"][cell] for cell in row] for row in entry["metadata"][board]] for board in ("output", "input")
    )
    text = _LABEL.sub("", answer)
    boards = {text, _usual_form(text, form)}
    return max(common.grade_grid(board, gold, given, operator.eq) for board in boards)


def _usual_form(text: str, form: dict[str, Any]) -> str:
    """Convert a board with the delimiters in `form` to lines of space-separated cells."""
    lines = text.split(form["row_delimiter"]) if form["row_delimiter"] else [text]
    if form["col_delimiter"]:
        return "\n".join(line.replace(form["col_delimiter"], " ") for line in lines)
    return "\n".join(" ".join(line.strip().strip("[]")) for line in lines)
