"""What the evaluations of a training run come to, for its report: curves, a table by step, each task before and after.

Files of other versions have other keys: what is not there is not shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rg_env.core.json_values import dict_of, number_of, whole_of
from rg_env.core.run_folder import RunFolder
from rg_env.evaluation.report.parts import Bar, BarGroup, Chart, Estimate, Page, Series, Table, figure
from rg_env.evaluation.report.rollouts import evaluation_records

_LABELS_DRAWN = 5
_COLUMNS = {
    "accuracy": "accuracy",
    "greedy accuracy": "greedy_accuracy",
    "reward": "reward",
    "tokens": "mean_completion_tokens",
    "cut off": "truncated",
}
_SHARES = ("accuracy", "greedy_accuracy", "truncated")
_PARTS = {"training": "", "held_out": "held out", "labelled": "label"}
"""How tasks of each part are called."""
_CHARTS = {
    "Training batches": {"reward": "reward", "accuracy": "accuracy"},
    "Completion length, tokens": {"completions/mean_length": "mean", "completions/max_length": "longest"},
}
"""Of metrics: name, and what the line is called; the second one is dotted."""


@dataclass(frozen=True)
class Evaluation:
    """`eval_results/eval_step_N.json`."""

    step: int
    file: Path
    values: dict[str, Any]
    """Without its rollouts."""

    def tasks(self) -> dict[tuple[str, str], Any]:
        """Scores by part and name: of the training tasks, of held-out ones, of labels."""
        held_out = dict_of(self.values.get("held_out"))
        parts = {"": self.values, "held out": held_out, "label": {"tasks": self.values.get("labelled")}}
        return {(part, name): s for part, each in parts.items() for name, s in dict_of(each.get("tasks")).items()}


def add_curves(page: Page, evaluations: Sequence[Evaluation]) -> None:
    """Accuracy on the frozen problems; reward and length in training, of the metrics that the page has."""
    lines: dict[str, list[tuple[float, Estimate]]] = {}
    for each in evaluations:
        labelled = [
            (f"{n} (label)", scores, "accuracy") for (part, n), scores in each.tasks().items() if part == "label"
        ]
        for name, scores, key in (
            ("sampled", each.values, "accuracy"),
            ("greedy", each.values, "greedy_accuracy"),
            ("held-out tasks", each.values.get("held_out"), "accuracy"),
            *labelled[:_LABELS_DRAWN],
        ):
            if (estimate := _estimate(scores, key)) is not None:
                lines.setdefault(name, []).append((each.step, estimate))
    if lines:
        note = "Mean and 95 % interval, clustered by problem"
        drawn = [Series(name, points, name not in ("sampled", "greedy")) for name, points in lines.items()]
        page.charts.append(Chart("Accuracy on the frozen problems", drawn, note, share=True))
    for title, names in _CHARTS.items():
        drawn = [
            Series(
                label, [(x, Estimate(y)) for x, y in zip(*page.metrics.values[name], strict=True)], dotted=number > 0
            )
            for number, (name, label) in enumerate(names.items())
            if name in page.metrics.values
        ]
        if drawn:
            page.charts.append(Chart(title, drawn, page.metrics.note))


def add_tables(page: Page, evaluations: Sequence[Evaluation]) -> None:
    """All evaluations, and each task in the first and the last one."""
    page.tables.append(_by_step(evaluations))
    first, last = evaluations[0], evaluations[-1]
    ends = {f"step {each.step}": each.tasks() for each in (first, last)}
    asked = first.values.get("questions")
    paired = first.step != last.step and bool(asked) and asked == last.values.get("questions")
    changes = _changes(first, last) if paired else {}
    rows = []
    for (part, task), scores in last.tasks().items():
        found = {step: _estimate(tasks.get((part, task)), "accuracy") for step, tasks in ends.items()}
        name, n = f"{task} ({part})" if part else task, whole_of(dict_of(scores).get("n")) or 0
        bars = [Bar(step, estimate) for step, estimate in found.items() if estimate is not None]
        if bars:
            page.bars.append(BarGroup(name, bars, f"{n} problems"))
        change = [figure(changes.get((part, task)), sign=True)] if paired else []
        rows.append([name, str(n), *map(figure, found.values()), *change])
    page.bars_title = "Accuracy by task"
    columns = ["task", "problems", *(f"accuracy, {step}" for step in ends), *(["change"] if paired else [])]
    note = "Mean and 95 % interval, clustered by problem."
    if paired:
        note += " The change is that on the same problems (paired)."
    elif first.step != last.step:
        note += " The two evaluations were not asked the same questions: their difference tells little."
    page.tables.append(Table("Tasks", columns, rows, note))


def _by_step(evaluations: Sequence[Evaluation]) -> Table:
    passes = dict.fromkeys(name for each in evaluations for name in dict_of(each.values.get("pass_at_k")))
    columns = {**_COLUMNS, **{name: name for name in passes if name != "pass@1"}, "held-out accuracy": "held_out"}
    rows = []
    for each in evaluations:
        row = [str(each.step)]
        for name, key in columns.items():
            held_out = key == "held_out"
            scores = each.values.get("held_out") if held_out else each.values
            row.append(figure(_estimate(scores, "accuracy" if held_out else key), 1 if name == "tokens" else 2))
        rows.append(row)
    kept = [0, *(i for i in range(1, len(columns) + 1) if any(row[i] != figure(None) for row in rows))]
    heads = ["step", *columns]
    note = "Of the training tasks' problems: mean and 95 % interval, clustered by problem."
    return Table("Evaluations", [heads[i] for i in kept], [[row[i] for i in kept] for row in rows], note)


def _changes(before: Evaluation, after: Evaluation) -> dict[tuple[str, str], Estimate]:
    """By part and task: the mean over problems of how the share of right answers changed."""
    found: tuple[dict[Any, list[float]], ...] = ({}, {})
    for shares, each in zip(found, (before, after), strict=True):
        for record in evaluation_records(RunFolder(each.file.parents[1]).evaluation(each.step), each.step):
            if record and record.get("draw") == "sampled" and "correct" in record:
                part = _PARTS.get(record.get("part", "training"), "")
                key = part, record.get("task", ""), record.get("problem"), record["question"]
                shares.setdefault(key, []).append(float(record["correct"]))
    differences: dict[tuple[str, str], list[list[float]]] = {}
    for key, answers in found[0].items():
        if later := found[1].get(key):
            difference = sum(later) / len(later) - sum(answers) / len(answers)
            differences.setdefault(key[:2], []).append([difference])
    return {key: Estimate.of_values(values) for key, values in differences.items()}


def _estimate(scores: Any, key: str) -> Estimate | None:
    scores = dict_of(scores)
    values, errors, error_key = scores, scores, f"{key}_se"
    if "@" in key:
        values, errors, error_key = dict_of(scores.get("pass_at_k")), dict_of(scores.get("pass_at_k_se")), key
    if (value := number_of(values.get(key))) is None:
        return None
    error, n = number_of(errors.get(error_key)), whole_of(scores.get("n")) or 0
    return Estimate.of_error(value, error, n, share=key in _SHARES or "@" in key)
