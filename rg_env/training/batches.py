"""From a batch of rollouts to the tensors of a training step: what each process gets, and how it is split."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch

from rg_env.adapters.v0_rubric import usage


@dataclass(frozen=True)
class RolloutBatch:
    """One generation batch, the same on all processes. N rollouts; groups of equal prompts stand together."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    loss_masks: list[list[int]]
    """1 where a completion token carries loss."""
    sampler_logps: list[list[float]]
    rewards: list[float]

    @classmethod
    def of(cls, processed: Any) -> "RolloutBatch":
        """From verifiers' `ProcessedOutputs`."""
        return cls(
            processed.prompt_ids,
            processed.completion_ids,
            processed.completion_mask,
            processed.completion_logprobs,
            processed.rewards,
        )

    def tokens(self) -> int:
        """That carry loss."""
        return sum(map(sum, self.loss_masks))

    def entropy(self) -> float:
        """Of the distribution that was sampled from, a token on average, in nats: `-mean(log p(token))`.

        That is the entropy estimated from the samples themselves (Cover & Thomas, 2006, section 2.1): free of cost and
        without bias, but as noisy as there are few rollouts.
        """
        kept = map(compress, self.sampler_logps, self.loss_masks)
        return -sum(map(sum, kept)) / max(1, self.tokens())

    def ended(self, end: int) -> list[bool]:
        """Which rollouts have the token `end` among those that carry loss; the others were cut off."""
        return [
            any(token == end and carries for token, carries in zip(ids, mask, strict=True))
            for ids, mask in zip(self.completion_ids, self.loss_masks, strict=True)
        ]

    def without_loss(self, rows: Iterable[int]) -> "RolloutBatch":
        """The same batch, in which these rollouts carry no loss."""
        masks = list(self.loss_masks)
        for row in rows:
            masks[row] = [0] * len(masks[row])
        return replace(self, loss_masks=masks)

    def tensors(self, rows: slice, *, pad_token: int, max_length: int | None, device: Any) -> dict[str, torch.Tensor]:
        """Rows as tensors, padded on the right: `input_ids` and `attention_mask` (verifiers' name for the loss mask)
        `(B, L) int64`, and `sampler_logps` `(B, L - 1) float32` of `input_ids[:, 1:]`.

        Rows longer than `max_length` lose their end.
        """
        ids, masks, logps = [], [], []
        picked = range(len(self.prompt_ids))[rows]
        for i in picked:
            prompt, completion = self.prompt_ids[i], self.completion_ids[i]
            ids.append((prompt + completion)[:max_length])
            masks.append(([0] * len(prompt) + self.loss_masks[i])[:max_length])
            logps.append(([0.0] * len(prompt) + list(self.sampler_logps[i]))[:max_length])
        width = max(map(len, ids))

        def padded(lists: list[list[Any]], value: float, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([row + [value] * (width - len(row)) for row in lists], dtype=dtype, device=device)

        return {
            "input_ids": padded(ids, pad_token, torch.long),
            "attention_mask": padded(masks, 0, torch.long),
            "sampler_logps": padded(logps, 0.0, torch.float32)[:, 1:],
        }


def truncated(states: Sequence[Any], batch: RolloutBatch, end: int) -> list[int]:
    """The rollouts of `batch` that the token limit cut off: by their `states`, else those without the token `end`."""
    cut = [usage(state)[1] for state in states]
    ended = batch.ended(end)
    return [row for row, told in enumerate(cut) if (not ended[row] if told is None else told)]


def micro_batches(tensors: dict[str, Any], parts: int) -> list[dict[str, Any]]:
    """Rows in random order, in `parts` equal parts; what is None stays None."""
    size = next(len(value) for value in tensors.values() if value is not None)
    order = torch.randperm(size).chunk(parts)
    return [{name: None if value is None else value[rows] for name, value in tensors.items()} for rows in order]
