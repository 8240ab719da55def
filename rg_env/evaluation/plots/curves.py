"""Plot the learning curves of a single training run in detail, or compare the curves of several runs.

    plot_run(Path("outputs/RUN"))                                                 # reward_curve.png in the folder
    plot_curves([read_curve(Path("outputs/RUN/metrics.jsonl"), "RUN")], Path("curves.png"))

Accuracies are drawn with 95% intervals, which are read from each run's evaluations.
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
from rg_env.core.text import is_number, listed
from rg_env.errors import InputError
from rg_env.evaluation.plots import style
from rg_env.evaluation.results import SUFFIXES, Interval, Results, read_evaluations

REWARD, ACCURACY = "reward", "eval/accuracy"
_PANELS = {REWARD: "reward, training batch", ACCURACY: "accuracy, sampled, on the frozen questions"}
"""Labels of the metrics that are compared between runs, by metric."""
_DASHES = ("-", "--", "-.", ":")
_BLUE, _ORANGE, _GREEN, _PURPLE, *_ = style.COLORS


@dataclass(frozen=True)
class Curve:
    """A run's metrics."""

    name: str
    values: dict[str, dict[int, float]]
    """Values by metric (`REWARD` and `ACCURACY`, if logged) and step."""
    intervals: dict[int, Interval] = field(default_factory=dict)
    """95% interval of the accuracy at each evaluated step. The mapping is empty if the run's evaluations are
    missing."""
    questions: int | None = None
    """Number of frozen questions, or None if the number is unknown."""
    asked: object = None
    """Value that identifies the questions, prompts, sampling and grading used in the run's evaluations, or None if
    these are unknown."""


def read_curve(file: Path, name: str) -> Curve:
    """Read a run's curve from its `metrics.jsonl`, with intervals from the `eval_results` folder next to it.

    Raises:
        InputError: a file is unreadable or damaged, is not a `metrics.jsonl`, or has nothing to draw.
    """
    values: dict[str, dict[int, float]] = {}
    for row in json_lines(file):
        if "step" not in row or "completion" in row:  # rollouts
            raise InputError(f"{file} is not a run's metrics.jsonl: pass the metrics.jsonl in the run folder")
        for metric in _PANELS:
            if is_number(row.get(metric)):
                values.setdefault(metric, {})[row["step"]] = row[metric]
    if not values:
        raise InputError(f"{file} has nothing to draw, because the run has not logged {' or '.join(_PANELS)} yet")
    values = {metric: dict(sorted(steps.items())) for metric, steps in values.items()}
    evaluations = read_evaluations(RunFolder(file.parent)) if ACCURACY in values else []
    if not evaluations:
        return Curve(name, values)
    intervals = {e.step or 0: s.measured[1] for e in evaluations if (s := e.overall()) and s.accuracy is not None}
    last = evaluations[-1]
    tasks = [(task.sampling, task.grading, task.system_prompt) for task in last.tasks.values()]
    overall = last.overall()
    return Curve(name, values, intervals, overall.n if overall else None, (last.environments, tasks))


# Several runs


def notes_on(curves: Sequence[Curve]) -> list[str]:
    """Return the reasons why the accuracies of these runs are not fully comparable."""
    measured = [curve for curve in curves if ACCURACY in curve.values]
    known = [curve.asked for curve in measured if curve.asked is not None]
    notes = []
    if any(asked != known[0] for asked in known):
        notes.append(
            "accuracies are not comparable, because the runs were evaluated on different questions or in different ways"
        )
    if unknown := [curve.name for curve in measured if curve.asked is None]:
        notes.append(
            f"{listed(unknown)}: no intervals are shown, and it is not known which questions were used for evaluation, "
            "because eval_results is missing"
        )
    return notes


