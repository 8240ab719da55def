"""Plot the learning curves of a single training run in detail, or compare the curves of several runs.

    plot_run(Path("outputs/RUN"))                                                 # reward_curve.png in the folder
    plot_curves([read_curve(Path("outputs/RUN/metrics.jsonl"), "RUN")], Path("curves.png"))
    plot_curves([averaged("lr=1e-5", curves)], Path("curves.png"))                # the mean of several runs

Accuracies are drawn with 95% intervals, which are read from each run's evaluations.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rg_env.core.run_folder import RunFolder, json_lines
from rg_env.core.statistics import Interval, mean_interval, runs_interval
from rg_env.core.text import counted, is_number, listed
from rg_env.errors import InputError
from rg_env.evaluation.plots import style
from rg_env.evaluation.results import Results, read_evaluations

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
    """95% interval of the accuracy at each evaluated step: over the questions, or for a mean of several runs, over the
    runs. The mapping is empty if the run's evaluations are missing, or for a mean of two runs."""
    questions: int | None = None
    """Number of frozen questions, or None if the number is unknown."""
    asked: object = None
    """Value that identifies the questions, prompts, sampling and grading used in the run's evaluations, or None if
    these are unknown."""
    reward_intervals: dict[int, Interval] = field(default_factory=dict)
    """95% interval of the reward at each step, for a mean of at least three runs."""
    runs: int = 1
    """Number of runs of which this curve is the mean."""


def averaged(name: str, curves: Sequence[Curve]) -> Curve:
    """Return the mean curve of several runs, at the steps that all of them have. With three runs or more, it has 95%
    intervals over the runs: `runs_interval` for accuracies, Student's t-interval for rewards."""
    if len(curves) == 1:
        return replace(curves[0], name=name)
    values: dict[str, dict[int, list[float]]] = {}
    for metric in _PANELS:
        found = [curve.values.get(metric, {}) for curve in curves]
        if steps := [step for step in found[0] if all(step in each for each in found)]:
            values[metric] = {step: [each[step] for each in found] for step in steps}
    enough = len(curves) >= 3
    known = [curve.questions for curve in curves if curve.questions]
    shares = values.get(ACCURACY, {}) if enough and known else {}
    rewards = {step: mean_interval([[each] for each in of_runs]) for step, of_runs in values.get(REWARD, {}).items()}
    return Curve(
        f"{name} ({counted(len(curves), 'run')})",
        {metric: {step: fmean(each) for step, each in steps.items()} for metric, steps in values.items()},
        {step: runs_interval(each, min(known)) for step, each in shares.items()},
        min(known, default=None),
        curves[0].asked if all(curve.asked == curves[0].asked for curve in curves) else [each.asked for each in curves],
        {step: interval for step, interval in rewards.items() if interval and enough},
        len(curves),
    )


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
def plot_curves(
    curves: Sequence[Curve], output: Path, title: str | None = None, size: tuple[float, float] | None = None
) -> None:
    """Plot reward and accuracy by optimizer step, side by side. Up to 7 curves have bands for their 95% intervals.

    Args:
        curves: curves with distinct names.
        output: output file for the plot. The file's suffix determines the format.
        title: title of the plot. The default is the run's name if there is only one run, otherwise the number of runs.
            An empty string means no title.
        size: width and height of the image in inches. By default, they depend on the contents.

    Raises:
        InputError: the suffix is not one of `style.IMAGE_SUFFIXES`.
        OutputFolderError: the plot cannot be written.
    """
    metrics = [metric for metric in _PANELS if any(metric in curve.values for curve in curves)]
    width = max(1.0, (size[0] - 1.6) / len(metrics)) if size else 5.0  # of a panel, in inches
    figure, (panels,) = style.panels(width * len(metrics), 3.2, 1, len(metrics), wspace=0.9 / width)
    longest = max(len(curve.values.get(REWARD, ())) for curve in curves)
    few = len(curves) <= len(style.COLORS)
    about = (
        "\n(shaded: 95% intervals over runs)" if any(curve.runs > 1 for curve in curves) else " (shaded: 95% intervals)"
    )
    for axes, metric in zip(panels, metrics, strict=True):
        window = longest // 25 | 1 if metric == REWARD and longest > 50 else 1  # must be odd
        shaded = few and any(_intervals(curve, metric) for curve in curves)
        handles = [_draw_line(axes, curve, metric, window, number, shaded) for number, curve in enumerate(curves)]
        thick = f"\n(thick: mean over {window} steps)" if window > 1 else ""
        label = textwrap.fill(_PANELS[metric], max(12, int(14 * (size[1] - 0.9)))) if size else _PANELS[metric]
        axes.set_ylabel(f"{label}{thick}")
        axes.set_xlabel(f"optimizer step{about if shaded else ''}")
        style.label_whole_steps(axes)
        if metric == ACCURACY:
            axes.set_ylim(-0.02, 1.02)
            notes = "\n".join(textwrap.fill(note, 64) for note in notes_on(curves))
            axes.set_title(notes, color=_ORANGE, fontsize=8)
    last = max(1, *(max(values) for curve in curves for values in curve.values.values()))
    panels[0].set_xlim(-0.03 * last, 1.03 * last)
    labels = _labels(curves)
    if len(curves) > 1:
        beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1), "borderaxespad": 0}
        panels[-1].legend(handles, labels, **({"loc": "best", "fontsize": 7} if size else beside))
    default = f"{sum(curve.runs for curve in curves)} runs" if len(curves) > 1 else labels[0]
    style.finish(figure, default if title is None else title, output, size)


