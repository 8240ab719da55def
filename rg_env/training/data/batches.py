"""Rows for each batch of rollouts, and tensors for a training step.

Row order is a function of seed and batch number, so a run can resume at any step. Each epoch is a permutation, divided
into batches of prompts. Rows that do not fill a batch are left out of the epoch.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import compress
from typing import Any

import torch

from rg_env.core.text import counted
from rg_env.errors import InputError


@dataclass(frozen=True)
class TokenBatch:
    """The tokens in a batch of N rollouts, equal on all processes. Rollouts of a prompt are next to each other."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    loss_masks: list[list[int]]
    """1 for each completion token that contributes to the loss, 0 for others."""
    sampler_logps: list[list[float]]
    """Log-probability of each completion token when it was sampled."""
    rewards: list[float]

    def tokens(self) -> int:
        """Number of tokens that contribute to the loss."""
        return sum(map(sum, self.loss_masks))

    def entropy(self) -> float:
        """Mean entropy per token of the sampling distribution, in nats: `-mean(log p(token))`.

        This estimate from samples (Cover & Thomas, 2006, section 2.1) is unbiased, and noisy with few rollouts.
        """
        kept = map(compress, self.sampler_logps, self.loss_masks)
        return -sum(map(sum, kept)) / max(1, self.tokens())

    def without_loss(self, rows: Iterable[int]) -> "TokenBatch":
        """A copy of the batch where the rollouts `rows` do not contribute to the loss."""
        masks = list(self.loss_masks)
        for row in rows:
            masks[row] = [0] * len(masks[row])
        return replace(self, loss_masks=masks)

    def tensors(self, rows: slice, *, pad_token: int, device: Any) -> dict[str, torch.Tensor]:
        """Rows as tensors, padded on the right: `input_ids (B, L) int64`, `loss_mask (B, L - 1) bool` and
        `sampler_logps (B, L - 1) float32`, both of `input_ids[:, 1:]`."""
        ids, masks, logps = [], [], []
        for i in range(len(self.prompt_ids))[rows]:
            prompt, completion = self.prompt_ids[i], self.completion_ids[i]
            ids.append(prompt + completion)
            masks.append([0] * len(prompt) + self.loss_masks[i])
            logps.append([0.0] * len(prompt) + list(self.sampler_logps[i]))
        width = max(map(len, ids))

        def padded(lists: list[list[Any]], value: Any, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([row + [value] * (width - len(row)) for row in lists], dtype=dtype, device=device)

        return {
            "input_ids": padded(ids, pad_token, torch.long),
            "loss_mask": padded(masks, 0, torch.bool)[:, 1:],
            "sampler_logps": padded(logps, 0.0, torch.float32)[:, 1:],
        }


def micro_batches(tensors: dict[str, Any], parts: int) -> list[dict[str, Any]]:
    """Shuffle the rows and divide them into `parts` equal parts. None values stay None."""
    size = next(len(value) for value in tensors.values() if value is not None)
    order = torch.randperm(size).chunk(parts)
    return [{name: None if value is None else value[rows] for name, value in tensors.items()} for rows in order]


def repeated(rows: Sequence[Any], times: int) -> list[Any]:
    """Repeat each row `times` times, consecutively."""
    return [row for row in rows for _ in range(times)]


class BatchOrder:
    """The rows of each batch.

    Args:
        rows: number of rows.
        prompts: number of prompts per batch, over all processes.
        seed: seed of the permutations; None keeps the order of the rows.

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
        """Row indices for batch `number`, counted from the start of the run; one per prompt."""
        epoch, position = divmod(number, self.batches)
        first = position * self._prompts
        return self._permutation(epoch)[first : first + self._prompts]

    def more(self, number: int, round_: int, prompts: int) -> list[int]:
        """Indices of random rows outside batch `number`, one per prompt. Every call returns the same rows.

        Returns all other rows if there are fewer than `prompts`, and rows of the batch if there are no others.
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
