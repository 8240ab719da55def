"""From logits to tokens, for rows that may each be sampled differently.

The log-probabilities returned are those of the distribution the token was drawn from, after penalties, temperature and
truncation, as `logprobs_mode="processed_logprobs"` of vLLM gives. For greedy rows it is the untempered distribution's.
"""

from collections.abc import Sequence

import torch

from rg_env.inference.protocol import Sampling

_GREEDY_BELOW = 1e-5  # as vLLM: logits divided by less would overflow
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


class Sampler:
    """Draws one token per row and step.

    Args:
        settings: how each row is sampled.
        prompts: token ids of each row's prompt.
        generator: of the random numbers of all rows without a seed of their own.
        seeds: of each row, if any; None: it has none.
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
        # A temperature of 1 and no truncation is by far the commonest case: nothing is computed for it then.
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
        """Settings `(B, 1)` that some row uses, and counts of tokens `(B, V)` for penalties."""
        if _PENALTIES[0] in self.rows:
            self.rows["counts"] = torch.zeros(len(settings), vocab_size, dtype=torch.int32, device=device)
            self.rows["in_prompt"] = torch.zeros(len(settings), vocab_size, dtype=torch.bool, device=device)
            for row, ids in enumerate(prompts):
                self.rows["in_prompt"][row, list(ids)] = True

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only `rows` (indices into the current ones)."""
        self.rows = {name: values[rows] for name, values in self.rows.items()}
        if self.own:
            self.own = {new: self.own[old] for new, old in enumerate(rows.tolist()) if old in self.own}

    def draw(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`logits (B, V)` of the next position → tokens `(B,) int64` and their log-probabilities `(B,) float32`."""
        logits = self._truncate(self._penalize(logits.float()))
        logprobs = torch.log_softmax(logits, dim=-1)
        # Inverse-CDF sampling: one random number a row instead of one a token of the vocabulary.
        cdf = logprobs.exp().cumsum(dim=-1)
        uniform = torch.rand(cdf.shape[0], 1, generator=self.generator, dtype=cdf.dtype, device=cdf.device)
        for row, generator in self.own.items():
            uniform[row] = torch.rand(1, generator=generator)
        # right=True never lands on a token of probability 0; the clamp is for rounding at the very end.
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
