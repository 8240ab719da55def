"""The graders of the cognition tasks, and the cube that one of them turns."""

import pytest
from grader_cases import Row, entry, row, table
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.grading.graders import cognition

ASKED = "Who is fond of tea? Reply only with a name."
STACK = "Cid dislikes tea. Ann is fond of tea. Dan is fond of tea bags. Bea-Lee is fond of tea. "


def cube(scramble: str, right: str = "", wrong: str = "", size: int = 3) -> Row:
    return row("rubiks_cube", entry(None, cube_size=size, scramble_moves=scramble), right or (), wrong or ())


@table(
    row("color_cube_rotation", entry("gray"), "Gray | grey", "green"),
    row("color_cube_rotation", entry("red"), '"red"', "red green blue | redden"),
    row("figlet_font", entry("FOUTER"), "fouter | F O U T E R", "FOUTERS | FOUTEX"),
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
)
def test_answers_score_what_they_are_worth(row: Row) -> None:
    row.check()


TURNS = ["L", "R", "U", "D", "F", "B", "Lw", "Rw", "Uw", "Dw", "Fw", "Bw", "2R", "2U", "X", "Y", "Z"]
MOVES = st.lists(
    st.builds("{}{}".format, st.sampled_from(TURNS), st.sampled_from(["", "'", "2"])), min_size=1, max_size=15
)


@settings(max_examples=50, deadline=None)  # the first tables of a size take a moment
@given(size=st.integers(2, 6), moves=MOVES)
def test_the_cube_turns_as_the_librarys_does(size: int, moves: list[str]) -> None:
    """After the same moves each sticker has the color that it has on the library's cube."""
    magic = pytest.importorskip("magiccube", reason="comes with reasoning_gym")
    other = magic.Cube(size)
    other.rotate(" ".join(moves))
    points, _ = cognition._stickers(size)
    colors = set()
    for point, face in zip(points, cognition.turned(size, moves), strict=True):
        axis = next(i for i in range(3) if abs(point[i]) == size)
        place = tuple((max(1 - size, min(size - 1, value)) + size - 1) // 2 for value in point)
        colors.add((face, other.get_piece(place).get_piece_color(axis)))
    assert len(colors) == 6


@given(size=st.integers(2, 6), moves=MOVES)
def test_the_way_back_solves_the_cube(size: int, moves: list[str]) -> None:
    """Moves undone in reverse order are a solution."""
    back = [move[:-1] if move.endswith("'") else move if move.endswith("2") else move + "'" for move in reversed(moves)]
    cube(" ".join(moves), " ".join(back), size=size).check()
