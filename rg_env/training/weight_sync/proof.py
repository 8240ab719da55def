"""The proof that weights arrived: a server's log-probabilities of a prompt are those of the trainer's own model."""

from collections.abc import Sequence
from typing import Any

import torch

from rg_env.errors import TrainingError

PROOF_TOKENS = 64
"""Most tokens of the prompt."""
TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Largest mean absolute difference of log-probabilities that is rounding, by the type that the server computes in."""


def model_logprobs(model: Any, ids: list[int], device: torch.device) -> torch.Tensor:
    """Log-probabilities (L - 1,) float32 on the CPU of `ids` (L,)[1:], each given what precedes it; no temperature."""
    tokens = torch.tensor([ids], device=device)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    finally:
        model.train(training)
    return torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None])[:, 0].cpu()


def checked_difference(
    ours: torch.Tensor, theirs: Sequence[float], tolerance: float, *, server: object, sync: int
) -> float:
    """Mean absolute difference of the model's log-probabilities and the server's.

    Args:
        server, sync: the server and the number of the sync, for the error.

    Raises:
        TrainingError: it exceeds `tolerance`.
    """
    difference = float((ours - torch.tensor(theirs)).abs().mean())
    if not difference <= tolerance:  # NaN included
        raise TrainingError(
            f"the server at {server} does not compute what the trainer does: after sync {sync} "
            f"the log-probabilities of a prompt differ by {difference:.3g} on average (tolerance {tolerance:g}): "
            "its weights are not those that were sent"
        )
    return difference
