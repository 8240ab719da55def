"""How much memory a run takes, estimated from sizes alone. The README's table and `rg-env doctor` use these formulas.

    shape = ModelShape(parameters=1_543_714_304, layers=28, hidden=1536, vocabulary=151_936, kv_width=256)
    estimate(shape, micro_batch=8, tokens=2048, logit_tokens=1024).total

Estimates, not measurements: fragmentation, CUDA's own few hundred megabytes and libraries are not in them. No torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STATE_BYTES = 16
"""A trained parameter in fp32: weight 4, gradient 4, Adam's two moments 8."""
RESTING_BYTES = 12
"""The same while answers are generated: gradients are freed after each update."""
LOGIT_BYTES = 12
"""A logit in the backward pass, all in float32: its log-softmax, and the gradients of that and of itself."""
LOGITS_PER_CHUNK = 2**27
"""As many logits at once, whatever the batch (`algorithms.logprobs`): enough positions to keep a GPU busy."""
HEAD_BYTES = 8
"""A trained weight of the LM head, in addition: its float32 gradients of one chunk and of the chunks before it."""
KEPT_PER_LAYER = 17
"""Numbers a token and hidden unit that a layer keeps for the backward pass without checkpointing, attention scores left
out (Korthikanti et al., 2022, arXiv:2205.05198, section 4.1: 34 bytes at 2 bytes each)."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model that decide."""

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    kv_width: int
    """Key-value heads times their size."""

    @classmethod
    def of(cls, config: Any, parameters: int) -> "ModelShape":
        """From a transformers configuration."""
        config = config.get_text_config(decoder=True)
        heads = config.num_attention_heads
        head = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        return cls(parameters, config.num_hidden_layers, config.hidden_size, config.vocab_size, kv_heads * head)


@dataclass(frozen=True)
class Estimate:
    """Bytes on one device."""

    state: int
    """Weights, gradients, optimizer; the reference model, if there is one."""
    gathered: int
    """Under ZeRO-3: the bf16 weights of the part at work."""
    logits: int
    """Those of one chunk, and what a trained LM head's gradient takes while it is added up."""
    activations: int
    resting_state: int
    cache: int
    """The embedded engine's keys and values."""

    @property
    def passes(self) -> int:
        """What a micro-batch adds."""
        return self.logits + self.activations

    @property
    def total(self) -> int:
        """The larger of the two peaks: the backward pass, and the end of generation."""
        return max(self.state + self.gathered + self.passes, self.resting_state + self.cache)


def estimate(
    shape: ModelShape,
    *,
    micro_batch: int,
    tokens: int,
    logit_tokens: int,
    shards: int = 1,
    checkpointing: bool = True,
    bf16: bool = True,
    reference: bool = False,
    adapter_parameters: int = 0,
    frozen_bytes: int = 4,
    cached_tokens: int = 0,
    offloaded: bool = False,
) -> Estimate:
    """Memory of one device.

    Args:
        micro_batch: rollouts in one pass.
        tokens: of the longest rollout, prompt included.
        logit_tokens: positions of a rollout that logits are made for: `max_tokens` and the spread of prompt lengths.
        shards: devices that ZeRO-3 divides the state over.
        checkpointing: only the layers' inputs are kept, and the rest is computed again.
        bf16: numbers of 2 bytes in the passes, else of 4.
        reference: a second model for the KL term (`beta` above 0).
        adapter_parameters: LoRA: number of trained parameters; the weights are frozen.
        frozen_bytes: of such a weight: 4 in float32, 2 in bfloat16 (see `load_policy`).
        offloaded: `optim: adamw_offload`: weights of `frozen_bytes`, and gradients in float32.
        cached_tokens: of all rollouts that the embedded engine decodes at once; 0 with a server.
    """
    element = 2 if bf16 else 4
    if adapter_parameters:
        fixed, trained = frozen_bytes * shape.parameters, adapter_parameters
    else:
        fixed, trained = 4 * shape.parameters * reference, shape.parameters
    state_bytes, resting_bytes = (frozen_bytes + 4, frozen_bytes) if offloaded else (STATE_BYTES, RESTING_BYTES)
    weight_bytes = frozen_bytes if adapter_parameters or offloaded else 4  # also of the engine's cache
    rollout_numbers = micro_batch * tokens * shape.hidden * shape.layers
    embedding = shape.vocabulary * shape.hidden
    layer = (shape.parameters - embedding) // shape.layers
    return Estimate(
        state=(fixed + state_bytes * trained) // shards,
        gathered=2 * max(embedding, layer) if shards > 1 else 0,
        logits=LOGIT_BYTES * min(micro_batch * logit_tokens * shape.vocabulary, LOGITS_PER_CHUNK)
        + (0 if adapter_parameters else HEAD_BYTES * embedding),
        activations=element * rollout_numbers * (1 if checkpointing else KEPT_PER_LAYER),
        resting_state=(fixed + resting_bytes * trained) // shards,
        cache=2 * weight_bytes * shape.layers * shape.kv_width * cached_tokens,
    )


def largest_that_fits(room: int, largest: int, need: Callable[[int], int]) -> int | None:
    """The largest micro-batch below `largest` and dividing it whose `need` in bytes is at most `room`; None: none."""
    return next((size for size in range(largest - 1, 0, -1) if largest % size == 0 and need(size) <= room), None)
