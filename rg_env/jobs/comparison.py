"""Compare the runs of a sweep in a table and in plots, with means and intervals over seeds.

    comparison = compare(Path("outputs/tiny-sweep-20250101-120000"))
    comparison.groups[0].figures["accuracy_after"]      # Figure(mean=0.97, interval=(0.94, 0.99))
    write_comparison(comparison)                        # comparison.md, .json and .png, curves.png

A group consists of the runs that differ only in their seed. Runs that failed, have not finished, or were stopped by a
monitor are listed but excluded from the means.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rg_env.core.files import write_aside
from rg_env.core.run_folder import RunFolder
from rg_env.core.statistics import Interval, mean_interval, runs_interval, with_interval
from rg_env.core.text import counted, one_line, short_keys, shown
from rg_env.evaluation import tables
from rg_env.evaluation.plots import curves, style
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
_NO_SHARES = ("reward_after", "tokens_after", "seconds")
_MOST_VALUE = 40
"""Maximum length of a swept value in the table, in characters. comparison.json contains the full values."""
_LEGEND = "Means over finished runs, with 95% intervals over seeds or over a single run's questions."
_LEAST_SEEDS = 3
"""Minimum number of seeds for an interval. With two seeds, an interval would be too wide to be useful (t = 12.7)."""


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
        if len(done := self.finished) < 2:
            return done[0].figures if done else {}
        return {name: _over_seeds(name, done) for name in _METRICS if all(name in run.figures for run in done)}


@dataclass(frozen=True)
class Comparison:
    """A sweep's runs and groups, in point order."""

    folder: Path
    runs: list[SweptRun]
    groups: list[Group]

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
    return SweptRun(number, name, values, status, reason, figures, questions, evaluated)


def _over_seeds(name: str, runs: Sequence[SweptRun]) -> Figure:
    """Return the mean of a metric over several runs, with an interval: `runs_interval` for proportions, Student's
    t-interval otherwise. Two runs are too few for an interval."""
    means = [run.figures[name].mean for run in runs]
    if len(means) < _LEAST_SEEDS:
        interval = None
    elif name in _NO_SHARES:
        interval = mean_interval([[mean] for mean in means])
    else:
        interval = runs_interval(means, max(1, min(run.questions for run in runs)))
    return Figure(fmean(means), interval)


def write_comparison(comparison: Comparison) -> list[str]:
    """Write comparison.md and comparison.json. If any run has finished, also write curves.png and, if any group was
    evaluated after training, comparison.png.

    Returns:
        Names of the files written to the sweep folder.

    Raises:
        OutputFolderError: a file cannot be written.
    """
    folder, notes = comparison.folder, comparison.notes
    table = tables.markdown_table(*_cells(comparison))
    lines = [f"# Sweep {one_line(folder.name)}", "", *table, "", _LEGEND, "", *(f"- {note}" for note in notes)]
    groups = [{**asdict(each), "figures": each.figures, "interval_over": each.over} for each in comparison.groups]
    text = json.dumps({"groups": groups, "notes": notes}, indent=1, ensure_ascii=False, default=asdict)
    write_aside(folder / "comparison.md", "\n".join(lines).rstrip() + "\n")
    write_aside(folder / "comparison.json", f"{text}\n")
    names = ["comparison.md", "comparison.json"]
    if _plot(comparison, folder / "comparison.png"):
        names.append("comparison.png")
    if finished := [run.name for run in comparison.runs if run.status == "finished"]:
        found = [curves.read_curve(RunFolder(folder / name).metrics_file, name) for name in finished]
        curves.plot_curves(found, folder / "curves.png", folder.name)
        names.append("curves.png")
    return names


def print_comparison(comparison: Comparison) -> None:
    """Print the comparison's table, legend and notes."""
    print(f"Sweep {one_line(comparison.folder)}", flush=True)
    tables.print_table(tables.TableConsole(highlight=False), *_cells(comparison))
    for line in [_LEGEND, *comparison.notes]:
        print(line)


def _cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the table's header and rows, without columns for metrics that no group has."""
    found = [group.figures for group in comparison.groups]
    names = [name for name in _METRICS if any(name in figures for figures in found)]
    labels, swept = _swept(comparison)
    rows = [
        [
            *values,
            *(_cell(figures.get(name), 1 if name in ("tokens_after", "seconds") else 3) for name in names),
            f"{len(group.finished)} of {len(group.runs)}",
            group.over,
        ]
        for values, figures, group in zip(swept, found, comparison.groups, strict=True)
    ]
    return [*labels, *(_METRICS[name][0] for name in names), "finished", "interval over"], rows


def _swept(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return a label for each swept key, and each group's values. The values are shortened, but different values remain
    distinct."""
    labels, columns = short_keys(comparison.groups[0].values), []
    for key in labels:
        values = [group.values[key] for group in comparison.groups]
        texts, whole = [shown(value) for value in values], [json.dumps(value) for value in values]
        texts = texts if len(set(texts)) == len(set(whole)) else whole
        short = style.short_names(list(dict.fromkeys(texts)), _MOST_VALUE)
        columns.append([short[text] for text in texts])
    return list(labels.values()), [list(row) for row in zip(*columns, strict=True)] or [[]]


def _cell(figure: Figure | None, digits: int) -> str:
    return tables.cell(None) if figure is None else with_interval(figure.mean, figure.interval, digits)


@style.styled
def _plot(comparison: Comparison, output: Path) -> bool:
    """Plot each group's accuracy before and after training, with intervals and individual runs. If no group has an
    accuracy after training, rewards are plotted instead. Returns False if there is nothing to plot."""
    keys, swept = _swept(comparison)
    labels = [" ".join(map("=".join, zip(keys, values, strict=True))) or "all runs" for values in swept]
    kind = "accuracy" if any("accuracy_after" in group.figures for group in comparison.groups) else "reward"
    rows = zip(style.short_names(labels).values(), comparison.groups, strict=True)
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
    style.titled(canvas, comparison.folder.name)
    style.save(canvas, output)
    return True
