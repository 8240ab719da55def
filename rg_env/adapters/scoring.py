"""What the adapters of Verifiers share: an event loop for scoring, and reward errors that Verifiers would swallow.

v0's `vf.Rubric` catches whatever a reward function raises, logs it and continues with 0.0, and NaN enters the weighted
sum. `record_reward_errors(rubric)` wraps the functions of any rubric in place, so that such an error is recorded first;
code that runs a batch then calls `record.raise_first()`. Code that runs a part of a batch does so in `reward_errors()`,
which collects only the errors of that part. Imports no verifiers, and works by attributes alone.
"""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar

from rg_env.core.grading.extraction import completion_text, extract
from rg_env.core.rewards.builtin import checked_value, describe
from rg_env.errors import RewardError

T = TypeVar("T")
_RECORD = "_rg_env_reward_errors"
_RECORDS = "_rg_env_records"
_FUNCTIONS = ("reward_funcs", "funcs")  # verifiers up to 0.1.6, and from 0.1.9
_GROUP_PARAMETERS = {"states", "prompts", "completions", "answers", "tasks", "infos"}

_of_this_part: ContextVar[list[RewardError] | None] = ContextVar("reward_errors", default=None)
"""Where errors also go, inside `reward_errors`."""


@contextmanager
def reward_errors() -> Iterator[list[RewardError]]:
    """Yields a list that collects the errors of wrapped functions called inside, also by tasks and threads started
    there."""
    errors: list[RewardError] = []
    token = _of_this_part.set(errors)
    try:
        yield errors
    finally:
        _of_this_part.reset(token)


class ErrorRecord:
    """The first error of a batch. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: RewardError | None = None

    def add(self, error: RewardError) -> None:
        """Keep `error` if it is the first."""
        with self._lock:
            if self._first is None:
                self._first = error

    def forget(self) -> RewardError | None:
        """Forget all errors; returns the first one."""
        with self._lock:
            error, self._first = self._first, None
        return error

    def raise_first(self) -> None:
        """Raise the first error, if any, and forget all of them."""
        error = self.forget()
        if error is not None:
            raise error


def record_reward_errors(rubric: Any) -> ErrorRecord:
    """Wrap every reward function of `rubric`, and of the rubrics in a `RubricGroup`, in place.

    Calling it again returns the same record and wraps only functions added since. Wrapped functions keep their name and
    signature, by which Verifiers decides what to pass.
    """
    record = getattr(rubric, _RECORD, None)
    if not isinstance(record, ErrorRecord):
        record = ErrorRecord()
        setattr(rubric, _RECORD, record)
    _wrap_all(rubric, record)
    return record


def _wrap_all(rubric: Any, record: ErrorRecord) -> None:
    for attribute in _FUNCTIONS:
        functions = getattr(rubric, attribute, None)
        if isinstance(functions, list):
            functions[:] = [_wrap(function, record) for function in functions]
    for inner in getattr(rubric, "rubrics", None) or []:
        _wrap_all(inner, record)


def _wrap(function: Callable[..., Any], record: ErrorRecord) -> Callable[..., Any]:
    records: list[ErrorRecord] | None = getattr(function, _RECORDS, None)
    if records is not None:  # wrapped before, maybe for another record: a rubric that is part of a group
        if record not in records:
            records.append(record)
        return function
    records = [record]
    name = str(getattr(function, "__name__", None) or type(function).__name__)
    signature = _signature(function)
    is_group = bool(signature and _GROUP_PARAMETERS & set(signature.parameters))

    def fail(error: Exception, arguments: Mapping[str, Any]) -> NoReturn:
        if isinstance(error, RewardError):
            found = error
        else:
            found = RewardError(f"reward {name!r} raised {type(error).__name__}: {error}; {_where(arguments)}")
            found.__cause__ = error
        for each in records:
            each.add(found)
        part = _of_this_part.get()
        if part is not None:
            part.append(found)
        raise found

    def checked(value: Any, arguments: Mapping[str, Any]) -> Any:
        values = value if is_group and isinstance(value, list | tuple) else [value]
        numbers = [checked_value(name, each, _where(arguments)) for each in values]
        return numbers if is_group else numbers[0]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                return finish(value, kwargs)
            return checked(value, kwargs)
        except Exception as error:
            fail(error, kwargs)

    async def finish(value: Any, kwargs: Mapping[str, Any]) -> Any:
        try:
            return checked(await value, kwargs)
        except Exception as error:
            fail(error, kwargs)

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await call(*args, **kwargs)

    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    wrapper: Any = call_async if is_async else call
    wrapper.__name__ = name
    if signature:  # Verifiers inspects it at each call
        wrapper.__signature__ = signature
    setattr(wrapper, _RECORDS, records)
    return wrapper


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some callables written in C
        return None


def _where(arguments: Mapping[str, Any]) -> str:
    """The rollout, by the function's own arguments: Verifiers passes only those that a function names."""
    state = arguments.get("state")
    state = state if isinstance(state, Mapping) else {}

    def find(key: str) -> Any:
        return arguments[key] if key in arguments else state.get(key)

    completion, info = find("completion"), find("info")
    task = info.get("rg_task") if isinstance(info, Mapping) else None
    return describe(task or find("task"), extract(completion).answer, completion_text(completion))


class ScoringLoop:
    """Runs coroutines to their end in a thread of its own. Works in a notebook too, whose thread has a loop already,
    and clients of judges keep their connections from one batch to the next."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, or its exception."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="rg-env-scoring", daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise
