"""Learning curves: a single training run in detail, or a comparison of several runs.

    plot_run(Path("outputs/RUN"))                                                 # reward_curve.png in the folder
    plot_curves([read_curve(Path("outputs/RUN/metrics.jsonl"), "RUN")], Path("curves.png"))

Accuracies are drawn with 95% intervals, which are read from the run's evaluations.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rg_env.core.run_folder import RunFolder, json_lines
from rg_env.core.text import is_count, is_number, listed
from rg_env.errors import InputError
from rg_env.evaluation.plots import style
from rg_env.evaluation.results import Interval, Results, read_evaluations

REWARD, ACCURACY = "reward", "eval/accuracy"
_PANELS = {REWARD: "reward, training batch", ACCURACY: "accuracy, sampled, on the frozen questions"}
"""Metrics compared between runs, with their labels."""
_MOST, _MOST_STEPS = 1e100, 2**53
"""Maximum absolute value and maximum step that axes can show; diverged runs may log larger values."""
_STYLES = ("-", "--", "-.", ":")
_BLUE, _ORANGE, _GREEN, _PURPLE, *_ = style.COLORS


@dataclass(frozen=True)
class Curve:
    """A run's metrics."""

    name: str
    values: dict[str, dict[int, float]]
    """Values by metric (`REWARD` and `ACCURACY`, if logged) and step."""
    intervals: dict[int, Interval] = field(default_factory=dict)
    """95% interval of the accuracy by step; empty if the run's evaluations are missing."""
    questions: int | None = None
    """Number of frozen questions; None if unknown."""
    asked: object = None
    """Identifies the problems, prompts, sampling and grading of the run's evaluations; None if unknown."""


def read_curve(file: Path, name: str) -> Curve:
    """Read a run's curve from its `metrics.jsonl`, with intervals from the `eval_results` next to it.

    Raises:
        InputError: a file is unreadable, damaged or empty, or is not a `metrics.jsonl`.
    """
    rows = list(json_lines(file))
    if not rows:
        raise InputError(f"{file} is empty: the run has not logged anything yet")
    if any("completion" in row or not is_count(row.get("step"), _MOST_STEPS) for row in rows):  # rollouts
        raise InputError(f"{file} is not a run's metrics.jsonl: pass the metrics.jsonl in the run folder")
    found = {
        metric: {row["step"]: float(row[metric]) for row in rows if _can_be_drawn(row.get(metric))}
        for metric in _PANELS
    }
    values = {metric: dict(sorted(steps.items())) for metric, steps in found.items() if steps}
    if not values:
        raise InputError(f"{file} has nothing to draw: no line has a value for {' or '.join(_PANELS)}")
    evaluations = read_evaluations(RunFolder(file.parent)) if ACCURACY in values else []
    if not evaluations:
        return Curve(name, values)
    intervals = {e.step or 0: s.measured[1] for e in evaluations if (s := e.overall()) and s.accuracy is not None}
    last = evaluations[-1]
    tasks = [(task.sampling, task.grading, task.system_prompt) for task in last.tasks.values()]
    overall = last.overall()
    return Curve(name, values, intervals, overall.n if overall else None, (last.environments, tasks))


def _can_be_drawn(value: Any) -> bool:
    return is_number(value) and abs(value) <= _MOST


# Several runs


def notes_on(curves: Sequence[Curve]) -> list[str]:
    """Reasons why the accuracies of these runs are not fully comparable."""
    measured = [curve for curve in curves if ACCURACY in curve.values]
    known = [curve.asked for curve in measured if curve.asked is not None]
    notes = []
    if any(asked != known[0] for asked in known):
        notes.append(
            "accuracies are not comparable: the runs were evaluated on different problems or in different ways"
        )
    if unknown := [curve.name for curve in measured if curve.asked is None]:
        notes.append(f"no intervals and unknown problems, because eval_results is missing: {listed(unknown)}")
    return notes


