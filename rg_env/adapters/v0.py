"""Adapter for Verifiers' v0 API (0.1.2 to 0.3): rg_env's environment for Verifiers, and training on Verifiers
environments.

    env = vf.load_environment("rg-env", gym="leg_counting")
    env = vf.load_environment("rg-env", gym=["leg_counting", {"name": "chain_sum", "weight": 2}], seed=1)

The environment accepts all parameters of `core.environment.ReasoningGym`. Positional parameters are in the same order
as in Verifiers' own `ReasoningGymEnv`. Differences between v0 releases are handled by duck typing, not by version
checks.

Rewards and metrics are wrapped in functions, to which `vf.Rubric` passes arguments by parameter name. The first
function called for a rollout scores the rollout and stores it in `state` for the other functions.

`vf.Rubric` catches any exception that a reward function raises, logs it and uses 0.0 as the reward. `vf.Rubric` also
includes NaN rewards in the weighted sum. To end the run instead, `watch(rubric)` wraps the functions of any rubric in
place, and `raising_reward_errors()` re-raises the first error from a wrapped function.

`VerifiersEnvironment` lets `GRPOTrainer` train on the rows of a `vf.SingleTurnEnv`, whose rubric scores the
completions.
"""

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import verifiers as vf
from datasets import Dataset

from rg_env.core.data.selection import DrawnRow
from rg_env.core.environment import Environment, PromptOptions, ReasoningGym, Row, prompted_rows, unknown_parameters
from rg_env.core.event_loop import run_async
from rg_env.core.grading.extraction import completion_text, extract
from rg_env.core.grading.scoring import UNNAMED_TASK, Rollout, score_extraction_async
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.core.rewards import PARAMETERS, Rubric, Scored, checked_value, describe, offered
from rg_env.core.text import shortened, user_error
from rg_env.errors import InputError, MissingExtraError, RewardError, not_single_turn

if not hasattr(vf, "SingleTurnEnv"):
    raise MissingExtraError(
        f"vf.load_environment and the rest of Verifiers' v0 API are missing from verifiers {vf.__version__}: use "
        "rg_env.load_environment, which returns a v1 environment, or run `pip install 'verifiers<0.4'`"
    )

_MADE_HERE = ("dataset", "eval_dataset", "message_type")
"""Parent-class parameters that this environment sets itself."""
_CACHE_KEY = "rg_env_rollout"
_PENDING_KEY = "rg_env_pending_score"
_AWAITS_REWARDS = find_spec("verifiers.utils.async_utils") is not None
"""Whether Verifiers awaits reward functions. Early releases do not await them, so scoring blocks the event loop."""


class _ReasoningGym(ReasoningGym):
    offered = PARAMETERS
    """Verifiers also passes its `state` and `parser` to rewards. The trainer rejects rewards that need `state` or
    `parser`.
    """


