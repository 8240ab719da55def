"""Pictures of results: the models on all tasks.

    summary_picture(read_results("results_all_tasks_20250101-120000.json"), Path("summary_all_tasks.png"))

Few models are dots with intervals, a row a task; many models, or many tasks, are a table, a row a model, with intervals
on the macro averages. What they show is what the results say; nothing is computed anew but the order of the tasks.
"""

import math
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rg_env.evaluation.plots.style import (
    COLORS,
    GREY,
    MARKERS,
    bare,
    error_bars,
    label_width,
    legend,
    percent,
    save,
    short_names,
    titled,
)
from rg_env.evaluation.results import ModelSummary, Results, Scores, TaskResults

_MOST_DOTS = 100
"""Models x tasks that are still drawn as dots."""
_MOST_COLUMNS = 40
"""Of a table; more tasks stand below."""
_MACRO = "macro average"
_FLOOR = "the best constant answer"
_SHADES = "Blues"
"""From light to dark as accuracy rises: read in grey, too."""
_TICKS = {0: "0", 0.25: "25", 0.5: "50", 0.75: "75", 1: "100"}


def summary_picture(results: Results, output: Path, title: str | None = None) -> None:
    """Draw the models' accuracy on all tasks, and their macro averages with 95 % intervals; models are sorted by macro
    average, tasks by the mean over the models.

    Args:
        output: of the picture; its suffix says which kind.
        title: default: how many tasks; empty: none.

    Raises:
        InputError: the suffix is none of `drawing.SUFFIXES`.
        OutputFolderError: it cannot be written.
    """
    models = sorted(results.models.items(), key=lambda item: -item[1].measured[0])
    tasks = sorted(results.tasks.items(), key=lambda item: -_mean(item[1]))
    dots = len(models) <= len(COLORS) and len(models) * len(tasks) <= _MOST_DOTS
    figure = (_dots if dots else _table)(models, tasks)
    count = f"{len(tasks)} task{'s' if len(tasks) > 1 else ''}"
    titled(figure, count if title is None else title)
    save(figure, output)


Models = list[tuple[str, ModelSummary]]
Tasks = list[tuple[str, TaskResults]]


def _scores(task: TaskResults, model: str) -> Scores | None:
    """None where the model was not asked, or no question counts."""
    found = task.models.get(model)
    return found.scores if found and found.scores.n else None


def _mean(task: TaskResults) -> float:
    found = [model.scores.measured[0] for model in task.models.values() if model.scores.n]
    return fmean(found) if found else 0.0


def _in_words(name: str, summary: ModelSummary, tasks: Tasks) -> str:
    """A model's macro average, its interval, and what sets it apart from the others."""
    accuracy, interval = summary.measured
    low, high = map(percent, interval)
    count = sum(_scores(task, name) is not None for _, task in tasks)
    apart = [] if count == len(tasks) else [f"{count} task{'' if count == 1 else 's'}"]
    apart += [f"{summary.failed} failed calls"] if summary.failed else []
    return f"{percent(accuracy)} ({', '.join([f'{low} to {high}', *apart])})"


def _dots(models: Models, tasks: Tasks) -> Figure:
    """A row a task, the macro average on top."""
    labels = [_MACRO, *short_names([name for name, _ in tasks]).values()]
    names = [
        f"{label}\n{_in_words(name, summary, tasks)}"
        for label, (name, summary) in zip(short_names([name for name, _ in models], 36).values(), models, strict=True)
    ]
    legend_width = label_width([line for name in names for line in name.split("\n")], 8) + 0.5
    width = label_width(labels, 9) + 5.5 + legend_width
    row = max(0.26, 0.115 * len(models) + 0.1)  # inches
    height = max(1.1 + row * len(labels), 0.8 + 0.32 * (len(models) + 1))
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    for place in range(0, len(labels), 2):
        axes.axhspan(place - 0.5, place + 0.5, color="black", alpha=0.05, linewidth=0)
    step = 0.8 / len(models)
    for number, (name, summary) in enumerate(models):
        rows = [(0, *summary.measured)]
        for place, (_, task) in enumerate(tasks, 1):
            if scores := _scores(task, name):
                rows.append((place, *scores.measured))
        shift = (number - (len(models) - 1) / 2) * step
        means = [mean for _, mean, _ in rows]
        axes.errorbar(
            means,
            [place + shift for place, _, _ in rows],
            xerr=error_bars(means, [interval for _, _, interval in rows]),
            color=COLORS[number],
            marker=MARKERS[number],
            markersize=4.5,
            linestyle="none",
            elinewidth=1.2,
            capsize=2,
        )
    handles = [
        Line2D([], [], color=color, marker=marker, markersize=5)
        for color, marker, _ in zip(COLORS, MARKERS, models, strict=False)
    ]
    floors = [(place, task.floor) for place, (_, task) in enumerate(tasks, 1) if task.floor is not None]
    for place, floor in floors:
        axes.plot([floor, floor], [place - 0.45, place + 0.45], color=GREY, linestyle="--", linewidth=1.2, zorder=1)
    if floors:
        handles.append(Line2D([], [], color=GREY, linestyle="--"))
        names.append(_FLOOR)
    axes.axhline(0.5, color="black", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels, fontsize=9, parse_math=False)
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks(list(_TICKS), list(_TICKS.values()))
    axes.set_xlabel(f"accuracy in %, with 95 % intervals\n{_asked(tasks)}", fontsize=9)
    bare(axes, "x")
    legend(axes, handles, names, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, fontsize=8)
    return figure


