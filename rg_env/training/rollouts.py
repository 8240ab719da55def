"""Rollouts: completions sampled for prompts from an environment's rows, scored, and kept with their tokens.

    rollouts = sampler.sample(rows, sampling)          # one completion for each row
    sampler.submit(3, rows, sampling)                  # in the background, with any engine except the embedded one
    rollouts = sampler.get(3)

Training uses exactly the sampled tokens: completions are never tokenized again.

The order of rows (`BatchOrder`) depends only on the seed and the batch number, so a run can resume at any step. Each
epoch is a permutation of the rows, divided into batches of prompts. Rows left over after the last full batch are not
used in that epoch.

`GroupFilter` replaces groups without a learning signal, that is, groups with only right or only wrong answers ("dynamic
sampling", Yu et al., 2025, DAPO, arXiv:2503.14476, section 3.2). Prompts outside the batch are sampled in rounds until
the batch consists only of mixed groups (groups with both right and wrong answers) or no rounds are left. Any unmixed
groups that remain are excluded from the loss. Groups are filtered by accuracy alone. Rewards for format or length
nearly always vary within a group, so filtering by total reward would keep groups from which a policy learns only format
or length.
"""

import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from rg_env.core.environment import Environment, Row
from rg_env.core.grading.scoring import Rollout
from rg_env.core.rewards import Scored, record_of, think_format
from rg_env.core.text import counted
from rg_env.errors import InputError, TrainingError
from rg_env.evaluation.local_models import generated
from rg_env.inference.protocol import Engine, PromptEncoder, Sampling
from rg_env.training.algorithms.loss import equal_rewards


