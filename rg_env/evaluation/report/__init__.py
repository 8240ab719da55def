"""Report on a training run or an evaluation: a single HTML file that works offline in any browser.

    report = write_report(Path("outputs/RUN"))        # outputs/RUN/report.html; also for evaluations

The report contains curves, tables, accuracies with intervals, and a rollout browser. Model output is never executed.
The page embeds model output as JSON, with HTML special characters escaped, and displays that output as text. As a
second line of defense, the page's content security policy allows only the page's own script (by hash), prevents text
from being parsed as markup (Trusted Types), and blocks all network requests.
"""

import base64
import hashlib
import html
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from pydantic import BaseModel

from rg_env.core.files import written_aside
from rg_env.core.run_folder import RunFolder
from rg_env.errors import InputError
from rg_env.evaluation.questions import ROLLOUTS
from rg_env.evaluation.report.content import Page, results_page, run_page
from rg_env.evaluation.results import nothing_in, results_files

ROLLOUTS_KEPT = 10_000
"""Default maximum number of rollouts in a report."""
FORMAT = "rg_env.report/1"
_STYLES = ("page.css", "rollouts.css", "print.css")
_SCRIPTS = ("dom.js", "charts.js", "overview.js", "model.js", "list.js", "detail.js", "main.js")
"""Scripts, concatenated in this order."""


@dataclass(frozen=True)
class Report:
    """A written report."""

    file: Path
    notes: list[str]
    """Notes, for example about missing or omitted content."""


def write_report(source: Path, output: Path | None = None, limit: int = ROLLOUTS_KEPT) -> Report:
    """Write the report on a run or an evaluation, with at most `limit` rollouts.

    Args:
        source: folder of a run or an evaluation, or an evaluation's results file or `rollouts.jsonl`.
        output: file to write the report to. The default is `report.html` in the folder of the run or evaluation.

    Raises:
        InputError: there is nothing to report, a file is damaged or unreadable, or `output` does not end in .html or
            .htm.
        OutputFolderError: the report cannot be written.
    """
    page = _page(source, limit)
    output = output or (source if source.is_dir() else source.parent) / "report.html"
    if output.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{output} must end in .html, so that no results are overwritten")
    with written_aside(output) as aside:
        aside.write(render(page).encode("utf-8", "replace"))
    return Report(output, page.notes)


def _page(source: Path, limit: int) -> Page:
    if source.is_file():
        if source.name == ROLLOUTS and RunFolder.is_run(source.parent):
            raise InputError(f"{source} is part of a training run: pass the run's folder, {source.parent}")
        return results_page(source, limit)
    if not source.is_dir():
        raise InputError(f"{source} does not exist: pass the folder of a run or an evaluation, or a results file")
    if RunFolder.is_run(source):
        return run_page(source, limit)
    if (source / ROLLOUTS).is_file() or results_files(source):
        return results_page(source, limit)
    raise nothing_in(source)


def render(page: Page) -> str:
    """Render a page as HTML."""
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
        data=as_script_data({"format": FORMAT, **vars(page)}),
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
