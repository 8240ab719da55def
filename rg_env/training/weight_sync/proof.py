"""Proof that weights arrived: the server's log-probabilities of a prompt equal those of the trainer's model."""

from collections.abc import Sequence
from typing import Any

import torch

from rg_env.errors import TrainingError

PROOF_TOKENS = 64
"""Maximum number of tokens of the prompt."""
TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Largest mean absolute difference of log-probabilities that rounding explains, by the server's data type."""


def model_logprobs(model: Any, ids: list[int], device: torch.device) -> torch.Tensor:
    """Log-probabilities (L - 1,) float32 of `ids` (L,)[1:], each given the preceding ids; on the CPU, at temperature
    1."""
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
    """Mean absolute difference between the model's and the server's log-probabilities.

    Args:
        server, sync: the server and the number of the sync, for the error.

    Raises:
        TrainingError: the difference exceeds `tolerance`.
    """
    difference = float((ours - torch.tensor(theirs)).abs().mean())
    if not difference <= tolerance:  # NaN included
        raise TrainingError(
            f"the server at {server} does not compute what the trainer does: after sync {sync} "
            f"the log-probabilities of a prompt differ by {difference:.3g} on average (tolerance {tolerance:g}): "
            "its weights are not those that were sent"
        )
    return difference
