"""The graders of the cognition tasks, and the cube that one of them turns."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.grading.graders import cognition as rubiks
from rg_env.core.grading.graders.cognition import GRADERS


def entry(answer: Any = None, question: str = "", **metadata: Any) -> dict[str, Any]:
    return {"question": question, "answer": answer, "metadata": metadata}


@pytest.mark.parametrize(
    ("task", "gold", "answer", "value"),
    [
        ("color_cube_rotation", "gray", "Gray", 1.0),
        ("color_cube_rotation", "gray", "grey", 1.0),
        ("color_cube_rotation", "red", '"red"', 1.0),
        ("color_cube_rotation", "red", "red green blue", 0.0),
        ("color_cube_rotation", "gold", "golden", 0.0),
        ("figlet_font", "FOUTER", "fouter", 1.0),
        ("figlet_font", "FOUTER", "F O U T E R", 1.0),
        ("figlet_font", "FOUTER", "FOUTERS", 0.0),
        ("figlet_font", "GEOHYDROLOGY", "GEOHYDROLOGX", 0.0),  # the library pays 1.0
        ("number_sequence", "340", "340.0", 1.0),
        ("number_sequence", "-12", "−12", 1.0),
        ("number_sequence", "340", "210, 340", 0.0),
        ("rectangle_count", "7", "7", 1.0),
        ("rectangle_count", "7", "6", 0.0),  # the library pays 0.64
        ("rectangle_count", "7", "6 or 7", 0.0),
    ],
)
def test_single_values(task: str, gold: str, answer: str, value: float) -> None:
    """One word or number, and nothing beside it."""
    assert GRADERS[task](answer, entry(gold), {}) == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("❌✅\n✅❌", 1.0),
        ("❌ ✅\n✅ ❌\n", 1.0),
        ("❌\ufe0f✅\n✅❌", 1.0),
        ('[["❌", "✅"], ["✅", "❌"]]', 1.0),
        ("❌✅✅❌", 0.0),
        ("❌✅\n✅✅", 0.0),
        ("❌✅\n✅❔", 0.0),
        ("❌✅\n✅❌\n✅❌", 0.0),
        ("", 0.0),
    ],
)
def test_modulo_grid(answer: str, value: float) -> None:
    """All signs in their rows."""
    assert GRADERS["modulo_grid"](answer, entry("❌✅\n✅❌"), {}) == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Ann", 1.0),
        ("ann", 1.0),
        ('"Bea-Lee"', 1.0),  # true of her as well
        ("Cid", 0.0),
        ("Dan", 0.0),
        ("Ann Bea-Lee Cid Dan", 0.0),
        ("", 0.0),
    ],
)
def test_needle_haystack(answer: str, value: float) -> None:
    """Each name of which the text says it, and no other."""
    asked = "Who is fond of tea? Reply only with a name."
    stack = "Cid dislikes tea. Ann is fond of tea. Dan is fond of tea bags. Bea-Lee is fond of tea. "
    item = {"question": f"{stack}\n{asked}", "answer": "Ann", "metadata": {"question": asked}}
    assert GRADERS["needle_haystack"](answer, item, {}) == value


def cube(scramble: str, size: int = 3) -> dict[str, Any]:
    return entry(cube_size=size, scramble_moves=scramble)


@pytest.mark.parametrize(
    ("size", "scramble", "answer", "value"),
    [
        (3, "U R'", "R U'", 1.0),
        (3, "U R'", "R U U U", 1.0),
        (3, "U R'", "R U3", 1.0),
        (3, "U U R", "R' U2", 1.0),
        (3, "U U R", "R' U2'", 1.0),
        (3, "U U R", "R' U'2", 1.0),
        (3, "U R'", "R, U’", 1.0),
        (3, "U R'", "(R U')", 1.0),
        (3, "U R'", '["R", "U\'"]', 1.0),
        (3, "U R", "['R\\'', 'U\\'']", 0.0),
        (3, "U R", "[R', U']", 1.0),
        (3, "R", "x L' x'", 0.0),
        (3, "R", "L' M'", 1.0),  # all three slices turned alike: the cube as a whole
        (3, "R", "L' M", 0.0),
        (3, "R", "Y F' Y'", 1.0),
        (3, "R", "y F' y'", 1.0),  # the right face comes to the front
        (3, "R", "y B' y'", 0.0),
        (3, "R", "r' M'", 1.0),
        (3, "R", "Rw' M'", 1.0),
        (3, "U R'", "U' R", 0.0),
        (3, "U R'", "R", 0.0),
        (3, "U R'", "R U' junk", 0.0),
        (3, "U R'", "R U' 3", 0.0),
        (3, "U R'", "", 0.0),
        (3, "U R'", "R999999999", 0.0),
        (3, "U U' ", "R4", 1.0),
        (3, "U", "4U", 0.0),
        (3, "U", "3D", 1.0),  # the third layer from below is the top, turned as the bottom is
        (3, "U", "U0", 0.0),
        (3, "U", "U " * 1_003, 0.0),
        (3, "U", "U " * 999, 1.0),
        (2, "F", "F F F", 1.0),
        (2, "F", "S", 0.0),
        (4, "2Rw U 2L", "2L' U' 2Rw'", 1.0),
        (4, "2Rw U 2L", "2L' U' Rw'", 1.0),
        (4, "2Rw U 2L", "2L' U' 2R' R'", 1.0),
        (4, "2Rw U 2L", "L' U' Rw'", 0.0),
        (5, "Rw", "M R' 2R'", 0.0),
        (5, "3R", "M", 1.0),
    ],
)
def test_rubiks_cube(size: int, scramble: str, answer: str, value: float) -> None:
    """Any moves that solve it, in any usual notation."""
    assert GRADERS["rubiks_cube"](answer, cube(scramble, size), {}) == value


TURNS = ["L", "R", "U", "D", "F", "B", "Lw", "Rw", "Uw", "Dw", "Fw", "Bw", "2R", "2U", "X", "Y", "Z"]
MOVES = st.builds("{}{}".format, st.sampled_from(TURNS), st.sampled_from(["", "'", "2"]))


@settings(max_examples=50, deadline=None)  # the first tables of a size take a moment
@given(size=st.integers(2, 6), moves=st.lists(MOVES, min_size=1, max_size=15))
def test_the_cube_turns_as_the_librarys_does(size: int, moves: list[str]) -> None:
    """After the same moves each sticker has the color that it has on the library's cube."""
    magic = pytest.importorskip("magiccube", reason="comes with reasoning_gym")
    other = magic.Cube(size)
    other.rotate(" ".join(moves))
    points, _ = rubiks._stickers(size)
    colors = set()
    for point, face in zip(points, rubiks.turned(size, moves), strict=True):
        axis = next(i for i in range(3) if abs(point[i]) == size)
        place = tuple((max(1 - size, min(size - 1, value)) + size - 1) // 2 for value in point)
        colors.add((face, other.get_piece(place).get_piece_color(axis)))
    assert len(colors) == 6


@settings(deadline=None)
@given(size=st.integers(2, 6), moves=st.lists(MOVES, min_size=1, max_size=15))
def test_the_way_back_solves_the_cube(size: int, moves: list[str]) -> None:
    """Moves undone in reverse order are a solution."""
    back = [move[:-1] if move.endswith("'") else move if move.endswith("2") else move + "'" for move in reversed(moves)]
    assert rubiks.solves(size, " ".join(moves), " ".join(back))


@settings(deadline=None)
@given(text=st.text(alphabet="RULwx'23 ()[],\"’\x00", max_size=60))
def test_no_text_breaks_the_cube(text: str) -> None:
    """Whatever the text, it solves the cube or does not."""
    assert rubiks.solves(3, "R U", text) in (True, False)
