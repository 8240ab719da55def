"""Compare the runs of a sweep in a table and plots: their metrics, and means over seeds with intervals.

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

from matplotlib.figure import Figure as Canvas

from rg_env.core.run_folder import RunFolder, write_aside
from rg_env.core.statistics import Interval, mean_interval, runs_interval, with_interval
from rg_env.core.text import counted, one_line, short_keys, shown
from rg_env.errors import OutputFolderError
from rg_env.evaluation.plots.curves import plot_curves, read_curve
from rg_env.evaluation.plots.style import COLORS, GREY, error_bars, label_rows, save, short_names
from rg_env.evaluation.tables import TableConsole, markdown_table, print_table
from rg_env.jobs.sweep import read_points, status_of

_EVALUATED = {
    "accuracy_before": ("accuracy before", "eval_before", "accuracy"),
    "accuracy_after": ("accuracy after", "eval_after", "accuracy"),
    "greedy_after": ("greedy after", "eval_after", "greedy_accuracy"),
    "reward_after": ("reward after", "eval_after", "reward"),
    "held_out_after": ("held-out after", "eval_after", "held_out", "accuracy"),
    "tokens_after": ("tokens after", "eval_after", "mean_completion_tokens"),
}
"""Metric -> (heading, path in train_results.json)."""
_HEADS = {name: head for name, (head, *_) in _EVALUATED.items()} | {"seconds": "seconds"}
_SHARES = ("accuracy_before", "accuracy_after", "greedy_after", "held_out_after")
_MOST_VALUE = 40
"""Maximum number of characters of a value in the table; comparison.json has the full value."""
_LEGEND = "Means over finished runs with 95% intervals: over seeds, or over a single run's questions."
_LEAST_SEEDS = 3
"""Minimum number of seeds for an interval: two reveal almost nothing about the standard deviation (t = 12.7)."""
_TWO_SEEDS = "Two seeds are too few for an interval: (a to b) shows their two values."


@dataclass(frozen=True)
class Figure:
    """A mean and its 95% interval, which is None if unknown."""

    mean: float
    interval: Interval | None
    both: tuple[float, float] | None = None
    """The two values in ascending order if there are only two seeds, which are too few for an interval."""


@dataclass(frozen=True)
class Run:
    """One point of the sweep. Only finished runs have metrics."""

    number: int
    """Position in the sweep, counting from 1."""
    name: str
    """Folder name."""
    values: dict[str, Any]
    """Swept key -> value."""
    status: str
    reason: str
    """Why the run failed or was stopped, or its progress; may be empty."""
    figures: dict[str, Figure] = field(default_factory=dict)
    """Metrics by name. `seconds` covers all steps and evaluations, even those before an interruption."""
    questions: int = 0
    """Number of questions in the last evaluation, from training tasks if it included any, otherwise from held-out
    tasks."""
    evaluated: tuple[str, str] = ("", "")
    """The last evaluation's questions and sampling settings, as text."""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    values: dict[str, Any]
    """Swept key -> value, without the seed."""
    runs: tuple[Run, ...]
    figures: dict[str, Figure]
    """Means over the finished runs, for metrics that all of them have."""

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.status == "finished"]

    @property
    def too_few(self) -> str:
        """Remark that there are too few seeds for intervals; empty if there are enough."""
        return " (too few)" if 1 < len(self.finished) < _LEAST_SEEDS else ""

    @property
    def over(self) -> str:
        """What the intervals are computed over: several seeds, or a single run's questions."""
        if not (done := self.finished):
            return ""
        return f"{len(done)} seeds{self.too_few}" if len(done) > 1 else counted(done[0].questions, "question")


