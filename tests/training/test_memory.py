"""The memory formulas, and the table in the documentation that is computed from them."""

import re
from pathlib import Path

import pytest

from rg_env.training.reporting.memory import ModelShape, estimate, largest_that_fits

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "gpu-memory.md"
# parameters, layers, hidden, vocabulary, kv_width: from each model's config.json on the hub
SHAPES = {
    "Qwen2.5-0.5B": ModelShape(494_032_768, 24, 896, 151_936, 128),
    "Qwen2.5-1.5B": ModelShape(1_543_714_304, 28, 1536, 151_936, 256),
    "Qwen2.5-3B": ModelShape(3_085_938_688, 36, 2048, 151_936, 256),
    "Qwen2.5-7B": ModelShape(7_615_616_512, 28, 3584, 152_064, 512),
}
LORA_7B = 28 * 8 * (2 * (3584 + 3584) + 2 * (3584 + 512))
"""verifiers' `lora_defaults`: rank 8 on q, k, v and o; k and v lead to 512."""
TABLE = re.findall(r"^\| (Qwen2\.5-\S+B)(, LoRA)? \| (\d+) GB \| (\d+) GB \| (\d+)", PAGE.read_text(), re.MULTILINE)


def test_all_rows_of_the_table_are_found() -> None:
    assert [name + more for name, more, *_ in TABLE] == [*SHAPES, "Qwen2.5-7B, LoRA"]


@pytest.mark.parametrize(("name", "lora", "training", "adds", "gpus"), TABLE)
def test_the_table_agrees_with_the_formulas(name: str, lora: str, training: str, adds: str, gpus: str) -> None:
    """State, what a micro-batch adds, and on how few GPUs of 80 GB it fits."""

    def on(shards: int) -> tuple[int, int, int]:
        one = estimate(
            SHAPES[name],
            micro_batch=8,
            tokens=2048,
            logit_tokens=1024,
            shards=shards,
            adapter_parameters=LORA_7B if lora else 0,
        )
        return one.state, one.passes, one.total

    state, passes, _ = on(1)
    assert round(state / 1e9) == int(training)
    assert round(passes / 1e9) == int(adds)
    assert next(shards for shards in range(1, 9) if on(shards)[2] <= 80e9) == int(gpus)


def test_each_term() -> None:
    """By hand, for sizes that are easy to multiply."""
    shape = ModelShape(parameters=1000, layers=2, hidden=10, vocabulary=50, kv_width=4)
    one = estimate(shape, micro_batch=3, tokens=20, logit_tokens=5)
    assert (one.state, one.gathered, one.resting_state, one.cache) == (16_000, 0, 12_000, 0)
    assert one.logits == 12 * 3 * 5 * 50 + 8 * 50 * 10
    assert one.activations == 2 * 3 * 20 * 10 * 2
    assert one.total == 16_000 + 13_000 + 2_400
    assert estimate(shape, micro_batch=3, tokens=20, logit_tokens=5, bf16=False).activations == 4_800
    kept = estimate(shape, micro_batch=3, tokens=20, logit_tokens=5, checkpointing=False)
    assert kept.activations == 34 * 3 * 20 * 10 * 2
    assert estimate(shape, micro_batch=3, tokens=20, logit_tokens=5, adapter_parameters=1).logits == 12 * 3 * 5 * 50
    half = estimate(
        shape, micro_batch=3, tokens=20, logit_tokens=5, adapter_parameters=1, frozen_bytes=2, cached_tokens=3
    )
    assert (half.state, half.cache) == (2_016, 2 * 2 * 2 * 4 * 3)
    offloaded = estimate(shape, micro_batch=3, tokens=20, logit_tokens=5, frozen_bytes=2, offloaded=True)
    assert (offloaded.state, offloaded.resting_state) == (6_000, 2_000)
    shared = estimate(shape, micro_batch=3, tokens=20, logit_tokens=5, shards=4)
    assert (shared.state, shared.gathered) == (4_000, 2 * 500)
    assert estimate(shape, micro_batch=3, tokens=20, logit_tokens=5, reference=True).state == 20_000


def test_the_largest_batch_that_fits_divides_the_one_asked_for() -> None:
    """So that accumulating more of them gives the same step."""
    assert largest_that_fits(50, 12, lambda size: 10 * size) == 4
    assert largest_that_fits(5, 12, lambda size: 10 * size) is None