@dataclass(frozen=True)
class Rollouts:
    """Scored rollouts, which exist only on the main process. Rollouts in the same group are adjacent."""

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
        """Accuracy of each rollout (1 if correct, 0 if not), or None if the environment does not measure accuracy."""
        found = [scored.metrics.get("accuracy") for scored in self.scored]
        return None if None in found else [value for value in found if value is not None]

    def entropy(self) -> float:
        """Return the mean per-token entropy of the sampling distribution, in nats, estimated as `-mean(log p(token))`.

        This estimate from samples (Cover & Thomas, 2006, section 2.1) is unbiased, but noisy with few rollouts.
        """
        tokens = sum(len(rollout.token_ids) for rollout in self.rollouts)
        return -sum(sum(rollout.logprobs) for rollout in self.rollouts) / max(1, tokens)

    def metrics(self, num_generations: int) -> dict[str, float]:
        """Return the rewards, accuracies, statuses and lengths of the rollouts, in groups of `num_generations`."""
        groups = torch.tensor(self.rewards, dtype=torch.float64).view(-1, num_generations)
        result = {
            "reward": groups.mean().item(),
            "reward_std": groups.std(dim=1).mean().item(),
            "frac_reward_zero_std": equal_rewards(groups).float().mean().item(),
            "entropy": self.entropy(),
            # This time includes scoring, and is spent before the step if batches are generated in advance.
            "time/generation": self.seconds,
        }
        for name in self.scored[0].rewards:
            column = torch.tensor([scored.rewards[name] for scored in self.scored], dtype=torch.float64)
            result |= {f"rewards/{name}/mean": column.mean().item(), f"rewards/{name}/std": column.std().item()}
        for name in dict.fromkeys(name for scored in self.scored for name in scored.metrics):
            result[name] = statistics.fmean(s.metrics[name] for s in self.scored if name in s.metrics)
        return result | self._lengths() | self._forms(num_generations)

    def _lengths(self) -> dict[str, float]:
        lengths = [len(rollout.token_ids) for rollout in self.rollouts]
        ended = [length for length, rollout in zip(lengths, self.rollouts, strict=True) if not rollout.truncated]
        result = {"completions/clipped_ratio": 1 - len(ended) / len(lengths)}
        for name, some in (("", lengths), ("_terminated", ended or [0])):
            result[f"completions/mean{name}_length"] = statistics.fmean(some)
            result[f"completions/min{name}_length"] = float(min(some))
            result[f"completions/max{name}_length"] = float(max(some))
        return result

    def _forms(self, num_generations: int) -> dict[str, float]:
        """Return the fraction of completions with a well-formed answer and, if `think_format` is a reward, the fraction
        of completions in the format that it rewards. The result also contains the mean number of distinct answers per
        group and the fraction of groups with more than one distinct answer."""
        if "status/wrong" not in self.scored[0].metrics:  # the rollouts were graded by another library's rubric
            return {}
        answers = [rollout.extraction.answer for rollout in self.rollouts]
        groups = [answers[first : first + num_generations] for first in range(0, len(answers), num_generations)]
        distinct = [len({answer for answer in group if answer is not None}) for group in groups]
        result = {
            "completions/answered_ratio": statistics.fmean(answer is not None for answer in answers),
            "answers/distinct_mean": statistics.fmean(distinct),
            "answers/diverse_ratio": statistics.fmean(count > 1 for count in distinct),
        }
        if "think_format" in self.scored[0].rewards:  # computed without the reward's `when` condition
            result["completions/format_ratio"] = statistics.fmean(map(think_format, self.rollouts))
        return result

    def tensors(self, pad_token: int, left_out: Collection[int] = ()) -> dict[str, torch.Tensor]:
        """Return the batch to train on, padded on the right: `input_ids (B, L) int64`, `loss_mask (B, L - 1) bool`,
        `sampler_logps (B, L - 1) float32` and `rewards (B,) float64`. `loss_mask` and `sampler_logps` correspond to
        `input_ids[:, 1:]`.

        Every sampled token contributes to the loss, except in the rollouts in `left_out`.
        """
        ids, masks, logps = [], [], []
        for row, (prompt, rollout) in enumerate(zip(self.prompt_ids, self.rollouts, strict=True)):
            ids.append([*prompt, *rollout.token_ids])
            masks.append([False] * len(prompt) + [row not in left_out] * len(rollout.token_ids))
            logps.append([0.0] * len(prompt) + list(rollout.logprobs))
        width = max(map(len, ids))

        def padded(lists: list[list[Any]], value: Any, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([row + [value] * (width - len(row)) for row in lists], dtype=dtype)

        return {
            "input_ids": padded(ids, pad_token, torch.long),
            "loss_mask": padded(masks, False, torch.bool)[:, 1:],
            "sampler_logps": padded(logps, 0.0, torch.float32)[:, 1:],
            "rewards": torch.tensor(self.rewards, dtype=torch.float64),
        }

    def groups(self, size: int) -> list["Rollouts"]:
        """Split the rollouts into groups of `size`, each with an equal share of the duration."""
        slices = [slice(first, first + size) for first in range(0, len(self), size)]
        seconds = self.seconds / max(1, len(slices))
        return [Rollouts(self.rollouts[rows], self.scored[rows], self.prompt_ids[rows], seconds) for rows in slices]

    @classmethod
    def joined(cls, groups: Sequence["Rollouts"]) -> "Rollouts":
        """Concatenate groups, and add up their durations."""
        return cls(
            [rollout for group in groups for rollout in group.rollouts],
            [scored for group in groups for scored in group.scored],
            [ids for group in groups for ids in group.prompt_ids],
            sum(group.seconds for group in groups),
        )

    def records(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return records of the first `limit` rollouts as JSON values (see `record_of`)."""
        return [record_of(*each) for each in zip(self.rollouts[:limit], self.scored[:limit], strict=True)]


def repeated(rows: Sequence[Any], times: int) -> list[Any]:
    """Repeat each row `times` times, consecutively."""
    return [row for row in rows for _ in range(times)]


class BatchOrder:
    """Assigns rows to batches.

    Args:
        rows: number of rows.
        prompts: number of prompts per batch, across all processes.
        seed: seed for the permutations. None keeps the order of the rows.

    Raises:
        InputError: a batch has more prompts than there are rows.
    """

    def __init__(self, rows: int, *, prompts: int, seed: int | None) -> None:
        if rows < prompts:
            raise InputError(
                f"a step has {counted(prompts, 'prompt')}, more than the {counted(rows, 'row')} to train on: use more "
                "training examples, or a smaller rollouts_per_step"
            )
        self._rows, self._prompts, self._seed = rows, prompts, seed
        self.batches = rows // prompts
        """Number of batches per epoch."""
        self._permutation = lru_cache(maxsize=2)(self._permute)

    def batch(self, number: int) -> list[int]:
        """Return the indices of the rows in batch `number` (counted from the start of the run), one per prompt."""
        epoch, position = divmod(number, self.batches)
        first = position * self._prompts
        return self._permutation(epoch)[first : first + self._prompts]

    def more(self, number: int, round_: int, prompts: int) -> list[int]:
        """Return the indices of random rows outside batch `number`, one per prompt. The same arguments always select
        the same rows.

        The result contains all rows outside the batch if there are fewer than `prompts`, or rows from the batch itself
        if the batch contains every row.
        """
        taken = set(self.batch(number))
        others = [row for row in range(self._rows) if row not in taken] or sorted(taken)
        return random.Random(f"{self._seed} {number} {round_}").sample(others, min(prompts, len(others)))

    def _permute(self, epoch: int) -> list[int]:
        if self._seed is None:
            return list(range(self._rows))
        generator = torch.Generator().manual_seed(self._seed)
        for _ in range(epoch):
            torch.randperm(self._rows, generator=generator)
        permutation: list[int] = torch.randperm(self._rows, generator=generator).tolist()
        return permutation


STOP_S = 2.0
"""Maximum time to wait for a batch that is being sampled to end, in seconds."""


class RolloutSampler:
    """Samples and scores rollouts for an environment, only on the main process.

    Args:
        engine: engine that generates the completions. If batches are sampled ahead and groups are replaced, two threads
            can call the engine's `generate` method at once. Only one thread scores at a time, so reward functions need
            not be thread-safe.
    """

    def __init__(self, env: Environment, engine: Engine, encoder: PromptEncoder) -> None:
        self.env, self.encoder, self._engine = env, encoder, engine
        self._ahead = ThreadPoolExecutor(1, "rg-env-rollouts")
        self._pending: dict[int, Future[Rollouts]] = {}
        self.scoring = threading.Lock()
        """Lock held while scoring rollouts."""

    def sample(self, rows: Sequence[Row], sampling: Sampling) -> Rollouts:
        """Sample and score one completion for each row.

        Raises:
            RewardError: a reward raised an exception or did not return a finite number.
            EngineError, TrainingError: the engine failed.
        """
        start = time.monotonic()
        prompts = [self.encoder(row["prompt"]) for row in rows]
        replies = generated(self._engine, self.encoder, prompts, sampling)
        rollouts = [
            self.env.rollout(
                row,
                each.text,
                token_ids=each.token_ids,
                logprobs=each.logprobs,
                truncated=each.truncated,
                prefix=self.encoder.prefix(row["prompt"]),
            )
            for row, each in zip(rows, replies, strict=True)
        ]
        with self.scoring:
            scored = self.env.score(rollouts)
        return Rollouts(rollouts, scored, prompts, time.monotonic() - start)

    def submit(self, number: int, rows: Sequence[Row], sampling: Sampling) -> None:
        """Sample batch `number` in the background, after all batches submitted earlier."""
        self._pending[number] = self._ahead.submit(self.sample, rows, sampling)

    def submitted(self, number: int) -> bool:
        """Whether batch `number` has been submitted but not yet returned by `get`."""
        return number in self._pending

    def get(self, number: int) -> Rollouts:
        """Wait for batch `number` and return it. Raises the same errors as `sample`."""
        return self._pending.pop(number).result()

    def wait_idle(self) -> None:
        """Wait until no batch is being sampled. Raises the same errors as `sample`."""
        for future in list(self._pending.values()):
            future.result()

    def stop(self) -> None:
        """Discard the submitted batches. Call the engine's `cancel` method before, and its `resume` method after, so
        that a batch that is being generated ends as well."""
        running = [future for future in self._pending.values() if not future.cancel()]
        self._pending.clear()
        wait(running, timeout=STOP_S)


EMPTY_BATCHES = 3
"""Number of consecutive batches without a single mixed group after which a run ends."""


class GroupFilter:
    """Replaces the unmixed groups in a batch.

    Args:
        num_generations: number of rollouts in a group.
        rounds: maximum number of additional sampling rounds per batch.
    """

    def __init__(self, num_generations: int, rounds: int) -> None:
        self._size, self._rounds, self._empty_batches = num_generations, rounds, 0

    def __call__(
        self, batch: Rollouts, sample: Callable[[int, int], Rollouts]
    ) -> tuple[Rollouts, list[int], dict[str, float]]:
        """Replace the unmixed groups in `batch`.

        Args:
            sample: called with the round number (from 0) and the maximum number of prompts, and returns rollouts for at
                most this number of prompts.

        Returns:
            The same number of groups as in `batch` (mixed groups first), the indices of rollouts in unmixed groups
            (which do not contribute to the loss), and metrics.

        Raises:
            TrainingError: the last `EMPTY_BATCHES` batches had no mixed groups.
        """
        groups = batch.groups(self._size)
        mixed = [group for group in groups if _is_mixed(group)]
        unmixed = [group for group in groups if not _is_mixed(group)]
        prompted = wanted = len(groups)
        for round_ in range(self._rounds):
            if len(mixed) >= wanted:
                break
            # From the share of mixed groups so far, estimate the number of prompts that should suffice.
            count = math.ceil((wanted - len(mixed)) * prompted / len(mixed)) if mixed else wanted
            more = sample(round_, min(wanted, count)).groups(self._size)
            prompted += len(more)
            mixed += [group for group in more if _is_mixed(group)]
        self._empty_batches = 0 if mixed else self._empty_batches + 1
        if self._empty_batches >= EMPTY_BATCHES:
            accuracy = statistics.fmean(batch.accuracies or [0.0])
            raise TrainingError(
                f"filter_groups removed every group from {EMPTY_BATCHES} batches in a row because the answers to each "
                f"prompt are either all right or all wrong (accuracy {accuracy:.2f}): choose "
                f"{'harder' if accuracy > 0.5 else 'easier'} tasks, another level, or a larger num_generations"
            )
        filled = Rollouts.joined([*mixed, *unmixed][:wanted])
        empty = list(range(len(mixed) * self._size, len(filled)))
        metrics = {
            "filter_groups/asked": float(prompted),
            "filter_groups/mixed": len(mixed) / prompted,
            "filter_groups/empty": len(empty) / len(filled),
        }
        return filled, empty, metrics


def _is_mixed(group: Rollouts) -> bool:
    """Whether a group has both right and wrong answers."""
    return len({scored.metrics["accuracy"] == 1.0 for scored in group.scored}) > 1
