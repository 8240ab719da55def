"""The memory formulas, from which `tools/reference_docs.py` computes a documentation page."""

from rg_env.training.memory_estimate import ModelShape, estimate, largest_that_fits


def test_each_term() -> None:
    """Each term equals the result of a manual calculation with sizes that are easy to multiply."""
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
    shared = estimate(shape, micro_batch=3, tokens=20, logit_tokens=5, shards=4)
    assert (shared.state, shared.gathered) == (4_000, 2 * 500)
    assert estimate(shape, micro_batch=3, tokens=20, logit_tokens=5, reference=True).state == 20_000


def test_the_largest_batch_that_fits_divides_the_requested_one() -> None:
    """Accumulating more micro-batches of that size then gives the same step."""
    assert largest_that_fits(50, 12, lambda size: 10 * size) == 4
    assert largest_that_fits(5, 12, lambda size: 10 * size) is None
