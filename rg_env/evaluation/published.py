"""Published figures in the config of an evaluation, and what the evaluation found beside each.

    published: {paper: {source: ..., tolerance: 0.05, num_examples: 100, rows: {maze: {accuracy: {base: 0.5}}}}}
    compare(config.published, results.tasks)          # a record for each figure

Two figures count as the same within the tolerance, whatever the intervals; and a larger difference is held against
neither of them where its interval, of both samples, has 0 in it: then so many questions cannot tell.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field

from rg_env.core.config.parsing import Positive, Problem, Section, Text
from rg_env.core.statistics import difference_of, mean_of, wilson_interval
from rg_env.errors import unknown_name
from rg_env.evaluation.results import PublishedFigure, Share, TaskResults, Verdict

_ROUNDING = 1e-9


class PublishedRow(Section):
    """Figures of one task, or of several together."""

    tasks: Annotated[list[Text], Field(min_length=1)] | None = None
    """Tasks, or labels, whose mean the figures are; default: the one that the row is called by."""
    accuracy: Annotated[dict[str, Share], Field(min_length=1)]
    """By model, from 0 to 1."""

    def names(self, row: str) -> list[str]:
        """Of the tasks that the figures are of; `row`: what the row is called."""
        return self.tasks or [row]


class PublishedTable(Section):
    """Figures of one source. Tasks and models in it must be among those that are evaluated."""

    source: Text
    """Where they stand."""
    tolerance: Share
    """Difference up to which two accuracies count as the same; 0.05: five percentage points."""
    num_examples: Positive | None = None
    """Distinct questions of each task behind a figure; default: not known, and figures count as exact."""
    rows: Annotated[dict[str, PublishedRow], Field(min_length=1)]
    """The figures."""


def problems(published: Mapping[str, PublishedTable], tasks: list[str], models: list[str]) -> Iterator[Problem]:
    """What in `published` is not evaluated: a figure without one of ours beside it says nothing."""
    for table, each in published.items():
        for row, figures in each.rows.items():
            path = ("published", table, "rows", row)
            for name in figures.names(row):
                if name not in tasks:
                    where = path if figures.tasks is None else (*path, "tasks")
                    yield Problem(where, f"{unknown_name('task', name, tasks)}; a row is of tasks that are evaluated")
            if figures.tasks and len(set(figures.tasks)) < len(figures.tasks):
                yield Problem((*path, "tasks"), "names a task twice")
            for name in figures.accuracy:
                if name not in models:
                    message = f"{unknown_name('model', name, models)}; only models that are evaluated can be compared"
                    yield Problem((*path, "accuracy", name), message)


def compare(published: Mapping[str, PublishedTable], tasks: Mapping[str, TaskResults]) -> list[PublishedFigure]:
    """Each published figure with ours. Their questions are others, so that the two count as independent.

    What is known of a published figure is its number of questions. Answers to one question may all be alike, so that
    several of them to each make its interval no narrower here.
    """
    found = []
    for table, each in published.items():
        for row, figures in each.rows.items():
            names = figures.names(row)
            n = None if each.num_examples is None else each.num_examples * len(names)
            for model, theirs in figures.accuracy.items():
                scores = [tasks[name].models[model].scores for name in names]
                ours, interval = mean_of(
                    [score.accuracy for score in scores], [score.accuracy_interval for score in scores]
                )
                known = (theirs, theirs) if n is None else wilson_interval(theirs, n)
                difference, around = difference_of(ours, interval, theirs, known)
                found.append(
                    PublishedFigure(
                        table=table,
                        source=each.source,
                        row=row,
                        tasks=names,
                        model=model,
                        published=theirs,
                        published_n=n,
                        ours=min(max(ours, 0.0), 1.0),
                        interval=interval,
                        n=sum(score.n for score in scores),
                        difference=difference,
                        difference_interval=around,
                        tolerance=each.tolerance,
                        verdict=_verdict(difference, around, each.tolerance),
                    )
                )
    return found


def _verdict(difference: float, interval: tuple[float, float], tolerance: float) -> Verdict:
    if abs(difference) <= tolerance + _ROUNDING:
        return "within_tolerance"
    return "within_chance" if interval[0] <= 0 <= interval[1] else "beyond"
