"""Pictures of training runs."""

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rg_env.core.run_folder import RunFolder
from rg_env.evaluation.plots.style import COLORS, GREY, label_whole_steps

_BLUE, _ORANGE, _GREEN, _PURPLE, *_ = COLORS


def plot_run(folder: Path, output: Path | None = None) -> Path | None:
    """Draw the learning curve of the run in `folder`: reward a step, and accuracy on the frozen problems.

    Below it, where there are several tasks: the first and the last accuracy on each, held-out ones and labels apart.

    Returns:
        The picture, `reward_curve.png` in the folder by default; None if there is nothing to draw yet.
    """
    metrics_file = folder / "metrics.jsonl"
    rows: list[dict[str, Any]] = (
        [json.loads(line) for line in metrics_file.read_text().splitlines()] if metrics_file.exists() else []
    )
    steps = [row for row in rows if row.get("reward") is not None]
    evaluations = RunFolder(folder).evaluations()
    tasks = _tasks(evaluations)
    if not steps and not tasks:
        return None
    several = len(tasks) > 1
    height = 0.8 + 0.22 * len(tasks) if several else 0.0  # inches
    figure = Figure(figsize=(8, 4.5 + height), layout="constrained")
    if several:
        curve, below = figure.subplots(2, height_ratios=[4.5, height])
        _draw_tasks(below, evaluations, tasks)
    else:
        curve = figure.subplots()
    _draw_curve(curve, steps, evaluations)
    figure.suptitle(folder.name, parse_math=False)  # two dollar signs in it would make a formula, or end the run
    output = output or folder / "reward_curve.png"
    figure.savefig(output, dpi=120)
    return output


def _draw_curve(axes: Axes, steps: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> None:
    if steps:
        axes.plot(
            [row["step"] for row in steps],
            [row["reward"] for row in steps],
            color=GREY,
            linewidth=1.2,
            label="reward, training batch",
        )
    for part, key, label, color, marker in (
        ("", "accuracy", "accuracy, sampled", _BLUE, "o"),
        ("", "greedy_accuracy", "accuracy, greedy", _ORANGE, "s"),
        ("held_out", "accuracy", "accuracy, held-out tasks", _PURPLE, "^"),
    ):
        points = [(e["step"], e[part] if part else e) for e in evaluations]
        points = [(step, scores) for step, scores in points if scores and scores[key] is not None]
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
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    lengths = [(row["step"], row["completions/mean_length"]) for row in steps if row.get("completions/mean_length")]
    handles, labels = axes.get_legend_handles_labels()
    if lengths:
        right = axes.twinx()
        (line,) = right.plot(
            *zip(*lengths, strict=True), color=_GREEN, linewidth=1.2, linestyle=":", label="completion length"
        )
        right.set_ylabel("tokens")
        right.set_ylim(bottom=0)
        right.spines["top"].set_visible(False)
        handles, labels = [*handles, line], [*labels, "completion length"]
    if any("held-out" in label for label in labels):  # a curve that stays low, where the legend would be
        axes.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    else:
        axes.legend(handles, labels, loc="lower right", frameon=False)


_PARTS = {"": (_BLUE, "o"), "held out, ": (_PURPLE, "^"), "labelled, ": (_GREEN, "D")}
"""Those of the training tasks, and how the others are called: colour and marker."""


def _parts(evaluation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Scores by task or label, those trained on first."""
    unseen = evaluation["held_out"]["tasks"] if evaluation["held_out"] else {}
    return {"": evaluation["tasks"], "held out, ": unseen, "labelled, ": evaluation["labelled"]}


def _tasks(evaluations: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Part and name of what has an accuracy."""
    parts = _parts(evaluations[-1]) if evaluations else {}
    return [(part, name) for part, named in parts.items() for name, s in named.items() if s["accuracy"] is not None]


def _draw_tasks(axes: Axes, evaluations: list[dict[str, Any]], tasks: list[tuple[str, str]]) -> None:
    """A line a task: the accuracy in the first evaluation, hollow, and in the last one, filled."""
    ends = evaluations[:1] if len(evaluations) == 1 else [evaluations[0], evaluations[-1]]
    for row, (part, name) in enumerate(tasks):
        color, marker = _PARTS[part]
        values = [_parts(evaluation)[part][name] for evaluation in ends]
        axes.plot([each["accuracy"] for each in values], [row] * len(values), color=GREY, linewidth=1, linestyle=":")
        for each, evaluation in zip(values, ends, strict=True):
            last = evaluation is ends[-1]
            first_of_kind = row == next(i for i, (other, _) in enumerate(tasks) if other == part)
            axes.errorbar(
                each["accuracy"],
                row,
                xerr=each["accuracy_se"],
                color=color,
                marker=marker,
                markersize=5,
                markerfacecolor=color if last else "white",
                linestyle="none",
                elinewidth=1,
                capsize=2,
                label=f"{part}step {evaluation['step']}" if first_of_kind else None,
            )
    axes.set(xlabel="accuracy, sampled, on the frozen problems of each task", xlim=(-0.02, 1.02))
    axes.set_ylim(len(tasks) - 0.4, -0.6)  # the first on top
    axes.set_yticks(range(len(tasks)), [name for _, name in tasks], fontsize=8)
    axes.grid(alpha=0.25, axis="x")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
