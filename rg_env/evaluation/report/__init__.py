"""Report about a training run or an evaluation: a single HTML file that works offline in any browser.

    report = write_report(Path("outputs/RUN"))        # or the folder or a file of results; outputs/RUN/report.html

It has curves, tables, accuracies with intervals, and a browser of rollouts.
"""

from dataclasses import dataclass
from pathlib import Path

from rg_env.core.run_folder import RunFolder, written_aside
from rg_env.errors import InputError, OutputFolderError
from rg_env.evaluation.report.page import Page, render
from rg_env.evaluation.report.results import is_evaluation, results_page
from rg_env.evaluation.report.run import run_page
from rg_env.evaluation.runner import ROLLOUTS

ROLLOUTS_KEPT = 10_000
"""Default maximum number of rollouts in a report."""


@dataclass(frozen=True)
class Report:
    """A written report."""

    file: Path
    notes: list[str]
    """Notes about missing or omitted content."""


def write_report(source: Path, output: Path | None = None, limit: int = ROLLOUTS_KEPT) -> Report:
    """Write the report on a run or an evaluation, with at most `limit` rollouts.

    Args:
        source: folder of a run or an evaluation, one of its results files, or its `rollouts.jsonl`.
        output: file of the report; default: `report.html` in the folder.

    Raises:
        InputError: there is nothing to report, or a file is damaged or unreadable.
        OutputFolderError: the report cannot be written.
    """
    try:
        page = _page(source, limit)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}") from error
    output = output or (source if source.is_dir() else source.parent) / "report.html"
    if output.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{output} does not end in .html, and could be one of the files of the run")
    try:
        with written_aside(output) as aside:
            aside.write_text(render(page), encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        raise OutputFolderError(f"cannot write {output}: {error.strerror}") from error
    return Report(output, page.notes)


def _page(source: Path, limit: int) -> Page:
    if source.is_file():
        if source.name == ROLLOUTS and RunFolder.is_run(source.parent):
            raise InputError(f"{source} is part of a training run: pass its folder, {source.parent}")
        return results_page(source, limit)
    if not source.is_dir():
        raise InputError(f"{source} does not exist: pass the folder of a run or an evaluation, or a results file")
    if RunFolder.is_run(source):
        return run_page(source, limit)
    if is_evaluation(source):
        return results_page(source, limit)
    if (source / "sweep.yaml").is_file():
        raise InputError(f"{source} is a sweep: pass the folder of one of its runs, or use `rg-env compare {source}`")
    raise InputError(
        f"{source} holds neither a training run (metrics.jsonl, eval_results/) nor an evaluation (results_*.json, "
        f"{ROLLOUTS})"
    )
