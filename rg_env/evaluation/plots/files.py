"""A picture of files: results of one task, of all tasks, or metrics of runs. Which they are, they say themselves.

plot_files([Path("results_maze_20250101-120000.json")])                  # results_maze_20250101-120000.png
plot_files(list(Path("outputs").glob("*/metrics.jsonl")), output=Path("curves.svg"))
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rg_env.errors import InputError
from rg_env.evaluation.plots.curves import Curve, curves_picture, read_curve
from rg_env.evaluation.plots.merging import checked, merged, new_names, renamed
from rg_env.evaluation.plots.style import check_suffix
from rg_env.evaluation.plots.summary import summary_picture
from rg_env.evaluation.plots.task import comparison_picture
from rg_env.evaluation.results import Results, read_results


@dataclass(frozen=True)
class Renames:
    """Other names for models, or for runs."""

    typed: tuple[str, ...] = ()
    """OLD=NEW."""
    file: Path | None = None
    """JSON: new names by old ones."""


def plot_files(
    files: Sequence[Path], output: Path | None = None, title: str | None = None, renames: Renames | None = None
) -> Path:
    """Draw one picture of all `files`, which have to be of one kind.

    Args:
        output: default: next to the first file, with its name and the suffix .png; it is written over.
        title: default: what is drawn; empty: none.

    Returns:
        The picture.

    Raises:
        InputError: a file cannot be read, is empty or damaged; the files cannot stand in one picture, with the reason;
            a rename that is wrong; a suffix that is none of .png, .svg and .pdf.
        OutputFolderError: the picture cannot be written.
    """
    if folder := next((file for file in files if file.is_dir()), None):
        raise InputError(f"{folder} is a folder: name the files in it, {folder / 'metrics.jsonl'} of a run")
    output = check_suffix(output or files[0].with_suffix(".png"))
    if output.resolve() in {file.resolve() for file in files}:
        raise InputError(f"{output} is one of the files: the picture needs another name, by --output")
    files = list({file.resolve(): file for file in files}.values())  # each once
    draw = _curves if _kind(files) == "metrics" else _results
    draw(files, renames or Renames())(output, title)
    return output


Draw = Callable[[Path, str | None], None]


def _kind(files: Sequence[Path]) -> str:
    """Of all of them."""
    kinds = ["metrics" if file.suffix == ".jsonl" else "results" for file in files]
    if other := next((file for file, kind in zip(files, kinds, strict=True) if kind != kinds[0]), None):
        raise InputError(f"{other} and {files[0]}: results and metrics of runs do not go into one picture")
    return kinds[0]


def _curves(files: Sequence[Path], renames: Renames) -> Draw:
    names = _run_names(files)
    curves = [read_curve(file, name) for file, name in zip(files, names, strict=True)]
    new = new_names(renames.typed, renames.file, names, "run")
    curves = [Curve(new.get(curve.name, curve.name), curve.values) for curve in curves]
    return lambda output, title: curves_picture(curves, output, title)


def _run_names(files: Sequence[Path]) -> list[str]:
    """The folder of each, with as many of those above as tell it from the others; and the file's name, unless it is
    `metrics.jsonl`."""
    parts = [file.resolve().parts if file.name != "metrics.jsonl" else file.resolve().parent.parts for file in files]

    def ends(count: int) -> list[tuple[str, ...]]:
        return [each[-count:] for each in parts]

    most = max(map(len, parts))
    return [
        "/".join(next(end for end in (ends(n)[row] for n in range(1, most + 1)) if ends(len(end)).count(end) == 1))
        for row in range(len(parts))
    ]


def _results(files: Sequence[Path], renames: Renames) -> Draw:
    read = {str(file): checked(_readable(file), str(file)) for file in files}
    sizes = {len(each.tasks) > 1 for each in read.values()}
    if len(sizes) > 1:
        several = next(file for file, each in read.items() if len(each.tasks) > 1)
        single = next(file for file, each in read.items() if len(each.tasks) == 1)
        raise InputError(f"{several} has all tasks and {single} one: they do not go into one picture")
    results = merged(read)
    results = renamed(results, new_names(renames.typed, renames.file, list(results.models), "model"))
    if len(results.tasks) > 1:
        return lambda output, title: summary_picture(results, output, title)
    (task,) = results.tasks.values()
    return lambda output, title: comparison_picture(task, output, title)


def _readable(file: Path) -> Results:
    if file.is_file() and not file.stat().st_size:
        raise InputError(f"{file} is empty")
    return read_results(file)
