"""Merge the results of several files, for plots and reports.

    results = merged({"a.json": read_results("a.json"), "b.json": read_results("b.json")})

Files must be comparable: each task must have the same questions, sampling, grading and system prompt.
"""

from collections.abc import Iterator, Mapping, Sequence

from rg_env.core.statistics import mean_of
from rg_env.core.text import one_line
from rg_env.errors import InputError
from rg_env.evaluation.results import ModelSummary, Results, TaskResults

_SAME = ("spec", "questions", "sampling", "grading", "system_prompt", "floor")
"""Fields of a task that must be equal in all files."""


def merged(files: Mapping[str, Results]) -> Results:
    """Merge the models and tasks of the files.

    Raises:
        InputError: a file has no answers; models were evaluated on different tasks or in different ways; or two files
            have different results for models with the same name.
    """
    tasks: dict[str, TaskResults] = {}
    first: dict[str, str] = {}  # file of each task
    for file, results in files.items():
        if not any(model.scores.n for task in results.tasks.values() for model in task.models.values()):
            only = " except external benchmarks, which cannot be plotted" if results.external else ""
            raise InputError(f"{file} has no answers{only}")
        for name, task in results.tasks.items():
            known = tasks.setdefault(name, task)
            where = first.setdefault(name, file)
            if reason := next(_differences(known, task), None):
                raise InputError(f"{file} cannot be compared with {where} on {name!r}: {reason}")
            for model in known.models.keys() & task.models.keys():
                if known.models[model] != task.models[model]:
                    raise InputError(
                        f"{file} and {where} both have a model {model!r}, with different results: omit one file, or "
                        "evaluate one of the models under another name"
                    )
            tasks[name] = known.model_copy(update={"models": known.models | task.models})
    summaries = {model: each for results in files.values() for model, each in results.models.items()}
    for name, task in tasks.items():
        if len(files) > 1 and (missing := sorted(summaries.keys() - task.models.keys())):
            other = next(file for file, results in files.items() if missing[0] in results.models)
            raise InputError(f"{other} cannot be compared with {first[name]}: only {first[name]} has the task {name!r}")
    whole = [results for results in files.values() if results.tasks.keys() == tasks.keys()]
    summaries |= {model: each for results in whole for model, each in results.models.items()}
    if not whole:  # files of single tasks
        summaries = {model: _over(list(tasks.values()), model, each) for model, each in summaries.items()}
    return next(iter(files.values())).model_copy(update={"tasks": tasks, "models": summaries})


def _over(tasks: Sequence[TaskResults], model: str, summary: ModelSummary) -> ModelSummary:
    """Recompute a model's macro average over `tasks`."""
    scores = [task.models[model].scores for task in tasks]
    accuracy, interval = mean_of(*zip(*(each.measured for each in scores if each.n), strict=True))
    failed = sum(each.failed for each in scores)
    return summary.model_copy(update={"accuracy": accuracy, "accuracy_interval": interval, "failed": failed})


def _differences(one: TaskResults, other: TaskResults) -> Iterator[str]:
    for name in _SAME:
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours != theirs and name in ("questions", "sampling"):
            for field in type(ours).model_fields:
                if (a := getattr(ours, field)) != (b := getattr(theirs, field)):
                    yield f"other {name}: {field} is {one_line(b, 24)}, not {one_line(a, 24)}"
        elif ours != theirs:
            yield f"other {name}: {one_line(theirs, 24)}, not {one_line(ours, 24)}"
