"""Pictures of results: the models on one task.

    comparison_picture(read_results("results_maze_20250101-120000.json"), Path("comparison_maze_20250101-120000.png"))

What they show is what the results say; nothing is computed anew.
"""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rg_env.evaluation.plots.style import (
    COLORS,
    bare,
    error_bars,
    label_width,
    legend,
    percent,
    save,
    short_names,
    titled,
)
from rg_env.evaluation.results import Scores, TaskResults

_POINTS = 9
_BAR = "#A8D5F0"
"""Light: lines are seen on it in grey, too."""
_FLOOR = COLORS[1]


def comparison_picture(results: TaskResults, output: Path, title: str | None = None) -> None:
    """Draw the models' accuracy on one task, the best on top: bars with their 95 % intervals, and what the best
    constant answer gets as a dashed line.

    Args:
        output: of the picture; its suffix says which kind.
        title: default: the task; empty: none.

    Raises:
        InputError: the suffix is none of `drawing.SUFFIXES`.
        OutputFolderError: it cannot be written.
    """
    models = sorted(results.models.items(), key=lambda item: (item[1].scores.n == 0, -item[1].scores.measured[0]))
    labels = list(short_names([name for name, _ in models]).values())
    scores = [model.scores for _, model in models]
    notes = [_in_words(each, results.questions.n) for each in scores]
    width = label_width(labels, _POINTS) + 4.5 + label_width(notes, _POINTS)
    figure = Figure(figsize=(width, 1.5 + 0.3 * len(models)), layout="constrained")
    axes = figure.subplots()
    for row, (each, note) in enumerate(zip(scores, notes, strict=True)):
        axes.text(1.03, row, note, transform=axes.get_yaxis_transform(), va="center", fontsize=_POINTS)
        if each.n:
            accuracy, interval = each.measured
            bars = error_bars([accuracy], [interval])
            axes.barh(row, accuracy, height=0.66, color=_BAR)
            axes.errorbar(accuracy, row, xerr=bars, fmt="k.", elinewidth=1.2, capsize=3, clip_on=False)
    if results.floor is not None:
        axes.axvline(results.floor, color=_FLOOR, linestyle="--", linewidth=1.4, zorder=3)
        line = Line2D([], [], color=_FLOOR, linestyle="--")
        text = f"the best constant answer: {percent(results.floor)} %"
        legend(axes, [line], [text], loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, fontsize=_POINTS)
    axes.set_yticks(range(len(models)), labels, fontsize=_POINTS, parse_math=False)
    axes.set_ylim(len(models) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1], ["0", "20", "40", "60", "80", "100"])
    axes.set_xlabel(f"accuracy in %, with 95 % intervals\n{_asked(results)}", fontsize=_POINTS)
    bare(axes, "x")
    titled(figure, results.task if title is None else title)
    save(figure, output)


def _asked(results: TaskResults) -> str:
    sampling = results.sampling
    answers = f"{sampling.rollouts_per_example} rollout{'s' if sampling.rollouts_per_example > 1 else ''} each"
    graded = "" if results.grading == "hardened" else f", {results.grading} grading"
    return f"n = {results.questions.n} questions, {answers}, temperature {sampling.temperature:g}{graded}"


def _in_words(scores: Scores, asked: int) -> str:
    """Of one model: accuracy and interval, and what sets it apart from the others."""
    if not scores.n:
        return "no question counts: trained on all"
    accuracy, interval = scores.measured
    low, high = map(percent, interval)
    apart = [f"n = {scores.n}"] if scores.n != asked else []
    apart += [f"{scores.failed} failed calls"] if scores.failed else []
    return f"{percent(accuracy)}  ({', '.join([f'{low} to {high}', *apart])})"