@dataclass(frozen=True)
class Comparison:
    """A sweep's groups, in point order."""

    folder: Path
    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[Run]:
        return sorted((run for group in self.groups for run in group.runs), key=lambda run: run.number)

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.status == "finished"]

    @property
    def notes(self) -> list[str]:
        """Caveats, and the runs left out of the comparison."""
        notes = [
            f"The runs were evaluated with different {cause}, so their results differ for that reason too."
            for part, cause in enumerate(("questions", "sampling settings"))
            if len({run.evaluated[part] for run in self.finished}) > 1
        ]
        notes += [_TWO_SEEDS] if any(group.too_few for group in self.groups) else []
        return notes + [
            f"not in the table: {run.number} {run.name}: {run.status}{f' ({run.reason})' if run.reason else ''}"
            for run in self.runs
            if run.status != "finished"
        ]

    def as_json(self) -> dict[str, Any]:
        groups = [{**asdict(group), "interval_over": group.over} for group in self.groups]
        return {"groups": groups, "notes": self.notes}


def compare(folder: Path) -> Comparison:
    """Compare the runs finished so far in the sweep in `folder`.

    Raises:
        InputError: `folder` is not a sweep, or contains a damaged file.
    """
    runs = [_run(folder, number, *point) for number, point in enumerate(read_points(folder).items(), 1)]
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_without_seed(run.values), sort_keys=True), []).append(run)
    return Comparison(folder, tuple(map(_group, groups.values())))


def _run(folder: Path, number: int, name: str, values: dict[str, Any]) -> Run:
    status, reason = status_of(folder, name)
    run = RunFolder(folder / name)
    results = run.results() or {}
    if status != "finished":
        return Run(number, name, values, status, reason)
    figures = {}
    for figure, (_, *path, key) in _EVALUATED.items():
        scores: Any = results
        for part in path:
            scores = (scores or {}).get(part)
        if scores and scores.get(key) is not None:
            ends = scores["intervals"].get(key)  # over the questions
            figures[figure] = Figure(scores[key], (ends[0], ends[1]) if ends else None)
    seconds = math.fsum(each.get(key) or 0.0 for each in run.metrics() for key in ("step_time", "time/evaluation"))
    last = results.get("eval_after") or results.get("eval_before") or {}
    hashes = [each["manifest_sha256"] or each["prompts_sha256"] for each in last.get("questions", [])]
    return Run(
        number,
        name,
        values,
        status,
        reason,
        figures | {"seconds": Figure(seconds, None)},
        last.get("n") or (last.get("held_out") or {}).get("n", 0),
        (json.dumps(hashes), json.dumps(last.get("sampling"), sort_keys=True)),
    )


def _over_seeds(name: str, runs: Sequence[Run]) -> Figure:
    """Mean over several runs, with `runs_interval` for proportions and Student's t-interval otherwise; two runs
    get no interval."""
    means = [run.figures[name].mean for run in runs]
    if len(means) < _LEAST_SEEDS:
        return Figure(fmean(means), None, (min(means), max(means)))
    if name not in _SHARES:
        return Figure(fmean(means), mean_interval([[mean] for mean in means]))
    return Figure(fmean(means), runs_interval(means, max(1, min(run.questions for run in runs))))


def _group(runs: Sequence[Run]) -> Group:
    done = [run for run in runs if run.status == "finished"]
    figures = dict(done[0].figures) if len(done) == 1 else {}
    if len(done) > 1:
        figures = {name: _over_seeds(name, done) for name in _HEADS if all(name in run.figures for run in done)}
    return Group(_without_seed(runs[0].values), tuple(runs), figures)


def _without_seed(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "seed"}