def _labels(curves: Sequence[Curve]) -> list[str]:
    """Return the legend labels, with the number of questions if that number differs between runs."""
    names = style.short_names([curve.name for curve in curves], 40)
    differ = len({curve.questions for curve in curves}) > 1
    return [f"{names[each.name]} ({each.questions or '?'} questions)" if differ else names[each.name]
            for each in curves]  # fmt: skip


def _draw_line(axes: Axes, curve: Curve, metric: str, window: int, number: int, shaded: bool) -> Line2D:
    """Draw a run's smoothed line, its original line (if different), and its intervals. The line style and marker help
    readers who cannot distinguish the colors."""
    look: dict[str, Any] = {**style.look_of(number), "linestyle": _DASHES[number % 4], "linewidth": 1.8}
    values = curve.values.get(metric, {})
    if window > 1:
        axes.plot(*_points(values), color=look["color"], linewidth=0.8, alpha=0.3)
    if shaded and (intervals := _intervals(curve, metric)):
        ends = [smoothed({step: each[side] for step, each in intervals.items()}, window) for side in (0, 1)]
        lower, upper = (list(each.values()) for each in ends)
        axes.fill_between(list(intervals), lower, upper, color=look["color"], alpha=0.13, linewidth=0)
    line = smoothed(values, window)
    axes.plot(*_points(line), markersize=4.5, markevery=max(1, len(line) // 12), **look)
    return Line2D([], [], markersize=4.5, **look)


def _intervals(curve: Curve, metric: str) -> dict[int, Interval]:
    return curve.intervals if metric == ACCURACY else curve.reward_intervals


def _points(line: dict[int, float]) -> tuple[list[int], list[float]]:
    return list(line), list(line.values())


def smoothed(values: dict[int, float], window: int) -> dict[int, float]:
    """Return the moving mean over `window` steps (an odd number), or over fewer steps near the ends."""
    reach, heights = window // 2, list(values.values())
    return {step: fmean(heights[max(0, place - reach) : place + reach + 1]) for place, step in enumerate(values)}


# One run


@style.styled
def plot_run(folder: Path, output: Path | None = None) -> Path | None:
    """Draw the learning curve of the run in `folder`: reward and completion length per step, and accuracy on the frozen
    questions.

    Returns:
        Path of the plot (by default, `reward_curve.png` in the folder), or None if there is nothing to draw yet.
    """
    run = RunFolder(folder)
    steps = [row for row in run.metrics() if is_number(row.get(REWARD))]
    evaluations = read_evaluations(run)
    if not steps and not any(each.accuracies() for each in evaluations):
        return None
    figure = Figure(figsize=(6.8, 4.2), layout="constrained")
    _draw_run(figure.subplots(), steps, evaluations)
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
            text = f"accuracy, {label} ({scores[0].n} questions)"
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
