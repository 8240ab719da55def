"""Plots of all models' results, on one task or on all tasks.

    plot_results(read_results("results_all_tasks_20250101-120000.json"), Path("summary.png"))

One task is drawn as bars with intervals. Several tasks are drawn as dots with intervals, one row per task, or, for many
models or tasks, as a table with one row per model and intervals of the macro averages.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rg_env.core.statistics import with_interval
from rg_env.core.text import counted
from rg_env.evaluation.plots import style
from rg_env.evaluation.results import Accuracy, ModelSummary, Results, Scores, TaskResults

_MOST_DOTS = 100
"""Maximum number of models x tasks for dots; larger results are drawn as a table."""
_MOST_COLUMNS = 40
"""Maximum number of tasks per table; further tasks are in tables below."""
_FLOOR = "the best constant answer"
_BAR = "#A8D5F0"  # light, so that lines on it are visible in grayscale
Models = Mapping[str, ModelSummary]
Tasks = Sequence[TaskResults]


@style.styled
def plot_results(results: Results, output: Path, title: str | None = None) -> None:
    """Plot accuracies, with models sorted by macro-average accuracy and tasks by mean accuracy over all models.

    Args:
        output: file of the plot; the suffix determines the format.
        title: default: the task, or the number of tasks; empty: no title.

    Raises:
        InputError: the suffix is not one of `style.SUFFIXES`, or an accuracy was not measured.
        OutputFolderError: the plot cannot be written.
    """
    models = dict(sorted(results.models.items(), key=lambda item: -(item[1].accuracy or 0.0)))
    tasks = sorted(results.tasks.values(), key=_mean, reverse=True)
    if len(tasks) == 1:
        figure, caption = _bars(tasks[0]), tasks[0].task
    else:
        few = len(models) <= len(style.COLORS) and len(models) * len(tasks) <= _MOST_DOTS
        figure, caption = (_dots if few else _table)(models, tasks), f"{len(tasks)} tasks"
    style.titled(figure, caption if title is None else title)
    style.save(figure, output)


def _mean(task: TaskResults) -> float:
    found = [model.scores.measured[0] for model in task.models.values() if model.scores.n]
    return fmean(found) if found else 0.0


def _in_words(found: Accuracy, note: str, failed: int) -> str:
    """Accuracy and interval, with a note and failed calls, if any."""
    return ", ".join(filter(None, [with_interval(*found.measured), note, f"{failed} failed calls" if failed else ""]))


def _next_to(axes: Axes, notes: Iterable[str], points: float) -> None:
    for row, note in enumerate(notes):
        axes.text(1.04, row, note, transform=axes.get_yaxis_transform(), va="center", fontsize=points)


def _bars(task: TaskResults) -> Figure:
    """Draw one bar per model, with the best on top, and the best constant answer as a dashed line."""
    scores = {name: model.scores for name, model in task.models.items()}
    scores = dict(sorted(scores.items(), key=lambda item: -item[1].measured[0] if item[1].n else 1.0))
    figure, ((axes,),) = style.panels(4.5, 0.3 * len(scores) + 0.1)
    notes, n = [], task.questions.n
    for row, each in enumerate(scores.values()):
        if each.n:
            axes.barh(row, each.measured[0], height=0.66, color=_BAR)
            style.draw_intervals(axes, [(row, each)], fmt="k.", markersize=6, capsize=3, clip_on=False)
            notes.append(_in_words(each, f"n = {each.n}" if each.n != n else "", each.failed))
        else:
            notes.append("not measured: trained on all questions")
    _next_to(axes, notes, 9)
    if task.floor is not None:
        line = axes.axvline(task.floor, color=style.COLORS[1], linestyle="--", linewidth=1.4, zorder=3)
        axes.legend([line], [f"{_FLOOR}: {task.floor:.3f}"], loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    style.label_rows(axes, list(style.short_names(list(scores)).values()))
    graded = "" if task.grading == "hardened" else f", {task.grading} grading"
    how = f"{_rollouts([task])}, temperature {task.sampling.temperature:g}{graded}"
    style.share_axis(axes, f"accuracy, with 95% intervals\nn = {counted(n, 'question')}, {how}", room=0)
    return figure


def _scores(task: TaskResults, model: str) -> Scores | None:
    """Scores of `model`; None if it was not evaluated on the task, or was trained on all of its questions."""
    found = task.models.get(model)
    return found.scores if found and found.scores.n else None


def _notes(models: Models, tasks: Tasks) -> list[str]:
    """Describe each model's macro average."""
    counts = [sum(_scores(task, name) is not None for task in tasks) for name in models]
    return [
        _in_words(summary, "" if count == len(tasks) else counted(count, "task"), summary.failed)
        for summary, count in zip(models.values(), counts, strict=True)
    ]


def _overall(tasks: Tasks) -> str:
    """Name of the models' macro average, which excludes a training run's held-out tasks and tasks under a label."""
    return "macro average" if all(task.in_overall for task in tasks) else "training tasks"


