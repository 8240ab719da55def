"""Compare the runs of a sweep as a study: means and intervals over seeds, by setting, and tests between settings.

    comparison = compare(Path("outputs/tiny-sweep-20250101-120000"))
    comparison.groups[0].figures["accuracy_after"]      # Figure(mean=0.97, interval=(0.94, 0.99))
    comparison.differences[0].p_value                   # of the second setting against the first
    write_comparison(comparison)                        # comparison.md, .json, .csv, .tex and .png, curves.png

A group consists of the runs that differ only in their seed, and so have the same setting. Runs that failed, have not
finished, or were stopped by a monitor are listed but excluded from the means.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from rg_env.core.files import write_aside
from rg_env.core.run_folder import RunFolder
from rg_env.core.statistics import (
    Interval,
    mean_interval,
    p_shown,
    paired_difference,
    runs_interval,
    with_interval,
)
from rg_env.core.text import counted, one_line, short_keys, shown_alike
from rg_env.evaluation.plots import curves, style
from rg_env.evaluation.results import PART_SUFFIXES, Paired, read_results
from rg_env.evaluation.tables import Table, TableConsole, cell, latex_table, markdown_table, print_table
from rg_env.jobs.sweep import SEED, read_points, status_of

_METRICS = {
    "accuracy_before": ("accuracy before", "eval_before", "accuracy"),
    "accuracy_after": ("accuracy after", "eval_after", "accuracy"),
    "greedy_after": ("greedy after", "eval_after", "greedy_accuracy"),
    "reward_after": ("reward after", "eval_after", "reward"),
    "held_out_after": ("held-out after", "eval_after", "held_out", "accuracy"),
    "tokens_after": ("tokens after", "eval_after", "mean_completion_tokens"),
    "seconds": ("seconds",),
}
"""Table heading for each metric, followed by the metric's path in train_results.json. `seconds` has no path, because it
is summed over metrics.jsonl."""
_NO_SHARES = ("reward_after", "tokens_after")
_NO_INTERVAL = "seconds"
_MOST_VALUE = 40
"""Maximum length of a swept value in the table, in characters. comparison.json contains the full values."""
_LEGEND = (
    "Means over finished runs, with 95% intervals over the seeds (accuracies: Wilson's, with runs as clusters; other "
    "metrics: Student's t) or, for a single run, over its questions."
)
_ABOUT_TASKS = "Accuracy after training on each task, with the same intervals."
_ABOUT_DIFFERENCES = (
    "Differences in accuracy after training: the second setting minus the first, on the same questions, with each "
    "question's answers averaged over the seeds. 95% intervals (Newcombe) and p-values (two-sided permutation tests, "
    "not corrected for the number of tests) are over the questions, for these seeds: the intervals over seeds show how "
    "much other seeds could differ."
)
_LEAST_SEEDS = 3
"""Minimum number of seeds for an interval. With two seeds, an interval would be too wide to be useful (t = 12.7)."""
_ALL_PAIRS = 5
"""Maximum number of settings that are compared in pairs. If there are more, each is compared with the first one."""
_Answers = dict[str, dict[str, list[float]]]
"""Whether each answer is correct, by task and question."""


@dataclass(frozen=True)
class Figure:
    """A mean and its 95% interval (None if there is no interval)."""

    mean: float
    interval: Interval | None


@dataclass(frozen=True)
class SweptRun:
    """The run for one point in the sweep. Only finished runs have metrics."""

    number: int
    """Position in the sweep, counting from 1."""
    name: str
    """Folder name."""
    values: dict[str, Any]
    """Value of each swept key."""
    status: str
    reason: str
    """Reason the run failed or was stopped, or the progress of an interrupted run. Empty if neither is available."""
    tasks: dict[str, Figure] = field(default_factory=dict)
    """Accuracy after training by task, with held-out tasks last."""
    correct: _Answers = field(default_factory=dict, repr=False)
    """Answers to the questions from training tasks after training. Empty if the run's eval_results is missing."""
    figures: dict[str, Figure] = field(default_factory=dict)
    """Metrics by name. `seconds` covers all steps and evaluations, even those before an interruption."""
    questions: int = 0
    """Number of questions from training tasks in the last evaluation, or from held-out tasks if it has only those."""
    evaluated: tuple[str, str] = ("", "")
    """Question hashes and sampling settings of the last evaluation, each as JSON."""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    values: dict[str, Any]
    """Value of each swept key except the seed."""
    runs: list[SweptRun]

    @property
    def finished(self) -> list[SweptRun]:
        return [run for run in self.runs if run.status == "finished"]

    @property
    def over(self) -> str:
        """Description of the sample behind the intervals: several seeds, or a single run's questions."""
        if len(done := self.finished) < 2:
            return counted(done[0].questions, "question") if done else ""
        return f"{len(done)} seeds{' (too few)' if len(done) < _LEAST_SEEDS else ''}"

    @property
    def figures(self) -> dict[str, Figure]:
        """Means over the finished runs, for metrics that all of them have."""
        return self._means(lambda run: run.figures)

    @property
    def tasks(self) -> dict[str, Figure]:
        """Accuracy after training by task: means over the finished runs, for tasks that all of them have."""
        return self._means(lambda run: run.tasks)

    def _means(self, of: Callable[[SweptRun], dict[str, Figure]]) -> dict[str, Figure]:
        if len(done := self.finished) < 2:
            return of(done[0]) if done else {}
        return {
            name: _over_seeds(name, [of(run)[name] for run in done], done)
            for name in of(done[0])
            if all(name in of(run) for run in done)
        }

    @property
    def correct(self) -> _Answers:
        """Answers of all finished runs to the questions from training tasks."""
        found: _Answers = {}
        for run in self.finished:
            for task, questions in run.correct.items():
                for question, answers in questions.items():
                    found.setdefault(task, {}).setdefault(question, []).extend(answers)
        return found


