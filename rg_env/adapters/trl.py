"""The environment for TRL 1.x: datasets with a prompt column, and reward functions as `GRPOTrainer` calls them.

    from rg_env.adapters.trl import load_environment
    from trl import GRPOConfig, GRPOTrainer

    env = load_environment("leg_counting")
    args = GRPOConfig(reward_weights=env.reward_weights, ...)
    trainer = GRPOTrainer(model, env.reward_funcs, args, env.train_dataset, env.eval_dataset)

Rows, prompts and rewards are those of `ReasoningGym` for the same arguments. TRL's logs have, in addition to each
reward, `accuracy`, that of each task of a mixture, and the share of each status (`status/wrong`, ...); the table of
completions has a column `status`. A reward that raises ends the run with a `RewardError`.

Imports neither trl nor torch nor verifiers. Without `reward_weights` TRL gives all rewards the weight 1; so does its
experimental AsyncGRPOTrainer, always: it has no weights.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset

from rg_env.core.environment import ReasoningGym, Row
from rg_env.core.grading.extraction import completion_text
from rg_env.core.grading.rubric import OFFERED, Rubric, offered
from rg_env.core.rewards.builtin import Rollout, WeightedReward, check_offered, resolve_rewards
from rg_env.core.rewards.registry import with_parameters_of
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.text import shortened
from rg_env.errors import InputError

LogMetric = Callable[[str, float], None]
LogExtra = Callable[[str, list[Any]], None]

_REASONING = ("reasoning_content", "thinking")
"""Keys under which TRL puts the content of a <think> block, with tokenizers that can parse a response."""


@dataclass(frozen=True)
class Environment:
    """What `GRPOTrainer` takes. `load_environment` makes one."""

    train_dataset: Dataset | None
    """Columns prompt (messages), question, answer, info (texts), example_id; None for 0 examples."""
    eval_dataset: Dataset | None
    reward_funcs: list["RewardFunction"]
    reward_weights: list[float]
    """For `GRPOConfig(reward_weights=...)`, in the order of `reward_funcs`."""
    mixture: Mixture
    manifest: dict[str, Any]
    """What the rows are, see `core.manifest`."""


@with_parameters_of(ReasoningGym)
def load_environment(*args: Any, **options: Any) -> Environment:
    """The parameters are those of `ReasoningGym`. Raises `InputError` for what cannot work."""
    check_offered(resolve_rewards(options.get("rewards")), OFFERED, "TRL")
    env = ReasoningGym(*args, **options)
    scorer = Scorer(env.rubric)
    return Environment(
        train_dataset=_dataset(env.train_rows),
        eval_dataset=_dataset(env.eval_rows),
        reward_funcs=[RewardFunction(reward, scorer) for reward in env.rewards],
        reward_weights=list(env.reward_weights.values()),
        mixture=env.mixture,
        manifest=env.manifest,
    )


class RewardFunction:
    """A reward in the form that TRL calls: by these keywords, and with all columns of the dataset.

    Picklable if its reward is, as trainers want it that score in a process of their own.
    """

    def __init__(self, reward: WeightedReward, scorer: "Scorer") -> None:
        self.reward = reward
        self.scorer = scorer
        self.__name__ = reward.name

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        *,
        log_metric: LogMetric | None = None,
        log_extra: LogExtra | None = None,
        **columns: Any,
    ) -> list[float]:
        """What each completion earns, before the weight. Of its columns it needs `info` and `answer`.

        Raises `RewardError` if the reward raises or returns no finite number, and `InputError` for rows of others.
        """
        batch = _Batch.of(prompts, completions, completion_ids, columns)
        rollouts = self.scorer.rollouts(batch, log_metric, log_extra)
        return [
            self.reward.value(rollout, offered(rollout, completion))
            for rollout, completion in zip(rollouts, completions, strict=True)
        ]


@dataclass(frozen=True)
class _Batch:
    """The arguments of all reward functions of a batch that scores depend on."""

    completions: Sequence[Any]
    texts: list[str]
    prompts: Sequence[Any]
    answers: Sequence[Any]
    infos: Sequence[Any]
    tokens: list[int] | None

    @classmethod
    def of(cls, prompts: Any, completions: Any, completion_ids: Any, columns: Mapping[str, Any]) -> "_Batch":
        for name in ("info", "answer"):
            if name not in columns:
                raise InputError(
                    f"the rows have no column {name!r}: train and evaluate on the datasets of this environment "
                    "(train_dataset, eval_dataset), with remove_unused_columns=False"
                )
        sizes = {"prompts": len(prompts), "completions": len(completions)}
        sizes |= {name: len(columns[name]) for name in ("info", "answer")}
        sizes |= {} if completion_ids is None else {"completion_ids": len(completion_ids)}
        if len(set(sizes.values())) > 1:
            raise InputError(f"a batch must have as many of each: {sizes}")
        tokens = None if completion_ids is None else [len(ids) for ids in completion_ids]
        texts = [_text(completion) for completion in completions]
        return cls(completions, texts, prompts, columns["answer"], columns["info"], tokens)

    def rollouts(self) -> list[Rollout]:
        """Its rollouts, not scored yet."""
        for info in self.infos:
            if not isinstance(info, Mapping):
                raise InputError(f"info of a row must be a mapping, not {shortened(info)}")
            if "rg_task" not in info:
                raise InputError(f"info of a row lacks 'rg_task'; it has {sorted(map(str, info))}")
        tokens: Sequence[int | None] = self.tokens or [None] * len(self.texts)
        return list(map(Rollout, self.prompts, self.texts, self.answers, self.infos, tokens))

    def is_same(self, other: "_Batch") -> bool:
        """Whether it is the same batch; an equal batch of another step is not, and is logged again."""
        return self.completions is other.completions and self == other


class Scorer:
    """Extracts and scores each batch once, for all reward functions: TRL has no state in which a rollout could be kept.

    It keeps the last batch, no more.
    """

    def __init__(self, rubric: Rubric) -> None:
        self.rubric = rubric
        self._lock = threading.Lock()  # some trainers call the functions of a batch in a thread each
        self._last: tuple[_Batch, list[Rollout]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Scorer, (self.rubric,)

    def rollouts(self, batch: _Batch, log_metric: LogMetric | None, log_extra: LogExtra | None) -> list[Rollout]:
        """The rollouts of `batch`. Where they are scored anew, metrics and statuses are logged."""
        with self._lock:
            if self._last is None or not self._last[0].is_same(batch):
                rollouts = batch.rollouts()
                self.rubric.grade(rollouts)
                self._last = batch, rollouts
                self._log(rollouts, log_metric, log_extra)
            return self._last[1]

    def _log(self, rollouts: list[Rollout], log_metric: LogMetric | None, log_extra: LogExtra | None) -> None:
        if log_metric is not None:  # TRL averages over the values, of all processes: so each is exact
            for metric in self.rubric.metrics:
                for rollout in rollouts:
                    if (value := metric.of(rollout)) is not None:
                        log_metric(metric.name, value)
        if log_extra is not None:
            log_extra("status", [rollout.score.status for rollout in rollouts])


def _text(completion: Any) -> str:
    """The completion's text, with the reasoning where TRL has cut it off, as the model wrote it: rewards look at it."""
    text = completion_text(completion)
    message = completion[-1] if isinstance(completion, list | tuple) and completion else completion
    if isinstance(message, Mapping) and message.get("role") == "assistant":
        for key in _REASONING:
            if isinstance(reasoning := message.get(key), str) and reasoning.strip():
                return f"<think>\n{reasoning}\n</think>\n\n{text}"
    return text


def _dataset(rows: Sequence[Row]) -> Dataset | None:
    return Dataset.from_list(list(rows)) if rows else None
