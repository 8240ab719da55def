"""Report on a training run or an evaluation: a single HTML file that works offline in any browser.

    report = write_report(Path("outputs/RUN"))        # outputs/RUN/report.html; also for evaluations
    report = write_report(Path("outputs"))            # the report of each run, and a page that links to them

The report contains curves, tables, accuracies with intervals, and a rollout browser. Model output is never executed.
The page embeds model output as JSON, with HTML special characters escaped, and displays that output as text. As a
second line of defense, the page's content security policy allows only the page's own script (by hash), prevents text
from being parsed as markup (Trusted Types), and blocks all network requests.
"""

import base64
import hashlib
import html
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from rg_env.core.files import written_aside
from rg_env.core.run_folder import RunFolder, damage_reported
from rg_env.errors import InputError
from rg_env.evaluation.questions import ROLLOUTS
from rg_env.evaluation.report.content import Chart, Page, results_page, run_page
from rg_env.evaluation.results import nothing_in, results_files
from rg_env.evaluation.tables import Table, columns_of

ROLLOUTS_KEPT = 10_000
"""Default maximum number of rollouts in a report."""
FORMAT = "rg_env.report/1"
REPORT = "report.html"
_CURVES = 8
"""Maximum number of runs in the chart, which has as many colors."""
_STYLES = ("page.css", "rollouts.css", "print.css")
_SCRIPTS = ("dom.js", "charts.js", "overview.js", "model.js", "list.js", "detail.js", "main.js")
"""Scripts, concatenated in this order."""


@dataclass(frozen=True)
class Report:
    """A written report."""

    file: Path
    notes: list[str]
    """Notes, for example about missing or omitted content."""
    is_unfinished: bool = False
    """Whether a run or evaluation may still be writing to the folder."""


def write_report(
    source: Path,
    output: Path | None = None,
    limit: int = ROLLOUTS_KEPT,
    *,
    tables: Sequence[Table] = (),
    charts: Sequence[Chart] = (),
    refresh_s: int | None = None,
) -> Report:
    """Write the report on a run or an evaluation, with at most `limit` rollouts. For a folder of runs, such as a sweep,
    write the report of each run and a page that links to them.

    Args:
        source: folder of a run, an evaluation or several of them, or an evaluation's results file or `rollouts.jsonl`.
        output: file to write the report to. The default is `report.html` in `source` or next to it.
        tables, charts: additional contents for the page of a folder of runs.
        refresh_s: seconds after which the page reloads itself while the run is not finished.

    Raises:
        InputError: there is nothing to report, a file is damaged or unreadable, or `output` does not end in .html or
            .htm.
        OutputFolderError: the report cannot be written.
    """
    output = output or (source if source.is_dir() else source.parent) / REPORT
    if output.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{output} must end in .html, so that no results are overwritten")
    page, pages = _pages(source, output.parent, limit, tables, charts)
    for file, each in ({folder / REPORT: each for folder, each in pages.items()} | {output: page}).items():
        with written_aside(file) as aside:
            aside.write(render(each, refresh_s).encode("utf-8", "replace"))
    return Report(output, page.notes, page.is_unfinished)


def _pages(
    source: Path, start: Path, limit: int, tables: Sequence[Table], charts: Sequence[Chart]
) -> tuple[Page, dict[Path, Page]]:
    """Return the page on `source`, and for a folder of runs, the page on each run."""
    if source.is_file():
        if source.name == ROLLOUTS and RunFolder.is_run(source.parent):
            raise InputError(f"{source} is part of a training run: pass the run's folder, {source.parent}")
        with damage_reported(source):
            return results_page(source, limit), {}
    if not source.is_dir():
        raise InputError(f"{source} does not exist: pass the folder of a run or an evaluation, or a results file")
    if page := _page_of(source, limit):
        return page, {}
    if not _runs_in(source):
        raise nothing_in(source)
    return _index_page(source, start, limit, tables, charts)


