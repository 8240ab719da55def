"""From a completion to a `Score`: the only scoring path of the project (extraction, then the task's grader).

Wrong, missing, too long, timed out and ungradable are told apart. None of them is an exception: exceptions are for an
`info` that is not one of ours.

A row's `info` says how it is graded, under `grading`: "hardened" (the default: right or not, by the project's own
graders), "partial" (the same graders, real progress counts) or "upstream" (the library's own formulas,
for comparison with published numbers; they run in worker processes that can be killed). A task of the user's own is
graded by its own `score_answer`, in a worker too: "hardened" takes its value for right or not.
"""

import asyncio
import json
import logging
import math
import os
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from rg_env.core.grading.extraction import Extraction, extract
from rg_env.core.grading.graders import fault_of, grade
from rg_env.core.grading.parsing.forms import candidates, rational, unwrap
from rg_env.core.grading.workers import Outcome, WorkerPool
from rg_env.core.tasks.task_table import is_user_task, load_table
from rg_env.core.text import shortened
from rg_env.core.user_code import sources
from rg_env.errors import InputError, unknown_name

Status = Literal["correct", "partial", "wrong", "no_answer", "too_long", "timed_out", "ungradable"]
Grading = Literal["hardened", "partial", "upstream"]
_GRADINGS = get_args(Grading)

MAX_ANSWER_CHARS = 10_000
"""Longer answers are not graded, unless the gold answer is about as long: it bounds the time that graders take."""
CORRECT_FROM = 1 - 1e-6
"""A value from here up is correct (some of the library's formulas give 0.9999999)."""
UPSTREAM_WALL_S = 1.0
"""Time for one answer that a worker grades, from when it starts on it."""

UNNAMED_TASK = "default"
"""Task of rows that name none: those of other environments."""

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
    progress: float | None = None
    """What a task of the user's own gave, in [0, 1], also where right or not is asked; None for other tasks."""


def score(completion: object, info: Mapping[str, Any] | str) -> Score:
    """The score of `completion` (any form that `extraction.completion_text` takes) for the row that `info` is of.

    Raises `InputError` if `info` is not the `info` of a row that `core.data.dataset` built.
    """
    return score_extraction(extract(completion), info)


def score_extraction(extraction: Extraction, info: Mapping[str, Any] | str) -> Score:
    """`score` for callers that have extracted the answer already."""
    task, config, entry, grading = parse_info(info)
    if early := _ungraded(extraction, task, entry):
        return early
    answer = extraction.answer or ""
    if not in_worker(task, grading):
        return _graded(task, config, entry, answer, grading == "partial")
    pool, steps = _worker_pool(task), _steps(task, config, entry, answer, grading)
    try:
        text = next(steps)
        while True:
            text = steps.send(pool.call(task, config, entry, text))
    except StopIteration as end:
        return end.value


async def score_extraction_async(extraction: Extraction, info: Mapping[str, Any] | str) -> Score:
    """`score_extraction` that leaves the event loop free while a worker grades."""
    task, config, entry, grading = parse_info(info)
    early = _ungraded(extraction, task, entry)
    if early or not in_worker(task, grading):
        return early or score_extraction(extraction, info)
    pool = _pools.get(_pool_key(task))
    if pool is None:
        pool = await asyncio.to_thread(_worker_pool, task)
    steps = _steps(task, config, entry, extraction.answer or "", grading)
    try:
        text = next(steps)
        while True:
            text = steps.send(await pool.acall(task, config, entry, text))
    except StopIteration as end:
        return end.value


