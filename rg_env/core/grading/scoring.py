"""Score completions: extract the answer and call the task's grader. All scoring goes through this module.

A `Rollout` is one completion for one row, and is the input to reward functions. A rollout's answer is extracted and
scored once, on first use.

Wrong, missing, overlong, timed-out and ungradable answers do not cause exceptions; each kind has its own status. An
exception means that `info` is invalid or that the workers cannot start.

The `grading` key of a row's `info` sets the kind of grading:

- "hardened" (the default): right or wrong, as judged by rg_env's own graders;
- "partial": the same graders, with partial credit for real progress;
- "upstream": the library's own formulas, for comparison with published numbers. The library's formulas run in worker
  processes that can be killed.

The user's own tasks are graded by their `score_answer` method, which also runs in a worker. With "hardened", the
method's value is reduced to right or wrong.
"""

import asyncio
import json
import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple, get_args

from rg_env.core.data.user_rows import OWN_TASK
from rg_env.core.grading.extraction import Extraction, extract, extract_lenient
from rg_env.core.grading.graders import fault_of, grade, longest_answer
from rg_env.core.grading.graders.forms import same_value
from rg_env.core.grading.upstream import SYMBOLIC
from rg_env.core.grading.workers import WorkerPool
from rg_env.core.tasks.task_table import is_user_task, load_table
from rg_env.core.text import shortened
from rg_env.core.user_code import sources
from rg_env.errors import InputError, unknown_name

Status = Literal["correct", "partial", "wrong", "no_answer", "too_long", "timed_out", "ungradable"]
Grading = Literal["hardened", "partial", "upstream"]
_GRADINGS = get_args(Grading)

MAX_ANSWER_CHARS = 10_000
"""Maximum length of an answer in characters, or twice the gold answer's length, or the length of the task's longest
sensible answer (`graders.longest_answer`), whichever is greatest. The limit bounds the time for grading."""
CORRECT_FROM = 1 - 1e-9
"""Minimum value that counts as correct. The tolerance allows for rounding errors. It is small because the library's
score for a time interval that is off by one second can be 0.9999999."""
UPSTREAM_WALL_S = 1.0
"""Time limit in seconds for a worker to grade one answer, not counting the wait for a free worker."""
SYMBOLIC_WALL_S = 10.0
"""The same limit for the library's formulas that use SymPy, which takes up to two seconds for some answers."""

UNNAMED_TASK = "default"
"""Task name for rows from other environments, which do not name a task."""

_logger = logging.getLogger(__name__)
_logged: set[tuple[str, str]] = set()


class Score(NamedTuple):
    """A completion's score and status."""

    value: float
    """Score in [0, 1]."""
    answer: str | None
    """The extracted answer, or None if no answer was found."""
    status: Status
    task: str
    detail: str = ""
    """The reason why the answer could not be graded, or "" if it was graded or missing."""
    progress: float | None = None
    """Value from the grader for the user's own task, clipped to [0, 1], regardless of `grading`. The value is 0.0 if
    grading failed, and None for other tasks and for missing or overlong answers."""


def task_of(info: Mapping[str, Any]) -> str:
    """Return the task name that results use for a row with this `info`."""
    return str(info.get("rg_task") or info.get(OWN_TASK) or UNNAMED_TASK)


def score(completion: object, info: Mapping[str, Any] | str) -> Score:
    """Score `completion` (in any form that `extraction.completion_text` accepts) for the row with this `info`.

    Raises `InputError` if `info` is not from a row built by `core.data.dataset`.
    """
    return score_extraction(extract(completion), info)


def score_extraction(extraction: Extraction, info: Mapping[str, Any] | str) -> Score:
    """Score an answer that has already been extracted, for the row with this `info`."""
    return _scored(extraction, _row(info))


async def score_extraction_async(extraction: Extraction, info: Mapping[str, Any] | str) -> Score:
    """Score an extracted answer without blocking the event loop while a worker grades the answer."""
    row = _row(info)
    if not in_worker(row.task, row.grading):
        return _scored(extraction, row)
    return await asyncio.wrap_future(threads().submit(_scored, extraction, row))


def score_match(extraction: Extraction, gold: str) -> Score:
    """Score an answer to one of the user's own questions or to a row from another environment. The answer is right if
    `same_value` considers it equal to `gold`."""
    answer = extraction.answer
    if answer is not None and not gold.strip():
        return Score(0.0, answer, "ungradable", UNNAMED_TASK, "the row has no answer")
    return _ungraded(answer, gold, UNNAMED_TASK) or _valued(UNNAMED_TASK, str(answer), same_value(str(answer), gold))


def lenient_correct(rollout: "Rollout") -> bool:
    """Whether the answer is correct if an answer without well-formed tags is read leniently
    (`extraction.extract_lenient`)."""
    if rollout.extraction.answer is not None:
        return rollout.score.status == "correct"
    readings = extract_lenient(rollout.prefix + rollout.text)
    if "rg_task" not in rollout.info:
        return any(score_match(each, rollout.answer).status == "correct" for each in readings)
    return any(score_extraction(each, rollout.info).status == "correct" for each in readings)


