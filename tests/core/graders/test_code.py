"""Graders of the code and induction tasks."""

import json
from typing import Any

from grader_cases import Row, entry, row, table
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import grade


@table(
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
        '{"a": "1"} | {"A": 1} | {"a": true} | {"a": 1, "b": 2} | [{"a": 1}] | 1 | {}',
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_values_are_right_only_if_equal(gold: Any, other: Any) -> None:
    """A value is right for itself in any spacing, and another one is not, apart from the tolerance of floats."""
    item = entry(json.dumps(gold))
    assert grade("codeio", {}, item, json.dumps(gold, indent=2)) == 1.0
    if grade("codeio", {}, item, json.dumps(other)) == 1.0 and "e" not in str(gold) and "." not in str(gold):
        assert gold == other or gold == json.dumps(other)
