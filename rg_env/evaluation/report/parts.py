"""What a report's page shows, as plain records: facts, charts, bars, tables, texts and rollouts.

The page's own code draws them; figures in tables are texts, made by `figure`. `as_json` is what stands in the page.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rg_env.core.statistics import mean_and_error, t_critical

CONFIDENCE = 0.95
FORMAT = "rg_env.report/1"


@dataclass(frozen=True)
class Estimate:
    """A figure, and the ends of its 95 % interval; None where nothing tells how sure it is."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of_error(cls, value: float, error: float | None, n: int, *, share: bool = False) -> "Estimate":
        """From a standard error over `n` problems: by Student's t; the interval of a share stays within 0 and 1."""
        if error is None or n < 2:
            return cls(value)
        half = t_critical(n - 1, CONFIDENCE) * error
        low, high = value - half, value + half
        return cls(value, max(0.0, low), min(1.0, high)) if share else cls(value, low, high)

    @classmethod
    def of_values(cls, values_by_problem: Sequence[Sequence[float]], *, share: bool = False) -> "Estimate":
        """The mean over all values, of which there is at least one, with an interval clustered by problem."""
        mean, error = mean_and_error(values_by_problem)
        return cls.of_error(mean, error, sum(1 for values in values_by_problem if len(values)), share=share)


def figure(estimate: Estimate | None, digits: int = 2, sign: bool = False) -> str:
    """An estimate as a cell of a table: `0.85 [0.81, 0.88]`; a dash where there is none."""
    if estimate is None:
        return "–"
    form = f"{'+' if sign else ''}.{digits}f"
    ends = "" if estimate.low is None else f" [{estimate.low:{form}}, {estimate.high:{form}}]"
    return f"{estimate.value:{form}}{ends}".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class Series:
    """A line of a chart: a point has x, and an estimate."""

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
    name: str
    """What tells it from the others of its group, and gives its colour: a model, a step."""
    estimate: Estimate


@dataclass(frozen=True)
class BarGroup:
    """The bars of a task."""

    name: str
    bars: list[Bar]
    note: str = ""
    floor: float | None = None
    """What the best constant answer gets: a mark."""


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


@dataclass(frozen=True)
class Text:
    """Something long, folded away at first."""

    title: str
    text: str


@dataclass
class Metrics:
    """All that a run logged, each metric as steps and values."""

    values: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    note: str = ""


@dataclass
class Rollouts:
    """What the browser shows. Texts that many rollouts share (questions, system prompts) stand in `texts` once."""

    records: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    """What one question's answers are compared between: steps of a run, or models; in order."""
    found: int = 0
    """How many there were, damaged ones not counted."""


@dataclass
class Page:
    """A report."""

    title: str
    kind: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a reader has to know: what is damaged, missing or left out."""
    charts: list[Chart] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    bars: list[BarGroup] = field(default_factory=list)
    bars_title: str = ""
    tables: list[Table] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    rollouts: Rollouts = field(default_factory=Rollouts)

    def as_json(self) -> dict[str, Any]:
        """Plain values, finite numbers only."""
        small = {name: _plain(asdict(part) if name == "metrics" else part) for name, part in self._small().items()}
        return {"format": FORMAT, **small, "rollouts": vars(self.rollouts)}

    def _small(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "rollouts"}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Estimate | Series | Chart | Bar | BarGroup | Table | Text):
        return {name: _plain(item) for name, item in vars(value).items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
