"""What tests of graders share: entries of every task, and tables of answers with what they are worth."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest
from honest_answers import entries_of

from rg_env.core.grading.graders import grade

ENTRIES = 4
Answers = str | Sequence[str]
"""A list, or a text in which ` | ` separates answers."""


@cache
def entries(task: str) -> list[dict[str, Any]]:
    """The same few entries of `task` for all tests: some take a third of a second to draw."""
    return entries_of(task, ENTRIES, seed=11)


def entry(answer: str | None = "", question: str = "", **metadata: Any) -> dict[str, Any]:
    return {"question": question, "answer": answer, "metadata": metadata}


class Row(NamedTuple):
    """Answers to one entry, each with its value when partial credit is given."""

    task: str
    entry: Mapping[str, Any]
    values: Mapping[str, float]
    config: Mapping[str, Any]

    def check(self) -> None:
        """Values are as listed; without partial credit what is not right is worth nothing."""
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
    """A row of answers that are right, wrong, and right in part."""
    values = dict.fromkeys(_listed(right), 1.0) | dict.fromkeys(_listed(wrong), 0.0) | dict(parts or {})
    return Row(task, item, values, config or {})


def _listed(answers: Answers) -> Sequence[str]:
    return answers.split(" | ") if isinstance(answers, str) else answers


def table(*rows: Row) -> Any:
    """A decorator: the test gets each row in turn."""
    return pytest.mark.parametrize("row", rows, ids=[row.task for row in rows])
