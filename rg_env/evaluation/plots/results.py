"""Plots of all models' results, on one task or on all tasks.

    plot_results(read_results("results_all_tasks_20250101-120000.json"), Path("summary.png"))

One task is drawn as bars with intervals. Several tasks are drawn as dots with intervals, with one row per task. If
there are many models or tasks, a table is drawn instead, with one row per task and one column per model.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rg_env.core.statistics import with_interval
from rg_env.core.text import counted
from rg_env.evaluation.plots import style
from rg_env.evaluation.results import Accuracy, ModelSummary, Results, Scores, TaskResults

_MOST_DOTS = 100
"""Maximum number of model-task pairs that are drawn as dots. If there are more pairs, a table is drawn instead."""
_FLOOR = "the best constant answer"
_BAR = "#A8D5F0"  # light so that lines drawn on it are visible in grayscale
Models = Mapping[str, ModelSummary]
Tasks = Sequence[TaskResults]


@style.styled
def plot_results(results: Results, output: Path, title: str | None = None) -> None:
    """Plot accuracies, with models sorted by macro-average accuracy and tasks by mean accuracy over all models.

    Args:
        output: output file for the plot. The file's suffix determines the format.
        title: title of the plot. The default is the task's name or the number of tasks. An empty string means no title.

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
    """Return the accuracy and interval, followed by the note and the number of failed calls, if any."""
    return ", ".join(filter(None, [with_interval(*found.measured), note, f"{failed} failed calls" if failed else ""]))


def _bars(task: TaskResults) -> Figure:
    """Draw one bar per model, with the best model at the top, and a dashed line for the best constant answer."""
    scores = {name: model.scores for name, model in task.models.items()}
    scores = dict(sorted(scores.items(), key=lambda item: -item[1].measured[0] if item[1].n else 1.0))
    figure, ((axes,),) = style.panels(4.5, 0.3 * len(scores) + 0.1)
    n = task.questions.n
    for row, each in enumerate(scores.values()):
        note = "not measured (trained on all questions)"
        if each.n:
            axes.barh(row, each.measured[0], height=0.66, color=_BAR)
            style.draw_intervals(axes, [(row, each)], fmt="k.", markersize=6, capsize=3, clip_on=False)
            note = _in_words(each, f"n = {each.n}" if each.n != n else "", each.failed)
        axes.text(1.04, row, note, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    if task.floor is not None:
        line = axes.axvline(task.floor, color=style.COLORS[1], linestyle="--", linewidth=1.4, zorder=3)
        axes.legend([line], [f"{_FLOOR}: {task.floor:.3f}"], loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    style.label_rows(axes, list(style.short_names(list(scores)).values()))
    graded = "" if task.grading == "hardened" else f", {task.grading} grading"
    how = f"{_rollouts([task])}, temperature {task.sampling.temperature:g}{graded}"
    style.share_axis(axes, f"accuracy, with 95% intervals\nn = {counted(n, 'question')}, {how}", room=0)
    return figure


def _scores(task: TaskResults, model: str) -> Scores | None:
    """Return the scores of `model`, or None if the model was not evaluated on the task or was trained on all of the
    task's questions."""
    found = task.models.get(model)
    return found.scores if found and found.scores.n else None


def _names(models: Models, tasks: Tasks) -> list[str]:
    """Return a label for each model, with the model's macro average below its name."""
    names, short = [], style.short_names(list(models), 36)
    for name, summary in models.items():
        count = sum(_scores(task, name) is not None for task in tasks)
        note = "" if count == len(tasks) else counted(count, "task")
        names.append(f"{short[name]}\n{_in_words(summary, note, summary.failed)}")
    return names


def _overall(tasks: Tasks) -> str:
    """Return the label for the models' macro average. For a training run, the average excludes held-out tasks and
    labeled tasks."""
    return "macro average" if all(task.in_overall for task in tasks) else "training tasks"


def _dots(models: Models, tasks: Tasks) -> Figure:
    """Draw one row per task, with the macro average at the top."""
    labels = [_overall(tasks), *style.short_names([task.task for task in tasks]).values()]
    figure, ((axes,),) = style.panels(5.5, len(labels) * max(0.26, 0.115 * len(models) + 0.1))
    for row in range(0, len(labels), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="black", alpha=0.05, linewidth=0)
    series = {name: [summary, *(_scores(task, name) for task in tasks)] for name, summary in models.items()}
    handles, names = style.draw_series(axes, series), _names(models, tasks)
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
    """Draw a table of accuracies with one row per task and one column per model. The macro averages are in the top row,
    and the last column contains the accuracies of the best constant answers. A dash marks a missing accuracy."""
    rows, columns = [_overall(tasks), *style.short_names([task.task for task in tasks]).values()], _names(models, tasks)
    shares = [[summary.accuracy for summary in models.values()]]
    shares += [[each.accuracy if (each := _scores(task, name)) else None for name in models] for task in tasks]
    floors = [None, *(task.floor for task in tasks)]
    columns += [_FLOOR] if any(floor is not None for floor in floors) else []
    figure, ((axes,),) = style.panels(0.36 * len(columns), 0.26 * len(rows))
    shades = [[math.nan if share is None else 0.02 + 0.9 * share for share in of_task] for of_task in shares]
    edges = [[place - 0.5 for place in range(count + 1)] for count in (len(models), len(rows))]
    axes.pcolormesh(*edges, shades, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=1.2)

    def write(row: int, column: int, share: float | None, color: str) -> None:
        text = "-" if share is None else f"{share:.2f}"
        # Text is excluded from the layout because laying out hundreds of labels would be slow.
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color, in_layout=False)

    for row, (of_task, floor) in enumerate(zip(shares, floors, strict=True)):
        for column, share in enumerate(of_task):
            write(row, column, share, "white" if share is not None and share > 0.75 else "black")
        if floor is not None:
            write(row, len(models), floor, style.GREY)
    axes.axhline(0.5, color="black", linewidth=0.8)
    style.label_rows(axes, rows)
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=8)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    axes.set_xlabel(f"accuracy, with 95% intervals of the averages\n{_caption(tasks)}")
    axes.xaxis.set_label_position("bottom")
    return figure


def _span(numbers: Iterable[int]) -> str:
    """Format one number, or the range of several numbers (for example, "1-4")."""
    found = set(numbers)
    return "-".join(str(each) for each in sorted({min(found), max(found)}))


def _rollouts(tasks: Tasks) -> str:
    count = _span(task.sampling.rollouts_per_example for task in tasks)
    return f"{count} rollout{'' if count == '1' else 's'} each"


def _caption(tasks: Tasks) -> str:
    """Describe the numbers of questions and rollouts, as ranges if they differ between tasks."""
    return f"n = {_span(task.questions.n for task in tasks)} questions per task, {_rollouts(tasks)}"
