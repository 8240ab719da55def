"""From a batch of rollouts to the tensors of a training step: what each process gets, and how it is split."""

from dataclasses import dataclass
from typing import Any

import torch


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


def micro_batches(tensors: dict[str, Any], parts: int) -> list[dict[str, Any]]:
    """Rows in random order, in `parts` equal parts; what is None stays None."""
    size = next(len(value) for value in tensors.values() if value is not None)
    order = torch.randperm(size).chunk(parts)
    return [{name: None if value is None else value[rows] for name, value in tensors.items()} for rows in order]
