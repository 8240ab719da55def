"""A report's contents as plain records, and the HTML page, which never executes model output.

The page contains them as JSON without HTML special characters, and displays them as text. As a second line
of defense, its content security policy allows only the page's own script (by hash), refuses text as markup (trusted
types), and blocks all network requests.
"""

import base64
import hashlib
import html
import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import resources
from string import Template
from typing import Any

from rg_env.evaluation.tables import Table

FORMAT = "rg_env.report/1"
_STYLES = ("page.css", "rollouts.css", "print.css")
_SCRIPTS = ("dom.js", "charts.js", "overview.js", "model.js", "list.js", "detail.js", "main.js")
"""Scripts, concatenated in this order."""
_DATA_ID = "report-data"


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval; the ends are None if unknown."""

    value: float
    low: float | None = None
    high: float | None = None


def date(created: str | None) -> str:
    """Format a time in ISO 8601 for display; empty if it is None."""
    return f"{datetime.fromisoformat(created).astimezone(UTC):%Y-%m-%d %H:%M} UTC" if created else ""


@dataclass(frozen=True)
class Series:
    """A line of a chart, as points (x, estimate)."""

    name: str
    points: list[tuple[float, Estimate]]
    dotted: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart of lines over steps."""

    title: str
    series: list[Series]
    note: str = ""
    share: bool = False
    """Whether the axis goes from 0 to 1."""


@dataclass(frozen=True)
class Bar:
    """A model's accuracy on a task."""

    name: str
    """Model or step, which determines the color."""
    estimate: Estimate


@dataclass(frozen=True)
class BarGroup:
    """A task's bars."""

    name: str
    bars: list[Bar]
    note: str = ""
    floor: float | None = None
    """Accuracy of the best constant answer, drawn as a marker."""


@dataclass(frozen=True)
class Text:
    """A long text, collapsed by default."""

    title: str
    text: str


@dataclass
class Metrics:
    """All metrics logged by a run, with steps and values."""

    values: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    note: str = ""


@dataclass
class Rollouts:
    """Content of the rollout browser. Shared texts (questions, system prompts) are stored once, in `texts`."""

    records: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    """Steps of a run, or models, that can be compared by their answers to a question; in display order."""
    found: int = 0
    """Total number of rollouts, including omitted ones."""


@dataclass
class Page:
    """Content of a report."""

    title: str
    kind: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Notes about missing or omitted content."""
    charts: list[Chart] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    bars: list[BarGroup] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    rollouts: Rollouts = field(default_factory=Rollouts)


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
        data_id=_DATA_ID,
        data=as_script_data({"format": FORMAT, **asdict(page)}),
    )


def as_script_data(values: Any) -> str:
    """JSON for `<script type="application/json">`: ASCII with `<`, `>` and `&` escaped, so that text cannot end the
    script, start a comment or form an entity. Parsing returns the original text."""
    text = json.dumps(values, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _joined(names: tuple[str, ...]) -> str:
    folder = resources.files("rg_env.evaluation.report").joinpath("page")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    """Hash of an inline script or style for the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
