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
from rg_env.core.grading.extraction import completion_text
from rg_env.core.grading.scoring import Rollout
from rg_env.core.rewards import Rubric, Scored
from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import InputError

_REASONING = ("reasoning_content", "thinking")
"""Keys under which TRL stores the content of a <think> block if the tokenizer parses responses."""


@dataclass(frozen=True)
class TRLEnvironment:
    """Result of `load_environment`: arguments for `GRPOTrainer`, and the mixture and manifest of the rows."""

    train_dataset: Dataset | None
    """Rows with the columns prompt (messages), question, answer, info (a dict of strings) and example_id. None for an
    empty split."""
    eval_dataset: Dataset | None
    reward_funcs: list["TRLReward"]
    reward_weights: list[float]
    """Weights for `GRPOConfig(reward_weights=...)`, in the order of `reward_funcs`."""
    mixture: Mixture
    manifest: dict[str, Any]
    """Manifest of the rows (see `core.data.manifest`)."""


def load_environment(*args: Any, **options: Any) -> TRLEnvironment:
    """Build the environment, with the same parameters as `ReasoningGym`. Raises `InputError` for invalid arguments."""
    env = ReasoningGym(*args, **options)
    scorer = Scorer(env.rubric)
    return TRLEnvironment(
        train_dataset=_dataset(env.train_rows),
        eval_dataset=_dataset(env.eval_rows),
        reward_funcs=[TRLReward(reward.name, scorer) for reward in env.rewards],
        reward_weights=list(env.reward_weights.values()),
        mixture=env.mixture,
        manifest=env.manifest,
    )


load_environment.__signature__ = inspect.signature(ReasoningGym)  # type: ignore[attr-defined]


class TRLReward:
    """A reward function that accepts TRL's keyword arguments and all columns of the dataset.

    The function is picklable if the environment's rewards are, so trainers can score in a separate process.
    """

    def __init__(self, name: str, scorer: "Scorer") -> None:
        self.__name__ = name
        self.scorer = scorer

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        *,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Return the unweighted reward for each completion. The columns must include `info` and `answer`.

        Raises:
            RewardError: a reward raises an exception or returns a non-finite value.
            InputError: the rows are not from this environment.
        """
        rollouts = _rollouts(prompts, completions, completion_ids, columns)
        scored, is_new = self.scorer.scored(completions, rollouts)
        if is_new and log_metric is not None:
            for each in scored:  # one value per rollout, because TRL averages the values over all processes
                for name, value in each.metrics.items():
                    log_metric(name, value)
        if is_new and log_extra is not None:
            log_extra("status", [rollout.score.status for rollout in rollouts])
        return [each.rewards[self.__name__] for each in scored]


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
    """Scores a batch once for all reward functions, because TRL has no per-rollout state.

    Only the last batch is kept.
    """

    def __init__(self, rubric: Rubric) -> None:
        self.rubric = rubric
        self._lock = threading.Lock()  # some trainers call each function in a separate thread
        self._completions: Any = None
        self._rollouts: list[Rollout] = []
        self._scored: list[Scored] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Scorer, (self.rubric,)

    def scored(self, completions: Any, rollouts: list[Rollout]) -> tuple[list[Scored], bool]:
        """Return the scores for `completions`, and whether this call is the first one for the batch.

        An identical batch in a later step is scored again.
        """
        with self._lock:
            is_new = completions is not self._completions or rollouts != self._rollouts
            if is_new:
                self._scored = self.rubric.score(rollouts)
                self._completions, self._rollouts = completions, rollouts
            return self._scored, is_new


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