def plot_curves(curves: Sequence[Curve], output: Path, title: str | None = None) -> None:
    """Draw reward and accuracy over the optimizer steps, side by side.

    Up to 7 runs are each drawn in their own color, with a band for the 95% interval of the accuracy. If there are more,
    all runs are drawn as thin gray lines, along with their mean over the common steps, and the runs with the highest
    and lowest final values are highlighted.

    Args:
        curves: curves with distinct names.
        output: file of the plot; the suffix determines the format.
        title: default: a single run's name, or the number of runs; empty: no title.

    Raises:
        InputError: the suffix is not one of `style.SUFFIXES`.
        OutputFolderError: the plot cannot be written.
    """
    metrics = [metric for metric in _PANELS if any(metric in curve.values for curve in curves)]
    several, many = len(curves) > 1, len(curves) > len(style.COLORS)
    shown = _ends(curves) if many else list(curves)
    labels = _labels(curves, shown)
    figure, (panels,) = style.panels(5.0 * len(metrics), 3.2, 1, len(metrics), wspace=0.18)
    longest = max(len(curve.values.get(REWARD, ())) for curve in curves)
    window = longest // 25 | 1 if longest > 50 else 1  # steps in the moving mean, an odd number
    handles = [Line2D([], [], **_look(color), linewidth=1.8) for color in range(len(shown))]
    if many:
        handles.append(Line2D([], [], color=style.GREY, alpha=0.5))
    for axes, metric in zip(panels, metrics, strict=True):
        smooth = window if metric == REWARD else 1
        if many and _draw_crowd(axes, curves, metric, smooth) and "mean of all runs" not in labels:
            handles.append(Line2D([], [], color="black", linewidth=2.4))
            labels.append("mean of all runs")
        for color, curve in enumerate(shown):
            _draw_line(axes, curve, metric, smooth, color)
        thick = f"\n(thick: mean over {smooth} steps)" if smooth > 1 else ""
        axes.set_ylabel(f"{_PANELS[metric]}{thick}", fontsize=9)
        shaded = metric == ACCURACY and any(curve.intervals for curve in shown)
        axes.set_xlabel(f"optimizer step{' (shaded: 95% intervals)' if shaded else ''}", fontsize=9)
        style.label_whole_steps(axes)
        if metric == ACCURACY:
            axes.set_ylim(-0.02, 1.02)
            notes = "\n".join(textwrap.fill(note, 64) for note in notes_on(curves))
            axes.set_title(notes, color=_ORANGE, fontsize=8, parse_math=False)
        style.bare(axes, "both")
    last = max(1, *(max(values) for curve in curves for values in curve.values.values()))
    panels[0].set_xlim(-0.03 * last, 1.03 * last)
    if several:
        style.legend(
            panels[-1], handles, labels, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0, fontsize=8
        )
    style.titled(figure, (f"{len(curves)} runs" if several else labels[0]) if title is None else title)
    style.save(figure, output)


def _labels(curves: Sequence[Curve], shown: Sequence[Curve]) -> list[str]:
    """Legend labels, with the number of problems if it differs between runs."""
    names = style.short_names([curve.name for curve in curves], 40)
    if len(shown) < len(curves):
        ends = [
            f"{names[each.name]}\n({end} at the end)" for each, end in zip(shown, ("highest", "lowest"), strict=True)
        ]
        return [*ends, f"the other {len(curves) - 2} runs"]
    differ = len({curve.questions for curve in curves}) > 1
    return [f"{names[each.name]} ({each.questions or '?'} problems)" if differ else names[each.name] for each in shown]


def _look(color: int) -> dict[str, Any]:
    """Color, line style and marker; the line style and marker help readers who cannot distinguish the colors."""
    line = _STYLES[color % len(_STYLES)]
    return {"color": style.COLORS[color], "linestyle": line, "marker": style.MARKERS[color], "markersize": 4.5}


