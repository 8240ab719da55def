"""The graders of the arc tasks."""

from grader_cases import Row, entry, row, table

LINE = entry("0 2 2 2 0", test_example={"input": [2, 0, 2, 0, 0], "output": [0, 2, 2, 2, 0]})
BOARD = entry("0 0 1\n0 2 1", input=[[0, 0, 0], [0, 2, 0]], output=[[0, 0, 1], [0, 2, 1]])
LETTERS = {"board_format_opts": {"alphabet": list("abcdefghij"), "col_delimiter": "", "row_delimiter": "/"}}
SWAPPED = {"board_format_opts": {"alphabet": list("1023456789")}}


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
def test_answers_score_what_they_are_worth(row: Row) -> None:
    """The whole line or board, or progress beyond the input and beyond a constant one."""
    row.check()
