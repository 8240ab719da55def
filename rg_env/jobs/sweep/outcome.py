"""What a run of a sweep has left: how far it has come, and its figures.

    status_of(Path("outputs/rates"), "seed=0")          # ("stopped", "by monitor kl_spike after 12 steps")
    read_run(Path("outputs/rates"), 1, "seed=0", {"seed": 0}).figures["accuracy_after"]

A run is finished that has made all its steps and its last evaluation. Of one that has not, nothing counts.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rg_env.core.statistics import t_critical
from rg_env.errors import InputError

LOGS = "logs"
"""Folder, in that of a sweep, of what its runs print."""
CONFIDENCE = 0.95
FINISHED, FAILED, UNFINISHED, NOT_STARTED = "finished", "failed", "not finished", "not started"
STOPPED, DAMAGED = "stopped", "damaged"
_RESULTS, _METRICS = "train_results.json", "metrics.jsonl"
_NOT_AS_LEFT = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError, OSError)
"""Raised where a file is not what a run leaves."""

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
    """Why it has failed, or was stopped, what is damaged, or how far it has come; may be empty."""
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


def status_of(folder: Path, name: str) -> tuple[str, str]:
    """How far the run `name` of the sweep in `folder` has come, and why it is not finished, if that is known."""
    return _status(folder, name, _results(folder / name))


def read_run(folder: Path, number: int, name: str, values: dict[str, Any]) -> Run:
    """The run `name` of the sweep in `folder`, its point of that `number` and with these `values`."""
    results = _results(folder / name)
    status, reason = _status(folder, name, results)
    if results and status == FINISHED:
        try:
            return _finished(folder / name, number, values, results)
        except InputError as error:
            status, reason = DAMAGED, f"{error}; move its folder away, and run it again"
    return Run(number, name, values, status, reason, {}, {}, 0, {}, ("", ""))


def failure_file(folder: Path, name: str) -> Path:
    """Where the reason stands for which the run `name` has failed."""
    return folder / LOGS / f"{name}.failed"


def _status(folder: Path, name: str, results: dict[str, Any] | None) -> tuple[str, str]:
    if results and not results["interrupted"] and not results["error"]:
        rule = results.get("stopped_by")
        return (STOPPED, _line(f"by monitor {rule} after {results['steps']} steps")) if rule else (FINISHED, "")
    try:
        if (file := failure_file(folder, name)).is_file():
            return FAILED, _line(file.read_text(encoding="utf-8", errors="replace"))
        if results and results["error"]:
            return FAILED, _line(str(results["error"]))
        if results:
            return UNFINISHED, _line(f"interrupted after {results['steps']} steps")
        found = {file.name for file in (folder / name).iterdir()} if (folder / name).is_dir() else set()
    except OSError as error:
        return UNFINISHED, f"what it left cannot be read: {error.strerror}"
    if not found:
        return NOT_STARTED, ""
    return UNFINISHED, f"{_RESULTS} is not what a run leaves" if _RESULTS in found else ""


def _line(text: str) -> str:
    """`text` in one line, without what a terminal would obey."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _results(folder: Path) -> dict[str, Any] | None:
    try:
        found = _json((folder / _RESULTS).read_text(encoding="utf-8"))
    except _NOT_AS_LEFT:  # none yet; a run writes the whole file at once
        return None
    return found if isinstance(found, dict) and {"interrupted", "error", "steps"} <= set(found) else None


def _finished(folder: Path, number: int, values: dict[str, Any], results: dict[str, Any]) -> Run:
    """Raises `InputError` if a file is not what a run leaves."""
    figures, intervals, curve, seconds = {}, {}, {}, []
    try:
        for figure, (*path, key) in _EVALUATED.items():
            scores: Any = results
            for part in path:
                scores = (scores or {}).get(part)
            if scores and scores[key] is not None:
                figures[figure] = _finite(scores[key])
                if scores["n"] > 1:
                    intervals[figure] = t_critical(scores["n"] - 1, CONFIDENCE) * _finite(scores[f"{key}_se"])
        last = results.get("eval_after") or results.get("eval_before") or {}
        hashes = [entry["manifest_sha256"] or entry["prompts_sha256"] for entry in last.get("questions", [])]
        steps, last_step = int(results["steps"]), 0
        questions = int(last.get("n") or (last.get("held_out") or {}).get("n", 0))
    except _NOT_AS_LEFT as error:
        raise InputError(f"{_RESULTS} is not what a run leaves") from error
    for line_number, line in enumerate(_lines(folder / _METRICS), 1):
        try:
            record = _json(line)
            last_step = max(last_step, int(record["step"]))
            seconds += [_finite(record.get(key) or 0.0) for key in ("step_time", "time/evaluation")]
            if record.get("eval/accuracy") is not None:
                curve[record["step"]] = _finite(record["eval/accuracy"])
        except _NOT_AS_LEFT as error:
            raise InputError(f"{_METRICS}: line {line_number} is not what a run leaves") from error
    if last_step < steps:
        raise InputError(f"{_METRICS} ends at step {last_step} of {steps}")
    figures["seconds"] = math.fsum(seconds)
    asked = (json.dumps(hashes), json.dumps(last.get("sampling"), sort_keys=True))
    return Run(number, folder.name, values, FINISHED, "", figures, intervals, questions, curve, asked)


def _lines(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            return list(lines)
    except OSError as error:
        raise InputError(f"{file.name}: {error.strerror}") from error


def _json(text: str) -> Any:
    """What `text` says; NaN, which JSON has not and no run writes, is a `ValueError`."""
    return json.loads(text, parse_constant=_finite)


def _finite(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)
