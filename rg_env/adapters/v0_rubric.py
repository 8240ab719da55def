"""The rubric for Verifiers' v0 API: rewards and metrics as functions that `vf.Rubric` calls by parameter name.

A rollout is extracted and scored once, by whichever function comes first, and kept in its `state` for the others.
"""

import asyncio
import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import verifiers as vf

from rg_env.core.grading.extraction import completion_text, extract
from rg_env.core.grading.rubric import Metric, Rubric, offered
from rg_env.core.grading.scoring import score_extraction_async
from rg_env.core.rewards.builtin import Rollout, WeightedReward

_CACHE_KEY = "rg_env_rollout"
_AWAITS_REWARDS = find_spec("verifiers.utils.async_utils") is not None
"""Early versions call reward functions without awaiting what they return: there, scoring blocks the event loop."""
_PENDING_KEY = "rg_env_pending_score"


def make_rubric(rubric: Rubric, parser: vf.Parser) -> vf.Rubric:
    """The rubric for Verifiers: rewards with their weights, and with weight 0 the metrics."""
    functions: list[Any] = [*map(RewardAdapter, rubric.rewards), *map(MetricAdapter, rubric.metrics)]
    if rubric.in_workers and _AWAITS_REWARDS:
        functions = [Awaiting(function) for function in functions]
    weights = [*(reward.weight for reward in rubric.rewards), *(0.0 for _ in rubric.metrics)]
    return vf.Rubric(funcs=functions, weights=weights, parser=parser)


class RewardAdapter:
    """A core reward in the form that `vf.Rubric` calls: by these parameter names, with `__name__` as the metric's."""

    def __init__(self, reward: WeightedReward) -> None:
        self.reward = reward
        self.__name__ = reward.name

    def __call__(self, prompt: Any, completion: Any, answer: Any, state: Any, info: Any, parser: Any) -> float:
        rollout = rollout_of(prompt, completion, answer, state, info)
        return self.reward.value(rollout, {**offered(rollout, completion), "state": state, "parser": parser})


class MetricAdapter:
    """A metric of a rollout in the same form."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.__name__ = metric.name

    def __call__(self, prompt: Any, completion: Any, answer: Any, state: Any, info: Any) -> float:
        return self.metric.value(rollout_of(prompt, completion, answer, state, info))


class Awaiting:
    """A reward function or metric that waits for the score first, which a worker makes: the event loop stays free."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__signature__ = inspect.signature(function)

    async def __call__(self, **arguments: Any) -> float:
        state, completion, info = arguments["state"], arguments["completion"], arguments["info"]
        if isinstance(state, dict) and _kept(completion, state, info) is None:
            # The rubric calls all its functions at the same time: the first asks, and all wait for the same score.
            pending = state.get(_PENDING_KEY)
            if pending is None:
                pending = asyncio.ensure_future(score_extraction_async(extract(completion), info))
                state[_PENDING_KEY] = pending
                pending.add_done_callback(lambda _: state.pop(_PENDING_KEY, None))  # also where it failed
            score = await asyncio.shield(pending)  # one that is cancelled leaves the score to the others
            if _kept(completion, state, info) is None:
                rest = (arguments["prompt"], completion, arguments["answer"], state, info)
                state[_CACHE_KEY] = _rollout(*rest, score)
        value: float = self.function(**arguments)
        return value


def rollout_of(prompt: Any, completion: Any, answer: Any, state: Any, info: Any) -> Rollout:
    """The `Rollout` of these values, extracted and scored once: kept in `state` for the other reward functions."""
    rollout = _kept(completion, state, info)
    if rollout is None:
        rollout = _rollout(prompt, completion, answer, state, info)
        if isinstance(state, dict):
            state[_CACHE_KEY] = rollout
    return rollout


def kept_rollout(state: Any) -> Rollout | None:
    """The `Rollout` that the rubric left in a scored rollout's `state`; None in other environments."""
    rollout = state.get(_CACHE_KEY) if isinstance(state, Mapping) else None
    return rollout if isinstance(rollout, Rollout) else None


def _kept(completion: Any, state: Any, info: Any) -> Rollout | None:
    rollout = kept_rollout(state)
    return rollout if rollout and rollout.text == completion_text(completion) and rollout.info == info else None


def _rollout(prompt: Any, completion: Any, answer: Any, state: Any, info: Any, score: Any = None) -> Rollout:
    tokens, truncated = usage(state if isinstance(state, Mapping) else {})
    return Rollout.of(
        prompt=prompt,
        completion=completion,
        answer=answer,
        info=info,
        completion_tokens=tokens,
        truncated=truncated,
        score=score,
    )


def usage(state: Mapping[str, Any]) -> tuple[int | None, bool | None]:
    """Completion tokens, and whether the token limit ended the reply, where `state` tells: under `responses` in early
    versions, in the steps of `trajectory` from 0.1.9."""
    responses = state.get("responses") or [step.get("response") for step in state.get("trajectory") or []]
    if not responses:
        return None, None
    tokens = getattr(getattr(responses[-1], "usage", None), "completion_tokens", None)
    choices = getattr(responses[-1], "choices", None) or [getattr(responses[-1], "message", None)]
    reason = getattr(choices[0], "finish_reason", None)
    return (tokens if isinstance(tokens, int) else None), (None if reason is None else reason == "length")
