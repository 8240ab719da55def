"""From a completion to a `Score`: the only scoring path of the project (extraction, then the task's grader).

Wrong, missing, too long and ungradable are told apart. All of them are worth 0 or what the grader gives, and none is
an exception: exceptions are for an `info` that is not one of ours.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rg_env.core.extraction import Extraction, extract
from rg_env.core.graders import grade
from rg_env.core.task_table import load_table
from rg_env.errors import InputError, unknown_name

Status = Literal["correct", "partial", "wrong", "no_answer", "too_long", "ungradable"]

MAX_ANSWER_CHARS = 10_000
"""Longer answers are not graded: no task asks for as much, and some graders take seconds or a gigabyte for them."""
CORRECT_FROM = 1 - 1e-6
"""A value from here up is correct (some graders return 0.9999999)."""

_logger = logging.getLogger(__name__)
_logged: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Score:
    """What one completion is worth, and why."""

    value: float
    """In [0, 1]."""
    answer: str | None
    """The extracted answer; None if there is none."""
    status: Status
    task: str
    detail: str = ""
    """Why the answer could not be graded; empty otherwise."""


def score(completion: object, info: Mapping[str, Any] | str) -> Score:
    """The score of `completion` (any form that `extraction.completion_text` takes) for the row that `info` is of.

    Raises `InputError` if `info` is not the `info` of a row that `core.dataset` built.
    """
    return score_extraction(extract(completion), info)


def score_extraction(extraction: Extraction, info: Mapping[str, Any] | str) -> Score:
    """`score` for callers that have extracted the answer already."""
    task, config, entry = parse_info(info)
    answer = extraction.answer
    if answer is None:
        return Score(0.0, None, "no_answer", task)
    if len(answer) > MAX_ANSWER_CHARS:
        return Score(0.0, answer, "too_long", task, f"{len(answer)} characters, more than {MAX_ANSWER_CHARS}")
    try:
        value = grade(task, config, entry, answer)
    except InputError:  # a config that the library refuses: the row is at fault, not the answer
        raise
    except Exception as error:  # the library's graders raise many things on odd answers
        kind = type(error).__name__
        if (task, kind) not in _logged:
            _logged.add((task, kind))
            _logger.warning("the grader of %s raised %s; such answers count as ungradable", task, kind)
        return Score(0.0, answer, "ungradable", task, f"{kind}: {error}"[:200])
    status: Status = "correct" if value >= CORRECT_FROM else "partial" if value > 0 else "wrong"
    return Score(value, answer, status, task)


def parse_info(info: Mapping[str, Any] | str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Task, config and entry of a row's `info`. Raises `InputError` if it lacks one or its JSON is broken."""
    if isinstance(info, str):
        info = _object(info, "info")
    for key in ("rg_task", "config", "entry"):
        if key not in info:
            raise InputError(f"info of a row lacks {key!r}; it has {sorted(info)}")
    task = info["rg_task"]
    if task not in load_table():
        raise unknown_name("task", task, load_table())
    entry = _object(info["entry"], "info['entry']")
    if not isinstance(entry.get("metadata"), dict) or "answer" not in entry:
        raise InputError(f"info['entry'] of a {task} row lacks 'answer' or 'metadata'")
    return task, _object(info["config"], "info['config']"), entry


def _object(text: object, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError as error:
        raise InputError(f"{name} of a row is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{name} of a row must be a JSON object, not {type(value).__name__}")
    return value
