"""Plots of all models' results, on one task or on all tasks.

    plot_results(read_results("results_all_tasks_20250101-120000.json"), Path("summary.png"))

One task is drawn as bars with intervals. Several tasks are drawn as dots with intervals, one row per task, or, for many
models or tasks, as a table with one row per model and intervals of the macro averages.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

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
Models = list[tuple[str, ModelSummary]]
Tasks = list[tuple[str, TaskResults]]


def plot_results(results: Results, output: Path, title: str | None = None) -> None:
    """Plot accuracies, with models sorted by macro-average accuracy and tasks by mean accuracy over all models.

    Args:
        output: file of the plot; the suffix determines the format.
        title: default: the task, or the number of tasks; empty: no title.

    Raises:
        InputError: the suffix is not one of `style.SUFFIXES`, or an accuracy was not measured.
        OutputFolderError: the plot cannot be written.
    """
    models = sorted(results.models.items(), key=lambda item: -(item[1].accuracy or 0.0))
    tasks = sorted(results.tasks.items(), key=lambda item: -_mean(item[1]))
    if len(tasks) == 1:
        figure, caption = _bars(tasks[0][1]), tasks[0][0]
    else:
        few = len(models) <= len(style.COLORS) and len(models) * len(tasks) <= _MOST_DOTS
        figure, caption = (_dots if few else _table)(models, tasks), f"{len(tasks)} tasks"
    style.titled(figure, caption if title is None else title)
    style.save(figure, output)


def _mean(task: TaskResults) -> float:
    found = [model.scores.measured[0] for model in task.models.values() if model.scores.n]
    return fmean(found) if found else 0.0


def _in_words(found: Accuracy, notes: Sequence[str], failed: int) -> str:
    """Accuracy and interval, with notes and failed calls, if any."""
    return ", ".join([with_interval(*found.measured), *notes, *([f"{failed} failed calls"] if failed else [])])


def _next_to(axes: Axes, notes: Iterable[str], points: float) -> None:
    for row, note in enumerate(notes):
        axes.text(1.04, row, note, transform=axes.get_yaxis_transform(), va="center", fontsize=points)


def _bars(task: TaskResults) -> Figure:
    """Draw one bar per model, with the best on top, and the best constant answer as a dashed line."""
    models = sorted(task.models.items(), key=lambda item: -item[1].scores.measured[0] if item[1].scores.n else 1.0)
    labels = list(style.short_names([name for name, _ in models]).values())
    scores, n = [model.scores for _, model in models], task.questions.n
    notes = [
        _in_words(each, [f"n = {each.n}"] if each.n != n else [], each.failed)
        if each.n
        else "not measured: trained on all questions"
        for each in scores
    ]
    figure, ((axes,),) = style.panels(4.5, 0.3 * len(models) + 0.1)
    _next_to(axes, notes, 9)
    for row, each in enumerate(scores):
        if each.n:
            axes.barh(row, each.measured[0], height=0.66, color=_BAR)
            style.draw_intervals(axes, [(row, each)], fmt="k.", markersize=6, elinewidth=1.2, capsize=3, clip_on=False)
    if task.floor is not None:
        axes.axvline(task.floor, color=style.COLORS[1], linestyle="--", linewidth=1.4, zorder=3)
        line, text = Line2D([], [], color=style.COLORS[1], linestyle="--"), f"{_FLOOR}: {task.floor:.3f}"
        style.legend(axes, [line], [text], loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, fontsize=9)
    style.label_rows(axes, labels)
    graded = "" if task.grading == "hardened" else f", {task.grading} grading"
    how = f"{_rollouts(str(task.sampling.rollouts_per_example))}, temperature {task.sampling.temperature:g}{graded}"
    style.share_axis(axes, f"accuracy, with 95% intervals\nn = {counted(n, 'question')}, {how}", room=0)
    return figure


def _scores(task: TaskResults, model: str) -> Scores | None:
    """Scores of `model`; None if it was not evaluated on the task, or was trained on all of its questions."""
    found = task.models.get(model)
    return found.scores if found and found.scores.n else None


def _notes(models: Models, tasks: Tasks) -> list[str]:
    """Describe each model's macro average."""
    texts = []
    for name, summary in models:
        count = sum(_scores(task, name) is not None for _, task in tasks)
        apart = [] if count == len(tasks) else [counted(count, "task")]
        texts.append(_in_words(summary, apart, summary.failed))
    return texts


def _overall(tasks: Tasks) -> str:
    """Name of the models' macro average, which excludes a training run's held-out tasks and tasks under a label."""
    return "macro average" if all(task.in_overall for _, task in tasks) else "training tasks"


