"""Shared helpers for grader tests: entries of every task, and answers with their values."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from audit.rows import entries_of

from rg_env.core.grading.graders import grade

ENTRIES = 4
ANSWERS = Path(__file__).parents[1] / "data" / "answers"
Answers = str | Sequence[str]
"""A list of answers, or text with answers separated by ` | `."""


@cache
def entries(task: str) -> list[dict[str, Any]]:
    """Return the same few entries of `task` for all tests, because some entries take a third of a second to
    generate."""
    return entries_of(task, ENTRIES, seed=11)


def entry(answer: str | None = "", question: str = "", **metadata: Any) -> dict[str, Any]:
    return {"question": question, "answer": answer, "metadata": metadata}


class Row(NamedTuple):
    """Answers to one entry, and the value of each with partial credit."""

    task: str
    entry: Mapping[str, Any]
    values: Mapping[str, float]
    config: Mapping[str, Any]

    def check(self) -> None:
        """Check the values, and that answers that are not fully right score 0 without partial credit."""
        found = {text: grade(self.task, self.config, self.entry, text, partial_credit=True) for text in self.values}
        assert found == pytest.approx(self.values)
        strict = {text: grade(self.task, self.config, self.entry, text) for text in self.values}
        assert strict == {text: float(value == 1.0) for text, value in self.values.items()}


def row(
    task: str,
    item: Mapping[str, Any],
    right: Answers = (),
    wrong: Answers = (),
    parts: Mapping[str, float] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Row:
    """Return a row of answers that are right, wrong, or partly right."""
    values = dict.fromkeys(_listed(right), 1.0) | dict.fromkeys(_listed(wrong), 0.0) | dict(parts or {})
    return Row(task, item, values, config or {})


def _listed(answers: Answers) -> Sequence[str]:
    return answers.split(" | ") if isinstance(answers, str) else answers


@cache
def cases() -> list[tuple[str, Row]]:
    """Return the cases in `tests/data/answers`, each with its file and task."""
    found = []
    for file in sorted(ANSWERS.glob("*.yaml")):
        for case in yaml.safe_load(file.read_text(encoding="utf-8")):
            item = {"question": "", "metadata": {}, **case["entry"]}
            parts = {answer: float(Fraction(share)) for answer, share in case.get("partly", {}).items()}
            answers = case.get("right", ()), case.get("wrong", ())
            found.append((f"{file.stem}-{case['task']}", row(case["task"], item, *answers, parts, case.get("config"))))
    return found


def table(*rows: Row) -> Any:
    """Parametrize a test over the rows."""
    return pytest.mark.parametrize("row", rows, ids=[row.task for row in rows])
