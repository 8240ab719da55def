"""Tests of the kinds of disagreement with the library's graders: each explains its own cases and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from audit.disagreements import explanation

DATA = Path(__file__).parents[1] / "data" / "disagreements.yaml"
CASES = yaml.safe_load(DATA.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["task"] for case in CASES])
def test_each_kind_explains_only_its_own_cases(case: dict[str, Any]) -> None:
    entry = {"question": "?", "metadata": {}, **case["entry"]}
    kinds = {answer: explanation(case["task"], entry, answer, case["right"]) for answer in case["kinds"]}
    assert kinds == case["kinds"]
