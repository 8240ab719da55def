"""Advantages of rollouts: what each earned compared with the others of its group. No model, no trainer."""

from typing import Literal

import torch

Scale = Literal["group", "batch", "none"]

_EQUAL = 1e-6
"""Rewards of a group that differ by less are equal: sums of floats differ by rounding."""
_EPS = 1e-4


def equal_rewards(groups: torch.Tensor) -> torch.Tensor:
    """Which of `groups (G, n)` of rewards have no variance: `(G,) bool`. They teach nothing."""
    return (groups.amax(dim=1) - groups.amin(dim=1)) < _EQUAL


def group_advantages(rewards: torch.Tensor, num_generations: int, scale: Scale) -> torch.Tensor:
    """`A = (r - mean of the group) / s`, `(N,)` for `rewards (N,)`, whose groups stand together.

    `scale` says what `s` is: the standard deviation of the "group" (Shao et al., 2024, arXiv:2402.03300), that of all
    rewards of the "batch" (Liu et al., 2025, "Tricks or Traps?", arXiv:2508.08221: prompts that are nearly always, or
    never, answered do not weigh more than others), or "none", 1 (Liu et al., 2025, Dr. GRPO, arXiv:2503.20783).

    Groups of equal rewards have advantage 0: their rounding errors are not scaled up.
    """
    groups = rewards.float().view(-1, num_generations)
    advantages = groups - groups.mean(dim=1, keepdim=True)
    if scale == "group":
        advantages = advantages / (groups.std(dim=1, keepdim=True) + _EPS)
    elif scale == "batch":
        advantages = advantages / (groups.std() + _EPS)
    return advantages.masked_fill(equal_rewards(groups).unsqueeze(1), 0.0).flatten()
