"""Interface of all engines: sampling settings and completions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class Sampling:
    """Sampling settings. The defaults sample from the model's own distribution."""

    temperature: float = 1.0
    """Temperature; below 1e-5, sampling is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """Number of likeliest tokens to sample from; 0 or less: no limit."""
    min_p: float = 0.0
    """Tokens with less than this fraction of the likeliest token's probability are excluded."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None
    """Maximum number of new tokens; None: up to the context length."""

    @property
    def is_plain(self) -> bool:
        """Whether tokens are sampled from the model's own distribution, at any temperature."""
        return (self.top_p, max(self.top_k, 0), self.min_p) == (1.0, 0, 0.0) and not self.penalized

    @property
    def penalized(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True)
class Completion:
    """Sampled tokens, the only representation of a completion in training and evaluation."""

    token_ids: list[int]
    """Token ids, including the end token if it was sampled."""
    logprobs: list[float]
    """Natural-log probabilities of `token_ids` in the distribution that they were sampled from."""
    finish_reason: Literal["stop", "length"]


class Generates(Protocol):
    """An engine that maps token ids to token ids."""

    @property
    def max_context(self) -> int: ...

    @property
    def end_ids(self) -> Collection[int]: ...

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Generate one completion per prompt (token ids), in order."""