def score_match(extraction: Extraction, gold: str) -> Score:
    """The score of an answer to a question of the user's own: right if it is `gold` as a number (`1,000`, `0.5`, `1/2`)
    or as text, apart from case, spacing and the wrapping that `forms.unwrap` takes off."""
    answer = extraction.answer
    if answer is None:
        return Score(0.0, None, "no_answer", UNNAMED_TASK)
    if not gold.strip():
        return Score(0.0, answer, "ungradable", UNNAMED_TASK, "the row has no answer")
    if len(answer) > (most := max(MAX_ANSWER_CHARS, 2 * len(gold))):
        return Score(0.0, answer, "too_long", UNNAMED_TASK, f"{len(answer)} characters, more than {most}")
    value = rational(gold)
    wanted = unwrap(gold).casefold().split()
    for text in candidates(answer):
        if (value is not None and rational(text) == value) or text.casefold().split() == wanted:
            return Score(1.0, answer, "correct", UNNAMED_TASK)
    return Score(0.0, answer, "wrong", UNNAMED_TASK)


def in_worker(task: str, grading: Grading) -> bool:
    """Whether answers are graded by code that is not ours, which may raise, hang or end its process."""
    return grading == "upstream" or is_user_task(task)


def partial_score(extraction: Extraction, info: Mapping[str, Any] | str) -> float:
    """Real progress in [0, 1] by the project's own graders, or that of the user's own task, whatever the row's grading
    says; 0.0 without an answer."""
    task, config, entry, _ = parse_info(info)
    if is_user_task(task):
        return score_extraction(extraction, info).progress or 0.0
    if _ungraded(extraction, task, entry):
        return 0.0
    return _graded(task, config, entry, extraction.answer or "", True).value


def _ungraded(extraction: Extraction, task: str, entry: Mapping[str, Any]) -> Score | None:
    """The score of what no grader sees."""
    answer = extraction.answer
    if answer is None:
        return Score(0.0, None, "no_answer", task)
    most = max(MAX_ANSWER_CHARS, 2 * len(str(entry["answer"])))  # nine disks of a tower_of_hanoi take 16,000
    if len(answer) > most:
        return Score(0.0, answer, "too_long", task, f"{len(answer)} characters, more than {most}")
    return None


def _graded(task: str, config: dict[str, Any], entry: dict[str, Any], answer: str, partial: bool) -> Score:
    try:
        value = grade(task, config, entry, answer, partial_credit=partial)
    except Exception as error:  # a broken entry: edited by hand, or from another version of the library
        return _ungradable(task, answer, f"{type(error).__name__}: {error}")
    if value < CORRECT_FROM and (fault := _fault(task, config, entry)):  # several graders do not raise on those
        return _ungradable(task, answer, fault)
    return _valued(task, answer, value)


def _fault(task: str, config: dict[str, Any], entry: dict[str, Any]) -> str:
    """`fault_of`, found out once for all wrong answers to the entry."""
    faults, key = _known_faults(entry), (task, str(config))
    if key not in faults:
        faults[key] = fault_of(task, config, entry)
    return faults[key]


def _known_faults(entry: dict[str, Any]) -> dict[tuple[str, str], str]:
    known = entry if isinstance(entry, _Entry) else _entry(json.dumps(entry, default=repr, skipkeys=True))
    return known.faults


def _steps(
    task: str, config: dict[str, Any], entry: dict[str, Any], answer: str, grading: Grading
) -> Generator[str, Outcome, Score]:
    """The score by a worker: yields the texts that it shall grade, and is sent what became of each."""
    found = _worker_score((yield answer), task, answer)
    if not is_user_task(task):
        return found
    gold = str(entry["answer"] or "").strip()
    if grading != "upstream" and found.status in ("partial", "wrong") and gold:
        faults, key = _known_faults(entry), (task, str(config))
        fault = faults.get(key)
        if fault is None:
            of_gold = _worker_score((yield gold), task, gold)
            fault = "" if of_gold.status == "correct" else f"the row's own gold answer is {of_gold.status}"
            if of_gold.status != "timed_out":  # the machine may have been busy
                faults[key] = fault
        if fault:
            return replace(_ungradable(task, answer, fault), progress=0.0)
    value = found.value
    if grading == "hardened" and found.status == "partial":
        found = Score(0.0, answer, "wrong", task)
    return replace(found, progress=value)


