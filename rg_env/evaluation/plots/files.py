"""One plot of several files: results of evaluations, or metrics of training runs; the files themselves say which.

    plot_files([Path("results_maze_20250101-120000.json")])                  # results_maze_20250101-120000.png
    plot_files(list(Path("outputs").glob("*/metrics.jsonl")), output=Path("curves.svg"))

Results are comparable if questions, sampling, grading and system prompt are the same; other files are refused, with
what differs.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rg_env.core.text import one_line
from rg_env.errors import InputError, unknown_name
from rg_env.evaluation.plots.curves import Curve, plot_curves, read_curve
from rg_env.evaluation.plots.results import plot_results
from rg_env.evaluation.plots.style import check_suffix
from rg_env.evaluation.results import Results, TaskResults, read_results

_SAME = ("spec", "questions", "sampling", "grading", "system_prompt", "floor")
"""What two files must have in common, for each task."""


def plot_files(
    files: Sequence[Path],
    output: Path | None = None,
    title: str | None = None,
    rename: Sequence[str] = (),
    rename_file: Path | None = None,
) -> Path:
    """Draw one plot of all `files`, which must be of one kind.

    Args:
        output: default: next to the first file, with its name and the suffix .png; an existing file is replaced.
        title: default: a description; empty: none.
        rename: other names for models or runs, as "OLD=NEW".
        rename_file: a JSON file with other names: {"OLD": "NEW"}.

    Returns:
        The plot.

    Raises:
        InputError: a file is unreadable or damaged; the files do not belong in one plot; a rename is wrong; a suffix
            that is not .png, .svg or .pdf.
        OutputFolderError: the plot cannot be written.
    """
    if folder := next((file for file in files if file.is_dir()), None):
        raise InputError(f"{folder} is a folder: give the files in it, such as {folder / 'metrics.jsonl'} of a run")
    output = check_suffix(output or files[0].with_suffix(".png"))
    if output.resolve() in {file.resolve() for file in files}:
        raise InputError(f"{output} is one of the files: give the plot another name with --output")
    files = list({file.resolve(): file for file in files}.values())  # each once
    is_curve = [file.suffix == ".jsonl" for file in files]
    if any(is_curve) and not all(is_curve):
        raise InputError(
            f"{files[is_curve.index(True)]} has metrics of a run and {files[is_curve.index(False)]} results: they do "
            "not belong in one plot"
        )
    if all(is_curve):
        names = _run_names(files)
        curves = [read_curve(file, name) for file, name in zip(files, names, strict=True)]
        new = new_names(rename, rename_file, names, "run")
        plot_curves([Curve(new.get(each.name, each.name), each.values) for each in curves], output, title)
    else:
        results = merged({str(file): _with_answers(file) for file in files})
        new = new_names(rename, rename_file, list(results.models), "model")
        plot_results(renamed(results, new), output, title)
    return output


def _run_names(files: Sequence[Path]) -> list[str]:
    """The folder of each run, with as many of its parents as necessary, and the file's name unless metrics.jsonl."""
    paths = [file.resolve().parts if file.name != "metrics.jsonl" else file.resolve().parent.parts for file in files]

    def name(path: tuple[str, ...]) -> str:
        ends = [path[-count:] for count in range(1, len(path) + 1)]
        return "/".join(next(end for end in ends if sum(other[-len(end) :] == end for other in paths) == 1))

    return list(map(name, paths))


def _with_answers(file: Path) -> Results:
    results = read_results(file)
    if not any(model.scores.n for task in results.tasks.values() for model in task.models.values()):
        only = " but those of external benchmarks, which are not drawn" if results.external else ""
        raise InputError(f"{file} has no answers{only}")
    return results