def write_comparison(comparison: Comparison) -> list[str]:
    """Write comparison.md, comparison.json and, if any run has finished, comparison.png and curves.png.

    Returns:
        Names of the files, which are in the sweep folder.

    Raises:
        OutputFolderError: a file cannot be written.
    """
    folder = comparison.folder
    heads, rows = _cells(comparison)
    lines = [f"# Sweep {one_line(folder.name)}", "", *markdown_table(heads, rows), "", _LEGEND, ""]
    lines += [f"- {note}" for note in comparison.notes]
    try:
        write_aside(folder / "comparison.md", "\n".join(lines).rstrip() + "\n")
        write_aside(folder / "comparison.json", json.dumps(comparison.as_json(), indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise OutputFolderError(f"cannot write the comparison to {folder}: {error.strerror}") from error
    names = ["comparison.md", "comparison.json"]
    if _plot(comparison, folder / "comparison.png"):
        names.append("comparison.png")
    logs = {run.name: RunFolder(folder / run.name).metrics_file for run in comparison.finished}
    if logs:
        plot_curves([read_curve(file, name) for name, file in logs.items()], folder / "curves.png", folder.name)
        names.append("curves.png")
    return names


def print_comparison(comparison: Comparison) -> None:
    """Print the table, and the runs left out of it."""
    print(f"Sweep {one_line(comparison.folder)}", flush=True)
    print_table(TableConsole(highlight=False), *_cells(comparison))
    for line in [_LEGEND, *comparison.notes]:
        print(line)


def _cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Table header and rows, without columns for metrics that no group has."""
    names = [name for name in _HEADS if any(name in group.figures for group in comparison.groups)]
    columns = _columns(comparison)
    heads = [*columns, *(_HEADS[name] for name in names), "finished", "interval over"]
    rows = [
        [
            *(column[row] for column in columns.values()),
            *(_cell(group.figures.get(name), 1 if name in ("tokens_after", "seconds") else 3) for name in names),
            f"{len(group.finished)} of {len(group.runs)}",
            group.over,
        ]
        for row, group in enumerate(comparison.groups)
    ]
    return heads, rows


def _columns(comparison: Comparison) -> dict[str, list[str]]:
    """Values of each swept key, by the key's label; they are shortened, but different values remain distinct."""
    columns = {}
    for key, label in short_keys(comparison.groups[0].values).items():
        values = [group.values[key] for group in comparison.groups]
        texts, whole = [shown(value) for value in values], [json.dumps(value) for value in values]
        texts = texts if len(set(texts)) == len(set(whole)) else whole
        short = short_names(list(dict.fromkeys(texts)), _MOST_VALUE)
        columns[label] = [short[text] for text in texts]
    return columns


def _cell(figure: Figure | None, digits: int) -> str:
    if figure is None:
        return "–"
    both = "" if figure.both is None else " ({:.{d}f} to {:.{d}f})".format(*figure.both, d=digits)
    return with_interval(figure.mean, figure.interval, digits) + both


def _plot(comparison: Comparison, output: Path) -> bool:
    """Plot each group's accuracy before and after training, with intervals and individual runs; if no run has an
    accuracy, plot rewards instead. Returns False if there is nothing to plot."""
    kind = "accuracy" if any("accuracy_after" in group.figures for group in comparison.groups) else "reward"
    columns = _columns(comparison)
    labels = [
        " ".join(f"{label}={column[row]}" for label, column in columns.items()) or "all runs"
        for row in range(len(comparison.groups))
    ]
    drawn = [
        (label, group)
        for label, group in zip(short_names(labels).values(), comparison.groups, strict=True)
        if f"{kind}_after" in group.figures
    ]
    if not drawn:
        return False
    canvas = Canvas(figsize=(8, max(3.2, 1.2 + 0.4 * len(drawn))), layout="constrained")
    axes = canvas.subplots()
    point: dict[str, Any] = {"color": COLORS[0], "marker": "o", "linestyle": "none"}
    for row, (_, group) in enumerate(drawn):
        first = row == 0
        if before := group.figures.get(f"{kind}_before"):
            axes.plot(before.mean, row, **point, markerfacecolor="white", label="before" if first else None)
        after = group.figures[f"{kind}_after"]
        bars = error_bars([after.mean], [after.interval or (after.mean, after.mean)])
        axes.errorbar(after.mean, row, xerr=bars, **point, capsize=4, label="after, 95% interval" if first else None)
        if len(group.finished) > 1:
            each = [run.figures[f"{kind}_after"].mean for run in group.finished]
            axes.plot(each, [row + 0.22] * len(each), color=GREY, marker="|", linestyle="none")
    ticks = [f"{label}\n{'no ' if group.too_few else ''}interval over {group.over}" for label, group in drawn]
    label_rows(axes, ticks, size=8)
    axes.set(xlabel=f"{kind}, sampled, on the frozen questions (gray: each seed)")
    if kind == "accuracy":
        axes.set_xlim(-0.02, 1.02)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=8)
    canvas.suptitle(comparison.folder.name, parse_math=False)
    save(canvas, output)
    return True