def _dots(models: Models, tasks: Tasks) -> Figure:
    """Draw one row per task, with the macro average on top."""
    labels = [_overall(tasks), *style.short_names([task.task for task in tasks]).values()]
    figure, ((axes,),) = style.panels(5.5, len(labels) * max(0.26, 0.115 * len(models) + 0.1))
    for row in range(0, len(labels), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="black", alpha=0.05, linewidth=0)
    series = {name: [summary, *(_scores(task, name) for task in tasks)] for name, summary in models.items()}
    handles = style.draw_series(axes, series)
    short = style.short_names(list(models), 36).values()
    names = [f"{label}\n{note}" for label, note in zip(short, _notes(models, tasks), strict=True)]
    floor: Line2D | None = None
    for row, task in enumerate(tasks, 1):
        if task.floor is not None:
            ends = [row - 0.45, row + 0.45]
            (floor,) = axes.plot([task.floor] * 2, ends, color=style.GREY, linestyle="--", linewidth=1.2, zorder=1)
    if floor:
        handles, names = [*handles, floor], [*names, _FLOOR]
    axes.axhline(0.5, color="black", linewidth=0.8)
    style.label_rows(axes, labels)
    axes.get_yticklabels()[0].set_fontweight("bold")
    style.share_axis(axes, f"accuracy, with 95% intervals\n{_caption(tasks)}")
    axes.legend(handles, names, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    return figure


def _table(models: Models, tasks: Tasks) -> Figure:
    """Draw a table with one row per model and one column per task, or several tables if there are many tasks."""
    bands = math.ceil(len(tasks) / _MOST_COLUMNS)
    size = math.ceil(len(tasks) / bands)
    labels = list(style.short_names(list(models)).values())
    labels += [_FLOOR] if any(task.floor is not None for task in tasks) else []
    columns = list(style.short_names([task.task for task in tasks], 36).values())
    cells, band_height, heads = max(0.34 * size, 2.0), 0.26 * len(labels), 0.07 * max(map(len, columns)) + 0.3  # inches
    grid = {"width_ratios": [cells, 2.2], "wspace": 0.2 / (cells + 2.2), "hspace": heads / band_height}
    figure, panels = style.panels(cells + 2.2, bands * band_height + (bands - 1) * heads, bands, 2, **grid)
    for band, (axes, aside) in enumerate(panels):
        part = slice(band * size, (band + 1) * size)
        _cells(axes, models, tasks[part])
        axes.set_xlim(-0.5, size - 0.5)
        style.label_rows(axes, labels)
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(columns[part])), columns[part], rotation=90, fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
        aside.set_axis_off()
    axes.set_xlabel(f"accuracy\n{_caption(tasks)}")
    axes.xaxis.set_label_position("bottom")
    macro = panels[0, 1]
    macro.set_axis_on()
    style.draw_intervals(macro, enumerate(models.values()), color=style.COLORS[0], marker="o", capsize=3)
    _next_to(macro, _notes(models, tasks), 8)
    style.label_rows(macro, [""] * len(labels))
    macro.tick_params(axis="y", length=0)
    macro.spines["left"].set_visible(False)
    style.share_axis(macro, f"{_overall(tasks)},\nwith 95% intervals", fontsize=8)
    return figure


def _cells(axes: Axes, models: Iterable[str], tasks: Tasks) -> None:
    """Draw a table's cells and, below them, the accuracies of the best constant answers; a dash marks a missing
    accuracy."""
    found = [[each.measured[0] if (each := _scores(task, name)) else None for task in tasks] for name in models]
    shades = [[math.nan if share is None else 0.02 + 0.9 * share for share in row] for row in found]
    edges = [[place - 0.5 for place in range(count + 1)] for count in (len(tasks), len(found))]
    axes.pcolormesh(*edges, shades, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=1.2)

    def write(row: int, column: int, text: str, color: str) -> None:
        # Excluded from the layout, which would be slow with hundreds of texts.
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color, in_layout=False)

    for row, shares in enumerate(found):
        for column, share in enumerate(shares):
            text = "-" if share is None else f"{share:.2f}"
            write(row, column, text, "white" if share is not None and share > 0.75 else "black")
    for column, task in enumerate(tasks):
        if task.floor is not None:
            write(len(found), column, f"{task.floor:.2f}", style.GREY)


def _span(numbers: Iterable[int]) -> str:
    """A number, or the range of several: "1-4"."""
    found = set(numbers)
    return "-".join(str(each) for each in sorted({min(found), max(found)}))


def _rollouts(tasks: Tasks) -> str:
    count = _span(task.sampling.rollouts_per_example for task in tasks)
    return f"{count} rollout{'' if count == '1' else 's'} each"


def _caption(tasks: Tasks) -> str:
    """Numbers of questions and rollouts, as ranges if they differ between tasks."""
    return f"n = {_span(task.questions.n for task in tasks)} questions per task, {_rollouts(tasks)}"
