"""What came of a sweep: the runs in its folder, and means over seeds with their intervals.

    comparison = compare(Path("outputs/tiny-sweep-20250101-120000"))
    comparison.groups[0].figures["accuracy_after"]      # Figure(mean=0.97, half_width=0.02)

A group is the runs that differ in their seed alone. Read are `sweep.yaml`, which says what was to be run, and what each
run has left; runs that have not ended, have failed, were stopped by a monitor, or left what cannot be read, are named
and not counted.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rg_env.core.config import yaml12
from rg_env.core.statistics import mean_and_interval
from rg_env.errors import InputError
from rg_env.jobs.sweep.outcome import CONFIDENCE, FIGURES, FINISHED, Run, read_run

SWEEP_FILE = "sweep.yaml"


@dataclass(frozen=True)
class Figure:
    """A mean, and half of its 95 % interval; None where nothing tells how sure it is."""

    mean: float
    half_width: float | None


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    values: dict[str, Any]
    """By swept key, without the seed."""
    runs: tuple[Run, ...]
    figures: dict[str, Figure]
    """Over the runs that have finished."""

    @property
    def finished(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.status == FINISHED)

    @property
    def over(self) -> str:
        """What the intervals are over: several seeds, or the questions of a single run."""
        if not (done := self.finished):
            return ""
        return f"{len(done)} seeds" if len(done) > 1 else f"{done[0].questions} questions"


@dataclass(frozen=True)
class Comparison:
    """All groups of a sweep, in its order."""

    folder: Path
    keys: tuple[str, ...]
    """The swept ones, without the seed."""
    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[Run]:
        return sorted((run for group in self.groups for run in group.runs), key=lambda run: run.number)

    @property
    def notes(self) -> list[str]:
        """What a reader has to know to compare the figures."""
        asked = [run.asked for run in self.runs if run.status == FINISHED]
        differ = [len({each[part] for each in asked}) > 1 for part in (0, 1)]
        texts = ("were not asked the same questions", "were not evaluated with the same sampling settings")
        return [
            f"The runs {text}: their figures differ for that, too." for text, d in zip(texts, differ, strict=True) if d
        ]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "confidence": CONFIDENCE,
            "groups": [
                {
                    "values": group.values,
                    "finished": len(group.finished),
                    "runs": len(group.runs),
                    "interval_over": group.over,
                    "figures": {
                        name: {"mean": figure.mean, "half_width": figure.half_width}
                        for name, figure in group.figures.items()
                    },
                }
                for group in self.groups
            ],
            "runs": [
                {name: getattr(run, name) for name in ("name", "values", "status", "reason", "figures")}
                for run in self.runs
            ],
            "notes": self.notes,
        }


def compare(folder: Path) -> Comparison:
    """The comparison of the sweep in `folder`, as far as its runs have come.

    Raises:
        InputError: there is no sweep.
    """
    points = read_points(folder)
    runs = [read_run(folder, number, name, values) for number, (name, values) in enumerate(points.items(), 1)]
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_without_seed(run.values), sort_keys=True), []).append(run)
    return Comparison(
        folder,
        tuple(dict.fromkeys(key for run in runs for key in _without_seed(run.values))),
        tuple(_group(members) for members in groups.values()),
    )


def read_points(folder: Path) -> dict[str, dict[str, Any]]:
    """The points of the sweep in `folder`: the values of each by its name.

    Raises:
        InputError: there is no sweep.
    """
    file = folder / SWEEP_FILE
    try:
        values = yaml12.load(file.read_text(encoding="utf-8"))
        points = values["points"]
        whole = all(isinstance(each, dict) and _is_name(name) for name, each in points.items())
        if points and whole and len({frozenset(each) for each in points.values()}) == 1:
            return dict(points)
    except OSError as error:
        raise InputError(
            f"{folder} is no folder of a sweep: {SWEEP_FILE}: {error.strerror}; name the output.dir of a sweep"
        ) from error
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise InputError(f"{file} is not what a sweep leaves: it names no points, or no values of the same keys for all")


def _is_name(text: str) -> bool:
    """Of a folder, and not a path out of it."""
    return bool(text.strip(".")) and Path(text).name == text


def _group(runs: Sequence[Run]) -> Group:
    done = [run for run in runs if run.status == FINISHED]
    figures = {}
    for name in FIGURES:
        if len(done) == 1 and name in done[0].figures:
            figures[name] = Figure(done[0].figures[name], done[0].intervals.get(name))
        elif done and all(name in run.figures for run in done):
            figures[name] = Figure(*mean_and_interval([run.figures[name] for run in done], CONFIDENCE))
    return Group(_without_seed(runs[0].values), tuple(runs), figures)


def _without_seed(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "seed"}
