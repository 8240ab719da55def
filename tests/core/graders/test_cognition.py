"""The rubiks_cube grader's model of a cube, and random values for codeio."""

import json
from typing import Any

import pytest
from grader_cases import Row, entry, row
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.grading.graders import cognition, grade


def cube(scramble: str, right: str = "", wrong: str = "", size: int = 3) -> Row:
    return row("rubiks_cube", entry(None, cube_size=size, scramble_moves=scramble), right or (), wrong or ())


TURNS = ["L", "R", "U", "D", "F", "B", "Lw", "Rw", "Uw", "Dw", "Fw", "Bw", "2R", "2U", "X", "Y", "Z"]
MOVES = st.lists(
    st.builds("{}{}".format, st.sampled_from(TURNS), st.sampled_from(["", "'", "2"])), min_size=1, max_size=15
)


@settings(max_examples=50, deadline=None)  # building the tables of a new size takes a moment
@given(size=st.integers(2, 6), moves=MOVES)
def test_the_cube_turns_as_the_librarys_does(size: int, moves: list[str]) -> None:
    """After the same moves, each sticker has the same color as on the library's cube."""
    magic = pytest.importorskip("magiccube", reason="comes with reasoning_gym")
    other = magic.Cube(size)
    other.rotate(" ".join(moves))
    state = cognition.turned(size, moves)
    colors = set()
    for point, face in zip(cognition.stickers(size), state, strict=True):
        axis = next(i for i in range(3) if abs(point[i]) == size)
        place = tuple((max(1 - size, min(size - 1, value)) + size - 1) // 2 for value in point)
        colors.add((face, other.get_piece(place).get_piece_color(axis)))
    assert len(colors) == 6


@given(size=st.integers(2, 6), moves=MOVES)
def test_the_inverse_moves_in_reverse_order_solve_the_cube(size: int, moves: list[str]) -> None:
    back = [move[:-1] if move.endswith("'") else move if move.endswith("2") else move + "'" for move in reversed(moves)]
    cube(" ".join(moves), " ".join(back), size=size).check()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_values_are_right_only_if_equal(gold: Any, other: Any) -> None:
    """A value matches itself in other formatting; except for floats, it matches only equal values."""
    item = entry(json.dumps(gold))
    assert grade("codeio", {}, item, json.dumps(gold, indent=2)) == 1.0
    if grade("codeio", {}, item, json.dumps(other)) == 1.0 and "e" not in str(gold) and "." not in str(gold):
        assert gold == other or gold == json.dumps(other)
