"""The interface of all engines: how tokens are sampled, and the completions that result."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled. The defaults sample from the model's own distribution."""

    temperature: float = 1.0
    """0 is greedy, and so is anything below 1e-5."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or less: no limit."""
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest one are left out."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None
    """Maximum number of new tokens; None: up to the end of the context."""

    @property
    def is_plain(self) -> bool:
        """Whether tokens are drawn from the model's own distribution, at any temperature."""
        return (self.top_p, max(self.top_k, 0), self.min_p) == (1.0, 0, 0.0) and not self.penalized

    @property
    def penalized(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True)
class Completion:
    """Sampled tokens, in training and evaluation the only form that a completion has."""

    token_ids: list[int]
    """The end token included, if it was drawn."""
    logprobs: list[float]
    """Natural-log probabilities of `token_ids` in the distribution they were sampled from."""
    finish_reason: Literal["stop", "length"]
