"""Tests of the kinds of disagreement with the library's graders: each explains its own cases and nothing else."""

from typing import Any

import pytest
from audit.disagreements import explanation
from data_files import data

CASES = data("disagreements")


@pytest.mark.parametrize("case", CASES, ids=[case["task"] for case in CASES])
def test_each_kind_explains_only_its_own_cases(case: dict[str, Any]) -> None:
    entry = {"question": "?", "metadata": {}, **case["entry"]}
    kinds = {answer: explanation(case["task"], entry, answer, case["right"]) for answer in case["kinds"]}
    assert kinds == case["kinds"]
