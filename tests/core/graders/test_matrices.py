"""The graders of matrices and of processes on them."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.grading.graders import arc
from rg_env.core.grading.graders.algorithmic import GRADERS

Grid = list[list[int]]
GRIDS = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(st.integers(-99, 99), min_size=width, max_size=width), min_size=1, max_size=6)
)


def entry(answer: Any = None, question: str = "", **metadata: Any) -> dict[str, Any]:
    return {"question": question, "answer": answer, "metadata": metadata}


def lines(grid: Grid) -> str:
    return "\n".join(" ".join(map(str, row)) for row in grid)


@pytest.mark.parametrize(
    "write",
    [
        lines,
        json.dumps,
        lambda grid: json.dumps(grid, indent=4),
        lambda grid: str(tuple(map(tuple, grid))),
        lambda grid: str(grid).replace(",", ""),  # as numpy prints it
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
    """Forms change, numbers and shape do not."""
    assert arc.grade_grid(write(grid), grid) == 1.0


@settings(deadline=None)
@given(grid=GRIDS, data=st.data())
def test_one_changed_number_is_not_right(grid: Grid, data: st.DataObject) -> None:
    """1.0 is for the whole grid only, and less is at least 0."""
    row = data.draw(st.integers(0, len(grid) - 1))
    column = data.draw(st.integers(0, len(grid[0]) - 1))
    changed = [list(cells) for cells in grid]
    changed[row][column] += 1
    assert 0.0 <= arc.grade_grid(lines(changed), grid, given=grid) < 1.0


@settings(deadline=None)
@given(text=st.text(alphabet='[](),;|01. \n"\\&', max_size=200), n_cells=st.integers(1, 20))
def test_no_text_breaks_the_reader(text: str, n_cells: int) -> None:
    """Whatever the text, rows or None come back, and no cell holds a separator."""
    found = arc.rows(text, n_cells)
    assert found is None or all(not set(" \n,;|") & set(cell) for row in found for cell in row)


@pytest.mark.parametrize(
    "text", ["1 2 3 4", "[1, 2, 3, 4]", "1 2\n3", "1 2\n3 4\n5 6", "1 2 3\n4", "[[1, 2], [3, 4]], 0"]
)
def test_another_shape_is_wrong(text: str) -> None:
    """The right numbers in another shape are another matrix."""
    assert arc.grade_grid(text, [[1, 2], [3, 4]]) == 0.0


def test_trivial_boards_are_worth_nothing() -> None:
    """Progress counts from the best of the unchanged board and a constant one."""
    gold, given_ = [[0, 0, 0, 1], [1, 1, 0, 0]], [[0, 0, 1, 1], [1, 0, 0, 0]]
    assert arc.grade_grid(lines(given_), gold, given_) == 0.0
    assert arc.grade_grid("0 0 0 0\n0 0 0 0", gold, given_) == 0.0
    assert arc.grade_grid("0 0 0 1\n1 0 0 0", gold, given_) == pytest.approx(0.5)  # 7 of 8, where copying gets 6


def test_binary_matrix_gives_nothing_for_the_input() -> None:
    """Ones and zeros are where the input has them, distances of 2 and more are the work."""
    item = entry(matrix=[[0, 1, 1], [1, 1, 1], [1, 1, 1]], solution=[[0, 1, 2], [1, 2, 3], [2, 3, 4]])
    grade = GRADERS["binary_matrix"]
    assert grade("[[0, 1, 2], [1, 2, 3], [2, 3, 4]]", item, {}) == 1.0  # the library pays 0.1
    assert grade("0 1 1\n1 1 1\n1 1 1", item, {}) == 0.0
    assert 0.0 < grade("0 1 2\n1 2 2\n2 2 2", item, {}) < 1.0
    assert grade("__import__('os').getcwd()", item, {}) == 0.0


def test_game_of_life() -> None:
    """An empty board, the first board, and a board with rows to spare are not the last board."""
    first = [[0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    last = [[0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    board = "[" + ",\n ".join(map(json.dumps, first)) + "]"
    item = entry(json.dumps(last), question=f"What will it look like?\n\n{board}.")
    grade = GRADERS["game_of_life"]
    assert grade(lines(last), item, {}) == 1.0
    assert grade(json.dumps([[0] * 4] * 4), item, {}) == 0.0
    assert grade(board, item, {}) == 0.0
    assert grade(json.dumps([*last, [0] * 4]), item, {}) == 0.0  # the library pays 1.0
    assert grade("{}", item, {}) == 0.0  # the library raises


@pytest.mark.parametrize(
    ("answer", "truth", "value"),
    [
        ("True", "True", 1.0),
        ("true", "True", 1.0),
        ("'Yes'", "True", 1.0),
        ("NO", "False", 1.0),
        ("False", "False", 1.0),
        ("False", "True", 0.0),
        ("True", "False", 0.0),
        ("True or False", "True", 0.0),
        ("anything", "False", 0.0),
        ("", "False", 0.0),
        ("0", "False", 0.0),
        ("1", "True", 0.0),
    ],
)
def test_game_of_life_halting(answer: str, truth: str, value: float) -> None:
    """The truth value counts; the library pays any text."""
    assert GRADERS["game_of_life_halting"](answer, entry(truth), {}) == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("4.67 2.12\n5 0.25", 1.0),
        ("4.67 2.13\n5.00 .25", 1.0),
        ("[[4.6666667, 2.125], [5, 0.25]]", 1.0),
        ("4.66 2.12\n5 0.25", 2 / 3),
        ("4.7 2.1\n5 0.3", 0.0),
        ("4.67 2.12 5 0.25", 0.0),
        ("4.67 5\n2.12 0.25", 1 / 3),
        ("nan nan\nnan nan", 0.0),
        ("inf 1e999\n1e9999 -1e400", 0.0),
        ("5 5\n5 5", 0.0),
    ],
)
def test_pool_matrix(answer: str, value: float) -> None:
    """Two decimal places or more, rounded either way, and not within 1% as in the library."""
    item = entry(solution=[[14 / 3, 2.125], [5.0, 0.25]], matrix=[[0] * 4] * 4)
    assert GRADERS["pool_matrix"](answer, item, {}) == pytest.approx(value)


def test_pool_matrix_tells_rows_from_columns() -> None:
    """The library reads both as a list."""
    item = entry(solution=[[1], [2]], matrix=[[1, 0], [2, 0]])
    assert GRADERS["pool_matrix"]("1 2", item, {}) == 0.0


@settings(deadline=None)
@given(value=st.integers(0, 900), below=st.integers(1, 81))
def test_pool_matrix_takes_every_rounded_mean(value: int, below: int) -> None:
    """Rounding to two places never makes a right mean wrong."""
    mean = Fraction(value, below)
    item = entry(solution=[[float(mean)]], matrix=[[1, 2]])
    assert GRADERS["pool_matrix"](f"{float(mean):.2f}", item, {}) == 1.0
    assert GRADERS["pool_matrix"](f"{float(mean) + 0.02:.2f}", item, {}) == 0.0


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("1 2 3 6 9 8 7 4 5", 1.0),
        ("[1, 2, 3, 6, 9, 8, 7, 4, 5]", 1.0),  # the library pays 0.1
        ("1,2,3,6,9,8,7,4,5", 1.0),
        ("1 2 3 4 5 6 7 8 9", 0.0),
        ("1 2 3 6 9 8 7 5 4", (7 - 4) / (9 - 4)),  # reading row by row gets 1, 2, 3 and 8
        ("1 2 3 6 9 8 7 4", 0.0),
        ("1 2 3 6 9 8 7 4 5 5", 0.0),
        ("sorted(range(10))", 0.0),
    ],
)
def test_spiral_matrix(answer: str, value: float) -> None:
    """Reading row by row is worth nothing."""
    item = entry(solution=[1, 2, 3, 6, 9, 8, 7, 4, 5], matrix=[[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert GRADERS["spiral_matrix"](answer, item, {}) == pytest.approx(value)


def test_rotate_and_manipulate() -> None:
    """The unchanged matrix is worth nothing unless no change is right."""
    item = entry(matrix=[[1, 2], [3, 4]], solution=[[3, 1], [4, 2]])
    for task in ("rotate_matrix", "manipulate_matrix"):
        assert GRADERS[task]("[[3, 1], [4, 2]]", item, {}) == 1.0
        assert GRADERS[task]("1 2\n3 4", item, {}) == 0.0
        assert GRADERS[task]("3 1\n4 2\n3 1\n4 2", item, {}) == 0.0
        assert GRADERS[task]("1 2\n3 4", entry(matrix=[[1, 2], [3, 4]], solution=[[1, 2], [3, 4]]), {}) == 1.0


PATH = entry(puzzle={"vertices": [0, 1, 2], "edges": [[0, 1], [1, 2]], "color_options": [1, 2, 3]})


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ('{"0": 1, "1": 2, "2": 1}', 1.0),
        ('{"0": 3, "1": 2, "2": 1}', 1.0),
        ("{0: 1, 1: 2, 2: 3}", 1.0),
        ('{"2": "1", "1": "2", "0": "1"}', 1.0),
        ("0: 1, 1: 2, 2: 3", 1.0),
        ("0: 1,\n1: 2,\n2: 3", 1.0),
        ('{"0": 1, "1": 1, "2": 2}', 0.0),
        ('{"0": 1, "1": 2}', 0.0),
        ('{"0": 1, "1": 4, "2": 1}', 0.0),
        ('{"0": 1, "1": 2, "2": 1, "3": 1}', 0.0),
        ('{"0": null, "1": 2, "2": 1}', 0.0),
        ('{"0": true, "1": 2, "2": 1}', 0.0),
        ('{"0": [1], "1": 2, "2": 1}', 0.0),
        ('{0: 1, "0": 2, 1: 2, 2: 1}', 0.0),
        ("[1, 2, 1]", 0.0),
        ("{}", 0.0),
        ("", 0.0),
    ],
)
def test_graph_color(answer: str, value: float) -> None:
    """Any proper coloring of all vertices."""
    assert GRADERS["graph_color"](answer, PATH, {}) == value


BOMB = entry(puzzle={"jug_capacities": [3, 5, 8], "target": 4, "min_moves": 6})


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ('["fill B", "pour B->A", "empty A", "pour B->A", "fill B", "pour B->A"]', 1.0),
        ("['fill B', 'pour B->A', 'empty A', 'pour B->A', 'fill B', 'pour B->A']", 1.0),
        ("fill B, pour B->A, empty A, pour B->A, fill B, pour B->A", 1.0),
        ("1. Fill B\n2. Pour B into A\n3. Empty A\n4. Pour B to A\n5. Fill B\n6. Pour B → A.", 1.0),
        ("- fill jug B\n- pour from jug B -> jug A\n- empty jug A\n- pour B=>A\n- fill B\n- pour B-->A", 1.0),
        ('["fill B", "pour B->A", "empty A", "pour B->A", "fill B", "pour B->A", "empty B"]', 0.0),
        ('["fill B", "pour B->A", "empty A", "pour B->A", "fill B"]', 0.0),
        ('["fill B", "pour B->A", "empty A", "pour B->A", "fill B", "pour B->A", "wait"]', 0.0),
        ('["fill D"]', 0.0),
        ('["pour A->A"]', 0.0),
        ('["pour A->D"]', 0.0),
        ('["fill 4"]', 0.0),
        ("[]", 0.0),
        ("No solution", 0.0),
        ('["fill B", ["pour B->A"]]', 0.0),
        ('["fill B", 4]', 0.0),
        ("fill A," * 1_001, 0.0),
    ],
)
def test_jugs(answer: str, value: float) -> None:
    """Any possible moves that end with the target amount in a jug."""
    assert GRADERS["jugs"](answer, BOMB, {}) == value


def test_rotten_oranges_wants_one_number() -> None:
    """Impossible is -1, and a list of guesses is no answer."""
    grade = GRADERS["rotten_oranges"]
    assert grade("−1", entry("-1"), {}) == 1.0
    assert grade("1", entry("-1"), {}) == 0.0
    assert grade("1 2 3 4", entry("3"), {}) == 0.0
