"""Rows of one task and the scores of answers to them, used by the searches for constant answers and cheap replies."""

import json
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from rg_env.core.data.dataset import Row, build_rows, build_splits
from rg_env.core.data.splits import Split
from rg_env.core.grading.extraction import Extraction
from rg_env.core.grading.scoring import score_extraction
from rg_env.errors import TooFewQuestionsError


class Paid(NamedTuple):
    """Mean scores over rows, in [0, 1]; compared in field order."""

    strict: float
    """Share of rows with a right answer."""
    partial: float
    """Mean score with partial credit."""


class GradedRows:
    """Rows of one task, scored as in training."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.questions = [row["question"] for row in rows]
        self.golds = [row["answer"] for row in rows]
        self._infos = [{**row["info"], "grading": "partial"} for row in rows]
        self.graded = 0
        """Number of answers graded so far."""

    def __len__(self) -> int:
        return len(self.questions)

    def entry(self, index: int) -> dict[str, object]:
        """Return the library's entry for a row."""
        entry: dict[str, object] = json.loads(self._infos[index]["entry"])
        return entry

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
    try:
        drawn = build_splits(task, train, held_out, seed, seed)
        return GradedRows(drawn[0]), GradedRows(drawn[1])
    except TooFewQuestionsError:
        return _all_or(task, "train", train, seed), _all_or(task, "eval", held_out, seed)


def _all_or(task: str, split: Split, count: int, seed: int) -> GradedRows:
    try:
        return GradedRows(build_rows(task, split, count, seed))
    except TooFewQuestionsError as error:
        return GradedRows(build_rows(task, split, error.found, seed))
