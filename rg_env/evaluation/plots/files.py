"""Plot several files, either evaluation results or training metrics; the kind is detected.

    plot_files([Path("results_maze_20250101-120000.json")])                  # results_maze_20250101-120000.png
    plot_files(list(Path("outputs").glob("*/metrics.jsonl")), output=Path("curves.svg"))

Results are comparable if questions, sampling, grading and system prompt are the same. Other files are refused with an
error that lists the differences.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rg_env.core.run_folder import RunFolder
from rg_env.core.text import one_line
from rg_env.errors import InputError, unknown_name
from rg_env.evaluation.plots.curves import notes_on, plot_curves, read_curve
from rg_env.evaluation.plots.results import plot_results
from rg_env.evaluation.plots.style import check_suffix
from rg_env.evaluation.results import Results, merged, newest_results, read_results


def plot_files(
    files: Sequence[Path],
    output: Path | None = None,
    title: str | None = None,
    rename: Sequence[str] = (),
    rename_file: Path | None = None,
) -> tuple[Path, list[str]]:
    """Draw one plot of all `files`, which must be of the same kind. A folder of a run means its metrics, one of an
    evaluation its newest results.

    Args:
        output: file of the plot, which is replaced if it exists; default: the first file with the suffix .png.
        title: default: a description; empty: no title.
        rename: new names for models or runs, as "OLD=NEW".
        rename_file: JSON file with new names: {"OLD": "NEW"}; names missing from the plot are ignored.

    Returns:
        Path of the plot, and notes about limits of the comparison.

    Raises:
        InputError: a file is unreadable or damaged; the files cannot be in one plot; a rename is invalid; the suffix is
            not .png, .svg or .pdf.
        OutputFolderError: the plot cannot be written.
    """
    files = [file for given in files for file in (_files_in(given) if given.is_dir() else [given])]
    output = check_suffix(output or files[0].with_suffix(".png"))
    files = list({file.resolve(): file for file in files}.values())  # without duplicates
    if output.resolve() in {file.resolve() for file in files}:
        raise InputError(f"{output} is one of the files: name the plot differently with --output")
    runs = [file for file in files if file.suffix == ".jsonl"]
    others = [file for file in files if file not in runs]
    if runs and others:
        raise InputError(f"{runs[0]} has metrics of a run and {others[0]} results: they do not belong in one plot")
    if not runs:
        results = merged({str(file): read_results(file) for file in files})
        paths = _paths(results)
        new = new_names(rename, rename_file, list(results.models), "model", paths)
        plot_results(renamed(results, new), output, title)
        return output, _unused(rename_file, list(results.models), "model", paths)
    names = _run_names(runs)
    new = new_names(rename, rename_file, names, "run")
    curves = [read_curve(file, new[name]) for file, name in zip(runs, names, strict=True)]
    curves.sort(key=lambda curve: _by_number(curve.name))
    plot_curves(curves, output, title)
    return output, [*notes_on(curves), *_unused(rename_file, names, "run")]


def _files_in(folder: Path) -> list[Path]:
    run = RunFolder(folder)
    found = [run.metrics_file] if run.metrics_file.is_file() else list(newest_results(folder)[0])
    if not found and (folder / "sweep.yaml").is_file():
        raise InputError(f"{folder} is a sweep: use `rg-env compare {folder}`, or pass {folder}/*/metrics.jsonl")
    if not found:
        raise InputError(f"{folder} has neither the metrics of a run (metrics.jsonl) nor results (results_*.json)")
    return found


def _unused(file: Path | None, known: Sequence[str], kind: str, paths: Collection[str] = ()) -> list[str]:
    """A note if no name in the rename file is in the plot."""
    if file is None or _from_file(file, [*known, *paths]):
        return []
    return [f"{file} renames nothing: the {kind}s are {', '.join(known)}"]


def _run_names(files: Sequence[Path]) -> list[str]:
    """Distinct names: folder of the run, with parents if necessary, and the file's name unless it is metrics.jsonl."""
    paths = [file.resolve().parts if file.name != "metrics.jsonl" else file.resolve().parent.parts for file in files]

    def name(path: tuple[str, ...]) -> str:
        ends = [path[-count:] for count in range(1, len(path) + 1)]
        return "/".join(next(end for end in ends if sum(other[-len(end) :] == end for other in paths) == 1))

    return list(map(name, paths))