def _raising(name: str) -> Any:
    """Return a method that calls the parent's method `name`, then raises the first error from a reward function, if
    any."""

    def call(self: vf.SingleTurnEnv, *args: Any, **kwargs: Any) -> Any:
        with raising_reward_errors():
            result = getattr(super(ReasoningGymEnv, self), name)(*args, **kwargs)
        return wait(result) if inspect.isawaitable(result) else result

    async def wait(result: Awaitable[Any]) -> Any:
        with raising_reward_errors():
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

    Attributes: `environment` (the underlying `ReasoningGym`, used by `GRPOTrainer`), and its `mixture`, `manifest`,
    `rewards`, `prompt_options` and `grading`. `dataset` and `eval_dataset` have the columns question, answer, info (a
    dict of strings), prompt and example_id. A dataset that would be empty is None.

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
        if not isinstance(kwargs.get("sampling_args") or {}, Mapping):
            raise InputError(f"sampling_args must be a mapping, not {shortened(kwargs['sampling_args'])}")
        self.environment = env = _ReasoningGym(
            gym, num_train_examples, num_eval_examples, system_prompt=system_prompt, seed=seed, **own
        )
        self.mixture, self.manifest, self.rewards = env.mixture, env.manifest, env.rewards
        self.prompt_options, self.grading = env.prompt_options, env.grading
        self.own_rubric = rubric
        parser = parser or vf.Parser()
        if rubric is None:
            rubric = make_rubric(env.rubric, parser)
        else:
            rewards = env.rewards if own.get("rewards") is not None else ()
            ours = make_rubric(Rubric(rewards, env.rubric.metrics, env.rubric.in_workers), parser)
            rubric = vf.RubricGroup(rubrics=[rubric, ours])
        watch(rubric)
        super().__init__(
            dataset=_dataset(env.train_rows),
            eval_dataset=_dataset(env.eval_rows),
            # Newer releases prepend this system prompt to any prompt that lacks one.
            system_prompt=env.system_prompt if env.prompt_options.prompt_placement == "system" else None,
            parser=parser,
            rubric=rubric,
            **kwargs,
        )

    def to_examples(self, rows: Sequence[DrawnRow]) -> list[dict[str, Any]]:
        """Convert rows from `core.data` to examples with this environment's prompt and grading, as in its datasets."""
        return self.environment.to_examples(rows)

    # `generate` is synchronous up to 0.1.5 (alongside `a_generate`) and asynchronous from 0.1.6 on. Since 0.1.9,
    # `run_rollout` and `run_group` run parts of a batch. In 0.1.10, the server that runs the environment for `vf-eval`
    # calls only `run_rollout` and `run_group`, and `generate` saves their results before it returns.
    generate, a_generate = _raising("generate"), _raising("a_generate")
    run_rollout, run_group = _raising("run_rollout"), _raising("run_group")


load_environment = ReasoningGymEnv
"""Entry point for `vf.load_environment("rg-env", ...)`."""


def _dataset(rows: Sequence[Mapping[str, Any]]) -> Dataset | None:
    """Convert rows to a dataset. Rows have no `task` column because several Verifiers releases reject a plain-text
    task."""
    return Dataset.from_list(list(rows)) if rows else None


