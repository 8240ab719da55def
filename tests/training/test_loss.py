"""The loss as a function; that it equals the parent's is tested with the trainer (`test_trainer.py`)."""

import math

import pytest
import torch

from rg_env.training.algorithms.loss import (
    Clipping,
    Normaliser,
    kl_terms,
    off_policy_rows,
    policy_terms,
    sampler_weights,
)

MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("grpo", ((1 + 2) / 2 + 4) / 3),
        ("bnpo", (1 + 2 + 4) / 5),
        ("dapo", (1 + 2 + 4) / 5),
        ("dr_grpo", (1 + 2 + 4) / (3 * 10)),
    ],
)
def test_averages(loss_type: str, expected: float) -> None:
    """Over the whole micro-batch: three rows with five tokens, of which two rows with three tokens are here."""
    normaliser = Normaliser(loss_type, rows=3, tokens=torch.tensor(5), max_length=10)
    values = torch.tensor([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0]])
    assert normaliser.mean(values, MASK).item() == pytest.approx(expected)


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
    weights, log_ratio = sampler_weights(old, sampler, cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([[0.5, 1.0, 2.0]]))
    assert log_ratio[0, 2].item() == pytest.approx(math.log(9))
    plain, _ = policy_terms(old, old, torch.tensor([1.0]), Clipping(0.2, 0.2))
    weighted, _ = policy_terms(old, old, torch.tensor([1.0]), Clipping(0.2, 0.2), weights)
    torch.testing.assert_close(weighted, plain * weights)


def test_kl_is_never_negative() -> None:
    """And nothing between equal policies."""
    logps, reference = torch.randn(4, 5), torch.randn(4, 5)
    assert (kl_terms(logps, reference) >= 0).all()
    assert kl_terms(logps, logps).abs().max() == 0


def test_off_policy_rows() -> None:
    """Those of negative advantage whose mean log-ratio, over their own tokens, is above the threshold."""
    sampler = torch.tensor([[-1.0, -1.0, 0.0], [-1.0, -1.0, 0.0], [-1.0, -1.0, 0.0], [-1.0, 9.0, 9.0]])
    logps = sampler - torch.tensor([[0.2, 0.6, 0.0], [0.2, 0.6, 0.0], [0.2, 0.2, 0.0], [0.1, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 0, 0]])
    advantages = torch.tensor([-1.0, 1.0, -1.0, -1.0])
    assert off_policy_rows(logps, sampler, advantages, mask, 0.3).tolist() == [True, False, False, False]
    assert off_policy_rows(logps, sampler, advantages, mask, 0.05).tolist() == [True, False, True, True]
