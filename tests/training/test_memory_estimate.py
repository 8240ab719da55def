"""The memory formulas, from which `tools/reference_docs.py` computes a documentation page."""

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig

from rg_env.inference.embedded.engine import Sampler
from rg_env.inference.protocol import Sampling
from rg_env.training.memory_estimate import SAMPLER_BYTES, TRUNCATION_BYTES, ModelShape, estimate, largest_that_fits


def test_each_term() -> None:
    """Each term equals the result of a manual calculation with sizes that are easy to multiply."""
    shape = ModelShape(parameters=1000, layers=2, hidden=10, vocabulary=50, kv_width=4)
    sizes = {"micro_batch": 3, "tokens": 20, "logit_tokens": 5}
    one = estimate(shape, **sizes)
    assert (one.state, one.gathered, one.casts, one.resting_state, one.cache) == (16_000, 0, 2_000, 12_000, 0)
    assert one.logits == 12 * 3 * 5 * 50 + 8 * 50 * 10
    assert one.activations == 2 * 3 * 20 * 10 * 2
    assert one.total == 16_000 + 2_000 + 13_000 + 2_400
    plain = estimate(shape, **sizes, bf16=False)
    assert (plain.activations, plain.casts) == (4_800, 0)
    kept = estimate(shape, **sizes, checkpointing=False)
    assert kept.activations == 34 * 3 * 20 * 10 * 2
    adapters = estimate(shape, **sizes, adapter_parameters=1)
    assert (adapters.logits, adapters.casts) == (12 * 3 * 5 * 50, 2 * 1_001)
    half = estimate(shape, **sizes, adapter_parameters=1, frozen_bytes=2, cached_tokens=300, sequences=7)
    assert (half.state, half.casts) == (2_016, 2)
    assert (half.cache, half.sampler) == (2 * 2 * 2 * 4 * 300, 16 * 7 * 50)
    assert half.total == 2_012 + 2 + half.cache + half.sampler
    assert estimate(shape, **sizes, sequences=7, truncated=True).sampler == 42 * 7 * 50
    shared = estimate(shape, **sizes, shards=4)
    assert (shared.state, shared.gathered, shared.casts) == (4_000, 2 * 500, 0)
    assert estimate(shape, **sizes, reference=True).state == 20_000
    sent = estimate(shape, micro_batch=0, tokens=0, logit_tokens=0, adapter_parameters=1, frozen_bytes=2, nccl=True)
    assert sent.total == 2_012 + 2 * 2_000


@pytest.mark.parametrize(
    ("kind", "config", "kv_width"),
    [
        ("qwen2", {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}, 16),
        ("gemma4_text", {"num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 32}, 64),
        ("mamba", {}, 0),
    ],
)
def test_the_shape_of_any_model(kind: str, config: dict[str, Any], kv_width: int) -> None:
    """The layers of Gemma 4 differ, and Mamba has no attention."""
    shape = ModelShape.of(AutoConfig.for_model(kind, num_hidden_layers=2, **config), 1000)
    assert (shape.parameters, shape.layers, shape.kv_width) == (1000, 2, kv_width)


class Peak(TorchDispatchMode):
    """Measures the maximum number of bytes in tensors that were created while this mode is active."""

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[tuple[int, int], list[weakref.ref[torch.Tensor]]] = {}
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                memory = each.untyped_storage()
                self._live.setdefault((memory.data_ptr(), memory.nbytes()), []).append(weakref.ref(each))
        self._live = {
            key: live for key, each in self._live.items() if (live := [ref for ref in each if ref() is not None])
        }
        self.bytes = max(self.bytes, sum(size for _, size in self._live))
        return result


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=0.7), SAMPLER_BYTES),
        (Sampling(top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.1), SAMPLER_BYTES + TRUNCATION_BYTES),
    ],
)
def test_the_memory_for_sampling_is_as_measured(sampling: Sampling, expected: int) -> None:
    """The sampler's buffers have the estimated size, including the logits and the counts of tokens."""
    rows, vocabulary = 8, 4000
    with Peak() as peak:
        sampler = Sampler(sampling, [[1, 2]] * rows, vocabulary, torch.device("cpu"))
        logits = torch.randn(rows, vocabulary)  # the engine also keeps its logits
        sampler.draw(logits)
    assert 0.85 * expected < peak.bytes / (rows * vocabulary) < 1.05 * expected


def test_the_largest_batch_that_fits_divides_the_requested_one() -> None:
    """Accumulating more micro-batches of that size then gives the same step."""
    assert largest_that_fits(50, 12, lambda size: 10 * size) == 4
    assert largest_that_fits(5, 12, lambda size: 10 * size) is None