def in_worker(task: str, grading: Grading) -> bool:
    """Whether answers are graded by third-party code, which may raise an exception, hang or end its process."""
    return grading == "upstream" or is_user_task(task)


def partial_score(extraction: Extraction, info: Mapping[str, Any] | str) -> float:
    """Return the partial credit in [0, 1] from rg_env's graders, or from the user's grader for the user's own tasks.
    The credit is 0.0 if no answer was found.

    The row's `grading` does not affect this credit.
    """
    row = _row(info)
    found = _scored(extraction, row if is_user_task(row.task) else row._replace(grading="partial"))
    return found.value if found.progress is None else found.progress


@dataclass(frozen=True)
class Rollout:
    """One completion for one row."""

    prompt: Any
    """The prompt, as chat messages or text."""
    text: str
    """The completion's text."""
    answer: str
    """The gold answer, or "" if the row does not have one."""
    info: Mapping[str, Any]
    """The row's `info`, which contains the data for grading."""
    completion_tokens: int | None = None
    """Number of completion tokens, or None if unknown."""
    truncated: bool | None = None
    """Whether the token limit ended the completion, or None if this is unknown."""
    token_ids: Sequence[int] = ()
    """IDs of the sampled tokens, including the end-of-sequence token; empty if unknown."""
    logprobs: Sequence[float] = ()
    """Natural logarithms of the probabilities with which `token_ids` were sampled; empty if unknown."""
    row: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The row, with all of the user's columns; empty if unknown."""
    prefix: str = ""
    """Start of the model's turn that is already in the prompt, such as the `<think>` of a chat template. The answer is
    extracted as if the completion began with it. Default: the entry `reply_prefix` of `info`, if any."""

    def __post_init__(self) -> None:
        if not self.prefix and isinstance(self.info, Mapping) and isinstance(self.info.get("reply_prefix"), str):
            object.__setattr__(self, "prefix", self.info["reply_prefix"])

    @property
    def task(self) -> str:
        """The Reasoning Gym task, the name of the user's own data, or `UNNAMED_TASK` for other rows."""
        return task_of(self.info)

    # A `cached_property` is not used because its lock, which all rollouts share in Python 3.11 and earlier, would
    # serialize grading.
    @property
    def extraction(self) -> Extraction:
        """The answer extracted from the text."""
        found: Extraction | None = vars(self).get("_extraction")
        if found is None:
            found = vars(self)["_extraction"] = extract(self.prefix + self.text)
        return found

    @property
    def score(self) -> Score:
        """The score from the task's grader, or from a comparison with `answer` for the user's own questions and rows
        from other environments.

        Raises `InputError` if `info` claims to be from a Reasoning Gym row but is invalid.
        """
        found: Score | None = vars(self).get("_score")
        if found is None:
            match = "rg_task" not in self.info
            found = score_match(self.extraction, self.answer) if match else score_extraction(self.extraction, self.info)
            vars(self)["_score"] = found
        return found

    @property
    def is_scored(self) -> bool:
        """Whether `score` is already known, so that reading it does not grade the answer."""
        return "_score" in vars(self)

    def with_score(self, score: Score) -> "Rollout":
        """Set a score that has already been computed, and return the rollout."""
        vars(self)["_score"] = score
        return self


# Rows


class _Row(NamedTuple):
    """A row's data for grading. The data is read-only because all completions of a group share it."""

    task: str
    config: dict[str, Any]
    entry: dict[str, Any]
    grading: Grading
    key: tuple[str, str, str]
    """Task, config and entry as text."""


def _row(info: Mapping[str, Any] | str) -> _Row:
    """Parse `info`. Raises `InputError` if `info` is invalid."""
    if isinstance(info, str):
        info = _object(info, "info")
    if not isinstance(info, (dict, Mapping)):  # the check for a dict is much faster
        raise InputError(f"a row's info must be a mapping or JSON text, not {shortened(info)}")
    try:
        task, config, entry, grading = info["rg_task"], info["config"], info["entry"], info.get("grading", "hardened")
    except KeyError as error:
        raise InputError(f"a row's info lacks {error}; it has {sorted(map(str, info))}") from None
    if not isinstance(task, str) or task not in load_table():
        raise unknown_name("task", task, load_table())
    if grading not in _GRADINGS:
        raise unknown_name("grading", grading, _GRADINGS)
    if not isinstance(config, str):
        config = json.dumps(config, default=repr, skipkeys=True)
    if not isinstance(entry, str):
        entry = json.dumps(entry, default=repr, skipkeys=True)
    found = _object(entry, "info['entry']")
    if not isinstance(found.get("metadata"), dict) or "answer" not in found:
        raise InputError(f"info['entry'] of a {task} row lacks 'answer' or 'metadata'")
    return _Row(task, _object(config, "info['config']"), found, grading, (task, config, entry))


