"""From logits to tokens, for rows that may each be sampled differently.

The log-probabilities returned are those of the distribution the token was drawn from, after penalties, temperature and
truncation, as `logprobs_mode="processed_logprobs"` of vLLM gives. For greedy rows it is the untempered distribution's.
"""

from collections.abc import Sequence

import torch

from rg_env.inference.protocol import Sampling

_GREEDY_BELOW = 1e-5  # as vLLM: logits divided by less would overflow


class Sampler:
    """Draws one token per row and step. `prompts[i]`, `settings[i]`: prompt ids and settings of row `i`."""

    def __init__(
        self,
        settings: Sequence[Sampling],
        prompts: Sequence[Sequence[int]],
        vocab_size: int,
        device: torch.device,
        generator: torch.Generator | None,
    ):
        def column(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.tensor([getattr(s, name) for s in settings], dtype=dtype, device=device).unsqueeze(1)

        self.generator = generator
        self.greedy = column("temperature") < _GREEDY_BELOW
        self.any_greedy = bool(self.greedy.any())
        # One shared temperature of 1 and no truncation is by far the commonest case: nothing is computed for it then.
        self.temperature = None if all(s.temperature in (0, 1) for s in settings) else column("temperature")
        self.top_k = column("top_k", torch.long) if any(s.top_k > 0 for s in settings) else None
        self.top_p = column("top_p") if any(s.top_p < 1 for s in settings) else None
        self.min_p = column("min_p") if any(s.min_p > 0 for s in settings) else None
        self.counts: torch.Tensor | None = None
        if any(s.penalised for s in settings):
            self.repetition, self.presence, self.frequency = (
                column(f"{name}_penalty") for name in ("repetition", "presence", "frequency")
            )
            self.counts = torch.zeros(len(settings), vocab_size, dtype=torch.int32, device=device)
            self.in_prompt = torch.zeros(len(settings), vocab_size, dtype=torch.bool, device=device)
            for row, ids in enumerate(prompts):
                self.in_prompt[row, list(ids)] = True

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only `rows` (indices into the current ones)."""
        for name in (
            "greedy",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition",
            "presence",
            "frequency",
            "counts",
            "in_prompt",
        ):
            value = getattr(self, name, None)
            if value is not None:
                setattr(self, name, value[rows])

    def draw(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`logits (B, V)` of the next position → tokens `(B,) int64` and their log-probabilities `(B,) float32`."""
        logits = self._truncate(self._penalise(logits.float()))
        logprobs = torch.log_softmax(logits, dim=-1)
        # Inverse-CDF sampling: one random number a row instead of one a token of the vocabulary.
        cdf = logprobs.exp().cumsum(dim=-1)
        uniform = torch.rand(cdf.shape[0], 1, generator=self.generator, dtype=cdf.dtype, device=cdf.device)
        # right=True never lands on a token of probability 0; the clamp is for rounding at the very end.
        tokens = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True).clamp_(max=cdf.shape[1] - 1)
        if self.any_greedy:
            tokens = torch.where(self.greedy, logprobs.argmax(dim=-1, keepdim=True), tokens)
        if self.counts is not None:
            self.counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=self.counts.dtype))
        return tokens.squeeze(1), logprobs.gather(1, tokens).squeeze(1)

    def _penalise(self, logits: torch.Tensor) -> torch.Tensor:
        if self.counts is None:
            return logits
        seen = self.counts > 0
        # Repetition: prompt and completion (Keskar et al., 2019); presence and frequency: completion only (OpenAI).
        penalised = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
        logits = torch.where(seen | self.in_prompt, penalised, logits)
        return logits - self.presence * seen - self.frequency * self.counts

    def _truncate(self, logits: torch.Tensor) -> torch.Tensor:
        if self.temperature is not None:
            logits = logits / torch.where(self.greedy, 1.0, self.temperature)
        if self.top_k is None and self.top_p is None and self.min_p is None:
            return logits
        ordered, order = logits.sort(dim=-1, descending=True)
        drop = torch.zeros_like(ordered, dtype=torch.bool)
        if self.top_k is not None:
            rank = torch.arange(ordered.shape[1], device=logits.device)
            drop |= (rank >= self.top_k) & (self.top_k > 0)
        probs = ordered.masked_fill(drop, -torch.inf).softmax(dim=-1)
        if self.top_p is not None:
            drop |= probs.cumsum(dim=-1) - probs >= self.top_p  # keeps the token that crosses the threshold
            probs = ordered.masked_fill(drop, -torch.inf).softmax(dim=-1)
        if self.min_p is not None:
            drop |= probs < self.min_p * probs[:, :1]
        drop[:, 0] = False
        drop &= ~self.greedy
        return logits.masked_fill(torch.zeros_like(drop).scatter(1, order, drop), -torch.inf)
