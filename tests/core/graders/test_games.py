"""Games whose answer is a grid or a board: other forms of a right answer, and all boards of a size."""

import itertools

import pytest
from grader_cases import cases, entry, row

from rg_env.core.grading.graders import grade

TASKS = ("sudoku", "mini_sudoku", "futoshiki", "kakurasu", "survo")
GRIDS = {row.task: row.entry for _, row in reversed(cases()) if row.task in TASKS}


@pytest.mark.parametrize("task", GRIDS)
def test_the_form_of_a_grid_does_not_matter(task: str) -> None:
    """A right grid is accepted as a list, in a code fence, as a table and after a label. A grid of another shape, with
    words, with a changed given or filled with a single value scores 0."""
    gold, puzzle = GRIDS[task]["metadata"]["solution"], GRIDS[task]["metadata"]["puzzle"]
    rows = [[str(cell) for cell in cells] for cells in gold]
    text, ruler = "\n".join(map(" ".join, rows)), "|" + "---|" * len(rows[0])
    right = [
        GRIDS[task]["answer"],
        f"```\n{GRIDS[task]['answer']}\n```",
        str(gold),
        "\n".join(["|" + "|".join(rows[0]) + "|", ruler, *("|" + "|".join(cells) + "|" for cells in rows[1:])]),
        "the answer is " + text,
    ]
    constants = ["\n".join(" ".join(str(cell or value) for cell in cells) for cells in puzzle) for value in range(10)]
    changed = [list(cells) for cells in gold]
    for r, c in [(r, c) for r, cells in enumerate(puzzle) for c, cell in enumerate(cells) if cell][:1]:
        changed[r][c] = changed[r][c] % 4 + 1
    wrong = [
        *("0", text + "\n" + " ".join(rows[0]), text + " 1", text.replace("1", "one", 1), text.replace("1", "1.5", 1)),
        *(text.replace("\n", " "), "\n".join(" ".join("_" for _ in cells) for cells in rows)),
        *("\n".join(map(" ".join, rows[1:])), *(constants if task != "kakurasu" else ["0 0 0\n" * 3, "1 1 1\n" * 3])),
        *([str(changed)] if task != "kakurasu" else []),
    ]
    row(task, GRIDS[task], right, wrong).check()


def test_n_queens_knows_all_solutions() -> None:
    """Of all ways to place one queen in each row of a 5 x 5 board, exactly ten are right."""
    item = entry("", puzzle=[["_"] * 5] * 5)
    lines = [" ".join("Q" if place == column else "_" for place in range(5)) for column in range(5)]
    assert sum(grade("n_queens", {}, item, "\n".join(rows)) for rows in itertools.product(lines, repeat=5)) == 10