def _draw_line(axes: Axes, curve: Curve, metric: str, window: int, color: int) -> None:
    steps, heights = list(curve.values.get(metric, {})), list(curve.values.get(metric, {}).values())
    if window > 1:
        axes.plot(steps, heights, color=style.COLORS[color], linewidth=0.8, alpha=0.3)
        heights = smoothed(heights, window)
    axes.plot(steps, heights, **_look(color), linewidth=1.8, markevery=max(1, len(steps) // 12))
    if metric == ACCURACY and curve.intervals:
        lower, upper = zip(*curve.intervals.values(), strict=True)
        axes.fill_between(list(curve.intervals), lower, upper, color=style.COLORS[color], alpha=0.13, linewidth=0)


def _draw_crowd(axes: Axes, curves: Sequence[Curve], metric: str, window: int) -> bool:
    """Draw all runs in gray, and their mean over common steps. Returns whether there are common steps."""
    found = [curve.values[metric] for curve in curves if metric in curve.values]
    lines = [dict(zip(each, smoothed(list(each.values()), window), strict=True)) for each in found]
    for line in lines:
        axes.plot(list(line), list(line.values()), color=style.GREY, linewidth=0.8, alpha=0.5)
    if steps := sorted(set.intersection(*map(set, lines))):
        means = [fmean(line[step] for line in lines) for step in steps]
        axes.plot(steps, means, color="black", linewidth=2.4, zorder=4)
    return bool(steps)


def _ends(curves: Sequence[Curve]) -> list[Curve]:
    """Runs with the highest and lowest final accuracy, or final reward if more runs log the reward; the other metric
    breaks ties."""
    first, second = sorted(_PANELS, key=lambda m: (-sum(m in curve.values for curve in curves), m == REWARD))

    def last(curve: Curve) -> list[float]:
        return [[-math.inf, *curve.values.get(metric, {}).values()][-1] for metric in (first, second)]

    having = sorted((curve for curve in curves if first in curve.values), key=last)
    return [having[-1], having[0]]


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Moving mean over `window` values (an odd number), or fewer near the ends."""
    reach = window // 2
    return [fmean(values[max(0, place - reach) : place + reach + 1]) for place in range(len(values))]


# One run


def plot_run(folder: Path, output: Path | None = None) -> Path | None:
    """Draw the learning curve of the run in `folder`: reward per step, and accuracy on the frozen questions.

    If there are several tasks, the first and last accuracies on each of them are drawn below.

    Returns:
        Path of the plot, by default `reward_curve.png` in the folder; None if there is nothing to draw yet.
    """
    run = RunFolder(folder)
    steps = [row for row in run.metrics() if _can_be_drawn(row.get(REWARD))]
    evaluations = read_evaluations(run)
    last = evaluations[-1] if evaluations else None
    tasks = [name for name in last.tasks if last.tasks[name].scores.accuracy is not None] if last else []
    if not steps and not tasks:
        return None
    height = 0.8 + 0.22 * len(tasks) if len(tasks) > 1 else 0.0  # inches
    figure = Figure(figsize=(8, 4.5 + height), layout="constrained")
    if height:
        curve, below = figure.subplots(2, height_ratios=[4.5, height])
        _draw_tasks(below, evaluations, tasks)
    else:
        curve = figure.subplots()
    _draw_run(curve, steps, evaluations)
    name = folder.resolve().name
    title = f"{last.title}\n{name}" if last else name
    figure.suptitle(title, parse_math=False, fontsize=11)  # otherwise text between dollar signs is a formula
    output = output or run.curve_file
    style.save(figure, output)
    return output


def _draw_run(axes: Axes, steps: list[dict[str, Any]], evaluations: Sequence[Results]) -> None:
    if steps:
        heights = [row[REWARD] for row in steps]
        axes.plot(
            [row["step"] for row in steps], heights, color=style.GREY, linewidth=1.2, label="reward, training batch"
        )
    overall = [(each.step or 0, scores) for each in evaluations if (scores := each.overall())]
    held_out = [(each.step or 0, scores) for each in evaluations if (scores := each.overall("held_out"))]
    for label, measured, name, color, marker in (
        ("accuracy, sampled", overall, "accuracy", _BLUE, "o"),
        ("accuracy, greedy", overall, "greedy_accuracy", _ORANGE, "s"),
        ("accuracy, held-out tasks", held_out, "accuracy", _PURPLE, "^"),
    ):
        points = [
            (step, getattr(each, name), each.intervals[name]) for step, each in measured if name in each.intervals
        ]
        if points:
            at, accuracies, intervals = zip(*points, strict=True)
            text = f"{label} ({measured[0][1].n} frozen questions)"
            look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 5, "linewidth": 1.6, "label": text}
            axes.errorbar(at, accuracies, yerr=style.error_bars(accuracies, intervals), capsize=3, **look)
    axes.set(xlabel="optimizer step", ylabel="reward, accuracy (bars: 95% intervals)")
    style.label_whole_steps(axes)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    style.bare(axes, "both")
    handles, labels = axes.get_legend_handles_labels()
    lengths = [(row["step"], row["completions/mean_length"]) for row in steps if row.get("completions/mean_length")]
    if lengths:
        right = axes.twinx()
        handles += right.plot(*zip(*lengths, strict=True), color=_GREEN, linewidth=1.2, linestyle=":")
        labels.append("completion length")
        right.set_ylabel("tokens")
        right.set_ylim(bottom=0)
        right.spines["top"].set_visible(False)
    if held_out:  # their curve may stay low, where the legend would cover it
        axes.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    else:
        axes.legend(handles, labels, loc="lower right", frameon=False)


def _draw_tasks(axes: Axes, evaluations: Sequence[Results], tasks: Sequence[str]) -> None:
    """Draw one row per task, with a hollow marker for the first evaluation's accuracy and a filled one for the last
    evaluation's."""
    looks = {"held_out": ("held out, ", _PURPLE, "^"), "labelled": ("label, ", _GREEN, "D")}
    last, labelled = evaluations[-1].step, set[str]()
    for row, task in enumerate(tasks):
        part, color, marker = looks.get(evaluations[-1].tasks[task].part or "", ("", _BLUE, "o"))
        both = {evaluations[place].step: evaluations[place].tasks[task].scores for place in (0, -1)}
        found = {step: each for step, each in both.items() if each.accuracy is not None}
        axes.plot(
            [each.measured[0] for each in found.values()],
            [row] * len(found),
            color=style.GREY,
            linewidth=1,
            linestyle=":",
        )
        for step, each in found.items():
            look = {"color": color, "marker": marker, "markerfacecolor": color if step == last else "white"}
            label = None if part in labelled else f"{part}step {step}"
            style.draw_intervals(axes, [(row, each)], **look, elinewidth=1, capsize=2, label=label)
        labelled.add(part)
    style.label_rows(axes, tasks, size=8)
    style.share_axis(axes, "accuracy, sampled, on the frozen questions of each task, with 95% intervals")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