def _by_number(name: str) -> list[tuple[float, str]]:
    """Sort key that compares numbers by value: `lr=3e-05` before `lr=0.0001`."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", name)
    return [(float(part), "") if number % 2 else (0.0, part) for number, part in enumerate(parts)]


def _paths(results: Results) -> dict[str, str]:
    """The name of each model by its folder, as it was given to `rg-env eval`, unless several models share it."""
    found = {(model.source, name) for task in results.tasks.values() for name, model in task.models.items()}
    sources = [source for source, _ in found]
    return {source: name for source, name in found if sources.count(source) == 1 and source not in results.models}


def renamed(results: Results, names: Mapping[str, str]) -> Results:
    """The results with new names for models, for a plot."""

    def of(models: Mapping[str, Any]) -> dict[str, Any]:
        return {names[name]: model for name, model in models.items()}

    tasks = {name: task.model_copy(update={"models": of(task.models)}) for name, task in results.tasks.items()}
    return results.model_copy(update={"models": of(results.models), "tasks": tasks})


def new_names(
    typed: Sequence[str], file: Path | None, known: Sequence[str], kind: str, paths: Mapping[str, str] | None = None
) -> dict[str, str]:
    """New names by old name. Replacements are simultaneous, so `A=B B=A` swaps two; `typed` overrides `file`.

    Names may contain "=". The old name is then the known name it starts with.

    Args:
        known: all old names.
        kind: noun for error messages, such as "model".
        paths: old names by path; a path is accepted too.

    Raises:
        InputError: an entry has no "=" or is ambiguous; the file is not such JSON; an old name is unknown or given
            twice; a new name is empty or not unique.
    """
    paths = paths or {}
    found: dict[str, str] = {}
    for text in typed:
        old, new = _split(text, [*known, *paths], kind)
        old = paths.get(old, old)
        if found.setdefault(old, new) != new:
            raise InputError(f"--rename {text}: {old!r} is already renamed to {found[old]!r}")
    from_file = {paths.get(old, old): new for old, new in _from_file(file, [*known, *paths]).items()}
    names = {name: name for name in known} | from_file | found
    for old, new in names.items():
        if not new.strip():
            raise InputError(f"the new name of {old!r} is empty")
        if other := next((name for name in names if name != old and names[name] == new), None):
            raise InputError(f"{old!r} and {other!r} would both be {new!r}: the names in a plot must differ")
    return names


def _split(text: str, known: Collection[str], kind: str) -> tuple[str, str]:
    splits = [(text[:place], text[place + 1 :]) for place, each in enumerate(text) if each == "="]
    if not splits:
        raise InputError(f"--rename {text}: pass it as OLD=NEW (files come before the options)")
    fits = [split for split in splits if split[0] in known]
    if len(fits) > 1:
        raise InputError(
            f"--rename {text}: this can mean the {kind} {fits[0][0]!r} or {fits[1][0]!r}; use --rename-file"
        )
    if not fits:
        error = unknown_name(kind, splits[-1][0], known)
        raise type(error)(f"--rename {text}: {error}")
    return fits[0]


def _from_file(file: Path | None, known: Collection[str]) -> dict[str, str]:
    if file is None:
        return {}
    where = f"--rename-file {file}"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {one_line(error)}") from error
    if not isinstance(values, dict) or not all(isinstance(new, str) for new in values.values()):
        raise InputError(f'{where} must have new names by old ones: {{"OLD": "NEW"}}')
    return {old: new for old, new in values.items() if old in known}
