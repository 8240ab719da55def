"""Verdict and table of a report, from evaluation results.

verdicts(results)                  # "0.33 → 0.94, p < 0.001, n = 200"
results_table(results, "step")     # all scores of each task and model, in one table
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import Literal

from rg_env.core.statistics import mean_of, p_shown, with_interval
from rg_env.evaluation.results import PART_SUFFIXES, Paired, Results, Scores, TaskPart, TaskResults
from rg_env.evaluation.scores import compared
from rg_env.evaluation.tables import ABOUT_LEFT_OUT, Table, cell, columns_of, figures_of

ModelKind = Literal["model", "step"]
"""Whether the models of a table are models, or steps of a training run."""
_COMPARED = 5
"""Maximum number of models that the verdict compares with the first one."""
_SIGNIFICANT = 0.05
_DIFFERENCE = "difference"
_FIRST = ("questions", "rollouts", "constant", "accuracy")
"""Columns before the difference."""
_NOTES = {
    "accuracy": "Means with 95% intervals, clustered by question.",
    "macro average": "Macro average: the unweighted mean over the tasks.",
    _DIFFERENCE: "Difference: on the same questions, with a 95% interval (Newcombe) and the p-value of a two-sided "
    "permutation test.",
    "constant": "Constant: accuracy of the best constant answer.",
    "adjusted for guessing": "Adjusted for guessing: (accuracy - constant) / (1 - constant).",
}
"""Notes by the row or column that they explain."""


@dataclass(frozen=True)
class Verdict:
    """An overall result."""

    headline: str
    """Result in a few words: "0.33 → 0.94, p < 0.001, n = 200"."""
    about: str
    """What was measured, and the difference with its interval."""
    outcome: str = ""
    """"better" or "worse" if the second model significantly is (p < 0.05), otherwise "no clear difference". Empty
    without a test."""


def verdicts(results: Results) -> list[Verdict]:
    """Return the overall results: the first model compared with each other model, over all tasks that count and, for a
    training run, over the held-out tasks."""
    tasks = list(results.tasks.values())
    found = list(_verdicts(results, [task for task in tasks if task.in_overall], "the questions", results.comparisons))
    if held_out := [task for task in tasks if task.part == "held_out"]:
        pairs = compared(list(results.models), held_out)
        found += _verdicts(results, held_out, "the questions from held-out tasks", pairs)
    return found


def _verdicts(
    results: Results, tasks: Sequence[TaskResults], questions: str, pairs: Sequence[Paired]
) -> Iterator[Verdict]:
    figure = next((name for name in ("accuracy", "reward") if _means(tasks, results, name)), "")
    means = _means(tasks, results, figure)
    first, *others = means or [""]
    over = f", mean over {len(tasks)} tasks" if len(tasks) > 1 else ""
    n = sum(task.questions.n for task in tasks)
    if means and not others:
        values = [(getattr(each, figure), each.intervals.get(figure)) for each in _scores(tasks, first)]
        interval = mean_of(*zip(*values, strict=True))[1] if all(ends for _, ends in values) else None
        yield Verdict(
            f"{with_interval(means[first], interval, 2)}, n = {n:,}",
            f"{figure.capitalize()} of {first} on {questions}{over}",
        )
    for name in others[:_COMPARED]:
        headline, about, outcome = f"{means[first]:.2f} → {means[name]:.2f}", "", ""
        for pair in pairs if figure == "accuracy" else ():
            if (pair.b, pair.a) == (first, name):
                p_value = p_shown(pair.p_value)
                headline += f", p {p_value}" if p_value.startswith("<") else f", p = {p_value}"
                about = f"; difference {with_interval(pair.difference, pair.interval, 2, sign=True)}"
                outcome = "better" if pair.difference > 0 else "worse"
                outcome, n = outcome if pair.p_value < _SIGNIFICANT else "no clear difference", pair.n
        yield Verdict(
            f"{headline}, n = {n:,}", f"{figure.capitalize()} on {questions}{over}, {first} → {name}{about}", outcome
        )


def _scores(tasks: Sequence[TaskResults], model: str) -> list[Scores]:
    return [task.models[model].scores for task in tasks if model in task.models]


def _means(tasks: Sequence[TaskResults], results: Results, figure: str) -> dict[str, float]:
    """Return the mean of a figure over all tasks, for the models that have it on all of them."""
    values = {name: [getattr(each, figure) for each in _scores(tasks, name)] for name in results.models if figure}
    return {name: fmean(v) for name, v in values.items() if len(v) == len(tasks) > 0 and None not in v}


def results_table(results: Results, kind: ModelKind, steps: Mapping[str, Results] = MappingProxyType({})) -> Table:
    """Return a table with a row for each model on each task, after rows for all tasks together.

    Args:
        steps: all evaluations of a training run. Those between the first and the last have rows only for all tasks
            together, or for the only task.
    """
    first = next(iter(results.models))
    rows: list[dict[str, str]] = []

    def add(name: str, models: Mapping[str, Mapping[str, str]], pairs: Sequence[Paired]) -> None:
        differences = {pair.a: pair for pair in pairs if pair.b == first}
        for model, cells in models.items():
            pair, compares = differences.get(model), {_DIFFERENCE: cell(None), "p-value": cell(None)}
            if pair:
                difference = with_interval(pair.difference, pair.interval, sign=True)
                compares = {_DIFFERENCE: difference, "p-value": p_shown(pair.p_value)}
            start = {key: cells.get(key, cell(None)) for key in _FIRST}
            rows.append({"task": name, kind: model, **start, **compares, **cells})

    tasks = results.tasks
    titles: dict[TaskPart, str] = {"training": "training tasks", "held_out": "held-out tasks"}
    of_part = {part: [name for name, task in tasks.items() if task.part == part] for part in titles}
    for part, title in titles.items():
        if len(of_part[part]) > 1:
            found = {step: scores for step, each in steps.items() if (scores := each.overall(part))}
            pairs = compared(list(results.models), [tasks[name] for name in of_part[part]])
            add(title, {step: _cells(scores) for step, scores in found.items()}, pairs)
    if not steps and len(tasks) > 1:
        add("macro average", {name: _macro(results, name) for name in results.models}, results.comparisons)
        for category in sorted({category for each in results.models.values() for category in each.categories}):
            means = {name: each.categories.get(category) for name, each in results.models.items()}
            add(f"category {category}", {name: {"accuracy": cell(value)} for name, value in means.items()}, ())
    for name, task in tasks.items():
        models = {model: (each.scores, each.usage.cost) for model, each in task.models.items()}
        if task.part in of_part and len(of_part[task.part]) == 1:
            known = {step: each.tasks[name] for step, each in steps.items() if name in each.tasks}
            models = {step: (each.scores, None) for step, each in known.items()}
        title = f"{name}{PART_SUFFIXES.get(task.part or '', '')}"
        add(
            title,
            {model: _cells(scores, task.floor, cost) for model, (scores, cost) in models.items()},
            task.comparisons,
        )
    heads, cells = columns_of(rows)
    notes = [note for about, note in _NOTES.items() if about in heads or about == rows[0]["task"]]
    if "left out" in heads and results.overlap_is_known:
        notes.append(ABOUT_LEFT_OUT)
    return Table("Results", [head.replace(_DIFFERENCE, f"{_DIFFERENCE} to {first}") for head in heads], cells, notes)


def _cells(scores: Scores, floor: float | None = None, cost: float | None = None) -> dict[str, str]:
    return figures_of(scores) | {
        "rollouts": f"{scores.answers:,}",
        "constant": cell(floor),
        "cost": cell(None) if cost is None else f"{cost:.4g}",
    }


def _macro(results: Results, model: str) -> dict[str, str]:
    summary, usage = results.models[model], results.models[model].usage
    scores = [task.models[model].scores for task in results.tasks.values() if model in task.models]
    return {
        "questions": str(sum(each.n for each in scores)),
        "rollouts": f"{sum(each.answers for each in scores):,}",
        "accuracy": cell(summary.accuracy, summary.intervals.get("accuracy")),
        "adjusted for guessing": cell(summary.guess_adjusted),
        "failed calls": str(summary.failed or cell(None)),
        "left out": str(sum(each.left_out for each in scores) or cell(None)),
        "cost": cell(None) if usage.cost is None else f"{usage.cost:.4g}",
    }
