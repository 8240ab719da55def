"""The environment for Verifiers' v0 API (`vf.load_environment`), from 0.1.2 to 0.3.

    env = vf.load_environment("rg-env", gym="leg_counting")
    env = vf.load_environment("rg-env", gym=["leg_counting", {"name": "chain_sum", "weight": 2}], seed=1)

Parameters are those of `core.environment.ReasoningGym`, in the order of upstream's own `ReasoningGymEnv`. Differences
between v0's releases are met by duck typing, not by version numbers.

Rewards and metrics become functions that `vf.Rubric` calls by parameter name. A rollout is extracted and scored once,
by the function that comes first, and kept in its `state` for the others.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import Parameter
from typing import Any

import verifiers as vf
from datasets import Dataset

from rg_env.adapters.scoring import record_reward_errors, reward_errors
from rg_env.core.data.selection import Row
from rg_env.core.environment import ReasoningGym
from rg_env.core.grading.extraction import completion_text, extract
from rg_env.core.grading.rubric import Metric, Rubric, offered
from rg_env.core.grading.scoring import score_extraction_async
from rg_env.core.rewards.builtin import Rollout, WeightedReward
from rg_env.core.rewards.registry import PARAMETERS, with_parameters_of
from rg_env.core.text import shortened
from rg_env.errors import InputError, unknown_name

_MADE_HERE = ("dataset", "eval_dataset", "rubric", "message_type")
"""Parameters of the parent classes that this environment fills in itself."""
_CACHE_KEY = "rg_env_rollout"
_PENDING_KEY = "rg_env_pending_score"
_AWAITS_REWARDS = find_spec("verifiers.utils.async_utils") is not None
"""Early versions call reward functions without awaiting what they return: there, scoring blocks the event loop."""


def _parameters() -> inspect.Signature:
    """The parameters of `ReasoningGym`, upstream's first and in its order, `parser`, and those of the parent class."""
    own = inspect.signature(ReasoningGym).parameters
    every = {**own, "parser": Parameter("parser", Parameter.POSITIONAL_OR_KEYWORD, default=None)}
    upstream = ("gym", "num_train_examples", "num_eval_examples", "system_prompt", "parser", "seed")
    names = dict.fromkeys([*upstream, *every])
    known = [every[name].replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    return inspect.Signature([*known, Parameter("kwargs", Parameter.VAR_KEYWORD)])


class _ReasoningGym(ReasoningGym):
    offered = PARAMETERS
    """Verifiers also gives rewards its `state` and `parser`; the trainer refuses rewards that need one of them."""


class ReasoningGymEnv(vf.SingleTurnEnv):
    """A single-turn environment over Reasoning Gym tasks, whose training and evaluation rows never share a problem.

    Args:
        gym, num_train_examples, num_eval_examples and all others: as for `ReasoningGym`.
        parser: a `vf.Parser`, which reward functions get.
        kwargs: parameters of the parent class.

    Attributes: `environment` (the `ReasoningGym` whose rows and rubric these are, which `GRPOTrainer` trains on), and
    its `mixture`, `manifest`, `rewards`, `prompt_options` and `grading`. `dataset` and `eval_dataset` have the columns
    question, answer, info (texts), prompt and example_id; they are None for 0 examples.

    `generate` raises the first `RewardError` of its batch: a failing reward ends the run instead of counting as 0.

    Raises:
        InputError: for what cannot work.
    """

    __signature__ = _parameters()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = self.__signature__.bind(*args, **kwargs).arguments
        parents, parser = given.pop("kwargs", {}), given.pop("parser", None)
        _check_keywords(parents)
        if parser is not None and not isinstance(parser, vf.Parser):
            raise InputError(f"parser must be a vf.Parser, not {shortened(parser)}")
        if not isinstance(parents.get("sampling_args") or {}, Mapping):
            raise InputError(f"sampling_args must be a mapping, not {shortened(parents['sampling_args'])}")
        self.environment = env = _ReasoningGym(**given)
        self.mixture, self.manifest, self.rewards = env.mixture, env.manifest, env.rewards
        self.prompt_options, self.grading = env.prompt_options, env.grading
        parser = parser or vf.Parser()
        super().__init__(
            dataset=_dataset(env.train_rows),
            eval_dataset=_dataset(env.eval_rows),
            # Newer versions put a system prompt that they know of before any prompt without one.
            system_prompt=env.system_prompt if env.prompt_options.placement == "system" else None,
            parser=parser,
            rubric=make_rubric(env.rubric, parser),
            **parents,
        )
        self.reward_errors = record_reward_errors(self.rubric)

    def to_examples(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Rows of `core.data` with this environment's prompt and grading, as in its datasets."""
        return self.environment.to_examples(rows)

    # Synchronous up to 0.1.5 (next to `a_generate`), asynchronous from 0.1.6.
    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, then raise the first error of a reward function, if there was one."""
        return self._checked(super().generate, *args, **kwargs)

    def a_generate(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, if it has one, then raise the first error of a reward function."""
        return self._checked(super().a_generate, *args, **kwargs)

    # Parts of a batch, from 0.1.9 on: a server that runs the environment for `vf-eval` knows these two alone (0.1.10),
    # and `generate` saves what they return before it returns itself.
    async def run_rollout(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, then raise the first error of a reward function, if there was one."""
        return await self._part(super().run_rollout, *args, **kwargs)

    async def run_group(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, if it has one, then raise the first error of a reward function."""
        return await self._part(super().run_group, *args, **kwargs)

    async def _part(self, run: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        with reward_errors() as errors:
            result = await run(*args, **kwargs)
        if errors:
            self.reward_errors.forget()
            raise errors[0]
        return result

    def _checked(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._batch():
            result = generate(*args, **kwargs)
            if not inspect.isawaitable(result):
                self.reward_errors.raise_first()
                return result
        return self._checked_later(result)

    async def _checked_later(self, result: Awaitable[Any]) -> Any:
        with self._batch():
            value = await result
            self.reward_errors.raise_first()
            return value

    @contextmanager
    def _batch(self) -> Iterator[None]:
        """Forget the reward errors of a batch that fails for another reason: the next batch must not raise them."""
        try:
            yield
        except BaseException:
            self.reward_errors.forget()
            raise


@with_parameters_of(ReasoningGymEnv)
def load_environment(*args: Any, **options: Any) -> ReasoningGymEnv:
    """What `vf.load_environment("rg-env", ...)` calls; parameters as for `ReasoningGymEnv`."""
    return ReasoningGymEnv(*args, **options)


def _dataset(rows: Sequence[Mapping[str, Any]]) -> Dataset | None:
    """Rows as the v0 API wants them: no plain-text `task` column, which several versions refuse."""
    return Dataset.from_list(list(rows)) if rows else None


def _check_keywords(kwargs: Mapping[str, Any]) -> None:
    own = set(ReasoningGymEnv.__signature__.parameters) - {"kwargs"}
    parents = {
        name
        for parent in vf.SingleTurnEnv.__mro__
        if "__init__" in vars(parent) and parent is not object
        for name, parameter in inspect.signature(parent.__init__).parameters.items()
        if name != "self" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    for name in kwargs:
        if name in _MADE_HERE:
            raise InputError(f"{name!r} cannot be given: this environment makes it from gym and rewards")
        if name not in parents:
            raise unknown_name("parameter of the environment", name, own | parents - set(_MADE_HERE))


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
            # The rubric calls all its functions at once: the first one starts scoring, and all wait for the same score.
            pending = state.get(_PENDING_KEY)
            if pending is None:
                pending = asyncio.ensure_future(score_extraction_async(extract(completion), info))
                state[_PENDING_KEY] = pending
                pending.add_done_callback(lambda _: state.pop(_PENDING_KEY, None))  # also if it failed
            score = await asyncio.shield(pending)  # a cancelled function leaves the score to the others
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


def _kept(completion: Any, state: Any, info: Any) -> Rollout | None:
    """The rollout in `state`, if it is of this completion and row."""
    rollout = state.get(_CACHE_KEY) if isinstance(state, Mapping) else None
    if not isinstance(rollout, Rollout) or rollout.text != completion_text(completion) or rollout.info != info:
        return None
    return rollout


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
    """Completion tokens, and whether the token limit ended the reply, by `state`: under `responses` in early
    versions, in the steps of `trajectory` from 0.1.9."""
    responses = state.get("responses") or [step.get("response") for step in state.get("trajectory") or []]
    if not responses:
        return None, None
    tokens = getattr(getattr(responses[-1], "usage", None), "completion_tokens", None)
    choices = getattr(responses[-1], "choices", None) or [getattr(responses[-1], "message", None)]
    reason = getattr(choices[0], "finish_reason", None)
    return (tokens if isinstance(tokens, int) else None), (None if reason is None else reason == "length")
