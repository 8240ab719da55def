"""The environment for TRL 1.x: datasets with a prompt column, and reward functions as `GRPOTrainer` calls them.

    from rg_env.adapters.trl import load_environment
    from trl import GRPOConfig, GRPOTrainer

    env = load_environment("leg_counting")
    args = GRPOConfig(reward_weights=env.reward_weights, ...)
    trainer = GRPOTrainer(model, env.reward_funcs, args, env.train_dataset, env.eval_dataset)

Rows, prompts and rewards are those of `adapters.v0` for the same arguments. In TRL's logs there are, beside each
reward, `accuracy`, that of each task of a mixture, and the share of each status (`status/wrong`, ...); the table of
completions has a column `status`. A reward that raises ends the run with a `RewardError`.

Imports neither trl nor torch nor verifiers. Without `reward_weights` TRL gives all rewards the weight 1; so does its
experimental AsyncGRPOTrainer, always: it has no weights.
"""

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from rg_env.core.asking import Asking
from rg_env.core.checks import shortened
from rg_env.core.dataset import Row, build_splits
from rg_env.core.extraction import completion_text
from rg_env.core.manifest import Manifest
from rg_env.core.metrics import Metric, metrics_of, needs_workers
from rg_env.core.prompts import SYSTEM_PROMPT, Placement
from rg_env.core.rewards import Rollout, WeightedReward, check_offered, resolve_rewards
from rg_env.core.splits import SplitBy
from rg_env.core.tasks import Mixture
from rg_env.errors import InputError, unknown_name

LogMetric = Callable[[str, float], None]
LogExtra = Callable[[str, list[Any]], None]

_OFFERED = ("rollout", "prompt", "completion", "answer", "task", "info")
"""What rewards can ask for here: TRL has no state and no parser."""
_REASONING = ("reasoning_content", "thinking")
"""Where TRL puts what stood in a <think> block, with tokenizers that say how to parse a response."""
_GRADING_THREADS = 8
"""Threads that wait for workers: more than there are of these (`core.workers`), so that none of them is idle."""


@dataclass(frozen=True)
class Environment:
    """What `GRPOTrainer` takes. `load_environment` makes one."""

    train_dataset: Dataset | None
    """Columns prompt (messages), question, answer, info (texts), example_id; None where 0 examples were asked for."""
    eval_dataset: Dataset | None
    reward_funcs: list["RewardFunction"]
    reward_weights: list[float]
    """For `GRPOConfig(reward_weights=...)`, in the order of `reward_funcs`."""
    mixture: Mixture
    manifest: dict[str, Any]
    """What the rows are, see `core.manifest`."""


def load_environment(
    gym: Any = "leg_counting",
    num_train_examples: int = 2000,
    num_eval_examples: int = 200,
    system_prompt: str | None = SYSTEM_PROMPT,
    seed: int = 0,
    eval_seed: int = 0,
    rewards: Any = None,
    prompt_placement: Placement = "system",
    partial_credit: bool = False,
    grading: str = "hardened",
    manifest: str | Path | Manifest | None = None,
    preamble: str | None = None,
    few_shot: Sequence[Mapping[str, Any]] | None = None,
    split_by: SplitBy = "problem",
    **unknown: Any,
) -> Environment:
    """The parameters are those of `adapters.v0.ReasoningGymEnv`. Raises `InputError` for what cannot work."""
    for name in unknown:
        parameters = list(inspect.signature(load_environment).parameters)
        raise unknown_name("parameter of the environment", name, parameters[:-1])
    mixture = Mixture.parse(gym)
    weighted = resolve_rewards(rewards)
    check_offered(weighted, _OFFERED, "TRL")
    asking = Asking.of(
        system_prompt=system_prompt,
        prompt_placement=prompt_placement,
        preamble=preamble,
        few_shot=few_shot,
        partial_credit=partial_credit,
        grading=grading,
    )
    metrics = metrics_of(weighted, mixture, asking.grading)
    if num_train_examples == 0 and num_eval_examples == 0:
        raise InputError("num_train_examples and num_eval_examples are both 0: there is nothing to do")
    train, evaluation, described = build_splits(
        mixture, num_train_examples, num_eval_examples, seed, eval_seed, split_by=split_by, manifest=manifest
    )
    scorer = Scorer(metrics, _GRADING_THREADS if needs_workers(mixture, asking.grading) else 0)
    return Environment(
        train_dataset=_dataset(asking, train),
        eval_dataset=_dataset(asking, evaluation),
        reward_funcs=[RewardFunction(reward, scorer) for reward in weighted],
        reward_weights=[reward.weight for reward in weighted],
        mixture=mixture,
        manifest=described,
    )


class RewardFunction:
    """A reward in the form that TRL calls: by these keywords, with all columns of the dataset beside them.

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
            self.reward.value(
                rollout,
                {"prompt": rollout.prompt, "completion": completion, "answer": rollout.answer, "info": rollout.info},
            )
            for rollout, completion in zip(rollouts, completions, strict=True)
        ]


@dataclass(frozen=True)
class _Batch:
    """What all reward functions of a batch are called with, as far as scores depend on it."""

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

    def is_same(self, other: "_Batch") -> bool:
        """Whether it is the very same batch. One that says the same, of another step, is not: it is logged again."""
        return self.completions is other.completions and self == other


class Scorer:
    """Extracts and scores each batch once, for all reward functions: TRL has no state in which a rollout could be kept.

    It keeps the last batch, no more. `threads`: how many wait for workers that grade; 0: nothing here is graded so.
    """

    def __init__(self, metrics: Sequence[Metric], threads: int) -> None:
        self.metrics = metrics
        self.threads = threads
        self._lock = threading.Lock()  # some trainers call the functions of a batch in a thread each
        self._last: tuple[_Batch, list[Rollout]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Scorer, (self.metrics, self.threads)

    def rollouts(self, batch: _Batch, log_metric: LogMetric | None, log_extra: LogExtra | None) -> list[Rollout]:
        """The rollouts of `batch`. Where they are scored anew, metrics and statuses are logged."""
        with self._lock:
            if self._last is None or not self._last[0].is_same(batch):
                self._last = batch, self._scored(batch)
                self._log(self._last[1], log_metric, log_extra)
            return self._last[1]

    def _scored(self, batch: _Batch) -> list[Rollout]:
        def score(index: int) -> Rollout:
            if not isinstance(batch.infos[index], Mapping):
                raise InputError(f"info of a row must be a mapping, not {shortened(batch.infos[index])}")
            return Rollout.of(
                prompt=batch.prompts[index],
                completion=batch.texts[index],
                answer=batch.answers[index],
                info=batch.infos[index],
                completion_tokens=batch.tokens[index] if batch.tokens else None,
            )

        indices = range(len(batch.texts))
        if not self.threads:
            return [score(index) for index in indices]
        executor = ThreadPoolExecutor(self.threads, "rg-env-grading")
        try:
            return list(executor.map(score, indices))
        finally:  # after Ctrl-C too: what has not begun is dropped, and what runs takes a second at most
            executor.shutdown(wait=False, cancel_futures=True)

    def _log(self, rollouts: list[Rollout], log_metric: LogMetric | None, log_extra: LogExtra | None) -> None:
        if log_metric is not None:  # TRL averages over the values, of all processes: so each is exact
            for metric in self.metrics:
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


def _dataset(asking: Asking, rows: list[Row]) -> Dataset | None:
    return Dataset.from_list(asking.put_rows(rows)) if rows else None
