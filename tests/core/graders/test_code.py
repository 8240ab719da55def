"""Graders of the code tasks."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import grade


def entry(answer: str) -> dict[str, Any]:
    return {"question": "", "answer": answer, "metadata": {}}


RIGHT = [
    ("bf", "would", ["would", " would\n", '"would"', "'would'", "```\nwould\n```", "would."]),
    ("bf", "147", ["147", "**147**"]),
    ("codeio", '{"a": 1, "b": [true, null]}', ['{"b":[true,null],"a":1}', '```json\n{"a": 1, "b": [true, null]}\n```']),
    ("codeio", '{"a": 1, "b": [true, "x"]}', ["{'a': 1, 'b': [True, 'x']}", "{'a': 1.0, 'b': (True, 'x')}"]),
    ("codeio", '{"1": 2}', ["{1: 2}"]),
    ("codeio", "0.1429711288947661", ["0.1429711288947661", "0.142971128895", "1.429711288947661e-1"]),
    ("codeio", "true", ["true", "True"]),
    ("codeio", "null", ["null"]),
    ("codeio", '"yes"', ['"yes"', "yes", "'yes'"]),
    ("codeio", '{"s": "' + "(" * 60 + '"}', ['{ "s" : "' + "(" * 60 + '" }']),
    ("codeio", '{"x": NaN}', ['{"x": NaN}']),
]
WRONG = [
    ("bf", "would", ["Would", "wouldn", "the output is would", '"', "''", ""]),
    ("codeio", '{"a": 1, "b": [true, null]}', ['{"a": 1}', '{"a": 1, "b": [1, null]}', '{"a": 1, "b": [null, true]}']),
    ("codeio", '{"a": 1}', ['{"a": "1"}', '{"A": 1}', '{"a": true}', '{"a": 1, "b": 2}', '[{"a": 1}]', "1", "{}"]),
    ("codeio", "0.1429711288947661", ["0.143", "0.14297112", '"0.1429711288947661"', "NaN", "Infinity", "1e999"]),
    ("codeio", "1612137600.0", ["1612137600.5", "1612137601"]),
    ("codeio", "12345678901234567", ["12345678901234568", "1.2345678901234568e16"]),
    ("codeio", "false", ["0", "null", '""', "", "no"]),
    ("codeio", '"5"', ["5"]),
    ("codeio", "5", ['"5"', "2 + 3", "true"]),
    ("codeio", '{"1": 2}', ["{0x" + "f" * 9000 + ": 2}", '{"a":' * 2000, "[" * 9000 + "]" * 9000]),
]


@pytest.mark.parametrize(("task", "gold", "answers"), RIGHT)
def test_right_answers_count_in_other_forms(task: str, gold: str, answers: list[str]) -> None:
    """The same value scores 1.0 however it is written."""
    assert {answer: grade(task, {}, entry(gold), answer) for answer in answers} == dict.fromkeys(answers, 1.0)


@pytest.mark.parametrize(("task", "gold", "answers"), WRONG)
def test_wrong_answers_score_nothing(task: str, gold: str, answers: list[str]) -> None:
    """Another value, or another type, scores 0.0."""
    scores = {answer: grade(task, {}, entry(gold), answer, partial_credit=True) for answer in answers}
    assert scores == dict.fromkeys(answers, 0.0)


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
