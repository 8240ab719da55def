"""Learning curves: of one training run in detail, or of several runs compared.

plot_run(Path("outputs/RUN"))                                                     # reward_curve.png in the folder
plot_curves([read_curve(Path("outputs/RUN/metrics.jsonl"), "RUN")], Path("curves.png"))
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rg_env.core.run_folder import RunFolder, json_lines
from rg_env.core.text import is_count, is_number
from rg_env.errors import InputError
from rg_env.evaluation.plots.style import (
    COLORS,
    GREY,
    MARKERS,
    bare,
    label_whole_steps,
    label_width,
    legend,
    save,
    short_names,
    titled,
)

_PANELS = {"reward": "reward, training batch", "eval/accuracy": "accuracy, sampled, on the frozen problems"}
"""Metrics of a comparison of runs, and their labels."""
_MOST, _MOST_STEPS = 1e100, 2**53
"""Axes cannot show values farther from 0, which a run that diverged may log."""
_STYLES = ("-", "--", "-.", ":")
_BLUE, _ORANGE, _GREEN, _PURPLE, *_ = COLORS

Scores = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """The metrics of one run."""

    name: str
    values: dict[str, dict[int, float]]
    """By metric and step: `reward` and `eval/accuracy`, if it has them."""


def read_curve(file: Path, name: str) -> Curve:
    """The curve of a run in its `metrics.jsonl`.

    Raises:
        InputError: it is unreadable, damaged, empty, or another file.
    """
    rows = list(json_lines(file))
    if not rows:
        raise InputError(f"{file} is empty: the run has not logged anything yet")
    if any("completion" in row or not is_count(row.get("step"), _MOST_STEPS) for row in rows):  # rollouts
        raise InputError(f"{file} is not a metrics.jsonl of a run: give that file")
    found = {
        metric: {row["step"]: float(row[metric]) for row in rows if _can_be_drawn(row.get(metric))}
        for metric in _PANELS
    }
    if not any(found.values()):
        raise InputError(f"{file} has nothing to draw: no line has a value of {' or '.join(_PANELS)}")
    return Curve(name, {metric: dict(sorted(values.items())) for metric, values in found.items() if values})


def _can_be_drawn(value: Any) -> bool:
    return is_number(value) and abs(value) <= _MOST


# Several runs


def plot_curves(curves: Sequence[Curve], output: Path, title: str | None = None) -> None:
    """Draw reward and accuracy over the optimizer steps, side by side.

    Up to 7 runs have a color each. More are thin gray lines, with their mean over the steps that all have, and the runs
    that end highest and lowest.

    Args:
        curves: with different names.
        output: the plot; its suffix decides the format.
        title: default: the name of a single run, or the number of runs; empty: none.

    Raises:
        InputError: the suffix is not one of `style.SUFFIXES`.
        OutputFolderError: it cannot be written.
    """
    metrics = [metric for metric in _PANELS if any(metric in curve.values for curve in curves)]
    labels = list(short_names([curve.name for curve in curves], 40).values())
    several, many = len(curves) > 1, len(curves) > len(COLORS)
    width = 5.2 * len(metrics) + (label_width([*labels, "-" * 20], 8) + 0.6 if several else 0.0)
    figure = Figure(figsize=(width, max(3.6, 1.0 + 0.2 * min(len(curves), len(COLORS)))), layout="constrained")
    panels = figure.subplots(1, len(metrics), squeeze=False, sharex=True)[0]
    shown = _ends(curves) if many else list(range(len(curves)))
    longest = max(len(curve.values.get("reward", ())) for curve in curves)
    window = longest // 25 | 1 if longest > 50 else 1  # steps of a moving mean, an odd number
    has_mean = False
    for axes, metric in zip(panels, metrics, strict=True):
        if many:
            has_mean |= _draw_crowd(axes, curves, metric, window)
        for color, which in enumerate(shown):
            _draw_line(axes, curves[which].values.get(metric, {}), metric, window, color)
        smooth = f"\n(thick: mean over {window} steps)" if metric == "reward" and window > 1 else ""
        axes.set_ylabel(f"{_PANELS[metric]}{smooth}", fontsize=9)
        axes.set_xlabel("optimizer step", fontsize=9)
        label_whole_steps(axes)
        if metric == "eval/accuracy":
            axes.set_ylim(-0.02, 1.02)
        bare(axes, "both")
    last = max(1, *(max(values) for curve in curves for values in curve.values.values()))
    panels[0].set_xlim(-0.03 * last, 1.03 * last)
    if several:
        handles = [Line2D([], [], **_look(color), linewidth=1.8) for color in range(len(shown))]
        names = [labels[which] for which in shown]
        if many:
            names = [f"{name}\n({end} at the end)" for name, end in zip(names, ("highest", "lowest"), strict=True)]
            handles.append(Line2D([], [], color=GREY, alpha=0.5))
            names.append(f"the other {len(curves) - 2} runs")
        if has_mean:
            handles.append(Line2D([], [], color="black", linewidth=2.4))
            names.append("mean of all runs")
        legend(panels[-1], handles, names, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0, fontsize=8)
    titled(figure, (f"{len(curves)} runs" if several else labels[0]) if title is None else title)
    save(figure, output)


def _look(color: int) -> dict[str, Any]:
    """A color, and a line style and marker for readers who see no colors."""
    style = _STYLES[color % len(_STYLES)]
    return {"color": COLORS[color], "linestyle": style, "marker": MARKERS[color], "markersize": 4.5}


def _draw_line(axes: Axes, values: dict[int, float], metric: str, window: int, color: int) -> None:
    steps, heights = list(values), list(values.values())
    if metric == "reward" and window > 1:
        axes.plot(steps, heights, color=COLORS[color], linewidth=0.8, alpha=0.3)
        heights = smoothed(heights, window)
    axes.plot(steps, heights, **_look(color), linewidth=1.8, markevery=max(1, len(steps) // 12))


def _draw_crowd(axes: Axes, curves: Sequence[Curve], metric: str, window: int) -> bool:
    """All runs in gray, and their mean over common steps; whether there are any."""
    smooth = window if metric == "reward" else 1
    found = [curve.values[metric] for curve in curves if metric in curve.values]
    lines = [dict(zip(each, smoothed(list(each.values()), smooth), strict=True)) for each in found]
    for line in lines:
        axes.plot(list(line), list(line.values()), color=GREY, linewidth=0.8, alpha=0.5)
    steps = sorted(set.intersection(*map(set, lines)))
    if steps:
        means = [fmean(line[step] for line in lines) for step in steps]
        axes.plot(steps, means, color="black", linewidth=2.4, zorder=4)
    return bool(steps)


def _ends(curves: Sequence[Curve]) -> list[int]:
    """The runs that end highest and lowest: in accuracy, or in reward if more runs have one; ties by the other."""
    times = {metric: sum(metric in curve.values for curve in curves) for metric in _PANELS}
    first, second = sorted(_PANELS, key=lambda metric: (-times[metric], metric == "reward"))

    def last(number: int) -> list[float]:
        return [[-math.inf, *curves[number].values.get(metric, {}).values()][-1] for metric in (first, second)]

    having = [number for number, curve in enumerate(curves) if first in curve.values]
    highest = max(having, key=last)
    return [highest, min(set(having) - {highest}, key=last)]


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """The mean of the `window` (odd) values around each, fewer near the ends."""
    reach = window // 2
    return [fmean(values[max(0, place - reach) : place + reach + 1]) for place in range(len(values))]


# One run


def plot_run(folder: Path, output: Path | None = None) -> Path | None:
    """Draw the learning curve of the run in `folder`: reward per step, and accuracy on the frozen problems.

    Below it, if there are several tasks: the first and the last accuracy on each.

    Returns:
        The plot, by default `reward_curve.png` in the folder; None if there is nothing to draw yet.
    """
    run = RunFolder(folder)
    steps = [row for row in run.metrics() if _can_be_drawn(row.get("reward"))]
    evaluations = run.evaluations()
    parts = [_parts(each) for each in evaluations]
    tasks = [key for key, scores in parts[-1].items() if scores["accuracy"] is not None] if parts else []
    if not steps and not tasks:
        return None
    height = 0.8 + 0.22 * len(tasks) if len(tasks) > 1 else 0.0  # inches
    figure = Figure(figsize=(8, 4.5 + height), layout="constrained")
    if height:
        curve, below = figure.subplots(2, height_ratios=[4.5, height])
        ends = {evaluations[place]["step"]: parts[place] for place in (0, -1)}
        _draw_tasks(below, ends, tasks)
    else:
        curve = figure.subplots()
    _draw_run(curve, steps, evaluations)
    figure.suptitle(folder.name, parse_math=False)  # two dollar signs would be a formula
    output = output or run.curve_file
    save(figure, output)
    return output


def _parts(evaluation: Scores) -> dict[tuple[str, str], Scores]:
    """Scores by part and name: of the training tasks, of held-out tasks, of labels."""
    held_out = (evaluation["held_out"] or {"tasks": {}})["tasks"]
    parts = {"": evaluation["tasks"], "held out, ": held_out, "labelled, ": evaluation["labelled"]}
    return {(part, name): scores for part, tasks in parts.items() for name, scores in tasks.items()}


def _draw_run(axes: Axes, steps: list[dict[str, Any]], evaluations: list[Scores]) -> None:
    if steps:
        heights = [row["reward"] for row in steps]
        axes.plot([row["step"] for row in steps], heights, color=GREY, linewidth=1.2, label="reward, training batch")
    for part, key, label, color, marker in (
        ("", "accuracy", "accuracy, sampled", _BLUE, "o"),
        ("", "greedy_accuracy", "accuracy, greedy", _ORANGE, "s"),
        ("held_out", "accuracy", "accuracy, held-out tasks", _PURPLE, "^"),
    ):
        found = [(each["step"], each[part] if part else each) for each in evaluations]
        points = [(step, scores) for step, scores in found if scores and scores[key] is not None]
        if points:
            axes.errorbar(
                [step for step, _ in points],
                [scores[key] for _, scores in points],
                yerr=[scores[f"{key}_se"] for _, scores in points],
                color=color,
                marker=marker,
                markersize=5,
                capsize=3,
                linewidth=1.6,
                label=f"{label} ({points[0][1]['n']} frozen problems)",
            )
    axes.set(xlabel="optimizer step", ylabel="reward, accuracy")
    label_whole_steps(axes)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    bare(axes, "both")
    handles, labels = axes.get_legend_handles_labels()
    lengths = [(row["step"], row["completions/mean_length"]) for row in steps if row.get("completions/mean_length")]
    if lengths:
        right = axes.twinx()
        handles += right.plot(*zip(*lengths, strict=True), color=_GREEN, linewidth=1.2, linestyle=":")
        labels.append("completion length")
        right.set_ylabel("tokens")
        right.set_ylim(bottom=0)
        right.spines["top"].set_visible(False)
    if any("held-out" in label for label in labels):  # a curve that stays low, where the legend would be
        axes.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    else:
        axes.legend(handles, labels, loc="lower right", frameon=False)


def _draw_tasks(axes: Axes, ends: dict[int, dict[tuple[str, str], Scores]], tasks: list[tuple[str, str]]) -> None:
    """One line for each task: the accuracy in the first evaluation, hollow, and in the last one, filled."""
    looks = {"": (_BLUE, "o"), "held out, ": (_PURPLE, "^"), "labelled, ": (_GREEN, "D")}
    labelled: set[str] = set()
    for row, (part, name) in enumerate(tasks):
        color, marker = looks[part]
        accuracies = [scores[part, name]["accuracy"] for scores in ends.values()]
        axes.plot(accuracies, [row] * len(accuracies), color=GREY, linewidth=1, linestyle=":")
        for step, scores in ends.items():
            axes.errorbar(
                scores[part, name]["accuracy"],
                row,
                xerr=scores[part, name]["accuracy_se"],
                color=color,
                marker=marker,
                markersize=5,
                markerfacecolor=color if step == max(ends) else "white",
                linestyle="none",
                elinewidth=1,
                capsize=2,
                label=None if part in labelled else f"{part}step {step}",
            )
        labelled.add(part)
    axes.set(xlabel="accuracy, sampled, on the frozen problems of each task", xlim=(-0.02, 1.02))
    axes.set_ylim(len(tasks) - 0.4, -0.6)  # the first on top
    axes.set_yticks(range(len(tasks)), [name for _, name in tasks], fontsize=8, parse_math=False)
    bare(axes, "x")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