@style.styled
def plot_curves(curves: Sequence[Curve], output: Path, title: str | None = None) -> None:
    """Plot reward and accuracy against the optimizer step, side by side.

    If there are at most 7 runs, each run is drawn in its own color, with a band for the 95% interval of the accuracy.
    If there are more than 7 runs, all runs are drawn as thin gray lines, along with their mean at each step that all
    runs share, and the runs with the highest and lowest final accuracies are highlighted.

    Args:
        curves: curves with distinct names.
        output: output file for the plot. The file's suffix determines the format.
        title: title of the plot. The default is the run's name if there is only one run, otherwise the number of runs.
            An empty string means no title.

    Raises:
        InputError: the suffix is not one of `style.SUFFIXES`.
        OutputFolderError: the plot cannot be written.
    """
    metrics = [metric for metric in _PANELS if any(metric in curve.values for curve in curves)]
    many = len(curves) > len(style.COLORS)
    ordered = sorted(curves, key=_at_end)
    shown = [ordered[-1], ordered[0]] if many else curves
    figure, (panels,) = style.panels(5.0 * len(metrics), 3.2, 1, len(metrics), wspace=0.18)
    longest = max(len(curve.values.get(REWARD, ())) for curve in curves)
    for axes, metric in zip(panels, metrics, strict=True):
        window = longest // 25 | 1 if metric == REWARD and longest > 50 else 1  # must be odd
        lines = {curve.name: smoothed(curve.values.get(metric, {}), window) for curve in curves}
        crowd = _draw_crowd(axes, [line for line in lines.values() if line]) if many else []
        handles = [_draw_line(axes, curve, metric, lines[curve.name], color) for color, curve in enumerate(shown)]
        thick = f"\n(thick: mean over {window} steps)" if window > 1 else ""
        axes.set_ylabel(f"{_PANELS[metric]}{thick}")
        shaded = metric == ACCURACY and any(curve.intervals for curve in shown)
        axes.set_xlabel(f"optimizer step{' (shaded: 95% intervals)' if shaded else ''}")
        style.label_whole_steps(axes)
        if metric == ACCURACY:
            axes.set_ylim(-0.02, 1.02)
            notes = "\n".join(textwrap.fill(note, 64) for note in notes_on(curves))
            axes.set_title(notes, color=_ORANGE, fontsize=8)
    last = max(1, *(max(values) for curve in curves for values in curve.values.values()))
    panels[0].set_xlim(-0.03 * last, 1.03 * last)
    labels = _labels(curves, shown)
    if len(curves) > 1:
        panels[-1].legend([*handles, *crowd], labels, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0)
    style.titled(figure, (f"{len(curves)} runs" if len(curves) > 1 else labels[0]) if title is None else title)
    style.save(figure, output)


def _labels(curves: Sequence[Curve], shown: Sequence[Curve]) -> list[str]:
    """Return the legend labels, with the number of questions if that number differs between runs."""
    names = style.short_names([curve.name for curve in curves], 40)
    if len(shown) < len(curves):
        ends = [
            f"{names[each.name]}\n({end} at the end)" for each, end in zip(shown, ("highest", "lowest"), strict=True)
        ]
        return [*ends, f"the other {len(curves) - 2} runs", "mean of all runs"]
    differ = len({curve.questions for curve in curves}) > 1
    return [f"{names[each.name]} ({each.questions or '?'} questions)" if differ else names[each.name] for each in shown]


