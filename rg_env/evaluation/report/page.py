"""A report's page: its content as plain records, and the HTML file in which nothing that a model wrote can run.

The content is in the page as JSON without the characters that have a meaning in HTML; the page's code shows it as text.
If that failed, the page's policy (CSP) would still run no script but the page's own, by its hash, refuse text as markup
(trusted types), and load nothing.
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

from rg_env.core.statistics import with_interval

FORMAT = "rg_env.report/1"
_STYLES = ("page.css", "rollouts.css", "print.css")
_SCRIPTS = ("dom.js", "charts.js", "overview.js", "model.js", "list.js", "detail.js", "main.js")
"""Scripts, which become one in this order."""
_DATA_ID = "report-data"


@dataclass(frozen=True)
class Estimate:
    """A figure, and the ends of its 95 % interval; None if unknown."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, value: float | None, interval: tuple[float, float] | None = None) -> "Estimate | None":
        """None without a value."""
        return None if value is None else cls(value, *(interval or ()))


def figure(estimate: Estimate | float | None, digits: int = 2) -> str:
    """An estimate as a table cell: `0.85 [0.81, 0.88]`; a dash without one."""
    if estimate is None:
        return "–"
    found = estimate if isinstance(estimate, Estimate) else Estimate(estimate)
    interval = None if found.low is None or found.high is None else (found.low, found.high)
    return with_interval(found.value, interval, digits)


def date(created: str | None) -> str:
    """A time in ISO 8601 as a fact; empty without one."""
    return f"{datetime.fromisoformat(created).astimezone(UTC):%Y-%m-%d %H:%M} UTC" if created else ""


@dataclass(frozen=True)
class Series:
    """A line of a chart: points of x and an estimate."""

    name: str
    points: list[tuple[float, Estimate]]
    dotted: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over steps."""

    title: str
    series: list[Series]
    note: str = ""
    share: bool = False
    """Whether the axis goes from 0 to 1."""


@dataclass(frozen=True)
class Bar:
    """The accuracy of one model on a task."""

    name: str
    """The model or the step, which decides the color."""
    estimate: Estimate


@dataclass(frozen=True)
class BarGroup:
    """The bars of one task."""

    name: str
    bars: list[Bar]
    note: str = ""
    floor: float | None = None
    """Accuracy of the best constant answer, drawn as a mark."""


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


@dataclass(frozen=True)
class Text:
    """A long text, folded at first."""

    title: str
    text: str


@dataclass
class Metrics:
    """Everything that a run logged: for each metric steps and values."""

    values: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    note: str = ""


@dataclass
class Rollouts:
    """The content of the browser. Texts that many rollouts share (questions, system prompts) are in `texts` once."""

    records: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    """Steps of a run, or models, between which answers to a question are compared; in order."""
    found: int = 0
    """The number of all rollouts, those that are left out included."""


@dataclass
class Page:
    """A report."""

    title: str
    kind: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is missing or left out."""
    charts: list[Chart] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    bars: list[BarGroup] = field(default_factory=list)
    bars_title: str = "Accuracy by task"
    tables: list[Table] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    rollouts: Rollouts = field(default_factory=Rollouts)


def render(page: Page) -> str:
    """The HTML of a page."""
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
    """JSON for a `<script type="application/json">`: ASCII without `<`, `>` and `&`, so that no text in it can end the
    script, begin a comment, or be an entity; a parser gets the same text back."""
    text = json.dumps(values, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _joined(names: tuple[str, ...]) -> str:
    folder = resources.files("rg_env.evaluation.report").joinpath("page")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    """The hash by which a policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
