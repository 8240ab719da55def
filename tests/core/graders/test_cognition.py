"""Graders of the cognition, code, induction and arc tasks, and the cube that one of them turns."""

import json
from typing import Any

import pytest
from grader_cases import Row, entry, row, table
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.grading.graders import cognition, grade

ASKED = "Who is fond of tea? Reply only with a name."
STACK = "Cid dislikes tea. Ann is fond of tea. Dan is fond of tea bags. Bea-Lee is fond of tea. "
LINE = entry("0 2 2 2 0", test_example={"input": [2, 0, 2, 0, 0], "output": [0, 2, 2, 2, 0]})
BOARD = entry("0 0 1\n0 2 1", input=[[0, 0, 0], [0, 2, 0]], output=[[0, 0, 1], [0, 2, 1]])
LETTERS = {"board_format_opts": {"alphabet": list("abcdefghij"), "col_delimiter": "", "row_delimiter": "/"}}
SWAPPED = {"board_format_opts": {"alphabet": list("1023456789")}}


def cube(scramble: str, right: str = "", wrong: str = "", size: int = 3) -> Row:
    return row("rubiks_cube", entry(None, cube_size=size, scramble_moves=scramble), right or (), wrong or ())


@table(
    row("color_cube_rotation", entry("gray"), "Gray | grey", "green"),
    row("color_cube_rotation", entry("red"), '"red"', "red green blue | redden"),
    row("figlet_font", entry("FOUTER"), "fouter | F O U T E R", "FOUTERS | FOUTEX"),
    row("course_schedule", entry("True"), "true |  TRUE ", "False | True or False | not True | 1"),
    row("largest_island", entry("12"), "12.0 | １２ | +12", "112 | 1 2 | 12 13 | nan"),
    row("number_sequence", entry("340"), "340.0", "210, 340"),
    row("number_sequence", entry("-12"), "−12", "12"),
    row("rectangle_count", entry("7"), "7", "6 | 6 or 7"),
    row(
        "modulo_grid",
        entry("❌✅\n✅❌"),
        ["❌✅\n✅❌", "❌ ✅\n✅ ❌\n", "❌\ufe0f✅\n✅❌", '[["❌", "✅"], ["✅", "❌"]]'],
        ["❌✅✅❌", "❌✅\n✅✅", "❌✅\n✅❔", "❌✅\n✅❌\n✅❌"],
    ),
    row(
        "needle_haystack",
        {"question": f"{STACK}\n{ASKED}", "answer": "Ann", "metadata": {"question": ASKED}},
        'Ann | ann | "Bea-Lee"',  # true of her as well
        "Cid | Dan | Ann Bea-Lee Cid Dan",
    ),
    cube("U R'", 'R U\' | R U U U | R U3 | R, U’ | (R U\') | ["R", "U\'"]', "U' R | R | R U' junk | R U' 3"),
    cube("U U R", "R' U2 | R' U2' | R' U'2"),
    cube("U R", "[R', U']", "['R\\'', 'U\\'']"),
    # M and L' turn all three slices alike: the cube as a whole; after Y or y the right face is in front
    cube("R", "L' M' | Y F' Y' | y F' y' | r' M' | Rw' M'", "x L' x' | L' M | y B' y'"),
    cube("U U' ", "R4"),
    cube("U", "3D", "4U | U0"),  # the third layer from below is the top, turned as the bottom is
    row("rubiks_cube", entry(None, cube_size=3, scramble_moves="U"), ["U " * 999], ["U " * 1_003]),
    cube("F", "F F F", "S", size=2),
    cube("2Rw U 2L", "2L' U' 2Rw' | 2L' U' Rw' | 2L' U' 2R' R'", "L' U' Rw'", size=4),
    cube("Rw", wrong="M R' 2R'", size=5),
    cube("3R", "M", size=5),
    row("bf", entry("would"), ["would", " would\n", '"would"', "'would'", "```\nwould\n```", "would."], "Would"),
    row("bf", entry("would"), wrong="the output is would | \" | ''"),
    row("bf", entry("147"), "147 | **147**", "147 147"),
    row(
        "codeio",
        entry('{"a": 1, "b": [true, null]}'),
        ['{"b":[true,null],"a":1}', '```json\n{"a": 1, "b": [true, null]}\n```'],
        ['{"a": 1}', '{"a": 1, "b": [1, null]}', '{"a": 1, "b": [null, true]}'],
    ),
    row("codeio", entry('{"a": 1, "b": [true, "x"]}'), "{'a': 1, 'b': [True, 'x']} | {'a': 1.0, 'b': (True, 'x')}"),
    row(
        *("codeio", entry('{"a": 1}'), "{'a': 1}"),
        '{"a": 2, "a": 1} | {"a": "1"} | {"A": 1} | {"a": true} | {"a": 1, "b": 2} | [{"a": 1}] | 1 | {}',
    ),
    row("codeio", entry('{"1": 2}'), "{1: 2}", ["{0x" + "f" * 9000 + ": 2}", '{"a":' * 2000, "[" * 9000 + "]" * 9000]),
    row(
        "codeio",
        entry("0.1429711288947661"),
        "0.1429711288947661 | 0.142971128895 | 1.429711288947661e-1",
        '0.143 | 0.14297112 | "0.1429711288947661" | NaN | Infinity | 1e999',
    ),
    row("codeio", entry("1612137600.0"), "1612137600", "1612137600.5 | 1612137601"),
    row("codeio", entry("12345678901234567"), "12345678901234567", "12345678901234568 | 1.2345678901234568e16"),
    row("codeio", entry("true"), "true | True"),
    row("codeio", entry("false"), "false", '0 | null | "" | no'),
    row("codeio", entry("null"), "null", "0"),
    row("codeio", entry('"yes"'), "\"yes\" | yes | 'yes'"),
    row("codeio", entry('"5"'), '"5"', "5"),
    row("codeio", entry("5"), "5", '"5" | 2 + 3 | true'),
    row("codeio", entry('{"s": "' + "(" * 60 + '"}'), ['{ "s" : "' + "(" * 60 + '" }']),
    row("codeio", entry('{"x": NaN}'), '{"x": NaN}'),
    row("acre", entry("on"), "ON.", "off | on off undetermined"),
    row("acre", entry("undetermined"), '"undetermined"'),
    row(
        "list_functions",
        entry("[7, 13]"),
        "7, 13 | [7,13]",
        ["[13, 7]", "[7, 13, 7, 13]", "[7, x]", "the list [7, 13]", "7, " * 3000],
    ),
    row("list_functions", entry("[7]"), "7"),
    row("list_functions", entry("[89088, 7]"), "[89{,}088, 7]"),
    row("list_functions", entry("[89088]"), "[89088]", "[89,088]"),
    row("list_functions", entry("[]"), "[ ]", ["()", "[0]"]),
)
def test_answers_score_what_they_are_worth(row: Row) -> None:
    """Form does not matter; another value, or another type, scores 0.0."""
    row.check()


