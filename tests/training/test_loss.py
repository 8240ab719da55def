"""Advantages and the terms of the loss as functions; the whole loss is tested in `test_trainer.py`."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rg_env.training.algorithms.loss import (
    Clipping,
    equal_rewards,
    group_advantages,
    policy_terms,
    sampler_weights,
)

MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def test_clipping() -> None:
    """A ratio beyond its bound earns nothing more; the bound that would lower the loss is not applied."""
    old = torch.zeros(2, 3)
    logps = torch.log(torch.tensor([[0.5, 1.0, 2.0], [0.5, 1.0, 2.0]]))
    values, clipped = policy_terms(logps, old, torch.tensor([1.0, -1.0]), Clipping(0.2, 0.3))
    torch.testing.assert_close(values, torch.tensor([[-0.5, -1.0, -1.3], [0.8, 1.0, 2.0]]))
    assert clipped.tolist() == [[0, 0, 1], [-1, 0, 0]]
    bounded, _ = policy_terms(logps, old, torch.tensor([1.0, -1.0]), Clipping(0.2, 0.3, delta=1.5))
    assert bounded[1, 2].item() == pytest.approx(1.5)


def test_weights_scale_each_token() -> None:
    """What the sampler found likelier than the trainer counts less, and no token counts more than the cap."""
    old = torch.log(torch.tensor([[0.1, 0.5, 0.9]]))
    sampler = torch.log(torch.tensor([[0.2, 0.5, 0.1]]))
    weights = sampler_weights(old - sampler, cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([[0.5, 1.0, 2.0]]))
    plain, _ = policy_terms(old, old, torch.tensor([1.0]), Clipping(0.2, 0.2))
    weighted, _ = policy_terms(old, old, torch.tensor([1.0]), Clipping(0.2, 0.2), weights)
    torch.testing.assert_close(weighted, plain * weights)


REWARDS = st.integers(2, 5).flatmap(
    lambda size: st.lists(st.lists(st.floats(-2, 2, width=16), min_size=size, max_size=size), min_size=1, max_size=6)
)


@given(groups=REWARDS)
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_are_those_of_the_formula(groups: list[list[float]], scale: Any) -> None:
    rewards = np.array(groups, dtype=np.float64)
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    spread: Any = {"group": rewards.std(axis=1, ddof=1, keepdims=True), "batch": rewards.std(ddof=1), "none": 1 - 1e-4}
    expected = np.where(np.ptp(rewards, axis=1, keepdims=True) < 1e-6, 0.0, centred / (spread[scale] + 1e-4))
    ours = group_advantages(torch.tensor(rewards, dtype=torch.float32).flatten(), rewards.shape[1], scale)
    np.testing.assert_allclose(ours.numpy(), expected.flatten(), atol=2e-3)


def test_the_three_scales_differ() -> None:
    """A group with one right answer of four, one with two, and one without any."""
    rewards = torch.tensor([0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0], dtype=torch.float32)
    by_scale = {scale: group_advantages(rewards, 4, scale) for scale in ("group", "batch", "none")}  # type: ignore[arg-type]
    best = {scale: (values[3].item(), values[5].item()) for scale, values in by_scale.items()}
    assert best["group"] == pytest.approx((0.75 / 0.5, 0.5 / 0.57735), abs=1e-3)
    assert best["none"] == pytest.approx((0.75, 0.5))
    assert best["batch"][0] / best["batch"][1] == pytest.approx(1.5)
    assert best["batch"][0] == pytest.approx(0.75 / rewards.std().item(), abs=1e-3)
    assert all(values[8:].abs().max() == 0 for values in by_scale.values())


def test_rounding_errors_are_no_variance() -> None:
    """Sums of rewards that are equal on paper."""
    groups = torch.tensor([[0.1 + 0.2, 0.3], [0.3, 0.4]])
    assert equal_rewards(groups).tolist() == [True, False]
