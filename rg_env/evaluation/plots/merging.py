"""Results files as one: of models that were asked the same, with other names if they are given.

    results = merged({file: checked(read_results(file), file) for file in files})
    results = renamed(results, {"outputs/run/checkpoint-100": "ours"})

Figures are comparable where questions, sampling, grading and system prompt are the same; others are refused, with what
differs.

Other names in pictures: `A=B` as it is typed, or a JSON file of them.

new_names(["checkpoint-100=ours"], Path("names.json"), known=["checkpoint-100", "base"], kind="model")
"""

import difflib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rg_env.core.text import reason_of
from rg_env.errors import InputError, unknown_name
from rg_env.evaluation.results import Interval, Results, TaskResults

_ROUNDING = 1e-9
_SAME = ("spec", "questions", "sampling", "grading", "system_prompt", "floor")
"""What two files have to have in common, of each task."""
_MOST_SHOWN = 24
"""Characters of a value."""


def checked(results: Results, file: str) -> Results:
    """The same results, if they hold together.

    Raises:
        InputError: there are no answers; an accuracy outside of its interval; models of a task without a macro average.
    """
    if not results.models:
        only = " but those of external benchmarks, of which there is no picture" if results.external else ""
        raise InputError(f"{file} has no models{only}: there is nothing to draw")
    for name, summary in results.models.items():
        _check_interval(*summary.measured, f"{file}: the macro average of {name!r}")
    for task, of_task in results.tasks.items():
        if more := of_task.models.keys() - results.models.keys():
            raise InputError(f"{file} is damaged: {min(more)!r}, of the task {task!r}, has no macro average")
        for name, model in of_task.models.items():
            if model.scores.n:
                _check_interval(*model.scores.measured, f"{file}: the accuracy of {name!r} on {task!r}")
    scores = [model.scores for each in results.tasks.values() for model in each.models.values()]
    if not any(each.n > 0 and each.answers > 0 for each in scores):
        raise InputError(f"{file} has no answers: there is nothing to draw")
    return results


def _check_interval(accuracy: float, interval: Interval, what: str) -> None:
    low, high = interval
    if not (math.isfinite(low) and math.isfinite(high) and low - _ROUNDING <= accuracy <= high + _ROUNDING):
        raise InputError(f"{what}, {accuracy:g}, is not in its interval, {low:g} to {high:g}: the file is damaged")


def merged(files: Mapping[str, Results]) -> Results:
    """The results of all files, by file, as those of one: models in the order of the files, each once.

    Raises:
        InputError: the files are of different tasks, or what they asked, or how, differs; two of them have
            models of the same name with different results.
    """
    (first, results), *others = files.items()
    for file, other in others:
        results = _with_all(results, other, (file, first))
    return results


def _with_task(results: TaskResults, other: TaskResults, files: tuple[str, str]) -> TaskResults:
    if reason := next(_differences(results, other), None):
        raise InputError(f"{files[0]} cannot be compared with {files[1]} on {results.task!r}: {reason}")
    return results.model_copy(
        update={
            "models": _together(results.models, other.models, files),
            "comparisons": [
                *results.comparisons,
                *(each for each in other.comparisons if each not in results.comparisons),
            ],
        }
    )


def _with_all(results: Results, other: Results, files: tuple[str, str]) -> Results:
    if differ := sorted(results.tasks.keys() ^ other.tasks.keys()):
        where = files[0] if differ[0] in other.tasks else files[1]
        raise InputError(
            f"{files[0]} cannot be compared with {files[1]}: only {where} has the task {differ[0]!r}, so the macro "
            "averages are of different tasks"
        )
    return results.model_copy(
        update={
            "published": [*results.published, *(each for each in other.published if each not in results.published)],
            "models": _together(results.models, other.models, files),
            "tasks": {name: _with_task(task, other.tasks[name], files) for name, task in results.tasks.items()},
            "comparisons": [
                *results.comparisons,
                *(each for each in other.comparisons if each not in results.comparisons),
            ],
            "external": [*results.external, *(each for each in other.external if each not in results.external)],
        }
    )


def _differences(one: TaskResults, other: TaskResults) -> Iterator[str]:
    """What was not the same, in words."""
    for name in _SAME:
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours == theirs:
            continue
        if name in ("questions", "sampling"):
            for field in type(ours).model_fields:
                if (a := getattr(ours, field)) != (b := getattr(theirs, field)):
                    yield f"other {name}: {field} is {_short(b)}, not {_short(a)}"
        else:
            yield f"other {name}: {_short(theirs)}, not {_short(ours)}"


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


