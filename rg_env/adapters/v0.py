"""Adapter for Verifiers' v0 API (0.1.6 to 0.3): rg_env's environment as a `vf.SingleTurnEnv`.

    env = vf.load_environment("rg-env", gym="leg_counting")
    env = vf.load_environment("rg-env", gym=["leg_counting", {"name": "chain_sum", "weight": 2}], seed=1)

The environment accepts all parameters of `core.environment.ReasoningGym`. Positional parameters are in the same order
as in Verifiers' own `ReasoningGymEnv`. Differences between v0 releases are handled by duck typing, not by version
checks.

Rewards and metrics are wrapped in functions, to which `vf.Rubric` passes arguments by parameter name. The first
function called for a rollout scores the rollout and stores it in `state` for the other functions.

`vf.Rubric` catches any exception that a reward function raises, logs it and uses 0.0 as the reward. `vf.Rubric` also
includes NaN rewards in the weighted sum. To end the run instead, the environment records errors of its rubric's
functions (`record_errors`), and its methods raise the first one.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import verifiers as vf
from datasets import Dataset

from rg_env.core.environment import ReasoningGym, unknown_parameters
from rg_env.core.grading.extraction import completion_text
from rg_env.core.grading.scoring import Rollout, score_extraction_async
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.core.rewards import PARAMETERS, Rubric, checked_value, offered
from rg_env.core.text import shortened, user_error
from rg_env.errors import InputError, MissingExtraError, RewardError

if not hasattr(vf, "SingleTurnEnv"):
    raise MissingExtraError(
        f"vf.load_environment and the rest of Verifiers' v0 API are missing from verifiers {vf.__version__}: use "
        "rg_env.load_environment, which returns a v1 environment, or run `pip install 'verifiers<0.4'`"
    )

_MADE_HERE = ("dataset", "eval_dataset", "message_type")
"""Parent-class parameters that this environment sets itself."""
_ROLLOUT_KEY = "rg_env_rollout"
_PENDING_KEY = "rg_env_pending_score"


class _ReasoningGym(ReasoningGym):
    offered = PARAMETERS
    """Verifiers also passes its `state` and `parser` to rewards. The trainer rejects rewards that need `state` or
    `parser`.
    """


def _raising(name: str) -> Any:
    """Return a method that calls the parent's method `name`, then raises the first error from a reward function, if
    any."""

    def call(self: vf.SingleTurnEnv, *args: Any, **kwargs: Any) -> Any:
        with raising_recorded_errors():
            result = getattr(super(ReasoningGymEnv, self), name)(*args, **kwargs)
        return wait(result) if inspect.isawaitable(result) else result

    async def wait(result: Awaitable[Any]) -> Any:
        with raising_recorded_errors():
            return await result

    return call


class ReasoningGymEnv(vf.SingleTurnEnv):
    """A single-turn environment for Reasoning Gym tasks. By default, training and evaluation never share a problem.

    Args:
        gym, num_train_examples, num_eval_examples, system_prompt, seed: the same as for `ReasoningGym`.
        parser: a `vf.Parser`, passed to reward functions.
        rubric: your own `vf.Rubric`. Its rewards replace the default rewards or, if `rewards` is given, are added to
            `rewards`. Accuracy and statuses remain as metrics.
        kwargs: other parameters of `ReasoningGym` and the parent class.

    Attributes: `environment` is the underlying `ReasoningGym`, used by `GRPOTrainer`. `dataset` and `eval_dataset` have
    the columns question, answer, info (a dict of strings), prompt and example_id. An empty dataset is None.

    `generate` raises the first `RewardError` in its batch, so a failing reward ends the run instead of being recorded
    as 0.

    Raises:
        InputError: an argument is invalid.
    """

    def __init__(
        self,
        gym: Any = "leg_counting",
        num_train_examples: int = 2000,
        num_eval_examples: int = 200,
        system_prompt: str | None = SYSTEM_PROMPT,
        parser: vf.Parser | None = None,
        seed: int = 0,
        rubric: vf.Rubric | None = None,
        **kwargs: Any,
    ) -> None:
        own = {name: kwargs.pop(name) for name in inspect.signature(ReasoningGym).parameters if name in kwargs}
        _check_keywords(kwargs)
        for name, value, kind in (("parser", parser, vf.Parser), ("rubric", rubric, vf.Rubric)):
            if not isinstance(value, kind | None):
                raise InputError(f"{name} must be a vf.{kind.__name__}, not {shortened(value)}")
        self.environment = env = _ReasoningGym(
            gym, num_train_examples, num_eval_examples, system_prompt=system_prompt, seed=seed, **own
        )
        if template_kwargs := env.prompt_options.chat_template_kwargs:
            sampling = dict(kwargs.get("sampling_args") or {})
            extra = {"chat_template_kwargs": dict(template_kwargs), **(sampling.get("extra_body") or {})}
            kwargs["sampling_args"] = {**sampling, "extra_body": extra}
        self.own_rubric = rubric
        parser = parser or vf.Parser()
        if rubric is None:
            rubric = make_rubric(env.rubric, parser)
        else:
            rewards = env.rewards if own.get("rewards") is not None else ()
            ours = make_rubric(Rubric(rewards, env.rubric.metrics, env.rubric.in_workers), parser)
            rubric = vf.RubricGroup(rubrics=[rubric, ours])
        record_errors(rubric)
        super().__init__(
            dataset=_dataset(env.train_rows),
            eval_dataset=_dataset(env.eval_rows),
            # Newer releases prepend this system prompt to any prompt that lacks one.
            system_prompt=env.system_prompt if env.prompt_options.prompt_placement == "system" else None,
            parser=parser,
            rubric=rubric,
            **kwargs,
        )

    # Since 0.1.9, `run_rollout` and `run_group` run parts of a batch. In 0.1.10, the server that runs the environment
    # for `vf-eval` calls only these two, and `generate` saves their results before it returns.
    generate, run_rollout, run_group = _raising("generate"), _raising("run_rollout"), _raising("run_group")


load_environment = ReasoningGymEnv
"""Entry point for `vf.load_environment("rg-env", ...)`."""


def _dataset(rows: Sequence[Mapping[str, Any]]) -> Dataset | None:
    """Convert rows to a dataset. Rows have no `task` column because several Verifiers releases reject a plain-text
    task."""
    return Dataset.from_list(list(rows)) if rows else None


def _check_keywords(kwargs: Mapping[str, Any]) -> None:
    """Raise `UnknownNameError` unless all `kwargs` are parent-class parameters that callers may set."""
    signatures = [inspect.signature(parent.__init__) for parent in vf.SingleTurnEnv.__mro__ if parent is not object]
    parameters = [each for signature in signatures for each in signature.parameters.values()]
    parents = {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    parents -= {"self", *_MADE_HERE}
    if unknown := [name for name in kwargs if name not in parents]:
        own = {*inspect.signature(ReasoningGymEnv).parameters, *inspect.signature(ReasoningGym).parameters}
        raise unknown_parameters(unknown, (own | parents) - {"kwargs"})


def make_rubric(rubric: Rubric, parser: vf.Parser) -> vf.Rubric:
    """Build the rubric for Verifiers: rewards with their weights, and metrics with weight 0."""
    awaits = rubric.in_workers or any(reward.is_async for reward in rubric.rewards)
    kind = _AwaitingFunction if awaits else _Function
    metrics = [(metric.name, lambda rollout, _, value=metric.value: value(rollout)) for metric in rubric.metrics]
    values: list[Any] = [*((each.name, each.avalue if awaits else each.value) for each in rubric.rewards), *metrics]
    functions = [kind(name, value) for name, value in values]
    weights = [*(reward.weight for reward in rubric.rewards), *(0.0 for _ in rubric.metrics)]
    return vf.Rubric(funcs=functions, weights=weights, parser=parser)


class _Function:
    """Wraps a reward or metric as a function with a `__name__` and the parameter names that `vf.Rubric` expects."""

    def __init__(self, name: str, value: Callable[[Rollout, Mapping[str, Any]], Any]) -> None:
        self.__name__ = name
        self._value = value

    def __call__(self, prompt: Any, completion: Any, answer: Any, state: Any, info: Any, parser: Any) -> Any:
        rollout = rollout_of(prompt, completion, answer, state, info)
        return self._value(rollout, {**offered(rollout, completion), "state": state, "parser": parser})


class _AwaitingFunction(_Function):
    """Awaits the score (possibly from a worker process) and then the reward, without blocking the event loop."""

    async def __call__(self, prompt: Any, completion: Any, answer: Any, state: Any, info: Any, parser: Any) -> Any:
        rollout = rollout_of(prompt, completion, answer, state, info)
        if not rollout.is_scored:
            # Up to 0.1.7, the rubric calls all functions concurrently. The first call starts scoring, and all calls
            # await the same score.
            if (pending := state.get(_PENDING_KEY)) is None:
                pending = state[_PENDING_KEY] = asyncio.ensure_future(score_extraction_async(rollout.extraction, info))
                pending.add_done_callback(lambda _: state.pop(_PENDING_KEY, None))
            rollout.with_score(await asyncio.shield(pending))  # canceling one function must not cancel the score
        value = super().__call__(prompt, completion, answer, state, info, parser)
        return await value if inspect.isawaitable(value) else value


def rollout_of(prompt: Any, completion: Any, answer: Any, state: Any, info: Any) -> Rollout:
    """Return the rollout in `state` if it belongs to this completion and row. Otherwise, build a `Rollout` and store it
    in `state` for the other functions."""
    rollout, text = state.get(_ROLLOUT_KEY), completion_text(completion)
    if rollout is None or rollout.text != text or rollout.info != info:
        rollout = state[_ROLLOUT_KEY] = Rollout(prompt, text, answer, info, *usage(state))
    return rollout


def usage(state: Mapping[str, Any]) -> tuple[int | None, bool | None]:
    """Return the number of completion tokens, and whether the token limit ended the completion.

    Each is None if unknown. Releases up to 0.1.7 store responses in `state["responses"]`. Later releases store
    responses in the steps of `state["trajectory"]`.
    """
    responses = state.get("responses") or [step.get("response") for step in state.get("trajectory") or []]
    if not responses:
        return None, None
    tokens = getattr(getattr(responses[-1], "usage", None), "completion_tokens", None)
    choices = getattr(responses[-1], "choices", None) or [getattr(responses[-1], "message", None)]
    reason = getattr(choices[0], "finish_reason", None)
    return (tokens if isinstance(tokens, int) else None), (None if reason is None else reason == "length")


# Reward errors that Verifiers would replace with 0.0

_GROUP_PARAMETERS = {"states", "prompts", "completions", "answers", "tasks", "infos"}
"""Parameters of group rewards (since 0.1.8), which return one value for each rollout."""
_errors: ContextVar[list[RewardError] | None] = ContextVar("reward_errors", default=None)
"""Recorded errors. asyncio tasks and calls of `asyncio.to_thread` inherit the list."""


@contextmanager
def raising_recorded_errors() -> Iterator[None]:
    """Raise the first recorded error at the end of the block, even if the block raises another exception."""
    errors: list[RewardError] = []
    token = _errors.set(errors)
    try:
        yield
    except Exception:  # Verifiers can fail in any way after a reward failed, and the reward's error is the cause
        if not errors:
            raise
    finally:
        _errors.reset(token)
    if errors:
        raise errors[0]


def record_errors(rubric: Any) -> None:
    """Wrap every function of `rubric` (or of the rubrics in a `RubricGroup`) in place, so that an exception, or a value
    that is not a finite number, is recorded as a `RewardError`."""
    for attribute in ("reward_funcs", "funcs"):  # up to 0.1.7, and since 0.1.8
        if isinstance(functions := getattr(rubric, attribute, None), list):
            functions[:] = map(_recorded, functions)
    for inner in getattr(rubric, "rubrics", ()):
        record_errors(inner)


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    is_group = bool(_GROUP_PARAMETERS & {*inspect.signature(function).parameters})

    @contextmanager
    def recording() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not isinstance(error, RewardError):
                error = RewardError(f"reward {function.__name__!r} raised {user_error(error)}")
            if (errors := _errors.get()) is not None:
                errors.append(error)
            raise error

    def checked(value: Any) -> Any:
        for each in value if is_group else [value]:
            checked_value(function.__name__, each, "in a vf.Rubric", function)
        return value

    async def awaited(value: Awaitable[Any]) -> Any:
        with recording():
            return checked(await value)

    @functools.wraps(function)  # keeps the name and the signature, which determines the arguments that Verifiers passes
    def call(*args: Any, **kwargs: Any) -> Any:
        with recording():
            value = function(*args, **kwargs)
            return awaited(value) if inspect.isawaitable(value) else checked(value)

    return call