@lru_cache(maxsize=512)
def _object(text: str, name: str) -> dict[str, Any]:
    """Parse a JSON object, and cache it for all completions of a group."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"a row's {name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"a row's {name} must be a JSON object, not {type(value).__name__}")
    return value


# Grading


def _ungraded(answer: str | None, gold: str, task: str, entry: Mapping[str, Any] | None = None) -> Score | None:
    """Return the score for a completion that never reaches a grader, or None for any other completion."""
    if answer is None:
        return Score(0.0, None, "no_answer", task)
    if len(answer) <= MAX_ANSWER_CHARS:
        return None
    most = max(MAX_ANSWER_CHARS, 2 * len(gold))
    if len(answer) > most and entry is not None:
        most = max(most, longest_answer(task, entry))
    if len(answer) > most:
        return Score(0.0, answer, "too_long", task, f"{len(answer)} characters, more than {most}")
    return None


def _scored(extraction: Extraction, row: _Row) -> Score:
    answer = extraction.answer or ""
    if ungraded := _ungraded(extraction.answer, str(row.entry["answer"]), row.task, row.entry):
        return ungraded
    found = (_by_worker if in_worker(row.task, row.grading) else _by_grader)(answer, row)
    # Several graders do not raise an error for an invalid entry, so the gold answer is graded as a check.
    if row.grading != "upstream" and found.status in ("partial", "wrong") and (fault := _fault_of(row)):
        found = _ungradable(row.task, answer, fault)
    if is_user_task(row.task):
        is_wrong = row.grading == "hardened" and found.status == "partial"
        found = (Score(0.0, answer, "wrong", row.task) if is_wrong else found)._replace(progress=found.value)
    return found


def _fault_of(row: _Row) -> str:
    """Return why the row's own gold answer is not graded as right, or "" if it is."""
    try:
        return _fault(row.key)
    except TimeoutError:  # not cached because the machine may have been busy
        return "grading the row's own gold answer timed out"


@lru_cache(maxsize=256)
def _fault(key: tuple[str, str, str]) -> str:
    """Return the result for `_fault_of`, cached so that the check runs only once for all wrong answers to the same
    question."""
    row = _row(dict(zip(("rg_task", "config", "entry"), key, strict=True)))
    if not is_user_task(row.task):
        return fault_of(row.task, row.config, row.entry)
    gold = str(row.entry["answer"] or "").strip()
    status = _by_worker(gold, row).status if gold else "correct"
    if status == "timed_out":
        raise TimeoutError
    return "" if status == "correct" else f"the row's own gold answer is {status}"


def _by_grader(answer: str, row: _Row) -> Score:
    try:
        value = grade(row.task, row.config, row.entry, answer, partial_credit=row.grading == "partial")
    except Exception as error:  # the entry is invalid because it was edited or is from another release of the library
        return _ungradable(row.task, answer, f"{type(error).__name__}: {error}")
    return _valued(row.task, answer, value)


def _by_worker(answer: str, row: _Row) -> Score:
    # Creating the dataset has a longer limit of its own: arc_agi's takes seconds on a busy machine.
    first = [row.task, row.config, {}, None]
    outcome = _worker_pool(row.task).call(row.task, row.config, row.entry, answer, first=first)
    if outcome.status == "timed_out":
        return Score(0.0, answer, "timed_out", row.task, outcome.detail)
    value = outcome.value
    if outcome.status != "ok" or type(value) not in (int, float) or not -math.inf < value < math.inf:
        return _ungradable(row.task, answer, outcome.detail or f"the grader must return a finite number, not {value!r}")
    return _valued(row.task, answer, float(min(max(value, 0), 1)))


def _valued(task: str, answer: str, value: float) -> Score:
    status: Status = "correct" if value >= CORRECT_FROM else "partial" if value > 0 else "wrong"
    return Score(float(value), answer, status, task)


def _ungradable(task: str, answer: str, detail: str) -> Score:
    kind = detail.partition(":")[0]
    if (task, kind) not in _logged:
        _logged.add((task, kind))
        _logger.warning(
            "an answer to %s cannot be graded (%s): %.500r; such answers score 0", task, detail[:200], answer
        )
    return Score(0.0, answer, "ungradable", task, detail[:200])


# Workers


_pool_lock = threading.Lock()


def threads() -> ThreadPoolExecutor:
    """Return the pool of threads that wait for workers. There are more threads than workers in a pool, so no worker
    stays idle while answers wait."""
    return _threads_of(os.getpid())


@cache
def _threads_of(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8, "rg-env-scoring")


def _worker_pool(task: str) -> WorkerPool:
    """Return this process's worker pool for `task`. For a user's own task, the pool's workers have imported the user's
    code.

    A pool is started on first use because starting it takes seconds. A forked process cannot use its parent's pool.
    """
    with _pool_lock:
        wall_s = SYMBOLIC_WALL_S if task in SYMBOLIC else UPSTREAM_WALL_S
        return _pool_of(os.getpid(), wall_s, *(sources().items() if is_user_task(task) else ()))


@cache
def _pool_of(pid: int, wall_s: float, *imported: tuple[str, str]) -> WorkerPool:
    return WorkerPool(
        "rg_env.core.grading.upstream:grade",
        warmup="rg_env.core.grading.upstream:prepare",
        warmup_args=[dict(imported)],
        wall_s=wall_s,
        start_s=120,
    )
