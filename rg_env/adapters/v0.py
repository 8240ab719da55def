"""The environment for Verifiers' v0 API (`vf.load_environment`), from 0.1.2 to 0.3.

    env = vf.load_environment("rg-env", gym="leg_counting")
    env = vf.load_environment("rg-env", gym=["leg_counting", {"name": "chain_sum", "weight": 2}], seed=1)

Parameters follow upstream's own `ReasoningGymEnv`. What v0's versions do differently is met by duck typing here, not
by looking at version numbers.
"""

import inspect
from collections.abc import Awaitable, Mapping
from fractions import Fraction
from typing import Any

import verifiers as vf
from datasets import Dataset

from rg_env.adapters.reward_errors import record_reward_errors
from rg_env.core.dataset import Row, build_splits
from rg_env.core.extraction import completion_text
from rg_env.core.prompts import SYSTEM_PROMPT, Placement, build_messages, fold_system
from rg_env.core.rewards import Rollout, WeightedReward, call_reward, resolve_rewards
from rg_env.core.tasks import Mixture
from rg_env.errors import InputError, unknown_name

_CACHE_KEY = "rg_env_rollout"
_MADE_HERE = ("dataset", "eval_dataset", "rubric", "message_type")
"""Parameters of the parent classes that this environment fills in itself."""


class ReasoningGymEnv(vf.SingleTurnEnv):
    """A single-turn environment over Reasoning Gym tasks, whose training and evaluation rows never share a question.

    Attributes: `mixture` (the checked tasks), `manifest` (what the rows are, see `core.dataset.build_splits`),
    `rewards` (name, function, weight), `rubric`. `dataset` and `eval_dataset` have the columns question, answer, info
    (texts), prompt and example_id; they are None where 0 examples were asked for.

    `generate` raises the first `RewardError` of its batch: a failing reward ends the run instead of counting as 0.
    """

    def __init__(
        self,
        gym: Any = "leg_counting",
        num_train_examples: int = 2000,
        num_eval_examples: int = 200,
        system_prompt: str | None = SYSTEM_PROMPT,
        parser: vf.Parser | None = None,
        seed: int = 0,
        eval_seed: int = 0,
        rewards: Any = None,
        prompt_placement: Placement = "system",
        **kwargs: Any,
    ) -> None:
        """`gym`: anything `Mixture.parse` takes. `rewards`: anything `resolve_rewards` takes. `seed` picks the training
        rows, `eval_seed` the evaluation rows. `prompt_placement`: "user" puts the instruction before the question, for
        chat templates that reject a system role. Other keywords go to the parent class.

        Raises `InputError` for what cannot work.
        """
        _check_keywords(kwargs)
        # Everything cheap is checked before rows are built.
        self.mixture = Mixture.parse(gym)
        self.rewards = resolve_rewards(rewards)
        few_shot = [dict(message) for message in kwargs.pop("few_shot", None) or []]
        build_messages("", system_prompt, prompt_placement)
        if num_train_examples == 0 and num_eval_examples == 0:
            raise InputError("num_train_examples and num_eval_examples are both 0: there is nothing to do")
        train, evaluation, self.manifest = build_splits(
            self.mixture, num_train_examples, num_eval_examples, seed, eval_seed
        )
        parser = parser or vf.Parser()
        super().__init__(
            dataset=_dataset(train, system_prompt, prompt_placement, few_shot),
            eval_dataset=_dataset(evaluation, system_prompt, prompt_placement, few_shot),
            # Newer versions put a system prompt that they know of before any prompt without one.
            system_prompt=system_prompt if prompt_placement == "system" else None,
            parser=parser,
            rubric=_rubric(self.rewards, self.mixture, parser),
            **kwargs,
        )
        self.reward_errors = record_reward_errors(self.rubric)

    # Synchronous up to 0.1.5 (with `a_generate` beside it), asynchronous from 0.1.6.
    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, then raise the first error of a reward function, if there was one."""
        return self._checked(super().generate(*args, **kwargs))

    def a_generate(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, where it has one, then raise the first error of a reward function."""
        return self._checked(super().a_generate(*args, **kwargs))

    def _checked(self, result: Any) -> Any:
        if inspect.isawaitable(result):
            return self._checked_later(result)
        self.reward_errors.raise_first()
        return result

    async def _checked_later(self, result: Awaitable[Any]) -> Any:
        value = await result
        self.reward_errors.raise_first()
        return value


def load_environment(
    gym: Any = "leg_counting",
    num_train_examples: int = 2000,
    num_eval_examples: int = 200,
    system_prompt: str | None = SYSTEM_PROMPT,
    parser: vf.Parser | None = None,
    seed: int = 0,
    eval_seed: int = 0,
    rewards: Any = None,
    prompt_placement: Placement = "system",
    **kwargs: Any,
) -> ReasoningGymEnv:
    """What `vf.load_environment("rg-env", ...)` calls; parameters as for `ReasoningGymEnv`."""
    return ReasoningGymEnv(
        gym=gym,
        num_train_examples=num_train_examples,
        num_eval_examples=num_eval_examples,
        system_prompt=system_prompt,
        parser=parser,
        seed=seed,
        eval_seed=eval_seed,
        rewards=rewards,
        prompt_placement=prompt_placement,
        **kwargs,
    )


