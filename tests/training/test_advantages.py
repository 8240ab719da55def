"""Advantages against numpy's arithmetic."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rg_env.training.algorithms.loss import equal_rewards, group_advantages

REWARDS = st.integers(2, 5).flatmap(
    lambda size: st.lists(st.lists(st.floats(-2, 2, width=16), min_size=size, max_size=size), min_size=1, max_size=6)
)


@given(groups=REWARDS)
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_by_the_formula(groups: list[list[float]], scale: Any) -> None:
    rewards = np.array(groups, dtype=np.float64)
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    spread: Any = {"group": rewards.std(axis=1, ddof=1, keepdims=True), "batch": rewards.std(ddof=1), "none": 1 - 1e-4}
    expected = np.where(np.ptp(rewards, axis=1, keepdims=True) < 1e-6, 0.0, centred / (spread[scale] + 1e-4))
    ours = group_advantages(torch.tensor(rewards, dtype=torch.float32).flatten(), rewards.shape[1], scale)
    np.testing.assert_allclose(ours.numpy(), expected.flatten(), atol=2e-3)


def test_the_three_differ() -> None:
    """A group with one right answer of four, and one with two, beside one that has none."""
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
