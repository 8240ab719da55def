"""The metrics that a run has logged, as far as rules look back: see `monitors`. A few values of each."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

_HUGE = 1e30  # what is beyond counts as this: its square is a number still


@dataclass(frozen=True)
class Mean:
    """Of some values in a row, with its standard error, from how they differ."""

    value: float
    error: float

    @classmethod
    def of(cls, values: list[float]) -> "Mean":
        mean = math.fsum(values) / len(values)
        variance = math.fsum((value - mean) * (value - mean) for value in values) / max(1, len(values) - 1)
        return cls(mean, math.sqrt(variance / len(values)))

    def rise_to(self, later: "Mean") -> float:
        """To `later`, in standard errors of the difference; below 0: a fall."""
        rise, error = later.value - self.value, math.hypot(self.error, later.error)
        if error > 0:
            return rise / error
        return 0.0 if rise == 0 else math.copysign(math.inf, rise)


class History:
    """Of each metric the last two windows, and the first one; a window is so many records that have it."""

    def __init__(self, window: int):
        self.window = window
        self.step = 0
        """Of the last record."""
        self._last: dict[str, deque[tuple[int, float]]] = {}
        self._first: dict[str, list[float]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Take up the metrics of a step."""
        step = _number(record.get("step"))
        self.step = self.step + 1 if step is None else int(step)
        for name, value in record.items():
            if name != "step" and (number := _number(value)) is not None:
                self._last.setdefault(name, deque(maxlen=2 * self.window)).append((self.step, number))
                first = self._first.setdefault(name, [])
                if len(first) < self.window:
                    first.append(number)

    def names(self) -> list[str]:
        return list(self._last)

    def latest(self, name: str) -> float | None:
        """Of the last record; None if it has none."""
        series = self._last.get(name)
        return series[-1][1] if series and series[-1][0] == self.step else None

    def recent(self, name: str) -> list[float]:
        """The last window; empty until there is a whole one."""
        return self._part(name, self.window)

    def earlier(self, name: str) -> list[float]:
        """The window before that; empty until there is a whole one."""
        return self._part(name, 2 * self.window)[: self.window]

    def first(self, name: str) -> list[float]:
        """The first window; empty until there is a whole one behind it."""
        return self._first[name] if self.earlier(name) else []

    def mean(self, name: str) -> float | None:
        """Over the last window."""
        values = self.recent(name)
        return math.fsum(values) / len(values) if values else None

    def span(self, name: str, windows: int = 1) -> int:
        """How many steps the last windows are."""
        series = self._last.get(name) or [(self.step, 0.0)]
        steps = [step for step, _ in islice(series, max(0, len(series) - windows * self.window), None)]
        between = (steps[-1] - steps[0]) / max(1, len(steps) - 1)
        return max(len(steps), round(steps[-1] - steps[0] + between))

    def _part(self, name: str, length: int) -> list[float]:
        series = self._last.get(name, ())
        return [value for _, value in islice(series, len(series) - length, None)] if len(series) >= length else []


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        return None
    return float(max(-_HUGE, min(_HUGE, value)))