def _table(models: Models, tasks: Tasks) -> Figure:
    """A row a model, a column a task, below one another if there are many."""
    bands = math.ceil(len(tasks) / _MOST_COLUMNS)
    size = math.ceil(len(tasks) / bands)
    has_floor = any(task.floor is not None for _, task in tasks)
    labels = [*short_names([name for name, _ in models]).values(), *([_FLOOR] if has_floor else [])]
    columns = list(short_names([name for name, _ in tasks], 36).values())
    notes = [_in_words(name, summary, tasks) for name, summary in models]
    cells, rows = max(0.34 * size, 2.0), len(models) + 1.3 * has_floor  # inches; rows
    width = label_width(labels, 9) + cells + 2.6 + label_width(notes, 8)
    height = 0.8 + bands * (label_width(columns, 8) + 0.26 * rows + 0.1)
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(bands, 2, squeeze=False, width_ratios=[cells, 2.2])
    places = [*range(len(models)), *([len(models) + 0.3] if has_floor else [])]
    for band, (axes, beside) in enumerate(panels):
        part = slice(band * size, (band + 1) * size)
        _cells(axes, [name for name, _ in models], tasks[part])
        axes.set_xlim(-0.5, size - 0.5)
        axes.set_ylim(rows - 0.5, -0.5)
        axes.set_yticks(places, labels, fontsize=9, parse_math=False)
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(columns[part])), columns[part], rotation=90, fontsize=8, parse_math=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if band:
            beside.set_axis_off()
        else:
            beside.set_ylim(rows - 0.5, -0.5)
            _macro(beside, models, notes)
    axes.set_xlabel(f"accuracy in %\n{_asked(tasks)}", fontsize=9)
    axes.xaxis.set_label_position("bottom")
    return figure


def _cells(axes: Axes, models: list[str], tasks: Tasks) -> None:
    """The squares of a table, and below them what the best constant answers get. No accuracy is a dash."""
    found = [[_scores(task, name) for _, task in tasks] for name in models]
    shades = [[0.02 + 0.9 * each.measured[0] if each else math.nan for each in row] for row in found]
    places = [[place - 0.5 for place in range(count + 1)] for count in (len(tasks), len(models))]
    axes.pcolormesh(*places, shades, cmap=_SHADES, vmin=0, vmax=1, edgecolors="white", linewidth=1.2)
    for row, scores in enumerate(found):
        for column, each in enumerate(scores):
            dark = each is not None and each.measured[0] > 0.75  # where white is read better than black
            _number(axes, column, row, each.measured[0] if each else None, "white" if dark else "black")
    for column, (_, task) in enumerate(tasks):
        if task.floor is not None:
            _number(axes, column, len(models) + 0.3, task.floor, GREY)


def _number(axes: Axes, column: float, row: float, share: float | None, color: str) -> None:
    text = "-" if share is None else percent(share, 0)
    # Not for the layout to look at: hundreds of them, each within its square.
    axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color, in_layout=False)


def _macro(axes: Axes, models: Models, notes: list[str]) -> None:
    """The macro averages with their intervals, a row a model, beside the table."""
    means = [summary.measured[0] for _, summary in models]
    axes.errorbar(
        means,
        range(len(models)),
        xerr=error_bars(means, [summary.measured[1] for _, summary in models]),
        color=COLORS[0],
        marker="o",
        markersize=5,
        linestyle="none",
        elinewidth=1.4,
        capsize=3,
    )
    for row, note in enumerate(notes):
        axes.text(1.04, row, note, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks(list(_TICKS), list(_TICKS.values()), fontsize=8)
    axes.set_yticks([])
    axes.set_xlabel(f"{_MACRO} in %,\nwith 95 % intervals", fontsize=9)
    bare(axes, "x")
    axes.spines["left"].set_visible(False)


def _asked(tasks: Tasks) -> str:
    """How many questions, and answers to each, as far as the tasks agree."""

    def both(numbers: set[int]) -> str:
        return "-".join(str(each) for each in sorted({min(numbers), max(numbers)}))

    questions = both({task.questions.n for _, task in tasks})
    rollouts = both({task.sampling.rollouts_per_example for _, task in tasks})
    return f"n = {questions} questions a task, {rollouts} rollout{'' if rollouts == '1' else 's'} each"
