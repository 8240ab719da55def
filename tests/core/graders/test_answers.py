"""The right, wrong and partly right answers in `tests/data/answers`, and answers with too many parts."""

import pytest
from grader_cases import Row, cases, entry, row, table

CASES = cases()


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[name for name, _ in CASES])
def test_answers_get_their_listed_values(case: Row) -> None:
    """Without partial credit, answers that are not fully right score 0.0."""
    case.check()


@table(
    row("codeio", entry('{"1": 2}'), wrong=["{0x" + "f" * 9000 + ": 2}", '{"a":' * 2000, "[" * 9000 + "]" * 9000]),
    row("jugs", entry("", puzzle={"jug_capacities": [3, 5, 8], "target": 3}), ["fill A," * 999], ["fill A," * 1_001]),
    row("list_functions", entry("[7, 13]"), wrong=["7, " * 3000]),
    row("list_functions", entry("[]"), ["[]"], ["[" + "7, " * 3000]),
    row("polynomial_multiplication", entry("x**2 + 1", variables=["x"]), wrong=["x**2+" * 2_000 + "1"]),
    row("rubiks_cube", entry(None, cube_size=3, scramble_moves="U"), ["U " * 999], ["U " * 1_003]),
)
def test_answers_with_too_many_parts_are_wrong(row: Row) -> None:
    row.check()
