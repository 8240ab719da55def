"""Rollouts: completions are sampled for the prompts of rows, scored, and kept with their tokens.

    rollouts = sampler.sample(rows, sampling)          # one completion for each row
    sampler.submit(3, rows, sampling)                  # in the background, for an engine that is not the model itself
    rollouts = sampler.get(3)

Training uses exactly the sampled tokens: completions are never tokenized again.

`GroupFilter` replaces groups without a learning signal ("dynamic sampling", Yu et al., 2025, DAPO, arXiv:2503.14476,
section 3.2). A group with only right or only wrong answers has no advantage. Other prompts are sampled, in rounds,
until the batch consists of mixed groups or the rounds are used up. Groups not replaced are left out of the loss. Only
accuracy decides: rewards for form or length nearly always vary within a group, and a filter on them would teach form.
"""

import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from rg_env.core.environment import Environment, Row
from rg_env.core.grading.scoring import Rollout
from rg_env.core.rewards import Scored
from rg_env.errors import TrainingError
from rg_env.evaluation.records import record_of
from rg_env.inference.prompts import PromptEncoder
from rg_env.inference.protocol import Generates, Sampling
from rg_env.training.data.batches import TokenBatch

Group: TypeAlias = "tuple[Rollouts, range]"
"""One prompt's rollouts: a batch, and the range of their rows in it."""