def _worker_score(outcome: Outcome, task: str, answer: str) -> Score:
    if outcome.status == "timed_out":
        return Score(0.0, answer, "timed_out", task, outcome.detail)
    value = outcome.value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if outcome.status != "ok" or not is_number or value != value or abs(value) == math.inf:
        return _ungradable(task, answer, outcome.detail or f"the grader returned {value!r}")
    return _valued(task, answer, min(max(float(value), 0.0), 1.0))


def _valued(task: str, answer: str, value: float) -> Score:
    status: Status = "correct" if value >= CORRECT_FROM else "partial" if value > 0 else "wrong"
    return Score(value, answer, status, task)


def _ungradable(task: str, answer: str, detail: str) -> Score:
    kind = detail.partition(":")[0]
    if (task, kind) not in _logged:
        _logged.add((task, kind))
        _logger.warning(
            "an answer to %s cannot be graded (%s): %.500r; such answers score 0", task, detail[:200], answer
        )
    return Score(0.0, answer, "ungradable", task, detail[:200])


_pools: dict[tuple[Any, ...], WorkerPool] = {}
_pool_lock = threading.Lock()


def _pool_key(task: str) -> tuple[Any, ...]:
    return os.getpid(), *(sources().items() if is_user_task(task) else ())


def _worker_pool(task: str) -> WorkerPool:
    """This process's workers (a fork cannot use its parent's), with the user's code for a task of theirs. They are
    started when first needed: it takes seconds."""
    with _pool_lock:
        key = _pool_key(task)
        if key not in _pools:
            _pools[key] = WorkerPool(
                "rg_env.core.grading.upstream:grade",
                warmup="rg_env.core.grading.upstream:prepare",
                warmup_args=[dict(key[1:])],
                wall_s=UPSTREAM_WALL_S,
                start_s=120,
            )
        return _pools[key]


def parse_info(info: Mapping[str, Any] | str) -> tuple[str, dict[str, Any], dict[str, Any], Grading]:
    """Task, config, entry and grading of a row's `info`. Raises `InputError` if it lacks one or its JSON is broken."""
    if isinstance(info, str):
        info = _object(info, "info")
    if not isinstance(info, Mapping):
        raise InputError(f"info of a row must be a mapping or JSON text, not {shortened(info)}")
    for key in ("rg_task", "config", "entry"):
        if key not in info:
            raise InputError(f"info of a row lacks {key!r}; it has {sorted(map(str, info))}")
    task = info["rg_task"]
    if not isinstance(task, str) or task not in load_table():
        raise unknown_name("task", task, load_table())
    entry = _entry(info["entry"]) if isinstance(info["entry"], str) else _object(info["entry"], "info['entry']")
    if not isinstance(entry.get("metadata"), dict) or "answer" not in entry:
        raise InputError(f"info['entry'] of a {task} row lacks 'answer' or 'metadata'")
    grading = info.get("grading", "hardened")
    if grading == "strict":  # as rows of earlier releases have it
        grading = "hardened"
    if grading not in _GRADINGS:
        raise unknown_name("grading", grading, _GRADINGS)
    config = info["config"]
    return task, _config(config) if isinstance(config, str) else _object(config, "info['config']"), entry, grading


class _Entry(dict[str, Any]):
    """An entry that was read from text, and what is known about it."""

    faults: dict[tuple[str, str], str]
    """By task and options: see `graders.fault_of`."""


@lru_cache(maxsize=256)
def _config(text: str) -> dict[str, Any]:
    """A task's options, read once for all its rows. Graders only look."""
    return _object(text, "info['config']")


@lru_cache(maxsize=256)
def _entry(text: str) -> _Entry:
    """An entry's JSON, read once for all completions of its group. Graders only look."""
    entry = _Entry(_object(text, "info['entry']"))
    entry.faults = {}
    return entry


def _object(text: object, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} of a row is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{name} of a row must be a JSON object, not {type(value).__name__}")
    return value