def _page_of(folder: Path, limit: int) -> Page | None:
    """Return the content of the report on a run or an evaluation, or None for other folders."""
    with damage_reported(folder):
        if RunFolder.is_run(folder):
            return run_page(folder, limit)
        return results_page(folder, limit) if (folder / ROLLOUTS).is_file() or results_files(folder) else None


def _runs_in(folder: Path) -> list[Path]:
    """Return the folders of runs and evaluations in `folder`, and in the sweeps in it, in order of their names.
    Links are left out, because reports are written to the folders."""
    found = []
    for each in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        if RunFolder.is_run(each) or (each / ROLLOUTS).is_file() or results_files(each):
            found.append(each)
        elif (each / "sweep.yaml").is_file():
            found += _runs_in(each)
    return found


def _index_page(
    folder: Path, start: Path, limit: int, tables: Sequence[Table] = (), charts: Sequence[Chart] = ()
) -> tuple[Page, dict[Path, Page]]:
    """Return the index of the runs in `folder`, and the report of each run. A damaged run is listed with its error.

    Args:
        start: folder of the index, to which links are relative.
        limit: maximum number of rollouts in each report.
        tables: tables to show above the list, such as the comparison of a sweep's settings.
        charts: charts to show instead of the curves of up to `_CURVES` runs.
    """
    index, pages = Page(folder.resolve().name, "folder of runs", tables=[*tables]), dict[Path, Page]()
    rows, curves = [], {}
    for each in _runs_in(folder):
        name = str(each.relative_to(folder))
        row = {"run": name}
        try:
            page = _page_of(each, limit)
            assert page is not None
        except InputError as error:
            rows.append(row | {"state": "damaged"})
            index.notes.append(str(error))
            continue
        pages[each], facts = page, dict(page.facts)
        index.links[name] = f"./{quote(os.fsencode(os.path.relpath(each / REPORT, start)))}"
        index.is_unfinished |= page.is_unfinished
        result = {} if not page.verdicts else {"result": page.verdicts[0].headline, "outcome": page.verdicts[0].outcome}
        state = facts.get("state", "not finished" if page.is_unfinished else "finished")
        row |= {"result": "", "outcome": "", **result, "state": state, "steps": facts.get("steps", "")}
        rows.append(row | {"kind": page.kind, "about": page.title, "date": facts.get("date", "")})
        if page.charts and page.charts[0].share and (line := page.charts[0].lines.get("sampled")):
            curves[name] = line
    index.facts = [("runs", str(len(rows)))]
    if charts:
        index.charts = [*charts]
    elif len(curves) <= _CURVES:
        index.charts = [Chart("Accuracy on the frozen questions", curves, share=True)] if curves else []
    else:
        index.notes.append(f"only up to {_CURVES} runs are drawn: see `rg-env plot --group` for the means of more runs")
    index.tables.append(Table("Runs", *columns_of([{k: v or "–" for k, v in row.items()} for row in rows])))
    return index, pages


def render(page: Page, refresh_s: int | None = None) -> str:
    """Render a page as HTML. If the page is about an unfinished run, it reloads itself every `refresh_s` seconds."""
    style, script = _joined(_STYLES), _joined(_SCRIPTS)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return Template(_joined(("page.html",))).substitute(
        policy=policy,
        title=html.escape(page.title, quote=False),
        style=style,
        script=script,
        data=as_script_data({"format": FORMAT, "refresh_s": refresh_s if page.is_unfinished else None, **vars(page)}),
    )


def as_script_data(values: Any) -> str:
    """Serialize `values` as JSON for `<script type="application/json">`. The JSON is ASCII, with `<`, `>` and `&`
    escaped so that text cannot end the script, start a comment or form an entity. Parsing the JSON returns the original
    values."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"), default=_as_dict)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _as_dict(record: Any) -> dict[str, Any]:
    return record.model_dump(mode="json") if isinstance(record, BaseModel) else vars(record)


def _joined(names: tuple[str, ...]) -> str:
    folder = resources.files("rg_env.evaluation.report").joinpath("page")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    """Return the hash of an inline script or style for the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