class RewardAdapter:
    """A core reward in the form that `vf.Rubric` calls: by these parameter names, with `__name__` as the metric's."""

    def __init__(self, reward: WeightedReward) -> None:
        self.reward = reward
        self.__name__ = reward.name

    def __call__(self, prompt: Any, completion: Any, answer: Any, state: Any, info: Any, parser: Any) -> float:
        rollout = rollout_of(prompt, completion, answer, state, info)
        available = {
            "prompt": prompt,
            "completion": completion,
            "answer": answer,
            "state": state,
            "info": info,
            "parser": parser,
        }
        return call_reward(self.reward.name, self.reward.function, rollout, available)


class AccuracyMetric:
    """1 for a correct rollout; of one task, if given: then its mean over all rollouts is the accuracy on that task.

    Verifiers averages every metric over all rollouts, those of other tasks too, and a NaN for "not this task" would
    poison the weighted sum (0 * NaN is NaN). So a correct rollout of the task counts as the inverse of the task's share
    of the rows: over a whole dataset the mean is exact, over a batch it is right on average (and may exceed 1).
    """

    def __init__(self, task: str | None = None) -> None:
        self.task = task
        self.__name__ = f"accuracy/{task}" if task else "accuracy"

    def __call__(self, prompt: Any, completion: Any, answer: Any, state: Any, info: Any) -> float:
        rollout = rollout_of(prompt, completion, answer, state, info)
        if rollout.score.status != "correct" or self.task not in (None, rollout.task):
            return 0.0
        return 1.0 if self.task is None else float(1 / Fraction(info["share"]))


def rollout_of(prompt: Any, completion: Any, answer: Any, state: Any, info: Any) -> Rollout:
    """The `Rollout` of these values, extracted and scored once: kept in `state` for the other reward functions."""
    kept = state.get(_CACHE_KEY) if isinstance(state, Mapping) else None
    if isinstance(kept, Rollout) and kept.text == completion_text(completion) and kept.info == info:
        return kept
    tokens, truncated = _usage(state if isinstance(state, Mapping) else {})
    rollout = Rollout.of(
        prompt=prompt,
        completion=completion,
        answer=answer,
        info=info,
        completion_tokens=tokens,
        truncated=truncated,
    )
    if isinstance(state, dict):
        state[_CACHE_KEY] = rollout
    return rollout


def _usage(state: Mapping[str, Any]) -> tuple[int | None, bool | None]:
    """Completion tokens, and whether the token limit ended the reply, where `state` tells: under `responses` in early
    versions, in the steps of `trajectory` from 0.1.9."""
    responses = state.get("responses") or [step.get("response") for step in state.get("trajectory") or []]
    if not responses:
        return None, None
    tokens = getattr(getattr(responses[-1], "usage", None), "completion_tokens", None)
    choices = getattr(responses[-1], "choices", None) or [getattr(responses[-1], "message", None)]
    reason = getattr(choices[0], "finish_reason", None)
    return (tokens if isinstance(tokens, int) else None), (None if reason is None else reason == "length")


def _rubric(rewards: list[WeightedReward], mixture: Mixture, parser: vf.Parser) -> vf.Rubric:
    metrics = [AccuracyMetric()]
    if len(mixture.tasks) > 1:
        metrics += [AccuracyMetric(task) for task in mixture.names]
    for reward in rewards:
        if reward.name in {metric.__name__ for metric in metrics}:
            raise InputError(f"reward {reward.name!r} has the name of a metric of this environment: choose another")
    return vf.Rubric(
        funcs=[*(RewardAdapter(reward) for reward in rewards), *metrics],
        weights=[*(reward.weight for reward in rewards), *(0.0 for _ in metrics)],
        parser=parser,
    )


def _dataset(
    rows: list[Row], system_prompt: str | None, placement: Placement, few_shot: list[dict[str, Any]]
) -> Dataset | None:
    """Rows as the v0 API wants them: no plain-text `task` column, which several versions refuse."""
    if not rows:
        return None
    columns = []
    for index, row in enumerate(rows):
        messages: list[dict[str, Any]] = build_messages(row["question"], system_prompt)
        messages[-1:-1] = few_shot
        if placement == "user":
            messages = fold_system(messages)
        columns.append({**row, "prompt": messages, "example_id": index})
    return Dataset.from_list(columns)


def _check_keywords(kwargs: Mapping[str, Any]) -> None:
    own = {name for name in inspect.signature(load_environment).parameters if name != "kwargs"}
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
