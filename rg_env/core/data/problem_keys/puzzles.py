"""What games, grids and other puzzles ask.

A grid's rotations and mirror images are other problems: their answers are other grids or paths.
"""

import re
import textwrap
from collections.abc import Sequence
from typing import Any

from rg_env.core.data.problem_keys.forms import Bag, Entry, Key, fields, parts, renumbered

_ROW = re.compile(r"^ *\[+([01](?: [01])*)\]+$", re.MULTILINE)
_STICKERS = re.compile(r"^ *((?:[WYROGB](?: +|$))+)$", re.MULTILINE)
_EXAMPLE = re.compile(r"^Input \d+: (.*)\nOutput \d+: (.*)$", re.MULTILINE)
_INPUT = re.compile(r"^Input: (.*)$", re.MULTILINE)
_CARDS = re.compile(r"initial cards (\w+)")
_SIDES = ("top", "right", "front", "left", "back", "bottom")


def _arc_1d(entry: Entry) -> Any:
    metadata = entry["metadata"]
    shown = Bag((each["input"], each["output"]) for each in metadata["train_examples"])
    return (shown, metadata["test_example"]["input"])


def _binary_alternation(entry: Entry) -> Any:
    """As many swaps with the signs exchanged, and from right to left."""
    string = entry["metadata"]["string"]
    exchanged = string.translate(str.maketrans("01", "10"))
    return min(string, exchanged, string[::-1], exchanged[::-1])


def _boxnet(entry: Entry) -> Any:
    """A colour is where its boxes and its targets are."""
    metadata = entry["metadata"]
    places: dict[str, list[tuple[str, str]]] = {}
    for square, things in metadata["initial_state"].items():
        for thing in things:
            kind, _, colour = thing.partition("_")
            places.setdefault(colour, []).append((kind, square))
    return (metadata["row_num"], metadata["column_num"], Bag(map(Bag, places.values())))


def _color_cube_rotation(entry: Entry) -> Any:
    """Each colour is the side that it starts on."""
    metadata = entry["metadata"]
    return (metadata["rotations"], metadata["target_side"])


def _game_of_life(entry: Entry) -> Any:
    question = entry["question"]
    board = question[question.rindex("[[") :].rstrip(". \n")  # an empty one is given as an example before it
    return (board.split(), entry["metadata"]["simulation_steps"])


def _game_of_life_halting(entry: Entry) -> Any:
    """The board wraps around: where on it a pattern is does not matter."""
    rows = [[cell == "1" for cell in row.split()] for row in parts(_ROW, entry["question"])]
    return (len(rows), len(rows[0]), _shifted(rows), entry["metadata"]["simulation_steps"])


def _shifted(rows: Sequence[Sequence[bool]]) -> list[list[int]]:
    """The living cells of a board that wraps around, as seen from one of them: the same from anywhere."""
    height, width = len(rows), len(rows[0])
    cells = [(y, x) for y, row in enumerate(rows) for x, alive in enumerate(row) if alive]

    def seen_from(y: int, x: int) -> list[list[int]]:
        return sorted([(down - y) % height, (right - x) % width] for down, right in cells)

    def around(y: int, x: int) -> list[bool]:
        near = range(-2, 3)
        return [rows[(y + down) % height][(x + right) % width] for down in near for right in near]

    lowest = min((around(y, x) for y, x in cells), default=[])  # few cells look like this: only those are tried
    return min((seen_from(y, x) for y, x in cells if around(y, x) == lowest), default=[])


def _list_functions(entry: Entry) -> Any:
    return (Bag(parts(_EXAMPLE, entry["question"])), parts(_INPUT, entry["question"])[-1])


def _mahjong_puzzle(entry: Entry) -> Any:
    rounds = [(each["add"], each["remove"]) for each in entry["metadata"]["rounds"]]
    return (Bag(parts(_CARDS, entry["question"])[0]), rounds)


def _manipulate_matrix(entry: Entry) -> Any:
    metadata = entry["metadata"]
    steps = [{key: value for key, value in step.items() if key != "instruction"} for step in metadata["operations"]]
    return (metadata["matrix"], steps)


def _maze(entry: Entry) -> Any:
    """Whatever stands for walls and passages; the way back is as long."""
    metadata = entry["metadata"]
    signs = {metadata["wall"]: "#", metadata["path"]: ".", metadata["start"]: "@", metadata["goal"]: "@"}
    return [[signs.get(sign, sign) for sign in row] for row in metadata["grid"]]


def _quantum_lock(entry: Entry) -> Any:
    metadata = entry["metadata"]
    buttons = Bag((each["type"], each["value"], each["active_state"]) for each in metadata["buttons"])
    return (buttons, *(metadata[name] for name in ("initial_state", "initial_value", "target_value")))