@dataclass(frozen=True)
class Comparison:
    """A sweep's runs and groups, in point order."""

    folder: Path
    runs: list[SweptRun]
    groups: list[Group]

    @property
    def labels(self) -> list[str]:
        """Label of each group: its swept values, such as "learning_rate=3e-5"."""
        keys, swept = _swept(self)
        return [" ".join(map("=".join, zip(keys, values, strict=True))) or "all runs" for values in swept]

    @cached_property
    def differences(self) -> list[Paired]:
        """Comparisons of settings on the questions that both answered after training. `b` is the earlier setting."""
        groups = [(label, each.correct) for label, each in zip(self.labels, self.groups, strict=True) if each.correct]
        pairs = [*combinations(groups, 2)] if len(groups) <= _ALL_PAIRS else [(groups[0], each) for each in groups[1:]]
        found = []
        for (earlier, one), (later, other) in pairs:
            answers = [(other.get(task, {}), questions) for task, questions in one.items()]
            if one.keys() == other.keys() and all(set(a) & set(b) for a, b in answers):
                found.append(Paired(a=later, b=earlier, **vars(paired_difference(answers))))
        return found

    @property
    def notes(self) -> list[str]:
        """Caveats, and the runs excluded from the table."""
        evaluated = [run.evaluated for run in self.runs if run.status == "finished"]
        notes = [
            f"The runs were evaluated with different {cause}, which may partly explain differences in their results."
            for part, cause in enumerate(("questions", "sampling settings"))
            if len({each[part] for each in evaluated}) > 1
        ]
        return notes + [
            f"not in the table: {run.number} {run.name}: {run.status}{f' ({run.reason})' if run.reason else ''}"
            for run in self.runs
            if run.status != "finished"
        ]


def compare(folder: Path) -> Comparison:
    """Compare the finished runs of the sweep in `folder`.

    Raises:
        InputError: `folder` is not a sweep, or contains a damaged file.
    """
    runs = [_run(folder, number, *point) for number, point in enumerate(read_points(folder).items(), 1)]
    groups: dict[str, Group] = {}
    for run in runs:
        values = {key: value for key, value in run.values.items() if key != SEED}
        groups.setdefault(json.dumps(values, sort_keys=True), Group(values, [])).runs.append(run)
    return Comparison(folder, runs, list(groups.values()))


def _run(folder: Path, number: int, name: str, values: dict[str, Any]) -> SweptRun:
    status, reason = status_of(folder, name)
    run = RunFolder(folder / name)
    results = run.results() or {}
    if status != "finished":
        return SweptRun(number, name, values, status, reason)
    seconds = math.fsum(each.get(key) or 0.0 for each in run.metrics() for key in ("step_time", "time/evaluation"))
    figures = {"seconds": Figure(seconds, None)}
    for metric, (_, *path) in _METRICS.items():
        scores: Any = results
        for part in path[:-1]:
            scores = (scores or {}).get(part)
        if path and scores and scores.get(path[-1]) is not None:
            ends = scores["intervals"].get(path[-1])  # the interval is computed over the questions
            figures[metric] = Figure(scores[path[-1]], (ends[0], ends[1]) if ends else None)
    last = results.get("eval_after") or results.get("eval_before") or {}
    hashes = [each["manifest_sha256"] or each["prompts_sha256"] for each in last.get("questions", [])]
    evaluated = json.dumps(hashes), json.dumps(last.get("sampling"), sort_keys=True)
    questions = last.get("n") or (last.get("held_out") or {}).get("n", 0)
    parts = {"": last.get("tasks", {}), PART_SUFFIXES["held_out"]: (last.get("held_out") or {}).get("tasks", {})}
    tasks = {
        f"{task}{suffix}": Figure(scores["accuracy"], tuple(scores["intervals"]["accuracy"]))
        for suffix, found in parts.items()
        for task, scores in found.items()
        if scores["accuracy"] is not None
    }
    file, correct = run.evaluation_file(last.get("step", 0)), {}
    if file.is_file():
        trained = {task: each for task, each in read_results(file).tasks.items() if each.in_overall}
        correct = {task: next(iter(each.models.values())).correct for task, each in trained.items()}
    answers = {task: {key: [*map(float, each)] for key, each in found.items()} for task, found in correct.items()}
    return SweptRun(number, name, values, status, reason, tasks, answers, figures, questions, evaluated)