TURNS = ["L", "R", "U", "D", "F", "B", "Lw", "Rw", "Uw", "Dw", "Fw", "Bw", "2R", "2U", "X", "Y", "Z"]
MOVES = st.lists(
    st.builds("{}{}".format, st.sampled_from(TURNS), st.sampled_from(["", "'", "2"])), min_size=1, max_size=15
)


@settings(max_examples=50, deadline=None)  # the first tables of a size take a moment
@given(size=st.integers(2, 6), moves=MOVES)
def test_the_cube_turns_as_the_librarys_does(size: int, moves: list[str]) -> None:
    """After the same moves each sticker has the same color as on the library's cube."""
    magic = pytest.importorskip("magiccube", reason="comes with reasoning_gym")
    other = magic.Cube(size)
    other.rotate(" ".join(moves))
    state = cognition.turned(size, moves)
    assert state is not None
    colors = set()
    for point, face in zip(cognition.stickers(size), state, strict=True):
        axis = next(i for i in range(3) if abs(point[i]) == size)
        place = tuple((max(1 - size, min(size - 1, value)) + size - 1) // 2 for value in point)
        colors.add((face, other.get_piece(place).get_piece_color(axis)))
    assert len(colors) == 6


@given(size=st.integers(2, 6), moves=MOVES)
def test_the_way_back_solves_the_cube(size: int, moves: list[str]) -> None:
    """The inverse moves in reverse order are a solution."""
    back = [move[:-1] if move.endswith("'") else move if move.endswith("2") else move + "'" for move in reversed(moves)]
    cube(" ".join(moves), " ".join(back), size=size).check()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_values_are_right_only_if_equal(gold: Any, other: Any) -> None:
    """A value matches itself in any spacing, and matches other values only within the tolerance for floats."""
    item = entry(json.dumps(gold))
    assert grade("codeio", {}, item, json.dumps(gold, indent=2)) == 1.0
    if grade("codeio", {}, item, json.dumps(other)) == 1.0 and "e" not in str(gold) and "." not in str(gold):
        assert gold == other or gold == json.dumps(other)


@table(
    row(
        "arc_1d",
        LINE,
        "0 2 2 2 0 | [0, 2, 2, 2, 0] | [[0, 2, 2, 2, 0]] | Output: 0 2 2 2 0",
        "2 0 2 0 0 | 2 2 2 2 2 | 0 2 2 2 0 0 | 0 2 2 2 | The answer is 0 2 2 2 0",
        {"0 2 2 0 0": 0.5},  # 4 of 5, where a constant line gets 3
    ),
    *(
        row(
            task,
            BOARD,
            ["0 0 1\n0 2 1", "0 0 1 \n\n0 2 1", "[[0, 0, 1], [0, 2, 1]]", "Output:\n0 0 1\n0 2 1"],
            [
                "0 0 0\n0 2 0",
                "0 0 0\n0 0 0",
                "0 0\n1 0\n2 1",
                "0 0 1 0 2 1",
                "Input:\n0 0 0\n0 2 0\nOutput:\n0 0 1\n0 2 1",
            ],
            {"0 0 1\n0 2 0": 0.5},
        )
        for task in ("arc_agi", "rearc")
    ),
    row(  # the user's signs count, also where they are digits of another meaning
        "rearc",
        {**BOARD, "answer": "aab/acb"},
        ["aab/acb", "a a b\na c b", '[["a", "a", "b"], ["a", "c", "b"]]'],
        ["0 0 1\n0 2 1"],
        {"aab/aca": 0.5},
        LETTERS,
    ),
    row("rearc", {**BOARD, "answer": "1 1 0\n1 2 0"}, ["[[1, 1, 0], [1, 2, 0]]"], ["0 0 1\n0 2 1"], config=SWAPPED),
)
def test_grids_score_progress(row: Row) -> None:
    """The whole line or board, or progress beyond the input and beyond a constant one."""
    row.check()
