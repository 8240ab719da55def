"""Graders of the algorithmic tasks on random numbers, grids and words."""

import json
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest
from grader_cases import entry, row
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.grading.graders import common, grade


@given(st.lists(st.decimals(-100, 100, places=2), min_size=1, max_size=8), st.randoms())
def test_only_the_sorted_order_is_right(numbers: list[Any], rng: Any) -> None:
    """A permutation of the numbers gets full value if and only if it is sorted."""
    gold, order = [str(number) for number in sorted(numbers)], numbers.copy()
    rng.shuffle(order)
    item = entry(str(gold), sorted_numbers=gold, original_numbers=[str(number) for number in numbers])
    value = grade("number_sorting", {}, item, str([str(number) for number in order]), partial_credit=True)
    assert (value == 1.0) == (order == sorted(numbers))
    assert 0.0 <= value <= 1.0


Grid = list[list[int]]
GRIDS = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(st.integers(-99, 99), min_size=width, max_size=width), min_size=1, max_size=6)
)


def lines(grid: Grid) -> str:
    return "\n".join(" ".join(map(str, row)) for row in grid)


@pytest.mark.parametrize(
    "write",
    [
        lines,
        json.dumps,
        lambda grid: json.dumps(grid, indent=4),
        lambda grid: str(tuple(map(tuple, grid))),
        lambda grid: str(grid).replace(",", ""),  # as NumPy prints it
        lambda grid: "\n\n".join(", ".join(map(str, row)) for row in grid),
        lambda grid: "\n".join("| " + " | ".join(map(str, row)) + " |" for row in grid),
        lambda grid: ",\n".join(map(str, grid)),
        lambda grid: r"\begin{bmatrix}" + r" \\ ".join(" & ".join(map(str, row)) for row in grid) + r"\end{bmatrix}",
        lambda grid: "\n".join(" ".join(f"'{cell}.0'" for cell in row) for row in grid),
    ],
)
@settings(max_examples=30, deadline=None)
@given(grid=GRIDS)
def test_a_grid_is_read_in_every_form(write: Any, grid: Grid) -> None:
    """A correct grid scores 1.0 in every format."""
    assert common.grade_grid(write(grid), grid) == 1.0


@given(grid=GRIDS, data=st.data())
def test_one_changed_number_is_not_right(grid: Grid, data: st.DataObject) -> None:
    """A grid with one wrong number scores at least 0 and less than 1.0."""
    row, column = data.draw(st.integers(0, len(grid) - 1)), data.draw(st.integers(0, len(grid[0]) - 1))
    changed = [list(cells) for cells in grid]
    changed[row][column] += 1
    assert 0.0 <= common.grade_grid(lines(changed), grid, given=grid) < 1.0


def test_grids_of_another_shape_and_trivial_boards_earn_nothing() -> None:
    """Partial credit counts only cells beyond those that the better of two trivial boards gets right: the unchanged one
    and a constant one."""
    for text in ("1 2 3 4", "[1, 2, 3, 4]", "1 2\n3", "1 2\n3 4\n5 6", "1 2 3\n4", "[[1, 2], [3, 4]], 0"):
        assert common.grade_grid(text, [[1, 2], [3, 4]]) == 0.0
    gold, unchanged = [[0, 0, 0, 1], [1, 1, 0, 0]], [[0, 0, 1, 1], [1, 0, 0, 0]]
    assert (
        common.grade_grid(lines(unchanged), gold, unchanged)
        == common.grade_grid("0 0 0 0\n" * 2, gold, unchanged)
        == 0.0
    )
    assert common.grade_grid("0 0 0 1\n1 0 0 0", gold, unchanged) == pytest.approx(0.5)  # 7 of 8 cells; copying gets 6


@given(value=st.integers(0, 900), below=st.integers(1, 81))
def test_pool_matrix_accepts_rounded_means(value: int, below: int) -> None:
    """A mean rounded to two decimal places is correct."""
    mean = float(Fraction(value, below))
    row("pool_matrix", entry("", solution=[[mean]], matrix=[[1, 2]]), f"{mean:.2f}", f"{mean + 0.02:.2f}").check()


@given(st.text("ab", min_size=1, max_size=7))
def test_every_partition_into_palindromes_is_required(text: str) -> None:
    """The list of all partitions, found by brute force, is correct; without one of them, it gets only partial
    credit."""
    found = []
    for cuts in range(2 ** (len(text) - 1)):
        parts = [text[0]]
        for at, letter in enumerate(text[1:]):
            if cuts >> at & 1:
                parts.append(letter)
            else:
                parts[-1] += letter
        if all(part == part[::-1] for part in parts):
            found.append(parts)
    whole, less = row("palindrome_partitioning", entry(json.dumps(found), string=text), [json.dumps(found)]), found[1:]
    whole.check()
    assert less == [] or whole._replace(values={json.dumps(less): (len(less) - 1) / (len(found) - 1)}).check() is None


def test_word_lists_are_read_without_importing_the_library() -> None:
    """The graders of word_ladder and sentence_reordering do not import reasoning_gym."""
    code = (
        "import sys; from rg_env.core.grading.graders import GRADERS as graders;"
        "entry = {'question': ': ask. we what', 'answer': 'what we ask.', 'metadata':"
        " {'start_word': 'COLD', 'end_word': 'CORD'}};"
        "assert graders['word_ladder']('COLD,CORD', entry, {}) == 1;"
        "assert graders['sentence_reordering']('what we ask.', entry, {}) == 1;"
        "sys.exit('reasoning_gym' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