def _over_seeds(name: str, figures: Sequence[Figure], runs: Sequence[SweptRun]) -> Figure:
    """Return the mean of a metric over several runs, with an interval: `runs_interval` for proportions, Student's
    t-interval otherwise. Two runs are too few for an interval."""
    means = [figure.mean for figure in figures]
    if len(means) < _LEAST_SEEDS or name == _NO_INTERVAL:
        interval = None
    elif name in _NO_SHARES:
        interval = mean_interval([[mean] for mean in means])
        if interval and name == "tokens_after":
            interval = max(0.0, interval[0]), interval[1]
    else:
        interval = runs_interval(means, max(1, min(run.questions for run in runs)))
    return Figure(fmean(means), interval)


def write_comparison(comparison: Comparison) -> list[str]:
    """Write comparison.md, .json, .csv and .tex. If any run has finished, also write curves.png and, if any group was
    evaluated after training, comparison.png.

    Returns:
        Names of the files written to the sweep folder.

    Raises:
        OutputFolderError: a file cannot be written.
    """
    folder, notes, tables = comparison.folder, comparison.notes, comparison_tables(comparison)
    lines, latex = [f"# Sweep {one_line(folder.name)}", ""], ["% \\usepackage{booktabs}"]
    for table in tables:
        lines += [f"## {table.title}", "", *markdown_table(table.columns, table.rows), ""]
        lines += [*table.notes, ""]
        latex += ["", *latex_table(table.columns, table.rows), *(f"% {note}" for note in table.notes)]
    lines += [f"- {note}" for note in notes]
    groups = [
        {"values": each.values, "runs": [_plain(run) for run in each.runs], "figures": each.figures}
        | {"tasks": each.tasks, "interval_over": each.over}
        for each in comparison.groups
    ]
    differences = [vars(each) for each in comparison.differences]
    values = {"groups": groups, "differences": differences, "notes": notes}
    texts = {
        "md": "\n".join(lines).rstrip(),
        "json": json.dumps(values, indent=1, ensure_ascii=False, default=asdict),
        "csv": _csv(comparison),
        "tex": "\n".join(latex),
    }
    for suffix, text in texts.items():
        write_aside(folder / f"comparison.{suffix}", f"{text.rstrip()}\n")
    names = [f"comparison.{suffix}" for suffix in texts]
    if _plot(comparison, folder / "comparison.png"):
        names.append("comparison.png")
    if means := mean_curves(comparison):
        curves.plot_curves(means, folder / "curves.png", folder.name)
        names.append("curves.png")
    return names


def mean_curves(comparison: Comparison) -> list[curves.Curve]:
    """Return the mean learning curve of each setting's finished runs."""
    labels = style.short_names(comparison.labels).values()
    found = []
    for label, group in zip(labels, comparison.groups, strict=True):
        files = [RunFolder(comparison.folder / run.name).metrics_file for run in group.finished]
        if files:
            found.append(curves.averaged(label, [curves.read_curve(file, file.parent.name) for file in files]))
    return found


def _plain(run: SweptRun) -> dict[str, Any]:
    """Return a run's values for comparison.json, without its answers, which are in its eval_results."""
    return {name: value for name, value in vars(run).items() if name != "correct"}