_Model = TypeVar("_Model")


def _together(ours: Mapping[str, _Model], theirs: Mapping[str, _Model], files: tuple[str, str]) -> dict[str, _Model]:
    for name in ours.keys() & theirs.keys():
        if ours[name] != theirs[name]:
            raise InputError(
                f"{files[0]} and {files[1]} both have a model {name!r}, with different results: leave one file out, or "
                "evaluate one of the models under another name"
            )
    return {**ours, **theirs}


def renamed(results: Results, names: Mapping[str, str]) -> Results:
    """The results with other names for models; `names` gives different ones to different models."""

    def of(models: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): model for name, model in models.items()}

    def pairs(comparisons: Iterable[Any]) -> list[Any]:
        return [
            each.model_copy(update={"a": names.get(each.a, each.a), "b": names.get(each.b, each.b)})
            for each in comparisons
        ]

    def of_model(records: Iterable[Any]) -> list[Any]:
        return [each.model_copy(update={"model": names.get(each.model, each.model)}) for each in records]

    tasks = {
        name: task.model_copy(update={"models": of(task.models), "comparisons": pairs(task.comparisons)})
        for name, task in results.tasks.items()
    }
    return results.model_copy(
        update={
            "models": of(results.models),
            "comparisons": pairs(results.comparisons),
            "published": of_model(results.published),
            "tasks": tasks,
            "external": of_model(results.external),
        }
    )


def new_names(typed: Sequence[str], file: Path | None, known: Sequence[str], kind: str) -> dict[str, str]:
    """New names by old ones, all at once: `A=B B=A` swaps two.

    Names may hold "=" themselves: `A` is then that beginning of the text that is a known name.

    Args:
        known: all names that there are.
        kind: what they are the names of.

    Raises:
        InputError: what is typed has no "=", or is not clear; the file cannot be read; an old name is not known (the
            nearest is named) or stands twice; a new one is empty, or would be that of two.
    """
    names: dict[str, str] = {}
    for where, old, new in [*(_typed(text, known, kind) for text in typed), *_from_file(file)]:
        if old not in known:
            error = unknown_name(kind, old, known)
            raise type(error)(f"{where}: {error}")
        if not new.strip():
            raise InputError(f"{where}: the new name of {old!r} is empty")
        if names.get(old, new) != new:
            raise InputError(f"{where}: {old!r} is already renamed to {names[old]!r}")
        names[old] = new
    owners: dict[str, str] = {}
    for name in known:
        new = names.get(name, name)
        if new in owners:
            raise InputError(
                f"{owners[new]!r} and {name!r} would both be {new!r}: the names of a picture have to differ"
            )
        owners[new] = name
    return names


def _typed(text: str, known: Collection[str], kind: str) -> tuple[str, str, str]:
    """Where, the old name, and the new one."""
    where = f"--rename {text}"
    splits = [(text[:place], text[place + 1 :]) for place, each in enumerate(text) if each == "="]
    if not splits:
        raise InputError(f"{where}: give it as OLD=NEW (files stand before the options)")
    fit = [split for split in splits if split[0] in known]
    if len(fit) > 1:
        raise InputError(f"{where}: this can mean the {kind} {fit[0][0]!r} or {fit[1][0]!r}; say it by --rename-file")
    old, new = fit[0] if fit else max(splits, key=lambda split: _likeness(split[0], known))
    return where, old, new


def _likeness(name: str, known: Collection[str]) -> float:
    return max((difflib.SequenceMatcher(None, name, each).ratio() for each in known), default=0.0)


def _from_file(file: Path | None) -> Iterator[tuple[str, str, str]]:
    if file is None:
        return
    try:
        values = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_no_key_twice)
    except OSError as error:
        raise InputError(f"--rename-file {file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"--rename-file {file} is not JSON: {reason_of(error)}") from error
    if not isinstance(values, dict) or not all(isinstance(new, str) for new in values.values()):
        raise InputError(f'--rename-file {file} has to hold new names by old ones: {{"OLD": "NEW"}}')
    for old, new in values.items():
        yield f"--rename-file {file}", old, new


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object, of which Python would keep the last value of a key. Raises `ValueError`."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")
    return values
