"""Which rows each batch of rollouts is made from: a function of seed and number, so that a run can resume anywhere.

The order is a permutation an epoch, cut into batches of prompts; what does not fill a batch is left out of the epoch.
"""

import random
from functools import lru_cache

import torch

from rg_env.errors import InputError


class BatchOrder:
    """The rows of each batch.

    Args:
        rows: how many there are.
        prompts: in a batch, of all processes.
        seed: of the permutations; None: in the order of the rows.

    Raises:
        InputError: a batch has more prompts than there are rows.
    """

    def __init__(self, rows: int, *, prompts: int, seed: int | None) -> None:
        if rows < prompts:
            raise InputError(
                f"a step has {prompts} prompts, and there are {rows} rows to train on: more training examples, or a "
                "smaller rollouts_per_step"
            )
        self._rows, self._prompts, self._seed = rows, prompts, seed
        self.batches = rows // prompts
        """In an epoch."""
        self._permutation = lru_cache(maxsize=2)(self._permute)

    def batch(self, number: int) -> list[int]:
        """The rows of batch `number`, counted from the run's beginning, one a prompt."""
        epoch, position = divmod(number, self.batches)
        first = position * self._prompts
        return self._permutation(epoch)[first : first + self._prompts]

    def more(self, number: int, round_: int, prompts: int) -> list[int]:
        """Rows other than those of batch `number`, one a prompt: drawn at random, the same ones on every call.

        All there are, if there are fewer; those of the batch, if there are none.
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
