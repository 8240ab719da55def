"""The environment for TRL 1.x: datasets with a prompt column, and reward functions for `GRPOTrainer`.

    from rg_env.adapters.trl import load_environment
    from trl import GRPOConfig, GRPOTrainer

    env = load_environment("leg_counting")
    args = GRPOConfig(reward_weights=env.reward_weights, ...)
    trainer = GRPOTrainer(model, env.reward_funcs, args, env.train_dataset, env.eval_dataset)

Rows, prompts and rewards are the same as those of `ReasoningGym` with the same arguments. In addition to each reward,
TRL logs the overall `accuracy`, the accuracy on each task in a mixture, and the rate of each status (`status/wrong`,
...). TRL's completion table has a `status` column. If a reward raises an exception, the run ends with a `RewardError`.

This module does not import trl, torch or verifiers. Without `reward_weights`, TRL gives every reward a weight of 1.
TRL's experimental `AsyncGRPOTrainer` does not support weights, so it always gives every reward a weight of 1.
"""

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset

from rg_env.core.environment import ReasoningGym, Row
from rg_env.core.event_loop import run_each
from rg_env.core.grading.extraction import completion_text
from rg_env.core.grading.scoring import Rollout
from rg_env.core.rewards import Rubric, WeightedReward, offered
from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import InputError

LogMetric = Callable[[str, float], None]
LogExtra = Callable[[str, list[Any]], None]

_REASONING = ("reasoning_content", "thinking")
"""Keys under which TRL stores the content of a <think> block if the tokenizer parses responses."""


@dataclass(frozen=True)
class Environment:
    """Result of `load_environment`: arguments for `GRPOTrainer`, and the mixture and manifest of the rows."""

    train_dataset: Dataset | None
    """Rows with the columns prompt (messages), question, answer, info (a dict of strings) and example_id. None for an
    empty split."""
    eval_dataset: Dataset | None
    reward_funcs: list["RewardFunction"]
    reward_weights: list[float]
    """Weights for `GRPOConfig(reward_weights=...)`, in the order of `reward_funcs`."""
    mixture: Mixture
    manifest: dict[str, Any]
    """Manifest of the rows (see `core.data.manifest`)."""


def load_environment(*args: Any, **options: Any) -> Environment:
    """Build the environment, with the same parameters as `ReasoningGym`. Raises `InputError` for invalid arguments."""
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


load_environment.__signature__ = inspect.signature(ReasoningGym)  # type: ignore[attr-defined]


class RewardFunction:
    """A reward function that accepts TRL's keyword arguments and all columns of the dataset.

    The function is picklable if its reward is picklable, so trainers can score in a separate process.
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
        """Return the unweighted reward for each completion. The columns must include `info` and `answer`.

        Raises:
            RewardError: the reward raises an exception or returns a non-finite value.
            InputError: the rows are not from this environment.
        """
        fresh = _rollouts(prompts, completions, completion_ids, columns)
        rollouts = self.scorer.scored(completions, fresh, log_metric, log_extra)
        calls = [(rollout, offered(rollout, each)) for rollout, each in zip(rollouts, completions, strict=True)]
        if self.reward.is_async:
            return run_each(lambda call: self.reward.avalue(*call), calls)
        return [self.reward.value(*call) for call in calls]


def _rollouts(prompts: Any, completions: Any, completion_ids: Any, columns: Mapping[str, Any]) -> list[Rollout]:
    """Return the unscored rollouts for a batch."""
    answers, infos = columns.get("answer"), columns.get("info")
    if answers is None or infos is None or not all(isinstance(info, Mapping) and "rg_task" in info for info in infos):
        raise InputError(
            "the rows have no 'answer' column, or no 'info' column with an 'rg_task' key: train and evaluate on the "
            "datasets of this environment (train_dataset, eval_dataset), with remove_unused_columns=False"
        )
    tokens = [None] * len(completions) if completion_ids is None else [len(ids) for ids in completion_ids]
    sizes = [len(values) for values in (prompts, completions, answers, infos, tokens)]
    if len(set(sizes)) > 1:
        raise InputError(f"all parts of a batch must have the same length, not {sizes}")
    return list(map(Rollout, prompts, map(_text, completions), answers, infos, tokens))


class Scorer:
    """Extracts and scores a batch's answers once for all reward functions, because TRL has no per-rollout state.

    Only the last batch is kept.
    """

    def __init__(self, rubric: Rubric) -> None:
        self.rubric = rubric
        self._lock = threading.Lock()  # some trainers call each function in a separate thread
        self._completions: Any = None
        self._last: list[Rollout] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Scorer, (self.rubric,)

    def scored(
        self, completions: Any, rollouts: list[Rollout], log_metric: LogMetric | None, log_extra: LogExtra | None
    ) -> list[Rollout]:
        """Return the scored rollouts for `completions`.

        The first call for a batch scores it and logs metrics and statuses. Later calls by the other reward functions
        reuse the result. An identical batch in a later step is scored and logged again.
        """
        with self._lock:
            if completions is not self._completions or rollouts != self._last:
                self.rubric.grade(rollouts)
                self._completions, self._last = completions, rollouts
                self._log(rollouts, log_metric, log_extra)
            return self._last

    def _log(self, rollouts: list[Rollout], log_metric: LogMetric | None, log_extra: LogExtra | None) -> None:
        if log_metric is not None:  # one value per rollout, because TRL averages the values over all processes
            for metric in self.rubric.metrics:
                for rollout in rollouts:
                    if (value := metric.of(rollout)) is not None:
                        log_metric(metric.name, value)
        if log_extra is not None:
            log_extra("status", [rollout.score.status for rollout in rollouts])


def _text(completion: Any) -> str:
    """Return the completion's text, including any reasoning that TRL has split off."""
    text = completion_text(completion)
    message = completion[-1] if isinstance(completion, list | tuple) and completion else completion
    if isinstance(message, Mapping) and message.get("role") == "assistant":
        for key in _REASONING:
            if isinstance(reasoning := message.get(key), str) and reasoning.strip():
                return f"<think>\n{reasoning}\n</think>\n\n{text}"
    return text


def _dataset(rows: Sequence[Row]) -> Dataset | None:
    return Dataset.from_list(list(rows)) if rows else None