def _draw_line(axes: Axes, curve: Curve, metric: str, line: dict[int, float], color: int) -> Line2D:
    """Draw a run's smoothed line, its original line (if different), and its intervals. The line style and marker help
    readers who cannot distinguish the colors."""
    look: dict[str, Any] = {"color": style.COLORS[color], "linestyle": _DASHES[color % 4], "linewidth": 1.8}
    values = curve.values.get(metric, {})
    if line != values:
        axes.plot(*_points(values), color=style.COLORS[color], linewidth=0.8, alpha=0.3)
    if metric == ACCURACY and curve.intervals:
        lower, upper = zip(*curve.intervals.values(), strict=True)
        axes.fill_between(list(curve.intervals), lower, upper, color=style.COLORS[color], alpha=0.13, linewidth=0)
    axes.plot(*_points(line), marker=style.MARKERS[color], markersize=4.5, markevery=max(1, len(line) // 12), **look)
    return Line2D([], [], marker=style.MARKERS[color], markersize=4.5, **look)


def _draw_crowd(axes: Axes, lines: Sequence[dict[int, float]]) -> list[Line2D]:
    """Draw all runs in gray, along with their mean at each step that all runs share."""
    for line in lines:
        axes.plot(*_points(line), color=style.GREY, linewidth=0.8, alpha=0.5)
    steps = sorted(set.intersection(*map(set, lines)))
    means = [fmean(line[step] for line in lines) for step in steps]
    mean = axes.plot(steps, means, color="black", linewidth=2.4, zorder=4)
    return [Line2D([], [], color=style.GREY, alpha=0.5), *mean]


def _points(line: dict[int, float]) -> tuple[list[int], list[float]]:
    return list(line), list(line.values())


def _at_end(curve: Curve) -> list[float]:
    """Return the final accuracy and reward, for sorting. A missing metric counts as lower than any value."""
    return [[-math.inf, *curve.values.get(metric, {}).values()][-1] for metric in (ACCURACY, REWARD)]


def smoothed(values: dict[int, float], window: int) -> dict[int, float]:
    """Return the moving mean over `window` steps (an odd number), or over fewer steps near the ends."""
    reach, heights = window // 2, list(values.values())
    return {step: fmean(heights[max(0, place - reach) : place + reach + 1]) for place, step in enumerate(values)}


# One run


@style.styled
def plot_run(folder: Path, output: Path | None = None) -> Path | None:
    """Draw the learning curve of the run in `folder`: reward and completion length per step, and accuracy on the frozen
    questions.

    If there are several tasks, each task's first and last accuracies are drawn below the curve.

    Returns:
        Path of the plot (by default, `reward_curve.png` in the folder), or None if there is nothing to draw yet.
    """
    run = RunFolder(folder)
    steps = [row for row in run.metrics() if is_number(row.get(REWARD))]
    evaluations = read_evaluations(run)
    tasks = evaluations[-1].tasks if evaluations else {}
    measured = [name for name, task in tasks.items() if task.scores.accuracy is not None]
    if not steps and not measured:
        return None
    height = 0.8 + 0.22 * len(measured) if len(measured) > 1 else 0.0  # inches
    figure = Figure(figsize=(8, 4.5 + height), layout="constrained")
    if height:
        curve, below = figure.subplots(2, height_ratios=[4.5, height])
        _draw_tasks(below, (evaluations[0], evaluations[-1]), measured)
    else:
        curve = figure.subplots()
    _draw_run(curve, steps, evaluations)
    name = folder.resolve().name
    figure.suptitle(f"{evaluations[-1].title}\n{name}" if evaluations else name, fontsize=11)
    output = output or run.curve_file
    style.save(figure, output)
    return output


def _draw_run(axes: Axes, steps: list[dict[str, Any]], evaluations: Sequence[Results]) -> None:
    if steps:
        heights = [row[REWARD] for row in steps]
        axes.plot([row["step"] for row in steps], heights, color=style.GREY, linewidth=1.2, label=_PANELS[REWARD])
    for label, color, marker in (("sampled", _BLUE, "o"), ("greedy", _ORANGE, "s"), ("held-out tasks", _PURPLE, "^")):
        points = [(each.step or 0, *found[label]) for each in evaluations if label in (found := each.accuracies())]
        if points:
            at, scores, accuracies, intervals = zip(*points, strict=True)
            look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 5, "linewidth": 1.6, "capsize": 3}
            text = f"accuracy, {label} ({scores[0].n} frozen questions)"
            axes.errorbar(at, accuracies, yerr=style.error_bars(accuracies, intervals), label=text, **look)
    axes.set(xlabel="optimizer step", ylabel="reward, accuracy (bars: 95% intervals)")
    style.label_whole_steps(axes)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    handles, labels = axes.get_legend_handles_labels()
    lengths = {row["step"]: row["completions/mean_length"] for row in steps if row.get("completions/mean_length")}
    if lengths:
        right = axes.twinx()
        handles += right.plot(*_points(lengths), color=_GREEN, linewidth=1.2, linestyle=":")
        labels.append("completion length")
        right.set(ylabel="tokens", ylim=(0, None))
        right.grid(visible=False)
        right.spines["right"].set_visible(True)
    axes.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9)


def _draw_tasks(axes: Axes, evaluations: Sequence[Results], names: Sequence[str]) -> None:
    """Draw one row per task, with the task's accuracy in each of `evaluations`."""
    tasks = evaluations[-1].tasks
    series = {f"step {each.step}": [each.tasks[name].scores for name in names] for each in evaluations}
    handles = style.draw_series(axes, series)
    style.label_rows(axes, [f"{name}{SUFFIXES.get(tasks[name].part or '', '')}" for name in names], size=8)
    style.share_axis(axes, "accuracy, sampled, on the frozen questions of each task, with 95% intervals")
    axes.legend(handles, list(series), loc="upper left", bbox_to_anchor=(1.0, 1.0))
