"""What came of a sweep: the runs in its folder, and means over seeds with their intervals.

    comparison = compare(Path("outputs/tiny-sweep-20250101-120000"))
    comparison.groups[0].figures["accuracy_after"]      # Figure(mean=0.97, half_width=0.02)

A group is the runs that differ in their seed alone. Read are `sweep.yaml`, which says what was to be run, and what each
run has left; runs that have not ended, or have failed, or were ended by a monitor, are named and not counted.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rg_env.core import yaml12
from rg_env.core.statistics import mean_and_interval, t_critical
from rg_env.errors import InputError

SWEEP_FILE = "sweep.yaml"
LOGS = "logs"
"""Folder, in that of a sweep, of what its runs print."""
CONFIDENCE = 0.95
FINISHED, FAILED, UNFINISHED, NOT_STARTED = "finished", "failed", "not finished", "not started"

_EVALUATED = {
    "accuracy_before": ("eval_before", "accuracy"),
    "accuracy_after": ("eval_after", "accuracy"),
    "greedy_after": ("eval_after", "greedy_accuracy"),
    "reward_after": ("eval_after", "reward"),
    "held_out_after": ("eval_after", "held_out", "accuracy"),
    "tokens_after": ("eval_after", "mean_completion_tokens"),
}
FIGURES = (*_EVALUATED, "seconds")
"""Names of what is compared. Seconds are those of all steps and evaluations, over interruptions too."""


@dataclass(frozen=True)
class Run:
    """One point of the sweep."""

    number: int
    """From 1, in the order of the sweep."""
    name: str
    """Of its folder."""
    values: dict[str, Any]
    """By swept key."""
    status: str
    reason: str
    """Why it has failed, or how far it has come; may be empty."""
    figures: dict[str, float]
    """Those that a finished run has."""
    intervals: dict[str, float]
    """Half of each figure's interval over the questions, where it has one."""
    questions: int
    """Asked in its last evaluation: of the tasks trained on; where there are none, held-out ones."""
    curve: dict[int, float]
    """Sampled accuracy by step, of all its evaluations."""
    asked: tuple[str, str]
    """What tells whether two runs were asked the same questions, and with the same sampling."""


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
    runs = [_run(folder, number, name, values) for number, (name, values) in enumerate(points.items(), 1)]
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
        if points and all(isinstance(each, dict) and _is_name(name) for name, each in points.items()):
            return dict(points)
    except OSError as error:
        raise InputError(f"{folder} is no folder of a sweep: {SWEEP_FILE}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise InputError(f"{file} is not what a sweep leaves: it names no points")


def _is_name(text: str) -> bool:
    """Of a folder, and not a path out of it."""
    return bool(text.strip(".")) and Path(text).name == text


def status_of(folder: Path, name: str) -> tuple[str, str]:
    """How far the run `name` of the sweep in `folder` has come, and why it is not finished, if that is known."""
    return _status(folder, name, _results(folder / name))


def failure_file(folder: Path, name: str) -> Path:
    """Where the reason stands for which the run `name` has failed."""
    return folder / LOGS / f"{name}.failed"


def _status(folder: Path, name: str, results: dict[str, Any] | None) -> tuple[str, str]:
    stopped_by = results and results.get("stopped_by")
    if results and not (results["interrupted"] or results["error"] or stopped_by):
        return FINISHED, ""
    if (file := failure_file(folder, name)).is_file():
        return FAILED, _line(file.read_text(encoding="utf-8", errors="replace"))
    if results and results["error"]:
        return FAILED, _line(str(results["error"]))
    if results and stopped_by:
        return FAILED, f"stopped by monitor {_line(str(stopped_by))} after {results['steps']} steps"
    if results:
        return UNFINISHED, f"interrupted after {results['steps']} steps"
    begun = (folder / name).is_dir() and any((folder / name).iterdir())
    return (UNFINISHED if begun else NOT_STARTED), ""


def _line(text: str) -> str:
    """`text` in one line, without what a terminal would obey."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _results(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / "train_results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet; a run writes the whole file at once
        return None
    return found if isinstance(found, dict) and {"interrupted", "error", "steps"} <= set(found) else None


def _run(folder: Path, number: int, name: str, values: dict[str, Any]) -> Run:
    results = _results(folder / name)
    status, reason = _status(folder, name, results)
    if not results or status != FINISHED:
        return Run(number, name, values, status, reason, {}, {}, 0, {}, ("", ""))
    figures, intervals = {}, {}
    for figure, (*path, key) in _EVALUATED.items():
        scores: Any = results
        for part in path:
            scores = (scores or {}).get(part)
        if scores and scores[key] is not None:
            figures[figure] = float(scores[key])
            if scores["n"] > 1:
                intervals[figure] = t_critical(scores["n"] - 1, CONFIDENCE) * scores[f"{key}_se"]
    lines = list(_metrics(folder / name))
    figures["seconds"] = math.fsum(line.get("step_time", 0.0) + line.get("time/evaluation", 0.0) for line in lines)
    last = results.get("eval_after") or results.get("eval_before") or {}
    hashes = [entry["manifest_sha256"] or entry["prompts_sha256"] for entry in last.get("questions", [])]
    return Run(
        number,
        name,
        values,
        status,
        reason,
        figures,
        intervals,
        questions=last.get("n") or (last.get("held_out") or {}).get("n", 0),
        curve={line["step"]: line["eval/accuracy"] for line in lines if line.get("eval/accuracy") is not None},
        asked=(json.dumps(hashes), json.dumps(last.get("sampling"), sort_keys=True)),
    )


def _metrics(folder: Path) -> Iterator[dict[str, Any]]:
    file = folder / "metrics.jsonl"
    if file.is_file():
        with file.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


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
