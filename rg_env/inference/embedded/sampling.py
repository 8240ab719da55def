"""Sample tokens from logits, with separate settings per row.

Log-probabilities refer to the actual sampling distribution (after penalties, temperature and truncation), like vLLM's
`logprobs_mode="processed_logprobs"`. Those of greedy rows are computed at temperature 1.
"""

from collections.abc import Sequence

import torch

from rg_env.inference.protocol import Sampling

_GREEDY_BELOW = 1e-5  # as in vLLM: dividing logits by less would overflow
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


class Sampler:
    """Draws one token per row and step.

    Args:
        settings: sampling settings of each row.
        prompts: token ids of each row's prompt.
        generator: random generator for rows without a seed.
        seeds: seed of each row, or None for rows without a seed.
    """

    def __init__(
        self,
        settings: Sequence[Sampling],
        prompts: Sequence[Sequence[int]],
        vocab_size: int,
        device: torch.device,
        generator: torch.Generator | None,
        seeds: Sequence[int | None] = (),
    ):
        self.generator = generator
        self.own = {row: torch.Generator().manual_seed(seed) for row, seed in enumerate(seeds) if seed is not None}
        # The most common case, temperature 1 without truncation, needs no computation.
        used = {
            "temperature": any(each.temperature != 1 for each in settings),
            "top_k": any(each.top_k > 0 for each in settings),
            "top_p": any(each.top_p < 1 for each in settings),
            "min_p": any(each.min_p > 0 for each in settings),
            **dict.fromkeys(_PENALTIES, any(each.penalized for each in settings)),
        }
        self.rows = {
            name: torch.tensor([getattr(each, name) for each in settings], device=device).unsqueeze(1)
            for name, is_used in used.items()
            if is_used
        }
        """Settings `(B, 1)` used by any row, and token counts `(B, V)` for penalties."""
        if _PENALTIES[0] in self.rows:
            self.rows["counts"] = torch.zeros(len(settings), vocab_size, dtype=torch.int32, device=device)
            self.rows["in_prompt"] = torch.zeros(len(settings), vocab_size, dtype=torch.bool, device=device)
            for row, ids in enumerate(prompts):
                self.rows["in_prompt"][row, list(ids)] = True

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only `rows` (indices into the current rows)."""
        self.rows = {name: values[rows] for name, values in self.rows.items()}
        if self.own:
            self.own = {new: self.own[old] for new, old in enumerate(rows.tolist()) if old in self.own}

    def draw(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample tokens `(B,) int64` from `logits (B, V)`; also returns their log-probabilities `(B,) float32`."""
        logits = self._truncate(self._penalize(logits.float()))
        logprobs = torch.log_softmax(logits, dim=-1)
        # Inverse-CDF sampling needs one random number per row instead of one per vocabulary entry.
        cdf = logprobs.exp().cumsum(dim=-1)
        uniform = torch.rand(cdf.shape[0], 1, generator=self.generator, dtype=cdf.dtype, device=cdf.device)
        for row, generator in self.own.items():
            uniform[row] = torch.rand(1, generator=generator)
        # right=True never selects a token of probability 0; the clamp handles rounding at the upper end.
        tokens = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True).clamp_(max=cdf.shape[1] - 1)
        if "temperature" in self.rows:
            greedy = self.rows["temperature"] < _GREEDY_BELOW
            tokens = torch.where(greedy, logprobs.argmax(dim=-1, keepdim=True), tokens)
        if "counts" in self.rows:
            self.rows["counts"].scatter_add_(1, tokens, torch.ones_like(tokens, dtype=torch.int32))
        return tokens.squeeze(1), logprobs.gather(1, tokens).squeeze(1)

    def _penalize(self, logits: torch.Tensor) -> torch.Tensor:
        if "counts" not in self.rows:
            return logits
        repetition, presence, frequency = (self.rows[name] for name in _PENALTIES)
        counts = self.rows["counts"]
        # Repetition: prompt and completion (Keskar et al., 2019); presence and frequency: completion only (OpenAI).
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where((counts > 0) | self.rows["in_prompt"], repeated, logits)
        return logits - presence * (counts > 0) - frequency * counts

    def _truncate(self, logits: torch.Tensor) -> torch.Tensor:
        greedy: torch.Tensor | bool = False
        if "temperature" in self.rows:
            greedy = self.rows["temperature"] < _GREEDY_BELOW
            logits = logits / torch.where(greedy, 1.0, self.rows["temperature"])
        if not {"top_k", "top_p", "min_p"} & self.rows.keys():
            return logits
        ordered, order = logits.sort(dim=-1, descending=True)
        drop = torch.zeros_like(ordered, dtype=torch.bool)
        if "top_k" in self.rows:
            rank = torch.arange(ordered.shape[1], device=logits.device)
            drop |= (rank >= self.rows["top_k"]) & (self.rows["top_k"] > 0)
        probs = ordered.masked_fill(drop, -torch.inf).softmax(dim=-1)
        if "top_p" in self.rows:
            drop |= probs.cumsum(dim=-1) - probs >= self.rows["top_p"]  # keeps the token that crosses the threshold
            probs = ordered.masked_fill(drop, -torch.inf).softmax(dim=-1)
        if "min_p" in self.rows:
            drop |= probs < self.rows["min_p"] * probs[:, :1]
        drop[:, 0] = False
        drop &= ~torch.as_tensor(greedy, device=logits.device)
        return logits.masked_fill(torch.zeros_like(drop).scatter(1, order, drop), -torch.inf)
