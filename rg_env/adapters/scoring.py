"""Raise reward errors that Verifiers would swallow, for any rubric.

v0's `vf.Rubric` catches any exception of a reward function, logs it and continues with 0.0, and NaN enters the weighted
sum. `watch(rubric)` wraps the functions of any rubric in place. Run them within `raising_reward_errors()`, which raises
the first error at its end. This module does not import verifiers and relies on attributes only.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rg_env.core.grading.extraction import completion_text, extract
from rg_env.core.rewards import checked_value, describe
from rg_env.core.text import user_error
from rg_env.errors import RewardError

_WATCHED = "_rg_env_watched"
_FUNCTIONS = ("reward_funcs", "funcs")  # verifiers up to 0.1.6, and from 0.1.9
_GROUP_PARAMETERS = {"states", "prompts", "completions", "answers", "tasks", "infos"}

_errors: ContextVar[list[RewardError] | None] = ContextVar("reward_errors", default=None)
"""Errors of watched functions; asyncio tasks and threads inherit the list."""


@contextmanager
def raising_reward_errors() -> Iterator[None]:
    """At the end of the block, raise the first error from a watched function, instead of any other exception."""
    errors: list[RewardError] = []
    token = _errors.set(errors)
    try:
        yield
    except Exception as error:
        if errors and error is not errors[0]:
            raise errors[0] from errors[0].__cause__
        raise
    finally:
        _errors.reset(token)
    if errors:
        raise errors[0]


def watch(rubric: Any) -> None:
    """Wrap every reward function of `rubric`, or of the rubrics in a `RubricGroup`, in place and only once.

    Wrapped functions keep their name and signature, which Verifiers uses to pass arguments.
    """
    for attribute in _FUNCTIONS:
        functions = getattr(rubric, attribute, None)
        if isinstance(functions, list):
            functions[:] = [each if hasattr(each, _WATCHED) else _watched(each) for each in functions]
    for inner in getattr(rubric, "rubrics", None) or []:
        watch(inner)


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    name = str(getattr(function, "__name__", None) or type(function).__name__)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables written in C
        signature = None
    is_group = bool(signature and _GROUP_PARAMETERS & set(signature.parameters))

    @contextmanager
    def noting(arguments: Mapping[str, Any]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            found = error
            if not isinstance(found, RewardError):
                found = RewardError(f"reward {name!r} raised {user_error(error)}; {_where(arguments)}")
            if (errors := _errors.get()) is not None:
                errors.append(found)
            raise found from (error if found is not error else error.__cause__)

    def checked(value: Any, arguments: Mapping[str, Any]) -> Any:
        values = value if is_group and isinstance(value, list | tuple) else [value]
        numbers = [checked_value(name, each, _where(arguments), function) for each in values]
        return numbers if is_group else numbers[0]

    async def finish(value: Any, arguments: Mapping[str, Any]) -> Any:
        with noting(arguments):
            return checked(await value, arguments)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with noting(kwargs):
            value = function(*args, **kwargs)
            return finish(value, kwargs) if inspect.isawaitable(value) else checked(value, kwargs)

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await call(*args, **kwargs)

    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    wrapper: Any = call_async if is_async else call
    wrapper.__name__ = name
    if signature:  # Verifiers inspects it on each call
        wrapper.__signature__ = signature
    setattr(wrapper, _WATCHED, True)
    return wrapper


def _where(arguments: Mapping[str, Any]) -> str:
    """A description of the rollout, from the function's arguments: Verifiers passes only those in its signature."""
    state = arguments.get("state")
    known = {**(state if isinstance(state, Mapping) else {}), **arguments}
    completion, info = known.get("completion"), known.get("info")
    task = info.get("rg_task") if isinstance(info, Mapping) else None
    return describe(task or known.get("task"), extract(completion).answer, completion_text(completion))
