"""Plots of all models' results, on one task or on all tasks.

    plot_results(read_results("results_all_tasks_20250101-120000.json"), Path("summary.png"))

Each task is a row with one dot per model, with intervals. If there are several tasks, the first row contains the macro
averages.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rg_env.core.statistics import with_interval
from rg_env.core.text import counted
from rg_env.evaluation.plots import style
from rg_env.evaluation.results import Accuracy, ModelSummary, Results, Scores, TaskResults

_FLOOR = "the best constant answer"


@style.styled
def plot_results(
    results: Results, output: Path, title: str | None = None, size: tuple[float, float] | None = None
) -> None:
    """Plot accuracies, with models sorted by macro-average accuracy and tasks by mean accuracy over all models.

    Args:
        output: output file for the plot. The file's suffix determines the format.
        title: title of the plot. The default is the task's name or the number of tasks. An empty string means no title.
        size: width and height of the image in inches. By default, they depend on the contents.

    Raises:
        InputError: the suffix is not one of `style.IMAGE_SUFFIXES`, or an accuracy was not measured.
        OutputFolderError: the plot cannot be written.
    """
    models = dict(sorted(results.models.items(), key=lambda item: -(item[1].accuracy or 0.0)))
    tasks = sorted(results.tasks.values(), key=_mean, reverse=True)
    rows: dict[str, Sequence[Accuracy | None]] = {}
    if len(tasks) > 1:
        rows["macro average" if all(task.in_overall for task in tasks) else "training tasks"] = list(models.values())
    floors = dict(enumerate((task.floor for task in tasks), len(rows)))
    rows |= {task.task: [_scores(task, name) for name in models] for task in tasks}
    figure, ((axes,),) = style.panels(5.5, len(rows) * max(0.26, 0.115 * len(models) + 0.1))
    for row in range(0, len(rows), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="black", alpha=0.05, linewidth=0)
    handles = style.draw_series(axes, [[accuracies[n] for accuracies in rows.values()] for n in range(len(models))])
    names, line = _names(models, tasks), None
    for row, floor in floors.items():
        if floor is not None:
            ends = [row - 0.45, row + 0.45]
            (line,) = axes.plot([floor] * 2, ends, color=style.GREY, linestyle="--", linewidth=1.2, zorder=1)
    if line:
        handles, names = [*handles, line], [*names, _FLOOR]
    style.label_rows(axes, list(style.short_names(list(rows)).values()))
    if len(tasks) > 1:
        axes.axhline(0.5, color="black", linewidth=0.8)
        axes.get_yticklabels()[0].set_fontweight("bold")
    style.share_axis(axes, f"accuracy, with 95% intervals\n{_caption(tasks)}")
    axes.legend(handles, names, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    caption = tasks[0].task if len(tasks) == 1 else f"{len(tasks)} tasks"
    style.finish(figure, caption if title is None else title, output, size)


def _mean(task: TaskResults) -> float:
    accuracies = [model.scores.measured[0] for model in task.models.values() if model.scores.n]
    return fmean(accuracies) if accuracies else 0.0


def _scores(task: TaskResults, model: str) -> Scores | None:
    """Return the scores of `model`, or None if the model was not evaluated on the task or was trained on all of the
    task's questions."""
    result = task.models.get(model)
    return result.scores if result and result.scores.n else None


def _names(models: Mapping[str, ModelSummary], tasks: Sequence[TaskResults]) -> list[str]:
    """Return a label for each model, with the model's (macro-average) accuracy below its name."""
    names, short = [], style.short_names(list(models), 36)
    for name, summary in models.items():
        scores = [each for task in tasks if (each := _scores(task, name))]
        notes = [
            with_interval(*summary.measured),
            counted(len(scores), "task") if len(scores) < len(tasks) else "",
            f"n = {scores[0].n}" if len(tasks) == len(scores) == 1 and scores[0].n < tasks[0].questions.n else "",
            counted(summary.failed, "failed call") if summary.failed else "",
        ]
        names.append(f"{short[name]}\n{', '.join(filter(None, notes))}")
    return names


def _span(numbers: Iterable[float]) -> str:
    """Format one number, or the range of several numbers (for example, "1-4")."""
    ends = set(numbers)
    return "-".join(f"{each:g}" for each in sorted({min(ends), max(ends)}))


def _caption(tasks: Sequence[TaskResults]) -> str:
    """Describe the questions, sampling and grading, with ranges if they differ between tasks."""
    count = _span(task.sampling.rollouts_per_example for task in tasks)
    grading = {task.grading for task in tasks} - {"hardened"}
    parts = [
        f"n = {_span(task.questions.n for task in tasks)} questions{' per task' if len(tasks) > 1 else ''}",
        f"{count} rollout{'' if count == '1' else 's'} each",
        f"temperature {_span(task.sampling.temperature for task in tasks)}",
        *(f"{each} grading" for each in sorted(grading)),
    ]
    return ", ".join(parts)
