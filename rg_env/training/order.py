"""Which rows each batch of rollouts is made from: a function of seed and number, so that a run can go on anywhere.

The order is that of verifiers' `RepeatSampler`: a permutation an epoch, cut into batches of whole groups, the rest left
out. verifiers' loader gives all processes the same first part of a batch, prefetches over the end of an epoch what it
then drops, and cannot skip batches; here each process has its own part, and any batch can be asked for.
"""

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from rg_env.errors import InputError


class BatchOrder(Sampler[list[int]]):
    """A batch sampler: the rows of this process in each pass of an epoch.

    Args:
        rows: how many there are.
        rollouts: in a batch, of all processes.
        num_generations: rollouts of a row.
        passes: that a batch serves.
        processes, process: how many, and which one this is.
        seed: of the permutations; None: in the order of the rows.

    Raises:
        InputError: a batch has no whole groups, or more prompts than there are.
    """

    def __init__(
        self, rows: int, *, rollouts: int, num_generations: int, passes: int, processes: int, process: int,
        seed: int | None,
    ):  # fmt: skip
        if rollouts % num_generations:
            raise InputError(
                f"a batch of {rollouts} rollouts makes no whole groups of num_generations={num_generations}"
            )
        if rows < rollouts // num_generations:
            raise InputError(
                f"a step asks {rollouts // num_generations} prompts, and there are {rows} to train on: more training "
                "examples, or fewer rollouts a step"
            )
        self._rows, self._prompts, self._group = rows, rollouts // num_generations, num_generations
        self._passes, self._seed = passes, seed
        share = rollouts // processes
        self._part = slice(process * share, (process + 1) * share)
        self.batches = rows // self._prompts
        """An epoch."""
        self.epoch = 0
        self._permutation = lru_cache(maxsize=2)(self._permute)

    def batch(self, number: int) -> list[int]:
        """The rows of batch `number`, counted from the run's beginning, for each rollout of all processes."""
        epoch, position = divmod(number, self.batches)
        first = position * self._prompts
        return [row for row in self._permutation(epoch)[first : first + self._prompts] for _ in range(self._group)]

    def more(self, number: int, round_: int, prompts: int) -> list[int]:
        """Rows besides those of batch `number`, one a prompt: drawn at random, the same ones whenever it is asked.

        As many as there are, where there are fewer; where there are none, those of the batch.
        """
        taken = set(self.batch(number))
        others = [row for row in range(self._rows) if row not in taken] or sorted(taken)
        return random.Random(f"{self._seed} {number} {round_}").sample(others, min(prompts, len(others)))

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.epoch * self.batches, (self.epoch + 1) * self.batches):
            part = self.batch(number)[self._part]
            for _ in range(self._passes):
                yield part

    def __len__(self) -> int:
        return self.batches * self._passes

    def _permute(self, epoch: int) -> list[int]:
        if self._seed is None:
            return list(range(self._rows))
        generator = torch.Generator().manual_seed(self._seed)
        for _ in range(epoch):
            torch.randperm(self._rows, generator=generator)
        permutation: list[int] = torch.randperm(self._rows, generator=generator).tolist()
        return permutation


class OrderedLoader(DataLoader[Any]):
    """Rows in a `BatchOrder`. transformers' trainer tells it the epoch, and skips what it has trained on."""

    def __init__(self, dataset: Any, order: BatchOrder):
        # Its own generator: a loader draws a number for its workers from torch's otherwise, on each epoch.
        super().__init__(dataset, batch_sampler=order, collate_fn=list, generator=torch.Generator())
        self.order = order

    def set_epoch(self, epoch: int) -> None:
        self.order.epoch = epoch
