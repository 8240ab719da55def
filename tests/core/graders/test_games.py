"""The graders of games whose answer is a grid, a board, a value or an expression."""

import itertools
import json
from typing import Any

import pytest
from grader_cases import Row, entry, row, table

from rg_env.core.grading.graders import grade

MINI = entry(
    "3 1 2 4\n2 4 3 1\n4 3 1 2\n1 2 4 3",
    puzzle=[[0, 0, 2, 0], [0, 4, 0, 1], [4, 3, 0, 0], [0, 0, 0, 0]],
    solution=[[3, 1, 2, 4], [2, 4, 3, 1], [4, 3, 1, 2], [1, 2, 4, 3]],
)
OPEN_MINI = entry(MINI["answer"], puzzle=[[0] * 4] * 4, solution=MINI["metadata"]["solution"])
ROWS = [
    *("534678912", "672195348", "198342567", "859761423", "426853791", "713924856", "961537284"),
    *("287419635", "345286179"),
]
SOLVED = [[int(digit) for digit in row] for row in ROWS]
SUDOKU = entry("\n".join(map(" ".join, ROWS)), puzzle=[[0] * 9, [0] * 9, *SOLVED[2:]], solution=SOLVED)
FUTOSHIKI = entry(
    "4 < 5 > 2   1   3\n                ∧\n2   3   1   5   4\n                 \n5   2   3   4   1\n"
    "                 \n3   1   4   2   5\n                 \n1   4   5   3   2",
    puzzle=[[0, 5, 0, 0, 0], [0, 3, 0, 0, 4], [0] * 5, [0] * 5, [1, 0, 0, 0, 0]],
    constraints=[[0, 0, 0, 1, "<"], [0, 1, 0, 2, ">"], [0, 4, 1, 4, "<"]],
    solution=[[4, 5, 2, 1, 3], [2, 3, 1, 5, 4], [5, 2, 3, 4, 1], [3, 1, 4, 2, 5], [1, 4, 5, 3, 2]],
    board_size=5,
)
ELEVEN = [[(row + column) % 11 + 1 for column in range(11)] for row in range(11)]
LARGE = entry("1 < 2", puzzle=[[0] * 11] * 11, solution=ELEVEN, constraints=[[0, 0, 0, 1, "<"]], board_size=11)
LARGE_TEXT = "\n".join(" ".join(map(str, cells)) for cells in ELEVEN).replace("1 2", "1 < 2", 1)
KAKURASU = entry(
    "1 0 0\n0 1 0\n0 0 1",
    puzzle=[[0] * 3] * 3,
    solution=[[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    row_sums=[1, 2, 3],
    col_sums=[1, 2, 3],
    n_rows=3,
    n_cols=3,
)
SURVO = entry(
    "1 2 7 10\n2 1 8 11\n3 3 3 9\n6 6 18 30",
    puzzle=[[0, 0, 7, 10], [0, 0, 8, 11], [3, 3, 3, 9], [6, 6, 18, 30]],
    solution=[[1, 2, 7, 10], [2, 1, 8, 11], [3, 3, 3, 9], [6, 6, 18, 30]],
    candidate_numbers=[2, 1, 1, 2],
    board_size=4,
)
GRIDS = {"sudoku": SUDOKU, "mini_sudoku": MINI, "futoshiki": FUTOSHIKI, "kakurasu": KAKURASU, "survo": SURVO}


@pytest.mark.parametrize("task", GRIDS)
def test_the_form_of_a_grid_does_not_matter(task: str) -> None:
    """Lists, bars, commas, tables and fences are the same grid as the stored text.

    Another shape, words, a changed given and a grid full of one value are worth nothing.
    """
    gold, puzzle = GRIDS[task]["metadata"]["solution"], GRIDS[task]["metadata"]["puzzle"]
    rows = [[str(cell) for cell in cells] for cells in gold]
    text, ruler = "\n".join(map(" ".join, rows)), "|" + "---|" * len(rows[0])
    right = [
        GRIDS[task]["answer"],
        f"```\n{GRIDS[task]['answer']}\n```",
        *(str(gold), str(rows), "\n".join(map(str, gold)), json.dumps(rows, indent=4)),
        "\n".join(", ".join(cells) for cells in rows),
        "\n\n".join("  ".join(cells) + "  " for cells in rows),
        "\n".join("| " + " | ".join(cells) + " |" for cells in rows),
        "\n".join(["|" + "|".join(rows[0]) + "|", ruler, *("|" + "|".join(cells) + "|" for cells in rows[1:])]),
    ]
    constants = ["\n".join(" ".join(str(cell or value) for cell in cells) for cells in puzzle) for value in range(10)]
    changed = [list(cells) for cells in gold]
    for r, c in [(r, c) for r, cells in enumerate(puzzle) for c, cell in enumerate(cells) if cell][:1]:
        changed[r][c] = changed[r][c] % 4 + 1
    wrong = [
        *("0", text + "\n" + " ".join(rows[0]), text + " 1", text.replace("1", "one", 1), text.replace("1", "1.5", 1)),
        *(text.replace("\n", " "), "the answer is " + text, "\n".join(" ".join("_" for _ in cells) for cells in rows)),
        *("\n".join(map(" ".join, rows[1:])), *(constants if task != "kakurasu" else ["0 0 0\n" * 3, "1 1 1\n" * 3])),
        *([str(changed)] if task != "kakurasu" else []),
    ]
    row(task, GRIDS[task], right, wrong).check()


BOXED = [f"{cells[:3]} | {cells[3:6]} | {cells[6:]}" for cells in ROWS]
RULER = "----+-----+----"


def board(*columns: int) -> str:
    """Queens in these columns, row by row."""
    return "\n".join(" ".join("Q" if c == column else "_" for c in range(len(columns))) for column in columns)


ONE, OTHER = board(1, 3, 0, 2), board(2, 0, 3, 1)
CELLS = [line.split() for line in ONE.splitlines()]
EMPTY = [["_"] * 4 for _ in range(4)]


def go(*rows: str) -> dict[str, Any]:
    return entry("", board=[list(cells) for cells in rows])


GO = {**go(".XX..", "XOO.X", ".XX..", "XO...", "....."), "answer": "D4"}
COUNTDOWN = entry("44*(48 - 44) - 5", numbers=[44, 5, 48, 44], target=171)


def puzzle24(gold: str, operators: str = "+, -, *, /") -> dict[str, Any]:
    return entry(gold, f"Make 24 using 10, 2, 6, 2. You can use the operators {operators}.\n", numbers=[10, 2, 6, 2])


@table(
    row("sudoku", SUDOKU, ["\n".join(ROWS), "\n".join([*BOXED[:3], RULER, *BOXED[3:6], RULER, *BOXED[6:]])]),
    row(  # 18 cells were to fill in, of which a constant gets two
        "sudoku",
        SUDOKU,
        parts={SUDOKU["answer"].replace("5 3 4 6", "5 3 4 4", 1): 15 / 18, "_" + SUDOKU["answer"][1:]: 15 / 18},
    ),
    row(  # any grid by the rules, not only the stored one
        *("mini_sudoku", OPEN_MINI, ["1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1"]),
        parts={"1 2 3 4\n2 3 4 1\n3 4 1 2\n4 1 2 3": 2 / 16},
    ),
    row(  # signs may be left out or be ASCII
        "futoshiki",
        FUTOSHIKI,
        [FUTOSHIKI["answer"].replace("∧", "^"), FUTOSHIKI["answer"].replace(" ", "")],
        [FUTOSHIKI["answer"].replace("<", ">"), FUTOSHIKI["answer"].replace("∧", "∨")],
    ),
    row("futoshiki", LARGE, [LARGE_TEXT], [LARGE_TEXT.replace(" ", "")]),  # cells of two digits are not taken apart
    row(  # 8 of 9 cells are right, where zeros alone give 6
        *("kakurasu", KAKURASU, ["100\n010\n001"]),
        parts={"1 0 0\n0 1 0\n0 0 0": 2 / 9, "1 0 0\n0 1 0\n1 1 0": 0, "2 0 0\n0 1 0\n0 0 1": 2 / 9},
    ),
    row(
        "survo",
        SURVO,
        ["2 1 7 10\n1 2 8 11\n3 3 3 9\n6 6 18 30"],
        ["0 3 7 10\n3 0 8 11\n3 3 3 9\n6 6 18 30", "-1 4 7 10\n4 -1 8 11\n3 3 3 9\n6 6 18 30"],
    ),
    row("maze", entry("12"), " **12**. ", "1 2 | 12 or 13 | 112 | -12 | 1e400 | nan"),
    row(
        "n_queens",
        entry(ONE, puzzle=EMPTY),
        [
            *(ONE, OTHER, json.dumps(CELLS), str(CELLS), ONE.replace(" ", ""), ONE.replace("\n", "  \n")),
            "\n".join(f"| {' | '.join(cells)} |" for cells in CELLS),
        ],
    ),
    row(
        "n_queens",
        entry(ONE, puzzle=[["_", "Q", "_", "_"], *EMPTY[:3]]),
        [ONE],
        [
            *(OTHER, board(4, 4, 4, 4), f"{ONE}\n{ONE}", ONE[:23], ONE + "\n\nQ", "[[Q]]", "[['Q']*4]*4", "Q" * 16),
            "__import__('time').sleep(60)",
        ],
    ),
    row(
        "tsumego",
        GO,
        "D4 | d4 | D 4 | (D, 4) | D-4",
        "D5 | B2 | B4 | 4D | D4 D5 | D44 | Z9",  # a stone is on B2 and B4
    ),
    row("tsumego", go("XOO.X", "OXX..", "X....", ".....", "XOO.."), "D5", "D1 | B5"),  # D1 takes fewer
    row("tsumego", go("XOO.X", ".XX..", "X....", ".XX..", "XOO.X"), "D1 | D5"),  # they take as many
    row("tsumego", go("XO..X", ".X...", "X....", ".XX..", "XOO.X"), "D1", "C5"),
    row("tsumego", {**go("XO..X", ".X...", "X....", ".....", "....."), "answer": "A1"}, "C5", "A1 | B1"),
    row(
        "mahjong_puzzle",
        entry("Peng", "initial cards KKX", rounds=[{"add": "K"}]),
        "peng |  PENG ",
        "Pass | Peng or Chi",
    ),
    row("emoji_mystery", entry('"  Was it he?'), '"  Was it he? | " was it he?', '"  Was it we? | Was it he'),
    row(
        "countdown",
        COUNTDOWN,
        "44*(48 - 44) - 5 | (48-44)*44-5 | -5 + 44 × (48 − 44) | 44*[48 - 44] - 5 = 171 | 44 \\cdot (48 - 44) - 5 | "
        "44(48 - 44) - 5",
        "171 | 171 = 171 | 44*(48 - 44) - 5 = 172 | 44*(48 - 44) - 5 = 171 = 171 | 171 = 44*(48 - 44) - 5 | "
        "44*48 - 44*44 - 5 | 0x0*(44+5+48+44)+0xab | 44*(48 - 44) - 5 + 0 | 44*(48 - 44) - 05 | 44*(48 - 44) - 5.0 | "
        "44*4+(8-44)-5 | 44 5 48 44 | 44*(48 - 44) + 5 | 44 + 48 + 44 + 5 | 44*(48 - 44) - 5 #  | 44**48**44**5 | "
        "44/(44 - 44) + 5*48 | 4*4*(48 - 44) - 5 | sqrt(44*44)*(48-44) | 44//5 | 44*(48 - 44) - e5",
    ),
    row("puzzle24", entry("", numbers=[8, 3, 8, 3]), "8/(3 - 8/3)", "8*3 + 8 - 8"),
    row("puzzle24", entry("", numbers=[10, 10, 4, 1]), "10*10/4 - 1", "(10*10 - 1)/4"),  # 24.75 is not cut
    row(
        "puzzle24",
        puzzle24("10*2 + 6 - 2"),
        "10*2 + 6 - 2 | 10 + 6*2 + 2 | -2 + 6 + 2*10 = 24",
        "2*(10 - 2) + 6 = 24 | 6*(10 + 2)/(2+1) | 6*4*1*1 | 24 | 12*2 | 10 + 6 + 2*2 + 2*2 | 10*2 + 6 - 2 + 0 | 2*6*2",
    ),
    # the operators that the question lists, and those of the stored answer, which does not keep to the list
    row("puzzle24", puzzle24("10 + 6*2 + 2", "+, *"), "10 + 6*2 + 2", "10*2 + 6 - 2"),
    row("puzzle24", puzzle24("10*2 + 6 - 2", "+, *"), "10*2 + 6 - 2"),
)
def test_answers_score_what_they_are_worth(row: Row) -> None:
    row.check()


def test_n_queens_knows_all_solutions() -> None:
    """Ten of all ways to place a queen in each row of a 5 x 5 board are right."""
    item = entry("", puzzle=[["_"] * 5] * 5)
    boards = itertools.product(range(5), repeat=5)
    assert sum(grade("n_queens", {}, item, board(*columns)) for columns in boards) == 10