def _dots(models: Models, tasks: Tasks) -> Figure:
    """Draw one row per task, with the macro average on top."""
    labels = [_overall(tasks), *style.short_names([name for name, _ in tasks]).values()]
    short, notes = style.short_names([name for name, _ in models], 36).values(), _notes(models, tasks)
    names = [f"{label}\n{note}" for label, note in zip(short, notes, strict=True)]
    figure, ((axes,),) = style.panels(5.5, len(labels) * max(0.26, 0.115 * len(models) + 0.1))
    for place in range(0, len(labels), 2):
        axes.axhspan(place - 0.5, place + 0.5, color="black", alpha=0.05, linewidth=0)
    handles = []
    for number, (name, summary) in enumerate(models):
        found = [(0, summary), *((place, _scores(task, name)) for place, (_, task) in enumerate(tasks, 1))]
        shift = (number - (len(models) - 1) / 2) * 0.8 / len(models)
        look: dict[str, Any] = {"color": style.COLORS[number], "marker": style.MARKERS[number]}
        style.draw_intervals(
            axes, [(place + shift, each) for place, each in found if each], **look, elinewidth=1.2, capsize=2
        )
        handles.append(Line2D([], [], **look, markersize=5))
    floors = [(place, task.floor) for place, (_, task) in enumerate(tasks, 1) if task.floor is not None]
    for place, floor in floors:
        axes.plot(
            [floor, floor], [place - 0.45, place + 0.45], color=style.GREY, linestyle="--", linewidth=1.2, zorder=1
        )
    if floors:
        handles.append(Line2D([], [], color=style.GREY, linestyle="--"))
        names.append(_FLOOR)
    axes.axhline(0.5, color="black", linewidth=0.8)
    style.label_rows(axes, labels)
    axes.get_yticklabels()[0].set_fontweight("bold")
    style.share_axis(axes, f"accuracy, with 95% intervals\n{_caption(tasks)}")
    style.legend(axes, handles, names, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, fontsize=8)
    return figure


def _table(models: Models, tasks: Tasks) -> Figure:
    """Draw a table with one row per model and one column per task, or several tables if there are many tasks."""
    bands = math.ceil(len(tasks) / _MOST_COLUMNS)
    size = math.ceil(len(tasks) / bands)
    labels = list(style.short_names([name for name, _ in models]).values())
    labels += [_FLOOR] if any(task.floor is not None for _, task in tasks) else []
    columns = list(style.short_names([name for name, _ in tasks], 36).values())
    notes = _notes(models, tasks)
    cells, band_height, heads = max(0.34 * size, 2.0), 0.26 * len(labels), 0.07 * max(map(len, columns)) + 0.3  # inches
    grid = {"width_ratios": [cells, 2.2], "wspace": 0.2 / (cells + 2.2), "hspace": heads / band_height}
    figure, panels = style.panels(cells + 2.2, bands * band_height + (bands - 1) * heads, bands, 2, **grid)
    for band, (axes, aside) in enumerate(panels):
        part = slice(band * size, (band + 1) * size)
        _cells(axes, [name for name, _ in models], tasks[part])
        axes.set_xlim(-0.5, size - 0.5)
        style.label_rows(axes, labels, grid=False)
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(columns[part])), columns[part], rotation=90, fontsize=8, parse_math=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if band:
            aside.set_axis_off()
    axes.set_xlabel(f"accuracy\n{_caption(tasks)}", fontsize=9)
    axes.xaxis.set_label_position("bottom")
    macro = panels[0, 1]
    rows = [(row, summary) for row, (_, summary) in enumerate(models)]
    style.draw_intervals(macro, rows, color=style.COLORS[0], marker="o", markersize=5, elinewidth=1.4, capsize=3)
    _next_to(macro, notes, 8)
    style.label_rows(macro, [""] * len(labels))
    macro.tick_params(axis="y", length=0)
    macro.spines["left"].set_visible(False)
    style.share_axis(macro, f"{_overall(tasks)},\nwith 95% intervals", fontsize=8)
    return figure


def _cells(axes: Axes, models: list[str], tasks: Tasks) -> None:
    """Draw a table's cells and, below them, the accuracies of the best constant answers; a dash marks a missing
    accuracy."""
    found = [[each.measured[0] if (each := _scores(task, name)) else None for _, task in tasks] for name in models]
    shades = [[math.nan if each is None else 0.02 + 0.9 * each for each in row] for row in found]
    places = [[place - 0.5 for place in range(count + 1)] for count in (len(tasks), len(models))]
    axes.pcolormesh(*places, shades, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=1.2)
    for row, shares in enumerate([*found, [task.floor for _, task in tasks]]):
        for column, share in enumerate(shares):
            is_floor = row == len(models)
            dark = share is not None and share > 0.75 and not is_floor
            text = "-" if share is None else f"{share:.2f}"
            color = style.GREY if is_floor else "white" if dark else "black"
            if share is not None or not is_floor:
                # Excluded from the layout, which would be slow with hundreds of texts.
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color, in_layout=False)


def _caption(tasks: Tasks) -> str:
    """Numbers of questions and rollouts, as ranges if they differ between tasks."""

    def span(numbers: set[int]) -> str:
        return "-".join(str(each) for each in sorted({min(numbers), max(numbers)}))

    questions = span({task.questions.n for _, task in tasks})
    rollouts = span({task.sampling.rollouts_per_example for _, task in tasks})
    return f"n = {questions} questions per task, {_rollouts(rollouts)}"


def _rollouts(count: str) -> str:
    return f"{count} rollout{'' if count == '1' else 's'} each"
