"""Pictures of training runs."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart by colour-blind readers too.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#999999"


def plot_run(folder: Path, output: Path | None = None) -> Path | None:
    """Draw the learning curve of the run in `folder`: reward a step, and accuracy on the frozen problems.

    Returns:
        The picture, `reward_curve.png` in the folder by default; None if there is nothing to draw yet.
    """
    metrics_file = folder / "metrics.jsonl"
    rows: list[dict[str, Any]] = (
        [json.loads(line) for line in metrics_file.read_text().splitlines()] if metrics_file.exists() else []
    )
    steps = [row for row in rows if row.get("reward") is not None]
    evaluations = sorted(
        (json.loads(path.read_text()) for path in folder.glob("eval_results/eval_step_*.json")), key=lambda e: e["step"]
    )
    evaluations = [e for e in evaluations if e["accuracy"] is not None]
    if not steps and not evaluations:
        return None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [row["step"] for row in steps],
        [row["reward"] for row in steps],
        color=_GREY,
        linewidth=1.2,
        label="reward, training batch",
    )
    for key, label, color, marker in (
        ("accuracy", "accuracy, sampled", _BLUE, "o"),
        ("greedy_accuracy", "accuracy, greedy", _ORANGE, "s"),
    ):
        if evaluations:
            axes.errorbar(
                [e["step"] for e in evaluations],
                [e[key] for e in evaluations],
                yerr=[e[f"{key}_se"] for e in evaluations],
                color=color,
                marker=marker,
                markersize=5,
                capsize=3,
                linewidth=1.6,
                label=f"{label} ({evaluations[0]['n']} frozen problems)",
            )
    axes.set(xlabel="optimizer step", ylabel="reward, accuracy", title=folder.name)
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
    axes.legend(handles, labels, loc="lower right", frameon=False)
    output = output or folder / "reward_curve.png"
    figure.savefig(output, dpi=120)
    return output
