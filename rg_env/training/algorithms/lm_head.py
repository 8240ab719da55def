"""The LM head where it is needed, a chunk at a time: log-probabilities of chosen tokens without all the logits.

Logits are most of what a pass takes of memory: a vocabulary of 150,000 makes 600 KB of one position. Here the head
sees only the positions whose token is asked for, `LOGITS_PER_CHUNK` logits at a time, and again in the backward pass.

The model is called as ever, through all its wrappers (DDP, DeepSpeed, PEFT); within the call the head's `forward` is
another. So it stays one call of one module, on which ZeRO-3 gathers and frees weights on all ranks alike.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rg_env.training.reporting.memory import LOGITS_PER_CHUNK


def chosen_logps(
    model: torch.nn.Module, inputs: dict[str, Any], chosen: torch.Tensor, tokens: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities `(N,) float32` that `model` gives to `tokens`, with gradients.

    Args:
        inputs: of the model, among them `logits_to_keep`.
        chosen: `(P, K) bool`, N of them true: which of the positions kept.
        tokens: `(N,) int64`, one for each of those.
        temperature: that the logits are divided by.
    """
    causal = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    vocabulary = 0 if causal is None else causal.config.get_text_config(decoder=True).vocab_size
    if causal is not None and chosen.numel() * vocabulary > LOGITS_PER_CHUNK:
        head = _Head(causal, chosen, tokens, temperature)
        with head.in_place():
            shown = model(**inputs).logits
        logps = head.logps[0].view(-1)
        # The model went on with log-probabilities as if they were logits. If what it did to them is not what
        # `_processed` does to logits, all is computed again, in the way that is right for any model.
        expected = _processed(causal, logps.detach()).float()
        shown = shown.detach().flatten().float()
        if shown.shape == expected.shape and torch.allclose(shown, expected, rtol=1e-2, atol=1e-2, equal_nan=True):
            return logps
    return _log_softmax(model(**inputs).logits[chosen], tokens, temperature)


@dataclass
class _Head:
    """The LM head of `causal`, to be replaced by one that gives log-probabilities `(1, N, 1)` in place of logits."""

    causal: PreTrainedModel
    chosen: torch.Tensor
    tokens: torch.Tensor
    temperature: float
    logps: list[torch.Tensor] = field(default_factory=list)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        module = self.causal.get_output_embeddings()
        own = vars(module).get("forward")
        logits_of = module.forward
        module.forward = lambda hidden: self._forward(module, logits_of, hidden)
        # Taken after the hooks of others: through what DeepSpeed puts on the output, the gradient gathers the weights.
        hook = module.register_forward_hook(lambda module, inputs, output: self.logps.append(output))
        try:
            yield
        finally:
            hook.remove()
            del module.forward
            if own is not None:
                module.forward = own

    def _forward(self, module: torch.nn.Module, logits_of: Callable[..., Any], hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden[self.chosen]
        size = max(1, LOGITS_PER_CHUNK // self.causal.config.get_text_config(decoder=True).vocab_size)
        if any(module.children()) and any(hasattr(parameter, "ds_id") for parameter in module.parameters()):
            size = len(
                hidden
            )  # an adapter's parts are gathered with each call, which all ranks must make equally often

        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

        def part(rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            # Without a cached copy of the weights in bf16: the chunks' gradients would be added up in it.
            with torch.autocast(device, enabled=autocast[0], dtype=autocast[1], cache_enabled=False):
                logits = logits_of(rows)
            return _log_softmax(_processed(self.causal, logits), tokens, self.temperature)

        parts = zip(hidden.split(size), self.tokens.split(size), strict=True)
        return torch.cat([checkpoint(part, *each, use_reentrant=False) for each in parts]).view(1, -1, 1)


def _log_softmax(logits: torch.Tensor, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    """Of `logits (N, V)`, the log-probabilities `(N,) float32` of `tokens (N,)`."""
    # In float32 before the softmax: bf16 has two digits, and the loss is made of differences.
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    return -torch.nn.functional.cross_entropy(logits, tokens, reduction="none")


def _processed(causal: PreTrainedModel, logits: torch.Tensor) -> torch.Tensor:
    """What models do to their logits after the LM head: scales (Cohere, Granite, Falcon-H1), soft caps (Gemma)."""
    config = causal.config.get_text_config(decoder=True)
    for name in ("logit_scale", "lm_head_multiplier"):
        if (scale := getattr(config, name, None)) is not None:
            logits = logits * scale
    if (scale := getattr(config, "logits_scaling", None)) is not None:
        logits = logits / scale
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        logits = torch.tanh(logits / cap) * cap
    return logits