@dataclass(frozen=True)
class Rollouts:
    """Scored rollouts, with those of a group next to each other. On the main process only."""

    rollouts: list[Rollout]
    scored: list[Scored]
    prompt_ids: list[list[int]]
    seconds: float = 0.0
    """Duration of sampling and scoring, in seconds."""

    def __len__(self) -> int:
        return len(self.rollouts)

    @property
    def rewards(self) -> list[float]:
        """Weighted sum of each rollout's rewards."""
        return [scored.reward for scored in self.scored]

    @property
    def accuracies(self) -> list[float] | None:
        """1 for each correct rollout and 0 for others; None if the environment does not measure accuracy."""
        found = [scored.metrics.get("accuracy") for scored in self.scored]
        return None if None in found else [value for value in found if value is not None]

    @property
    def truncated(self) -> list[int]:
        """Indices of rollouts cut off by the token limit."""
        return [row for row, rollout in enumerate(self.rollouts) if rollout.truncated]

    def tokens(self) -> TokenBatch:
        """The batch of tokens to train on. Every sampled token contributes to the loss."""
        return TokenBatch(
            self.prompt_ids,
            [list(rollout.token_ids) for rollout in self.rollouts],
            [[1] * len(rollout.token_ids) for rollout in self.rollouts],
            [list(rollout.logprobs) for rollout in self.rollouts],
            self.rewards,
        )

    @classmethod
    def joined(cls, groups: Sequence[Group]) -> "Rollouts":
        """Concatenate groups of several batches, with their share of the time."""
        return cls(
            [batch.rollouts[row] for batch, rows in groups for row in rows],
            [batch.scored[row] for batch, rows in groups for row in rows],
            [batch.prompt_ids[row] for batch, rows in groups for row in rows],
            sum(batch.seconds * len(rows) / len(batch) for batch, rows in groups),
        )

    def records(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Records of the first `limit` rollouts as JSON values: prompt, answer, completion, reward and status."""
        return [record_of(*each) for each in zip(self.rollouts[:limit], self.scored[:limit], strict=True)]


class RolloutSampler:
    """Samples and scores rollouts of an environment. On the main process only.

    Args:
        engine: the engine. With batches ahead, `generate` is called from two threads if groups are replaced. Only one
            thread scores at a time, so that reward functions need not be thread-safe.
    """

    def __init__(self, env: Environment, engine: Generates, encoder: PromptEncoder) -> None:
        self.env, self.encoder, self._engine = env, encoder, engine
        self._ahead = ThreadPoolExecutor(1, "rg-env-rollouts")
        self._pending: dict[int, Future[Rollouts]] = {}
        self.scoring = threading.Lock()
        """Lock held while scoring rollouts."""

    def sample(self, rows: Sequence[Row], sampling: Sampling) -> Rollouts:
        """Sample and score one completion for each row.

        Raises:
            RewardError: a reward raised or returned no finite number.
            EngineError, TrainingError: the engine failed.
        """
        start = time.monotonic()
        prompts = [self.encoder(row["prompt"]) for row in rows]
        completions = self._engine.generate(prompts, sampling)
        texts = self.encoder.decode([each.token_ids for each in completions], frozenset(self._engine.end_ids))
        rollouts = [
            self.env.rollout(
                row,
                text,
                token_ids=completion.token_ids,
                logprobs=completion.logprobs,
                truncated=completion.finish_reason == "length",
            )
            for row, text, completion in zip(rows, texts, completions, strict=True)
        ]
        with self.scoring:
            scored = self.env.score(rollouts)
        return Rollouts(rollouts, scored, prompts, time.monotonic() - start)

    def submit(self, number: int, rows: Sequence[Row], sampling: Sampling) -> None:
        """Sample batch `number` in the background, after those submitted earlier."""
        self._pending[number] = self._ahead.submit(self.sample, rows, sampling)

    def submitted(self, number: int) -> bool:
        """Whether batch `number` has been submitted and not yet returned by `get`."""
        return number in self._pending

    def get(self, number: int) -> Rollouts:
        """Wait for batch `number`. Raises the errors of `sample`."""
        return self._pending.pop(number).result()

    def wait_idle(self) -> None:
        """Wait until no batch is being sampled. Raises the errors of `sample`."""
        for future in list(self._pending.values()):
            future.result()

    def stop(self) -> None:
        """Discard the submitted batches. The engine must be canceled separately."""
        for future in self._pending.values():
            future.cancel()
        self._pending.clear()


EMPTY_BATCHES = 3
"""A run ends after this many consecutive batches without a single mixed group."""


@dataclass(frozen=True)
class Filtered:
    """Result of `GroupFilter`."""

    batch: Rollouts
    """The same number of groups as in the original batch, with mixed groups first."""
    empty: list[int]
    """Indices of rollouts in `batch` that do not contribute to the loss."""
    prompted: int
    """Number of sampled prompts, including those in the original batch."""
    mixed: int
    """Number of sampled prompts with mixed groups."""

    def metrics(self) -> dict[str, float]:
        """Metrics to log."""
        return {
            "filter_groups/asked": float(self.prompted),
            "filter_groups/mixed": self.mixed / self.prompted,
            "filter_groups/empty": len(self.empty) / len(self.batch),
        }


class GroupFilter:
    """Replaces a batch's groups that are not mixed.

    Args:
        num_generations: number of rollouts in a group.
        rounds: maximum number of additional rounds of sampling for a batch.
    """

    def __init__(self, num_generations: int, rounds: int) -> None:
        self._size, self._rounds, self._empty_batches = num_generations, rounds, 0

    def __call__(self, batch: Rollouts, sample: Callable[[int, int], Rollouts]) -> Filtered:
        """Replace the groups in `batch` that are not mixed.

        Args:
            sample: called with a round (from 0) and a number of prompts n; returns rollouts of at most n prompts.

        Raises:
            TrainingError: the last `EMPTY_BATCHES` batches had no mixed group.
        """
        own = self._groups(batch)
        mixed = [group for group in own if _is_mixed(group)]
        prompted = len(own)
        for number in range(self._rounds):
            missing = len(own) - len(mixed)
            if missing <= 0:
                break
            # The number expected to suffice, from the share of mixed groups so far.
            count = min(len(own), math.ceil(missing * prompted / len(mixed))) if mixed else len(own)
            found = self._groups(sample(number, count))
            prompted += len(found)
            mixed += [group for group in found if _is_mixed(group)]
        rest = [group for group in own if not _is_mixed(group)]
        filled = Rollouts.joined([*mixed, *rest][: len(own)])
        self._count(batch, bool(mixed))
        return Filtered(filled, list(range(len(mixed) * self._size, len(filled))), prompted, len(mixed))

    def _groups(self, batch: Rollouts) -> list[Group]:
        return [(batch, range(first, first + self._size)) for first in range(0, len(batch), self._size)]

    def _count(self, batch: Rollouts, any_mixed: bool) -> None:
        self._empty_batches = 0 if any_mixed else self._empty_batches + 1
        if self._empty_batches < EMPTY_BATCHES:
            return
        accuracy = statistics.fmean(batch.accuracies or [0.0])
        raise TrainingError(
            f"filter_groups left nothing of {EMPTY_BATCHES} batches: all answers to a prompt are right, or all wrong "
            f"(accuracy {accuracy:.2f}): choose {'harder' if accuracy > 0.5 else 'easier'} tasks, another level, or a "
            "larger num_generations"
        )


def _is_mixed(group: Group) -> bool:
    """Whether a group has both right and wrong answers."""
    batch, rows = group
    return len({batch.scored[row].metrics["accuracy"] == 1.0 for row in rows}) > 1
