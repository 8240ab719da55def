"""Estimate a run's memory use for docs/reference/gpu-memory.md and `rg-env doctor`.

    shape = ModelShape(parameters=1_543_714_304, layers=28, hidden=1536, vocabulary=151_936, kv_width=256)
    estimate(shape, micro_batch=8, tokens=2048, logit_tokens=1024).total

The estimates are computed from the run's settings and from the dimensions of the model and the batch. They do not
include fragmentation or the few hundred megabytes that CUDA and other libraries use. This module does not import torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rg_env.inference.protocol import kv_width
from rg_env.training.algorithms import LOGITS_PER_CHUNK

STATE_BYTES = 16
"""Bytes per trained parameter in fp32: 4 for the weight, 4 for the gradient and 8 for Adam's two moments."""
RESTING_BYTES = 12
"""Bytes per trained parameter during generation, when gradients are freed."""
LOGIT_BYTES = 12
"""Bytes per logit in the backward pass, for the log-softmax, its gradient, and the logit's gradient, each in float32.
"""
HEAD_BYTES = 8
"""Additional bytes per trained weight in the LM head, for the float32 gradients of one chunk and the sum of the
previous chunks' gradients."""
SAMPLER_BYTES = 16
"""Bytes per logit while the embedded engine samples a token, for the logits, scaled logits, log-probabilities and
cumulative probabilities, each in float32."""
TRUNCATION_BYTES = 26
"""Additional bytes per logit with truncation (`top_k`, `top_p`, `min_p`) or penalties."""
NCCL_BUFFER = 2**30
"""Maximum size of one of the two buffers in which vLLM sends weights over NCCL."""
KEPT_PER_LAYER = 17
"""Number of values kept per layer, token and hidden unit for the backward pass without checkpointing, excluding
attention scores (Korthikanti et al., 2022, arXiv:2205.05198, section 4.1: 34 bytes, which are 17 values of 2 bytes
each)."""


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of a model that determine its memory use."""

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    kv_width: int
    """Number of key-value heads times the size of a head."""

    @classmethod
    def of(cls, config: Any, parameters: int) -> "ModelShape":
        """Return the shape of a model with the transformers configuration `config`."""
        config = config.get_text_config(decoder=True)
        return cls(parameters, config.num_hidden_layers, config.hidden_size, config.vocab_size, kv_width(config))


@dataclass(frozen=True)
class MemoryEstimate:
    """Estimated memory use of one device, in bytes."""

    state: int
    """Weights, gradients, optimizer state, and the reference model if there is one."""
    gathered: int
    """Gathered bf16 weights of a layer or of the embedding, whichever is larger, with ZeRO-3."""
    casts: int
    """Copies of float32 weights in bfloat16 that autocast keeps during a forward pass and during generation."""
    logits: int
    """Logits of one chunk, and the gradient of a trained LM head during accumulation."""
    activations: int
    resting_state: int
    cache: int
    """Key-value cache of the embedded engine."""
    sampler: int
    """Logits and probabilities from which the embedded engine samples a token."""
    sync: int
    """Buffers of a weight sync over NCCL."""

    @property
    def passes(self) -> int:
        """Memory added by a micro-batch."""
        return self.logits + self.activations

    @property
    def generation(self) -> int:
        """Memory added by the embedded engine."""
        return self.cache + self.sampler

    @property
    def total(self) -> int:
        """Peak memory, which is reached in the backward pass, at the end of generation, or during a weight sync."""
        backward = self.state + self.gathered + self.casts + self.passes
        return max(backward, self.resting_state + max(self.casts + self.generation, self.sync))


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
    sequences: int = 0,
    truncated: bool = False,
    nccl: bool = False,
) -> MemoryEstimate:
    """Estimate a device's memory use.

    Args:
        micro_batch: number of rollouts in one pass.
        tokens: number of tokens in the longest rollout, including the prompt.
        logit_tokens: number of positions per rollout for which logits are computed: `max_tokens` plus the spread of
            prompt lengths.
        shards: number of devices over which ZeRO-3 divides the state.
        checkpointing: whether only the layers' inputs are kept and activations are recomputed.
        bf16: whether each activation takes 2 bytes instead of 4.
        reference: whether there is a second model for the KL term (`beta` above 0).
        adapter_parameters: number of trained parameters with LoRA (the weights are then frozen), or 0 without LoRA.
        frozen_bytes: bytes per frozen weight (4 in float32, 2 in bfloat16; see `load_policy`).
        cached_tokens: total number of tokens in the rollouts that the embedded engine decodes at once, or 0 with a
            server.
        sequences: number of rollouts that the embedded engine decodes at once.
        truncated: whether the embedded engine samples with truncation or penalties.
        nccl: whether weights are sent to a server over NCCL.
    """
    element = 2 if bf16 else 4
    if adapter_parameters:
        fixed, trained = frozen_bytes * shape.parameters, adapter_parameters
    else:
        fixed, trained = 4 * shape.parameters * reference, shape.parameters
    in_float32 = trained + (shape.parameters if adapter_parameters and frozen_bytes == 4 else 0)
    rollout_numbers = micro_batch * tokens * shape.hidden * shape.layers
    embedding = shape.vocabulary * shape.hidden
    layer = (shape.parameters - embedding) // shape.layers
    return MemoryEstimate(
        state=(fixed + STATE_BYTES * trained) // shards,
        gathered=2 * max(embedding, layer) if shards > 1 else 0,
        casts=2 * in_float32 if bf16 and shards == 1 else 0,  # ZeRO-3 keeps bfloat16 weights instead
        logits=LOGIT_BYTES * min(micro_batch * logit_tokens * shape.vocabulary, LOGITS_PER_CHUNK)
        + (0 if adapter_parameters else HEAD_BYTES * embedding),
        activations=element * rollout_numbers * (1 if checkpointing else KEPT_PER_LAYER),
        resting_state=(fixed + RESTING_BYTES * trained) // shards,
        cache=2
        * (min(element, frozen_bytes) if adapter_parameters else element)
        * shape.layers
        * shape.kv_width
        * cached_tokens,
        sampler=(SAMPLER_BYTES + TRUNCATION_BYTES * truncated) * shape.vocabulary * sequences,
        sync=2 * min(NCCL_BUFFER, 2 * shape.parameters) if nccl else 0,
    )


def activations_fit(config: Any, tokens: int, free: int) -> bool:
    """Whether the activations of a micro-batch with `tokens` tokens fit in half of the `free` bytes, in float32 and
    without checkpointing, for a model with the transformers configuration `config`."""
    config = config.get_text_config(decoder=True)
    return bool(4 * KEPT_PER_LAYER * config.num_hidden_layers * config.hidden_size * tokens <= free / 2)


def largest_that_fits(room: int, largest: int, need: Callable[[int], int]) -> int | None:
    """Return the largest micro-batch size below `largest` that divides it and keeps a step's memory use within `room`
    bytes, or None if no size does."""
    return next((size for size in range(largest - 1, 0, -1) if largest % size == 0 and need(size) <= room), None)
