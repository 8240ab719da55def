"""A comparison as a picture: the first and the last accuracy of each group, and the learning curves."""

import statistics
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rg_env.core.run_folder import written_aside
from rg_env.core.text import described
from rg_env.evaluation.plots.style import COLORS, GREY, label_whole_steps
from rg_env.jobs.sweep.comparison import Comparison, Group

_BEFORE: dict[str, Any] = {"marker": "o", "markersize": 6, "markerfacecolor": "white", "linestyle": "none", "zorder": 3}
_AFTER: dict[str, Any] = {"marker": "o", "markersize": 6, "linestyle": "none"}
_EACH: dict[str, Any] = {"marker": "|", "markersize": 8, "linestyle": "none", "color": GREY}
_MOST_CURVES = len(COLORS)
"""Curves in one picture that a reader can tell apart."""
_MOST_LABEL = 48
"""Characters."""


def plot_comparison(comparison: Comparison) -> Path | None:
    """Draw `comparison.png` in the folder of the sweep: on the left each group's accuracy after training, with its
    interval, each run's as a point, and before training; on the right the curves, unless there are too many groups.

    Where no run has an accuracy, rewards are drawn, and no curves.

    Returns:
        The picture; None if no run has finished.
    """
    groups = [group for group in comparison.groups if group.figures.keys() & {"accuracy_after", "reward_after"}]
    if not groups:
        return None
    kind = "accuracy" if any("accuracy_after" in group.figures for group in groups) else "reward"
    curves = kind == "accuracy" and len(groups) <= _MOST_CURVES and any(len(_curve(group)) > 1 for group in groups)
    height = max(3.2, 1.2 + 0.4 * len(groups))  # inches
    figure = Figure(figsize=(12 if curves else 8, height), layout="constrained")
    axes = figure.subplots(1, 2 if curves else 1, squeeze=False)[0]
    _draw_ends(axes[0], groups, kind)
    if curves:
        _draw_curves(axes[1], groups)
    figure.suptitle(comparison.folder.name, parse_math=False)
    output = comparison.folder / "comparison.png"
    with written_aside(output) as aside:
        figure.savefig(aside, dpi=120, format="png")
    return output


def _draw_ends(axes: Axes, groups: list[Group], kind: str) -> None:
    """A line a group, the first on top."""
    for row, group in enumerate(groups):
        color = COLORS[row % len(COLORS)] if len(groups) <= _MOST_CURVES else COLORS[0]
        if (before := group.figures.get(f"{kind}_before")) is not None:
            axes.plot(before.mean, row, **_BEFORE, color=color)
        after = group.figures.get(f"{kind}_after")
        if after is None:
            continue
        axes.errorbar(after.mean, row, xerr=after.half_width, **_AFTER, color=color, elinewidth=1.6, capsize=4)
        if len(group.finished) > 1:
            each = [run.figures[f"{kind}_after"] for run in group.finished if f"{kind}_after" in run.figures]
            axes.plot(each, [row + 0.22] * len(each), **_EACH)
    labels = [f"{_label(group)}\n± over {group.over}" for group in groups]
    axes.set_yticks(range(len(groups)), labels, fontsize=8, parse_math=False)
    if len(groups) <= _MOST_CURVES:
        for color, text in zip(COLORS, axes.get_yticklabels(), strict=False):
            text.set_color(color)
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set(xlabel=f"{kind}, sampled, on the frozen problems")
    if kind == "accuracy":
        axes.set_xlim(-0.02, 1.02)  # an interval over two seeds can be wider than that
    axes.grid(alpha=0.25, axis="x")
    axes.spines[["top", "right"]].set_visible(False)
    looks = {"before": _BEFORE, "after, 95 % interval": _AFTER}
    if any(len(group.finished) > 1 for group in groups):
        looks["after, each seed"] = _EACH
    handles = [Line2D([], [], **{"color": GREY, **look}) for look in looks.values()]
    axes.legend(handles, looks, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8)


def _draw_curves(axes: Axes, groups: list[Group]) -> None:
    """Means over seeds, and from the lowest to the highest seed a band."""
    for color, group in zip(COLORS, groups, strict=False):
        curve = _curve(group)
        steps = list(curve)
        axes.plot(
            steps,
            [statistics.fmean(each) for each in curve.values()],
            color=color,
            marker="o",
            markersize=4,
            linewidth=1.6,
        )
        lowest, highest = map(min, curve.values()), map(max, curve.values())
        axes.fill_between(steps, list(lowest), list(highest), color=color, alpha=0.15, linewidth=0)
    if any(len(group.finished) > 1 for group in groups):
        axes.set_title("mean, and a band from the lowest to the highest seed", fontsize=8)
    axes.set(xlabel="optimizer step", ylabel="accuracy, sampled")
    label_whole_steps(axes)
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _curve(group: Group) -> dict[int, list[float]]:
    """The accuracies of the finished runs at each step at which all of them were evaluated."""
    runs = [run for run in group.finished if run.curve]
    steps = sorted(set.intersection(*(set(run.curve) for run in runs))) if runs else []
    return {step: [run.curve[step] for run in runs] for step in steps}


def _label(group: Group) -> str:
    text = described(group.values) or "all runs"
    half = _MOST_LABEL // 2
    return text if len(text) <= _MOST_LABEL else f"{text[: half - 3]} ... {text[-half + 2 :]}"