def _csv(comparison: Comparison) -> str:
    """Return a table with a row for each setting, and a column for each value and each end of an interval."""
    rows = []
    for group in comparison.groups:
        row = {**group.values, "finished": len(group.finished), "runs": len(group.runs), "interval_over": group.over}
        found = {**group.figures, **{f"accuracy_after/{task}": figure for task, figure in group.tasks.items()}}
        for name, figure in found.items():
            low, high = figure.interval or (None, None)
            row |= {name: figure.mean, f"{name}_low": low, f"{name}_high": high}
        rows.append({key: json.dumps(value) if isinstance(value, list | dict) else value for key, value in row.items()})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def print_comparison(comparison: Comparison) -> None:
    """Print the comparison's tables, legends and notes."""
    print(f"Sweep {one_line(comparison.folder)}", flush=True)
    console = TableConsole(highlight=False)
    for table in comparison_tables(comparison):
        print_table(TableConsole(highlight=False), table.columns, table.rows)
        for note in table.notes:
            console.print(note, markup=False)
    for line in comparison.notes:
        print(line)


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return tables of the settings' figures, of each task's accuracies if there are several tasks, and of the
    differences between settings."""
    labels, swept = _swept(comparison)
    heads, rows = [*labels], [[*values] for values in swept]
    for head, cells in _columns(comparison):
        heads.append(head)
        rows = [[*row, each] for row, each in zip(rows, cells, strict=True)]
    tables = [Table("Settings", heads, rows, [_LEGEND])]
    tasks = list(dict.fromkeys(task for group in comparison.groups for task in group.tasks))
    if len(tasks) > 1:
        of_groups = [[_cell(group.tasks.get(task), 3) for task in tasks] for group in comparison.groups]
        rows = [[*values, *row] for values, row in zip(swept, of_groups, strict=True)]
        tables.append(Table("Accuracy after training, by task", [*labels, *tasks], rows, [_ABOUT_TASKS]))
    if comparison.differences:
        rows = [
            [f"{each.b} → {each.a}", str(each.n), difference, p_shown(each.p_value)]
            for each in comparison.differences
            for difference in [with_interval(each.difference, each.interval, sign=True)]
        ]
        heads = ["settings", "questions", "difference", "p-value"]
        tables.append(Table("Differences between settings", heads, rows, [_ABOUT_DIFFERENCES]))
    return tables


def _columns(comparison: Comparison) -> Iterator[tuple[str, list[str]]]:
    """Yield the header and cells of each column after the swept values, without metrics that no group has."""
    found = [group.figures for group in comparison.groups]
    for name, (head, *_) in _METRICS.items():
        if any(name in figures for figures in found):
            digits = {"tokens_after": 1, "seconds": 0}.get(name, 3)
            yield head, [_cell(figures.get(name), digits) for figures in found]
    yield "finished", [f"{len(group.finished)} of {len(group.runs)}" for group in comparison.groups]
    yield "interval over", [group.over for group in comparison.groups]


def _swept(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return a label for each swept key, and each group's values. The values are shortened, but different values remain
    distinct."""
    labels, columns = short_keys(comparison.groups[0].values), []
    for key in labels:
        values = [group.values[key] for group in comparison.groups]
        texts, whole = shown_alike(values), [json.dumps(value) for value in values]
        texts = texts if len(set(texts)) == len(set(whole)) else whole
        short = style.short_names(list(dict.fromkeys(texts)), _MOST_VALUE)
        columns.append([short[text] for text in texts])
    return list(labels.values()), [list(row) for row in zip(*columns, strict=True)] or [[]]


def _cell(figure: Figure | None, digits: int) -> str:
    return cell(None) if figure is None else with_interval(figure.mean, figure.interval, digits)


@style.styled
def _plot(comparison: Comparison, output: Path) -> bool:
    """Plot each group's accuracy before and after training, with intervals and individual runs. If no group has an
    accuracy after training, rewards are plotted instead. Returns False if there is nothing to plot."""
    kind = "accuracy" if any("accuracy_after" in group.figures for group in comparison.groups) else "reward"
    rows = zip(style.short_names(comparison.labels).values(), comparison.groups, strict=True)
    drawn = [(label, group, group.figures) for label, group in rows if f"{kind}_after" in group.figures]
    if not drawn:
        return False
    canvas, ((axes,),) = style.panels(6, 0.4 * len(drawn) + 0.2)
    for number, when in enumerate(("before", "after")):
        found = {row: each[f"{kind}_{when}"] for row, (*_, each) in enumerate(drawn) if f"{kind}_{when}" in each}
        means = [figure.mean for figure in found.values()]
        bars = style.error_bars(means, [figure.interval or (figure.mean, figure.mean) for figure in found.values()])
        look: dict[str, Any] = {"color": style.COLORS[number], "marker": style.MARKERS[number], "linestyle": "none"}
        axes.errorbar(means, list(found), xerr=bars, capsize=4, label=when, **look)
    for row, (_, group, _) in enumerate(drawn):
        each = [run.figures[f"{kind}_after"].mean for run in group.finished]
        axes.plot(each, [row + 0.22] * len(each), color=style.GREY, marker="|", linestyle="none")
    style.label_rows(axes, [f"{label}\ninterval over {group.over}" for label, group, _ in drawn], size=8)
    axes.set_xlabel(f"{kind} (sampled) on the frozen questions, 95% intervals (gray: each run after training)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    style.finish(canvas, comparison.folder.name, output)
    return True