def _check_keywords(kwargs: Mapping[str, Any]) -> None:
    """Raise `InputError` unless all `kwargs` are parent-class parameters that callers may set."""
    parents = {
        name
        for parent in vf.SingleTurnEnv.__mro__
        if "__init__" in vars(parent) and parent is not object
        for name, parameter in inspect.signature(parent.__init__).parameters.items()
        if name != "self" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    for name in kwargs:
        if name in _MADE_HERE:
            raise InputError(f"{name!r} cannot be set because this environment sets it itself")
    if unknown := [name for name in kwargs if name not in parents]:
        own = {*inspect.signature(ReasoningGymEnv).parameters, *inspect.signature(ReasoningGym).parameters}
        raise unknown_parameters(unknown, (own | parents) - {*_MADE_HERE, "kwargs"})


def make_rubric(rubric: Rubric, parser: vf.Parser) -> vf.Rubric:
    """Build the rubric for Verifiers: rewards with their weights, and metrics with weight 0."""
    awaits = _AWAITS_REWARDS and (rubric.in_workers or any(reward.is_async for reward in rubric.rewards))
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
        if isinstance(state, dict) and _kept(completion, state, info) is None:
            # The rubric calls all functions concurrently. The first call starts scoring, and all calls await the same
            # score.
            pending = state.get(_PENDING_KEY)
            if pending is None:
                pending = asyncio.ensure_future(score_extraction_async(extract(completion), info))
                state[_PENDING_KEY] = pending
                # Remove the entry even if scoring fails.
                pending.add_done_callback(lambda _: state.pop(_PENDING_KEY, None))
            score = await asyncio.shield(pending)  # canceling one function must not cancel the score
            rollout_of(prompt, completion, answer, state, info, score)
        value = super().__call__(prompt, completion, answer, state, info, parser)
        return await value if inspect.isawaitable(value) else value


def rollout_of(prompt: Any, completion: Any, answer: Any, state: Any, info: Any, score: Any = None) -> Rollout:
    """Return the rollout in `state` if it belongs to this completion and row. Otherwise, build a `Rollout`, score it
    unless `score` is given, and store it in `state` for the other reward functions."""
    rollout = _kept(completion, state, info)
    if rollout is None:
        tokens, truncated = usage(state if isinstance(state, Mapping) else {})
        rollout = Rollout(prompt, completion_text(completion), answer, info, tokens, truncated)
        rollout.with_score(score or rollout.score)
        if isinstance(state, dict):
            state[_CACHE_KEY] = rollout
    return rollout


def _kept(completion: Any, state: Any, info: Any) -> Rollout | None:
    """Return the rollout in `state` if it belongs to this completion and row, otherwise None."""
    rollout = state.get(_CACHE_KEY) if isinstance(state, Mapping) else None
    if not isinstance(rollout, Rollout) or rollout.text != completion_text(completion) or rollout.info != info:
        return None
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


# Reward errors that Verifiers would swallow

_WATCHED = "_rg_env_watched"
_FUNCTIONS = ("reward_funcs", "funcs")  # attribute names in Verifiers up to 0.1.7 and since 0.1.8
_GROUP_PARAMETERS = {"states", "prompts", "completions", "answers", "tasks", "infos"}
_errors: ContextVar[list[RewardError] | None] = ContextVar("reward_errors", default=None)
"""Errors from watched functions. asyncio tasks and calls of `asyncio.to_thread` inherit the list."""


@contextmanager
def raising_reward_errors() -> Iterator[None]:
    """Raise the first error from a watched function at the end of the block, even if the block raises another
    exception."""
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
    """Wrap every reward function of `rubric` (or of the rubrics in a `RubricGroup`) in place, at most once.

    Each wrapped function keeps its name and its signature, which Verifiers uses to pass arguments.
    """
    for attribute in _FUNCTIONS:
        functions = getattr(rubric, attribute, None)
        if isinstance(functions, list):
            functions[:] = [each if hasattr(each, _WATCHED) else _watched(each) for each in functions]
    for inner in getattr(rubric, "rubrics", None) or []:
        watch(inner)


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    name = str(getattr(function, "__name__", None) or type(function).__name__)
    signature = inspect.signature(function)
    is_group = bool(_GROUP_PARAMETERS & set(signature.parameters))

    @contextmanager
    def noting(where: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            found, cause = error, error.__cause__
            if not isinstance(found, RewardError):
                found, cause = RewardError(f"reward {name!r} raised {user_error(error)}; {where}"), error
            if (errors := _errors.get()) is not None:
                errors.append(found)
            raise found from cause

    def checked(value: Any, where: str) -> Any:
        values = value if is_group and isinstance(value, list | tuple) else [value]
        numbers = [checked_value(name, each, where, function) for each in values]
        return numbers if is_group else numbers[0]

    async def finish(value: Any, where: str) -> Any:
        with noting(where):
            return checked(await value, where)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with noting(where := _rollout_in(kwargs)):
            value = function(*args, **kwargs)
            return finish(value, where) if inspect.isawaitable(value) else checked(value, where)

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await call(*args, **kwargs)

    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    wrapper: Any = call_async if is_async else call
    wrapper.__name__, wrapper.__signature__ = name, signature  # Verifiers inspects the name and signature on each call
    setattr(wrapper, _WATCHED, True)
    return wrapper


def _rollout_in(arguments: Mapping[str, Any]) -> str:
    """Describe the rollout for an error message, using the function's arguments. Verifiers passes only the arguments
    that the function's signature names."""
    state = arguments.get("state")
    known = {**(state if isinstance(state, Mapping) else {}), **arguments}
    completion, info = known.get("completion"), known.get("info")
    task = info.get("rg_task") if isinstance(info, Mapping) else None
    return describe(task or known.get("task"), extract(completion).answer, completion_text(completion))


# Training on other Verifiers environments

_HOOKS = ("rollout", "setup_state", "is_completed", "env_response", "get_prompt_messages", "get_context_messages",
          "get_model_response", "render_completion")  # fmt: skip
"""Methods that an environment can override to customize rollouts. The trainer never calls these methods."""
_ROW = "verifiers_row"
"""Key under which a row stores the dataset's original row, for the rubric."""
_MONITORS = ("num_turns",)
"""Metrics that later Verifiers releases add to rubrics with weight 0. In single-turn rollouts, these metrics are always
1."""


class VerifiersEnvironment(Environment):
    """Rows of a `vf.SingleTurnEnv`, with rewards from its rubric.

    If a reward raises an exception, or returns None or a non-finite number, scoring raises a `RewardError`.

    Raises:
        InputError: the environment is multi-turn, uses tools or custom rollouts, has no rows, or has no reward
            function.
    """

    def __init__(self, env: Any) -> None:
        _check_single_turn(env)
        self.env = env
        self.prompt_options = PromptOptions(system_prompt=env.system_prompt)
        self.train_rows, self.eval_rows = (
            _rows(env, name, self.prompt_options) for name in ("dataset", "eval_dataset")
        )
        if not self.train_rows and not self.eval_rows:
            raise InputError(f"{type(env).__name__} has neither training nor evaluation rows")
        watch(env.rubric)
        names, weights = (_of_rubric(env.rubric, name) for name in ("reward_func_names", "reward_weights"))
        self.reward_weights = {
            name: float(weight)
            for name, weight in zip(names, weights, strict=True)
            if name not in _MONITORS and not _is_part(name)
        }
        self.has_accuracy = "accuracy" in self.reward_weights
        if not self.reward_weights:
            raise InputError(f"the rubric of {type(env).__name__} has no reward function: add one")

    def score(self, rollouts: Sequence[Rollout]) -> list[Scored]:
        states = [self._state(rollout) for rollout in rollouts]
        rubric = self.env.rubric
        scoring = _scored_rollouts if hasattr(rubric, "score_rollouts") else _scored_groups
        try:
            with raising_reward_errors():
                found = run_async(scoring(rubric, states))
        except RewardError:
            raise
        except Exception as error:
            raise RewardError(f"rubric {type(rubric).__name__} raised {user_error(error)}") from error
        return [self._scored(*each) for each in zip(rollouts, found, strict=True)]

    def _scored(self, rollout: Rollout, found: tuple[Any, Mapping[str, Any]]) -> Scored:
        """Check and convert the scores. `watch` does not check scores that a rubric class computes itself."""
        where = describe(rollout.task, rollout.extraction.answer, rollout.text)
        values = {name: checked_value(name, value, where) for name, value in found[1].items() if name not in _MONITORS}
        metrics = {name: values.pop(name) for name in list(values) if name == "accuracy" or _is_part(name)}
        return Scored(checked_value(f"total of {type(self.env.rubric).__name__}", found[0], where), values, metrics)

    def _state(self, rollout: Rollout) -> Any:
        """Return the state for a rubric, in the installed release's format."""
        row = dict(rollout.row[_ROW])
        prompt, completion = self._messages(rollout)
        row |= {"prompt": prompt, "answer": row.get("answer", ""), "info": dict(rollout.info)}
        step = {"prompt": prompt, "completion": completion, "response": None, "tokens": None, "reward": None,
                "advantage": None, "is_truncated": bool(rollout.truncated), "extras": {}}  # fmt: skip
        state: Any = getattr(vf, "State", dict)()
        state.update(
            **{key: row[key] for key in ("prompt", "answer", "info")},
            input=row,
            task=row if hasattr(self.env.rubric, "task_for_state") else row.get("task") or UNNAMED_TASK,
            example_id=row.get("example_id", 0),
            completion=completion,
            responses=[],
            trajectory=[step],
            turn=1,
            is_completed=True,
            is_truncated=bool(rollout.truncated),
            timing={"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0},
            reward=None,
            metrics=None,
        )
        return state

    def _messages(self, rollout: Rollout) -> tuple[Any, Any]:
        if isinstance(rollout.prompt, str):
            return rollout.prompt, rollout.text
        kinds = {role: getattr(vf, f"{role.title()}Message", dict) for role in ("system", "user", "assistant")}
        prompt = [kinds.get(message["role"], dict)(**message) for message in rollout.prompt]
        return prompt, [kinds["assistant"](role="assistant", content=rollout.text)]


def _is_part(name: str) -> bool:
    """Whether `name` is an rg_env metric for a single task (`accuracy/<task>`) or status (`status/<status>`)."""
    return name.startswith(("accuracy/", "status/"))


async def _scored_rollouts(rubric: Any, states: Sequence[Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    """Score rollouts with a rubric from Verifiers 0.1.7 or earlier."""
    found = await rubric.score_rollouts(
        prompts=[state["prompt"] for state in states],
        completions=[state["completion"] for state in states],
        answers=[state["answer"] for state in states],
        states=states,
        tasks=[state["task"] for state in states],
        infos=[state["info"] for state in states],
        example_ids=[state["example_id"] for state in states],
        use_tqdm=False,
    )
    by_name = found.metrics.items()
    return [(reward, {name: values[i] for name, values in by_name}) for i, reward in enumerate(found.reward)]


async def _scored_groups(rubric: Any, states: Sequence[Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    """Score rollouts with a rubric from Verifiers 0.1.8 or later, which scores a row's rollouts together."""
    groups = groupby(states, key=lambda state: (state["example_id"], repr(state["prompt"])))
    # Verifiers 0.1.8 and 0.1.9 require a semaphore.
    semaphore = [nullcontext()] if "score_sem" in inspect.signature(rubric.score_group).parameters else []
    await asyncio.gather(*(rubric.score_group(list(group), *semaphore) for _, group in groups))
    return [(state.get("reward"), state.get("metrics") or {}) for state in states]


def _check_single_turn(env: Any) -> None:
    name, base = type(env).__name__, vf.SingleTurnEnv
    if not isinstance(env, base):
        raise not_single_turn(name, "is not a SingleTurnEnv and may have several turns or tools")
    if getattr(env, "oai_tools", None) or getattr(env, "tool_defs", None):
        raise not_single_turn(name, "has tools")
    if own := [hook for hook in _HOOKS if getattr(type(env), hook, None) is not getattr(base, hook, None)]:
        raise not_single_turn(name, f"overrides {', '.join(own)}")


def _of_rubric(rubric: Any, name: str) -> list[Any]:
    get = getattr(rubric, f"get_{name}", None) or getattr(rubric, f"_get_{name}")  # renamed in Verifiers 0.1.8
    return list(get())


def _rows(env: Any, name: str, options: PromptOptions) -> list[dict[str, Any]]:
    build = getattr(env, f"build_{name}", None)  # later releases build a dataset on first use
    dataset = build() if build else getattr(env, name)
    return prompted_rows([_row(row) for row in dataset or ()], name, options)


def _row(row: Row) -> dict[str, Any]:
    """Convert a dataset's row to a row for `Environment`. Drop message keys whose value is None, because a dataset
    fills in missing keys with None."""
    prompt, answer, info = row.get("prompt"), row.get("answer"), row.get("info")
    if isinstance(prompt, list):
        prompt = [{key: value for key, value in message.items() if value is not None} for message in prompt]
    info = json.loads(info) if isinstance(info, str) else info
    return {**row, "prompt": prompt, "answer": "" if answer is None else str(answer), "info": info, _ROW: row}
