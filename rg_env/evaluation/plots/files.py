"""Plot one or more files, which contain either evaluation results or training metrics. The kind of file is detected
automatically.

    plot_files([Path("results_maze_20250101-120000.json")])                  # results_maze_20250101-120000.png
    plot_files(list(Path("outputs").glob("*/metrics.jsonl")), output=Path("curves.svg"))

Results can be plotted together only if they have the same questions, sampling, grading and system prompt. If any of
these differ, the error message names the first difference.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rg_env.core.config.files import leaves
from rg_env.core.run_folder import RunFolder, damage_reported
from rg_env.core.text import point_labels, short_keys
from rg_env.errors import InputError, unknown_name
from rg_env.evaluation.plots.curves import Curve, averaged, notes_on, plot_curves, read_curve
from rg_env.evaluation.plots.results import plot_results
from rg_env.evaluation.plots.style import LONGEST_NAME, check_suffix
from rg_env.evaluation.results import Results, merged, nothing_in, read_results, results_files

_NO_SETTINGS = ("output", "logging", "hub", "engine.host", "engine.port")
"""Sections and keys that do not change what a run learns."""


def plot_files(
    files: Sequence[Path],
    output: Path | None = None,
    title: str | None = None,
    rename: Sequence[str] = (),
    group: Sequence[str] | None = None,
    size: tuple[float, float] | None = None,
) -> tuple[Path, list[str]]:
    """Draw one plot of all `files`, which must be of the same kind. For a run folder, the plot shows the run's metrics;
    for a sweep, those of its runs; for an evaluation folder, the folder's newest results.

    Args:
        output: output file for the plot. An existing file is replaced. The default is the first file's name with the
            suffix .png.
        title: title of the plot. The default is a description of the contents. An empty string means no title.
        rename: new names for models, runs or groups of runs, as "OLD=NEW".
        group: config keys. Runs with the same values of these keys are drawn as their mean. An empty sequence means all
            keys that differ between the runs, except seeds.
        size: width and height of the image in inches. By default, they depend on the contents.

    Returns:
        Path of the plot, and notes on the limits of the comparison.

    Raises:
        InputError: a file is unreadable or damaged, the files cannot be drawn in one plot, a rename is invalid, or the
            suffix is not .png, .svg or .pdf.
        OutputFolderError: the plot cannot be written.
    """
    files = [file for given in files for file in (_files_in(given) if given.is_dir() else [given])]
    output = check_suffix(output or files[0].with_suffix(".png"))
    files = list({file.resolve(): file for file in files}.values())  # without duplicates
    if output.resolve() in {file.resolve() for file in files}:
        raise InputError(f"{output} is one of the input files: choose another name for the plot with --output")
    runs = [file for file in files if file.suffix == ".jsonl"]
    others = [file for file in files if file not in runs]
    if runs and others:
        raise InputError(f"{runs[0]} contains training metrics, but {others[0]} contains results: plot them separately")
    if group is not None and others:
        read_results(others[0])  # raises if the file is missing
        raise InputError(f"--group averages training runs, but {others[0]} contains results")
    if not runs:
        results = merged({str(file): read_results(file) for file in files})
        plot_results(_renamed(results, new_names(rename, list(results.models), "model")), output, title, size)
        return output, []
    with damage_reported(runs[0].parent):
        labels = _run_names(runs) if group is None else _settings(runs, group)
        names = new_names(rename, list(dict.fromkeys(labels)), "run" if group is None else "group")
        groups: dict[str, list[Curve]] = {name: [] for name in names.values()}
        for file, label in zip(runs, labels, strict=True):
            groups[names[label]].append(read_curve(file, str(file.parent)))
        notes = notes_on([curve for each in groups.values() for curve in each])
        curves = [averaged(name, each) for name, each in sorted(groups.items(), key=lambda item: _by_number(item[0]))]
        plot_curves(curves, output, title, size)
    return output, notes_on(curves) if group is None else notes


def _files_in(folder: Path) -> list[Path]:
    run = RunFolder(folder)
    if found := [run.metrics_file] if run.metrics_file.is_file() else results_files(folder):
        return found[:1]
    runs = sorted(file for file in folder.glob("*/metrics.jsonl") if not file.parent.is_symlink())
    if runs and (folder / "sweep.yaml").is_file():
        return runs
    raise nothing_in(folder)


def _settings(files: Sequence[Path], keys: Sequence[str]) -> list[str]:
    """Return a label for each run's values of the config keys `keys`, or, if there are no keys, of those that differ
    between the runs. If such a label is too long for a plot and no other run has it, the run's name replaces it."""
    configs = [dict(leaves(RunFolder(file.parent).config())) for file in files]
    known = list(dict.fromkeys(key for config in configs for key in config))
    if unknown := [key for key in keys if key not in known]:
        raise unknown_name("config key", unknown[0], known)
    found = keys or [
        key
        for key in known
        if any(config.get(key) != configs[0].get(key) for config in configs)
        and not key.startswith(_NO_SETTINGS)
        and key.rpartition(".")[2] != "seed"
    ]
    labels = point_labels([{key: config.get(key) for key in found} for config in configs])
    return [
        name if not keys and len(label) > LONGEST_NAME and labels.count(label) == 1 else label or "all"
        for label, name in zip(labels, _run_names(files), strict=True)
    ]


def _run_names(files: Sequence[Path]) -> list[str]:
    """Return a distinct name for each run. The name consists of the run's folder (with parent folders if necessary)
    and, unless the file is called metrics.jsonl, the file's name."""
    paths = [str((file.parent if file.name == "metrics.jsonl" else file).resolve()) for file in files]
    return list(short_keys(paths, "/").values())


def _by_number(name: str) -> list[tuple[float, str]]:
    """Return a sort key that compares numbers by value, so that `lr=3e-5` sorts before `lr=0.0001`."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", name)
    return [(float(part), "") if number % 2 else (0.0, part) for number, part in enumerate(parts)]


def _renamed(results: Results, names: Mapping[str, str]) -> Results:
    """Return the results with the models renamed, for a plot."""

    def of(models: Mapping[str, Any]) -> dict[str, Any]:
        return {names[name]: model for name, model in models.items()}

    tasks = {name: task.model_copy(update={"models": of(task.models)}) for name, task in results.tasks.items()}
    return results.model_copy(update={"models": of(results.models), "tasks": tasks})


def new_names(entries: Sequence[str], names: Sequence[str], kind: str) -> dict[str, str]:
    """Return the new names by old name. Replacements are simultaneous, so `A=B B=A` swaps two names.

    Args:
        entries: entries of the form "OLD=NEW". OLD is the longest name that the entry starts with, because names may
            contain "=".
        kind: noun for error messages, such as "model".

    Raises:
        InputError: an entry has no "=", an old name is unknown, or a new name is empty or not unique.
    """
    new = {name: name for name in names}
    for text in entries:
        if "=" not in text:
            raise InputError(f"--rename {text}: pass it as OLD=NEW (files come before the options)")
        old = max((name for name in names if text.startswith(f"{name}=")), key=len, default=None)
        if old is None:
            raise unknown_name(kind, text.rpartition("=")[0], names)
        new[old] = text.removeprefix(f"{old}=")
    if unfit := [name for name in new.values() if not name.strip() or [*new.values()].count(name) > 1]:
        raise InputError(
            f"each {kind} in a plot needs a unique, nonempty name, but {unfit[0]!r} is empty or used more than once"
        )
    return new
