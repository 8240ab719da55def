"""What the audit measures on: items drawn without selection, and selected rows with the scores of answers to them."""

import atexit
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any, NamedTuple

from rg_env.core.data.dataset import DrawnRow, build_rows
from rg_env.core.data.generation import Drawer, RowRequest
from rg_env.core.data.items import Item
from rg_env.core.data.splits import Split
from rg_env.core.grading.extraction import Extraction
from rg_env.core.grading.scoring import score_extraction
from rg_env.core.tasks.mixture import TaskSpec
from rg_env.errors import InputError, TooFewQuestionsError


class Draws:
    """Source of items from both splits; questions may repeat.

    One process is kept until the program ends, because starting it takes a second, and importing a task takes a few
    tenths of a second.
    """

    def __init__(self) -> None:
        self._drawer = Drawer({})
        self.passed_over: Counter[str] = Counter()
        """Number of draws that yielded no question, by task; see `core.tasks.library_fixes.LEFT_OUT` for the
        reasons."""
        atexit.register(self._drawer.process.kill)

    def items(self, task: str, n: int, seed: int = 0, config: Mapping[str, Any] | None = None) -> list[Item]:
        """Return the first `n` items of `task` for a user's `seed`; draws that yield no question are skipped.

        Raises:
            InputError: the library refuses the options, or the task yields no question.
            GenerationError: a draw takes too long, or the process dies.
        """
        request = RowRequest(TaskSpec(name=task, config=dict(config or {})), seed, {"train": 1, "eval": 1})
        found: list[Item] = []
        first = 0
        while len(found) < n:
            draws = range(first, first + n - len(found))
            questions = [item for item, _ in self._drawer.draw(request, draws) if item]
            self.passed_over[task] += len(draws) - len(questions)
            found += questions
            first = draws.stop
            if not found and first > 1000:
                raise InputError(f"task {task!r} yields no question in {first} draws")
        return found


@cache
def draws() -> Draws:
    """Return this process's source of items."""
    return Draws()


def entries_of(task: str, n: int, seed: int = 0, config: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return `n` entries, drawn as for rows and with our fixes to the library, but without removing duplicates."""
    return [json.loads(item.entry) for item in draws().items(task, n, seed, config)]


class Paid(NamedTuple):
    """Mean scores over rows, in [0, 1]; compared in field order."""

    strict: float
    """Share of rows with a right answer."""
    partial: float
    """Mean score with partial credit."""


class GradedRows:
    """Rows of one task, scored as in training."""

    def __init__(self, rows: Sequence[DrawnRow]) -> None:
        self.questions = [row["question"] for row in rows]
        self.golds = [row["answer"] for row in rows]
        self._infos = [{**row["info"], "grading": "partial"} for row in rows]
        self.graded = 0
        """Number of answers graded so far."""

    def __len__(self) -> int:
        return len(self.questions)

    def values(self, answers: Sequence[str]) -> list[Paid]:
        """Score the answers to the first rows, in order; there may be fewer answers than rows.

        Raises:
            ValueError: a row is ungradable.
        """
        found = []
        for answer, info in zip(answers, self._infos, strict=False):
            answer = answer.strip()
            if not answer:
                found.append(Paid(0.0, 0.0))
                continue
            score = score_extraction(Extraction("ok", answer), info)
            if score.status == "ungradable":
                raise ValueError(f"{score.task}: {answer[:200]!r} cannot be graded: {score.detail}")
            found.append(Paid(float(score.status == "correct"), score.value))
        self.graded += len(found)
        return found

    def paid(self, answers: Sequence[str]) -> Paid:
        """Return the mean scores of the answers to the first rows."""
        values = self.values(answers)
        return Paid(fmean(value.strict for value in values), fmean(value.partial for value in values))


def rows_of(task: str, train: int, held_out: int, seed: int = 0) -> tuple[GradedRows, GradedRows]:
    """Return `train` training rows and `held_out` evaluation rows of `task`, or all rows if the task has fewer."""
    return _all_or(task, "train", train, seed), _all_or(task, "eval", held_out, seed)


def _all_or(task: str, split: Split, count: int, seed: int) -> GradedRows:
    try:
        return GradedRows(build_rows(task, split, count, seed))
    except TooFewQuestionsError as error:
        return GradedRows(build_rows(task, split, error.found, seed))