def _rectangle_count(entry: Entry) -> Any:
    """Where on the canvas the picture is does not matter."""
    return [line.rstrip() for line in textwrap.dedent(entry["metadata"]["puzzle"]).strip("\n").splitlines()]


def _rotate_matrix(entry: Entry) -> Any:
    return (entry["metadata"]["matrix"], entry["metadata"]["num_rotations"] % 4)


def _rubiks_cube(entry: Entry) -> Any:
    rows = parts(_STICKERS, entry["question"])
    return (entry["metadata"]["cube_size"], [row.split() for row in rows])


def _rush_hour(entry: Entry) -> Any:
    """A is the car to get out; the names of the others do not matter."""
    board = entry["metadata"]["board_config"]
    others = iter(renumbered(sign for sign in board if sign.isupper() and sign != "A"))
    return [next(others) if sign.isupper() and sign != "A" else sign for sign in board]


def _sokoban(entry: Entry) -> Any:
    return entry["metadata"]["gamestr"].split("\n")


def _sudoku(entry: Entry) -> Any:
    """Digits are names: any other nine will do."""
    cells = [cell for row in entry["metadata"]["puzzle"] for cell in row]
    digits = iter(renumbered(str(cell) for cell in cells if cell))
    return [next(digits) + 1 if cell else 0 for cell in cells]


KEYS: dict[str, Key] = {
    "arc_1d": Key("the examples in any order, and the input", _arc_1d),
    "arc_agi": Key("the task of the ARC set, however turned, mirrored, coloured and ordered", fields("task_id")),
    "binary_alternation": Key("the string, from either end and with 0 and 1 exchanged", _binary_alternation),
    "binary_matrix": Key("the matrix", fields("matrix")),
    "boxnet": Key("the squares of boxes and targets, whatever the colours", _boxnet),
    "color_cube_rotation": Key("the rotations and the side wanted, whatever the colours", _color_cube_rotation),
    "futoshiki": Key(
        "the grid, and the constraints in any order", fields("puzzle", "constraints", any_order=("constraints",))
    ),
    "game_of_life": Key("the board and the number of steps", _game_of_life),
    "game_of_life_halting": Key("the board wherever its patterns are, and the number of steps", _game_of_life_halting),
    "jugs": Key(
        "the jugs in any order, and the target",
        lambda entry: (Bag(entry["metadata"]["puzzle"]["jug_capacities"]), entry["metadata"]["puzzle"]["target"]),
    ),
    "kakurasu": Key("the sums of rows and columns", fields("row_sums", "col_sums")),
    "knight_swap": Key(
        "the squares with their pieces, and who starts",
        lambda entry: (Bag(entry["metadata"]["pieces"].items()), entry["metadata"]["start_turn"]),
    ),
    "largest_island": Key("the grid", fields("grid")),
    "list_functions": Key("the examples in any order, and the input", _list_functions),
    "mahjong_puzzle": Key("the cards in hand in any order, and the rounds", _mahjong_puzzle),
    "manipulate_matrix": Key("the matrix and the operations, without wording", _manipulate_matrix),
    "maze": Key("the grid, whatever its signs, from either end", _maze),
    "mini_sudoku": Key("the grid, whatever its digits", _sudoku),
    "modulo_grid": Key("the whole grid, wherever its gaps are", lambda entry: entry["answer"].split()),
    "n_queens": Key("the board", fields("puzzle")),
    "pool_matrix": Key("the matrix, the kind of pooling and its size", fields("matrix", "pool_type", "pool_size")),
    "quantum_lock": Key("start, target and the buttons in any order", _quantum_lock),
    "rearc": Key("the task and the input, whatever the examples", fields("task_id", "input")),
    "rectangle_count": Key("the picture, wherever it is", _rectangle_count),
    "rotate_matrix": Key("the matrix and the angle, without full turns", _rotate_matrix),
    "rotten_oranges": Key("the grid", fields("matrix")),
    "rubiks_cube": Key("the state of the cube, without wording", _rubiks_cube),
    "rush_hour": Key("the board, whatever the cars are called", _rush_hour),
    "shortest_path": Key("the grid", fields("matrix")),
    "sokoban": Key("the board", _sokoban),
    "spiral_matrix": Key("the matrix", fields("matrix")),
    "sudoku": Key("the grid, whatever its digits", _sudoku),
    "survo": Key(
        "the matrix, and the numbers to fill in, in any order",
        fields("puzzle", "candidate_numbers", any_order=("candidate_numbers",)),
    ),
    "tower_of_hanoi": Key(
        "the numbers of disks and pegs, and both pegs", fields("num_disks", "num_pegs", "start_peg", "target_peg")
    ),
    "tsumego": Key("the board", fields("board")),
}
