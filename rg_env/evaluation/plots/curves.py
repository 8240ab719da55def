"""Learning curves of one or several runs, from their `metrics.jsonl`.

curves_picture([read_curve(file) for file in files], Path("curves.png"))
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

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
"""What is drawn over the steps, and what it is called."""
_MOST_COLORS = len(COLORS)
"""Runs in one picture that a reader can tell apart."""
_MOST, _MOST_STEPS = 1e100, 2**53
"""What is farther from 0 has no place on an axis."""
_STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Curve:
    """What one run has logged."""

    name: str
    values: dict[str, dict[int, float]]
    """By metric and step: `reward` and `eval/accuracy`, those that it has."""


def read_curve(file: str | Path, name: str) -> Curve:
    """The curve of a run in its `metrics.jsonl`. A last line that was broken off (by a kill) is left out.

    Raises:
        InputError: it cannot be read, is empty, or is no such file.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{file} is no text file: {error}") from error
    if not text.strip():
        raise InputError(f"{file} is empty: the run has logged nothing yet")
    lines = text.split("\n")
    values: dict[str, dict[int, float]] = {metric: {} for metric in _PANELS}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _parsed(line)
        if row is None and number == len(lines) > 1:
            continue
        if row is None or "completion" in row:  # or rollouts, which have steps and rewards too
            raise InputError(
                f"{file} is no metrics.jsonl of a run, or damaged: line {number} holds no metrics of a step"
            )
        for metric, found in values.items():
            if _can_be_drawn(row.get(metric)):
                found[row["step"]] = float(row[metric])
    if not any(values.values()):
        raise InputError(f"{file} has nothing to draw: no line has a value of {' or '.join(_PANELS)}")
    return Curve(name, {metric: dict(sorted(found.items())) for metric, found in values.items() if found})


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and is_count(row.get("step"), _MOST_STEPS) else None


def _can_be_drawn(value: Any) -> bool:
    return is_number(value) and abs(value) <= _MOST


def curves_picture(curves: Sequence[Curve], output: Path, title: str | None = None) -> None:
    """Draw reward and accuracy over the optimizer steps, side by side.

    Up to as many runs as there are colours have one each. More are thin grey lines, with their mean over the steps that
    all have, and the runs that end highest and lowest.

    Args:
        curves: with different names.
        output: of the picture; its suffix says which kind.
        title: default: the name of a single run, or how many runs; empty: none.

    Raises:
        InputError: the suffix is none of `drawing.SUFFIXES`.
        OutputFolderError: it cannot be written.
    """
    metrics = [metric for metric in _PANELS if any(metric in curve.values for curve in curves)]
    labels = list(short_names([curve.name for curve in curves], 40).values())
    several, many = len(curves) > 1, len(curves) > _MOST_COLORS
    legend_width = label_width([*labels, "-" * 20], 8) + 0.6 if several else 0.0
    width = 5.2 * len(metrics) + legend_width
    height = max(3.6, 1.0 + 0.2 * min(len(curves), _MOST_COLORS))
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, len(metrics), squeeze=False, sharex=True)[0]
    shown = _ends(curves, metrics) if many else list(range(len(curves)))
    window = _window(max(len(curve.values.get("reward", ())) for curve in curves))
    has_mean = False
    for axes, metric in zip(panels, metrics, strict=True):
        if many:
            has_mean |= _draw_crowd(axes, curves, metric, window)
        for color, which in enumerate(shown):
            _draw(axes, curves[which].values.get(metric, {}), metric, window, color)
        smooth = f"\n(thick: mean over {window} steps)" if metric == "reward" and window > 1 else ""
        axes.set_ylabel(f"{_PANELS[metric]}{smooth}", fontsize=9)
        axes.set_xlabel("optimizer step", fontsize=9)
        label_whole_steps(axes)
        if metric == "eval/accuracy":
            axes.set_ylim(-0.02, 1.02)
        bare(axes, "both")
    last = max(max(values) for curve in curves for values in curve.values.values())
    panels[0].set_xlim(-0.03 * max(1, last), 1.03 * max(1, last))
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
    """Of a run's lines: one a colour, and another style and marker for those who see none."""
    style = _STYLES[color % len(_STYLES)]
    return {"color": COLORS[color], "linestyle": style, "marker": MARKERS[color], "markersize": 4.5}


def _draw(axes: Axes, values: dict[int, float], metric: str, window: int, color: int) -> None:
    steps, heights = list(values), list(values.values())
    look = _look(color)
    if metric == "reward" and window > 1:
        axes.plot(steps, heights, color=look["color"], linewidth=0.8, alpha=0.3)
        heights = smoothed(heights, window)
    axes.plot(steps, heights, **look, linewidth=1.8, markevery=max(1, len(steps) // 12))


def _draw_crowd(axes: Axes, curves: Sequence[Curve], metric: str, window: int) -> bool:
    """All runs in grey, and their mean; whether there is one."""
    all_values = [curve.values[metric] for curve in curves if metric in curve.values]
    smooth = window if metric == "reward" else 1
    lines = [dict(zip(each, smoothed(list(each.values()), smooth), strict=True)) for each in all_values]
    for line in lines:
        axes.plot(list(line), list(line.values()), color=GREY, linewidth=0.8, alpha=0.5)
    steps = sorted(set.intersection(*map(set, lines)))
    if steps:
        means = [fmean(line[step] for line in lines) for step in steps]
        axes.plot(steps, means, color="black", linewidth=2.4, zorder=4)
    return bool(steps)


def _ends(curves: Sequence[Curve], metrics: Sequence[str]) -> list[int]:
    """The runs that end highest and lowest: in accuracy, unless more have a reward; of equal ones, in the other."""
    times = {metric: sum(metric in curve.values for curve in curves) for metric in metrics}
    order = sorted(metrics, key=lambda metric: (-times[metric], metric == "reward"))
    last = {
        number: [list(curve.values.get(metric, {0: -math.inf}).values())[-1] for metric in order]
        for number, curve in enumerate(curves)
        if order[0] in curve.values
    }
    highest = max(last, key=lambda number: last[number])
    return [highest, min(last.keys() - {highest}, key=lambda number: last[number])]


def _window(steps: int) -> int:
    """Steps of a moving mean, an odd number: one in 25, where there are enough."""
    return steps // 25 | 1 if steps > 50 else 1


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """The mean of the `window` (odd) values around each; near the ends, of those that there are."""
    reach = window // 2
    return [fmean(values[max(0, place - reach) : place + reach + 1]) for place in range(len(values))]
