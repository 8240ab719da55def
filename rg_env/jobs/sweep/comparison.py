"""The comparison of a sweep: figures of its runs, means over seeds with intervals, as a table and as a plot.

    comparison = compare(Path("outputs/tiny-sweep-20250101-120000"))
    comparison.groups[0].figures["accuracy_after"]      # Figure(mean=0.97, half_width=0.02)
    write_comparison(comparison)                        # comparison.md, comparison.json, comparison.png

A group is the runs that differ in their seed alone. Runs that are not finished, failed, or were stopped by a monitor
are named and not counted.
"""

import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from rich import box
from rich.console import Console
from rich.table import Table

from rg_env.core.run_folder import RunFolder, write_aside
from rg_env.core.statistics import mean_and_interval, t_critical
from rg_env.core.text import one_line, short_keys, shown
from rg_env.errors import OutputFolderError
from rg_env.evaluation.plots.style import COLORS, GREY, bare, label_whole_steps, save, short_names
from rg_env.jobs.sweep.runs import read_points, status_of

CONFIDENCE = 0.95
_EVALUATED = {
    "accuracy_before": ("accuracy before", "eval_before", "accuracy"),
    "accuracy_after": ("accuracy after", "eval_after", "accuracy"),
    "greedy_after": ("greedy after", "eval_after", "greedy_accuracy"),
    "reward_after": ("reward after", "eval_after", "reward"),
    "held_out_after": ("held-out after", "eval_after", "held_out", "accuracy"),
    "tokens_after": ("tokens after", "eval_after", "mean_completion_tokens"),
}
"""Heading of each figure, and its place in train_results.json."""
_HEADS = {name: head for name, (head, *_) in _EVALUATED.items()} | {"seconds": "seconds"}
_MOST_VALUE = 40
"""Characters of a value in the table; comparison.json has it whole."""
_LEGEND = "Means over finished runs ± half of the 95 % t-interval: over seeds, or of a single run over its questions."


@dataclass(frozen=True)
class Figure:
    """A mean, and half of its 95 % interval; None if unknown."""

    mean: float
    half_width: float | None


@dataclass(frozen=True)
class Run:
    """One point of the sweep. Only a finished run has figures."""

    number: int
    """From 1, in the order of the sweep."""
    name: str
    """Name of its folder."""
    values: dict[str, Any]
    """By swept key."""
    status: str
    reason: str
    """Why it failed or was stopped, or how far it got; may be empty."""
    figures: dict[str, Figure] = field(default_factory=dict)
    """Seconds are those of all steps and evaluations, over interruptions too."""
    questions: int = 0
    """In its last evaluation: of the training tasks; without any, of held-out ones."""
    curve: dict[int, float] = field(default_factory=dict)
    """Sampled accuracy by step."""
    asked: tuple[str, str] = ("", "")
    """The questions and the sampling of its evaluations, as text."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    values: dict[str, Any]
    """By swept key, without the seed."""
    runs: tuple[Run, ...]
    figures: dict[str, Figure]
    """Means over the finished runs, of the figures that all of them have."""

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.status == "finished"]

    @property
    def over(self) -> str:
        """What the intervals are over: several seeds, or the questions of a single run."""
        if not (done := self.finished):
            return ""
        return f"{len(done)} seeds" if len(done) > 1 else f"{done[0].questions} questions"


@dataclass(frozen=True)
class Comparison:
    """All groups of a sweep, in its order."""

    folder: Path
    keys: tuple[str, ...]
    """The swept keys, without the seed."""
    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[Run]:
        return sorted((run for group in self.groups for run in group.runs), key=lambda run: run.number)

    @property
    def notes(self) -> list[str]:
        """What limits the comparison."""
        asked = [run.asked for run in self.runs if run.status == "finished"]
        causes = ("questions", "sampling settings")
        return [
            f"The runs were evaluated with different {cause}, so their figures differ for that reason too."
            for part, cause in enumerate(causes)
            if len({each[part] for each in asked}) > 1
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "confidence": CONFIDENCE,
            "groups": [
                {
                    "values": group.values,
                    "finished": len(group.finished),
                    "runs": len(group.runs),
                    "interval_over": group.over,
                    "figures": {name: vars(figure) for name, figure in group.figures.items()},
                }
                for group in self.groups
            ],
            "runs": [
                {
                    **{name: getattr(run, name) for name in ("name", "values", "status", "reason")},
                    "figures": {name: figure.mean for name, figure in run.figures.items()},
                }
                for run in self.runs
            ],
            "notes": self.notes,
        }


def compare(folder: Path) -> Comparison:
    """The comparison of the sweep in `folder`, of the runs that have finished so far.

    Raises:
        InputError: it is not a sweep, or a file of it is damaged.
    """
    runs = [_run(folder, number, *point) for number, point in enumerate(read_points(folder).items(), 1)]
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_without_seed(run.values), sort_keys=True), []).append(run)
    keys = tuple(dict.fromkeys(key for run in runs for key in _without_seed(run.values)))
    return Comparison(folder, keys, tuple(map(_group, groups.values())))


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
        if scores and (mean := scores.get(key)) is not None:
            n = scores["n"]
            figures[figure] = Figure(mean, t_critical(n - 1, CONFIDENCE) * scores[f"{key}_se"] if n > 1 else None)
    metrics = run.metrics()
    seconds = math.fsum(each.get(key) or 0.0 for each in metrics for key in ("step_time", "time/evaluation"))
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
        {each["step"]: each["eval/accuracy"] for each in metrics if each.get("eval/accuracy") is not None},
        (json.dumps(hashes), json.dumps(last.get("sampling"), sort_keys=True)),
    )


def _group(runs: Sequence[Run]) -> Group:
    done = [run for run in runs if run.status == "finished"]
    figures = dict(done[0].figures) if len(done) == 1 else {}
    for name in _HEADS:
        if len(done) > 1 and all(name in run.figures for run in done):
            figures[name] = Figure(*mean_and_interval([run.figures[name].mean for run in done], CONFIDENCE))
    return Group(_without_seed(runs[0].values), tuple(runs), figures)


def _without_seed(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "seed"}


# The table


def write_comparison(comparison: Comparison) -> list[str]:
    """Write comparison.md, comparison.json and, if a run has finished, comparison.png into the folder of the sweep.

    Returns:
        The names of the files.

    Raises:
        OutputFolderError: they cannot be written.
    """
    folder = comparison.folder
    try:
        write_aside(folder / "comparison.md", markdown(comparison))
        text = json.dumps(comparison.as_json(), indent=1, ensure_ascii=False)
        write_aside(folder / "comparison.json", text + "\n")
    except OSError as error:
        raise OutputFolderError(f"cannot write the comparison to {folder}: {error.strerror}") from error
    names = ["comparison.md", "comparison.json"]
    return [*names, "comparison.png"] if _plot(comparison, folder / "comparison.png") else names


def print_comparison(comparison: Comparison, width: int | None = None) -> None:
    """Print the table, and the runs that are not in it. `width` of the console; default: the terminal's."""
    console = Console(markup=False, highlight=False, width=width)
    heads, rows = _cells(comparison)
    table = _table(heads, rows, names=len(comparison.keys))
    if _width(table, console) > console.width:  # a column for each group instead
        table = _table([], [list(column) for column in zip(heads, *rows, strict=True)], names=1)
    console.width = max(console.width, _width(table, console))  # no figure is cut
    with console.capture() as captured:
        console.print(table)
    print(f"Sweep {one_line(comparison.folder)}", captured.get().rstrip("\n"), sep="\n")
    for line in [_LEGEND, *comparison.notes, *_missing(comparison)]:
        print(line)