def merged(files: Mapping[str, Results]) -> Results:
    """The models of all files, on the tasks that all have.

    Raises:
        InputError: the files have different tasks, or evaluated them differently; two of them have models of the same
            name with different results.
    """
    (first, results), *others = files.items()
    for file, other in others:
        if differ := sorted(results.tasks.keys() ^ other.tasks.keys()):
            where = file if differ[0] in other.tasks else first
            raise InputError(f"{file} cannot be compared with {first}: only {where} has the task {differ[0]!r}")
        tasks = {}
        for name, task in results.tasks.items():
            if reason := next(_differences(task, other.tasks[name]), None):
                raise InputError(f"{file} cannot be compared with {first} on {name!r}: {reason}")
            models = _together(task.models, other.tasks[name].models, file, first)
            tasks[name] = task.model_copy(update={"models": models})
        update = {"tasks": tasks, "models": _together(results.models, other.models, file, first)}
        results = results.model_copy(update=update)
    return results


def _differences(one: TaskResults, other: TaskResults) -> Iterator[str]:
    for name in _SAME:
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours == theirs:
            continue
        if name in ("questions", "sampling"):
            for field in type(ours).model_fields:
                if (a := getattr(ours, field)) != (b := getattr(theirs, field)):
                    yield f"other {name}: {field} is {one_line(b, 24)}, not {one_line(a, 24)}"
        else:
            yield f"other {name}: {one_line(theirs, 24)}, not {one_line(ours, 24)}"


def _together(ours: Mapping[str, Any], theirs: Mapping[str, Any], file: str, first: str) -> dict[str, Any]:
    for name in ours.keys() & theirs.keys():
        if ours[name] != theirs[name]:
            raise InputError(
                f"{file} and {first} both have a model {name!r}, with different results: omit one file, or evaluate "
                "one of the models under another name"
            )
    return {**ours, **theirs}


def renamed(results: Results, names: Mapping[str, str]) -> Results:
    """The results with other names for models, for a plot."""

    def of(models: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): model for name, model in models.items()}

    tasks = {name: task.model_copy(update={"models": of(task.models)}) for name, task in results.tasks.items()}
    return results.model_copy(update={"models": of(results.models), "tasks": tasks})


def new_names(typed: Sequence[str], file: Path | None, known: Sequence[str], kind: str) -> dict[str, str]:
    """New names by old ones, replaced all at once: `A=B B=A` swaps two.

    Names may contain "=": the old name is then the beginning that is a known name.

    Args:
        known: all old names.
        kind: what they are the names of.

    Raises:
        InputError: an entry has no "=" or is ambiguous; the file is not such JSON; an old name is unknown or given
            twice; a new name is empty or not unique.
    """
    names: dict[str, str] = {}
    for where, old, new in [*(_typed(text, known, kind) for text in typed), *_from_file(file)]:
        if old not in known:
            error = unknown_name(kind, old, known)
            raise type(error)(f"{where}: {error}")
        if not new.strip():
            raise InputError(f"{where}: the new name of {old!r} is empty")
        if names.setdefault(old, new) != new:
            raise InputError(f"{where}: {old!r} is already renamed to {names[old]!r}")
    owners: dict[str, str] = {}
    for name in known:
        new = names.get(name, name)
        if (owner := owners.setdefault(new, name)) != name:
            raise InputError(f"{owner!r} and {name!r} would both be {new!r}: the names in a plot must differ")
    return names


def _typed(text: str, known: Collection[str], kind: str) -> tuple[str, str, str]:
    where = f"--rename {text}"
    if "=" not in text:
        raise InputError(f"{where}: give it as OLD=NEW (files come before the options)")
    splits = [(text[:place], text[place + 1 :]) for place, each in enumerate(text) if each == "="]
    fits = [split for split in splits if split[0] in known]
    if len(fits) > 1:
        raise InputError(f"{where}: this can mean the {kind} {fits[0][0]!r} or {fits[1][0]!r}; use --rename-file")
    return where, *(fits or splits)[-1]


def _from_file(file: Path | None) -> Iterator[tuple[str, str, str]]:
    if file is None:
        return
    where = f"--rename-file {file}"
    try:
        values = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {one_line(error)}") from error
    if not isinstance(values, dict) or not all(isinstance(new, str) for new in values.values()):
        raise InputError(f'{where} must have new names by old ones: {{"OLD": "NEW"}}')
    yield from ((where, old, new) for old, new in values.items())


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("it has a key twice")
    return dict(pairs)