def _width(table: Table, console: Console) -> int:
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum


def _table(heads: list[str], rows: list[list[str]], names: int) -> Table:
    """`names`: the number of columns that identify a row."""
    table = Table(box=box.SIMPLE, show_header=bool(heads))
    for number in range(len(rows[0])):
        head = heads[number] if heads else ""
        table.add_column(head, justify="left" if number < names else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def markdown(comparison: Comparison) -> str:
    """The table as Markdown."""
    heads, rows = _cells(comparison)
    rule = ["---"] * len(comparison.keys) + ["---:"] * (len(heads) - len(comparison.keys))
    head, *body = [f"| {' | '.join(map(_escaped, row))} |" for row in [heads, *rows]]
    lines = [f"# Sweep {_escaped(comparison.folder.name)}", "", head, f"|{'|'.join(rule)}|", *body]
    lines += ["", _LEGEND, *comparison.notes]
    if missing := _missing(comparison):
        lines += ["", *(f"- {_escaped(line)}" for line in missing)]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Text that Markdown shows to the letter, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def _cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and rows, without figures that no group has."""
    names = [name for name in _HEADS if any(name in group.figures for group in comparison.groups)]
    columns = _columns(comparison)
    heads = [*columns, *(_HEADS[name] for name in names), "finished", "± over"]
    rows = [
        [
            *(column[row] for column in columns.values()),
            *(_figure(group.figures.get(name), 1 if name in ("tokens_after", "seconds") else 2) for name in names),
            f"{len(group.finished)} of {len(group.runs)}",
            group.over,
        ]
        for row, group in enumerate(comparison.groups)
    ]
    return heads, rows


def _columns(comparison: Comparison) -> dict[str, list[str]]:
    """The values of each swept key, by its label, in a few characters; different values never look alike."""
    columns = {}
    for key, label in short_keys(comparison.keys).items():
        values = [group.values[key] for group in comparison.groups]
        texts, whole = [shown(value) for value in values], [json.dumps(value) for value in values]
        texts = texts if len(set(texts)) == len(set(whole)) else whole
        short = short_names(list(dict.fromkeys(texts)), _MOST_VALUE)
        columns[label] = [short[text] for text in texts]
    return columns


def _figure(figure: Figure | None, digits: int) -> str:
    if figure is None:
        return "–"
    half = "" if figure.half_width is None else f" ± {figure.half_width:.{digits}f}"
    return f"{figure.mean:.{digits}f}{half}"


def _missing(comparison: Comparison) -> list[str]:
    """One line for each run that has not finished."""
    return [
        f"not in the table: {run.number} {run.name}: {run.status}{f' ({run.reason})' if run.reason else ''}"
        for run in comparison.runs
        if run.status != "finished"
    ]


# The plot

_BEFORE: dict[str, Any] = {"marker": "o", "markersize": 6, "markerfacecolor": "white", "linestyle": "none", "zorder": 3}
_AFTER: dict[str, Any] = {"marker": "o", "markersize": 6, "linestyle": "none"}
_EACH: dict[str, Any] = {"marker": "|", "markersize": 8, "linestyle": "none", "color": GREY}


def _plot(comparison: Comparison, output: Path) -> bool:
    """Draw each group before and after training, with the interval and each run, and the learning curves next to it
    if there are few groups. Rewards if no run has an accuracy, then without curves.

    Returns:
        Whether there was anything to draw.
    """
    columns = _columns(comparison)
    labels = {
        " ".join(f"{label}={column[row]}" for label, column in columns.items()) or "all runs": group
        for row, group in enumerate(comparison.groups)
        if group.figures.keys() & {"accuracy_after", "reward_after"}
    }
    groups = list(labels.values())
    if not groups:
        return False
    kind = "accuracy" if any("accuracy_after" in group.figures for group in groups) else "reward"
    few = len(groups) <= len(COLORS)
    curves = kind == "accuracy" and few and any(len(_curve(group)) > 1 for group in groups)
    canvas = Canvas(figsize=(12 if curves else 8, max(3.2, 1.2 + 0.4 * len(groups))), layout="constrained")
    axes = canvas.subplots(1, 2 if curves else 1, squeeze=False)[0]
    _draw_ends(axes[0], groups, kind, list(short_names(list(labels)).values()))
    if curves:
        _draw_curves(axes[1], groups)
    canvas.suptitle(comparison.folder.name, parse_math=False)
    save(canvas, output)
    return True


def _draw_ends(axes: Axes, groups: list[Group], kind: str, labels: list[str]) -> None:
    """One line for each group, the first on top."""
    few = len(groups) <= len(COLORS)
    ticks = [f"{label}\n± over {group.over}" for label, group in zip(labels, groups, strict=True)]
    axes.set_yticks(range(len(groups)), ticks, fontsize=8, parse_math=False)
    for row, (group, tick) in enumerate(zip(groups, axes.get_yticklabels(), strict=True)):
        color = COLORS[row if few else 0]
        tick.set_color(color if few else "black")
        if (before := group.figures.get(f"{kind}_before")) is not None:
            axes.plot(before.mean, row, **_BEFORE, color=color)
        if (after := group.figures.get(f"{kind}_after")) is not None:
            axes.errorbar(after.mean, row, xerr=after.half_width, **_AFTER, color=color, elinewidth=1.6, capsize=4)
            if len(group.finished) > 1:
                each = [run.figures[f"{kind}_after"].mean for run in group.finished]
                axes.plot(each, [row + 0.22] * len(each), **_EACH)
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set(xlabel=f"{kind}, sampled, on the frozen problems")
    if kind == "accuracy":
        axes.set_xlim(-0.02, 1.02)  # an interval over two seeds can be wider than that
    bare(axes, "x")
    looks = {"before": _BEFORE, "after, 95 % interval": _AFTER}
    if any(len(group.finished) > 1 for group in groups):
        looks["after, each seed"] = _EACH
    handles = [Line2D([], [], **{"color": GREY, **look}) for look in looks.values()]
    axes.legend(handles, looks, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8)


def _draw_curves(axes: Axes, groups: list[Group]) -> None:
    """Means over seeds, and a band from the lowest to the highest seed."""
    for color, group in zip(COLORS, groups, strict=False):
        curve = _curve(group)
        steps, means = list(curve), [statistics.fmean(each) for each in curve.values()]
        axes.plot(steps, means, color=color, marker="o", markersize=4, linewidth=1.6)
        lowest, highest = map(min, curve.values()), map(max, curve.values())
        axes.fill_between(steps, list(lowest), list(highest), color=color, alpha=0.15, linewidth=0)
    if any(len(group.finished) > 1 for group in groups):
        axes.set_title("mean, and a band from the lowest to the highest seed", fontsize=8)
    axes.set(xlabel="optimizer step", ylabel="accuracy, sampled")
    label_whole_steps(axes)
    axes.set_ylim(-0.02, 1.02)
    bare(axes, "both")


def _curve(group: Group) -> dict[int, list[float]]:
    """The accuracies of the finished runs at each step at which all of them were evaluated."""
    runs = [run for run in group.finished if run.curve]
    steps = sorted(set.intersection(*(set(run.curve) for run in runs))) if runs else []
    return {step: [run.curve[step] for run in runs] for step in steps}
