"""Compute advantages and the GRPO loss from rewards and log-probabilities, independently of the model and the trainer.

The loss `L = -min(r A, clip(r) A) w + beta KL` (`policy_terms`, or `cispo_terms` for "cispo") is averaged according to
`loss_type`:

- "grpo": over each row's tokens, then over rows (Shao et al., 2024, arXiv:2402.03300)
- "bnpo": over the micro-batch's tokens
- "dapo": over all tokens in the step's rollouts, so that tokens have the same weight in every micro-batch (Yu et al.,
  2025, arXiv:2503.14476, section 3.3)
- "cispo": like "dapo" (MiniMax, 2025, MiniMax-M1, arXiv:2506.13585)
- "dr_grpo": by dividing the sum by the number of rows times a constant length (Liu et al., 2025, arXiv:2503.20783)

`r` is the ratio of a token's probability under the current policy to its probability at the start of the batch, or the
geometric mean of these ratios over the completion (`importance_ratios`). `A` is the advantage, and `w` corrects for
rollouts that were not sampled from the policy being trained.
"""

from typing import Literal

import torch

Scale = Literal["group", "batch", "none"]

_EQUAL, _EQUAL_RELATIVE = 1e-6, 1e-14
"""Rewards that differ by less than the first value, or by less than the second value relative to their size, are
considered equal because sums of floats have rounding errors."""
_EPS = 1e-4


def equal_rewards(groups: torch.Tensor) -> torch.Tensor:
    """Return a mask `(G,) bool` that marks the groups in `groups (G, n)` whose rewards are all equal. Such groups
    provide no learning signal."""
    return (groups.amax(dim=1) - groups.amin(dim=1)) < _EQUAL + _EQUAL_RELATIVE * groups.abs().amax(dim=1)


def group_advantages(rewards: torch.Tensor, num_generations: int, scale: Scale) -> torch.Tensor:
    """Compute the advantages `A = (reward - mean of the group) / s` as `(N,) float32` from `rewards (N,)`. Every
    `num_generations` consecutive rows form a group. Means and deviations are computed in float64, because in float32 a
    large offset would hide the differences within a group.

    `scale` selects `s`:

    - "group": the standard deviation of the group's rewards (Shao et al., 2024, arXiv:2402.03300)
    - "batch": the standard deviation of all rewards in the batch, so that prompts that are nearly always or nearly
      never answered correctly get no more weight than other prompts (Liu et al., 2025, "Tricks or Traps?",
      arXiv:2508.08221)
    - "none": 1 (Liu et al., 2025, Dr. GRPO, arXiv:2503.20783)

    Rows in groups with equal rewards have an advantage of 0 so that rounding errors are not scaled up.
    """
    groups = rewards.double().view(-1, num_generations)
    advantages = groups - groups.mean(dim=1, keepdim=True)
    if scale == "group":
        advantages = advantages / (groups.std(dim=1, keepdim=True) + _EPS)
    elif scale == "batch":
        advantages = advantages / (groups.std() + _EPS)
    return advantages.masked_fill(equal_rewards(groups).unsqueeze(1), 0.0).flatten().float()


def mean_loss(
    values: torch.Tensor, mask: torch.Tensor, loss_type: str, *, rows: int, tokens: torch.Tensor, max_length: int
) -> torch.Tensor:
    """Return the average of `values (B, T)` over the positions where `mask (B, T)` is 1, weighted according to
    `loss_type`.

    Args:
        rows, tokens: number of rows in the micro-batch, and number of its tokens that contribute to the loss (for
            "dapo" and "cispo", the mean over the step's micro-batches). Rows that are missing from `values` count
            toward both numbers.
        max_length: constant length for "dr_grpo".
    """
    if loss_type == "grpo":
        return ((values * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).sum() / rows
    total = (values * mask).sum()
    return total / (rows * max_length) if loss_type == "dr_grpo" else total / tokens.clamp(min=1.0)


def importance_ratios(
    logps: torch.Tensor, old_logps: torch.Tensor, mask: torch.Tensor, level: Literal["token", "sequence"]
) -> torch.Tensor:
    """Return the probability ratios of tokens `(B, T)`, or with the level "sequence" those of completions `(B, 1)`,
    normalized by length: `(p(completion) / p_old(completion)) ** (1 / length)` (Zheng et al., 2025, GSPO,
    arXiv:2507.18071, equation 7).

    Args:
        logps, old_logps: log-probabilities (B, T) under the current policy, and under the policy at the start of the
            batch.
        mask: (B, T), 1 for tokens that contribute to the loss.
    """
    log_ratio = logps - old_logps
    if level == "sequence":
        log_ratio = (log_ratio * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return torch.exp(log_ratio)


def policy_terms(
    ratio: torch.Tensor, advantages: torch.Tensor, *, low: float, high: float, delta: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's loss, and whether the token's ratio was clipped (-1 if too low, 1 if too high, 0 if not
    clipped), both with the shape of `ratio`.

    Args:
        ratio: probability ratios (B, T) or (B, 1).
        advantages: (B,).
        low, high: the probability ratio is clipped to the range from `1 - low` to `1 + high`.
        delta: upper bound on the ratio in the unclipped term (two-sided clipping).
    """
    advantage = advantages.unsqueeze(1)
    bounded = ratio if delta is None else torch.clamp(ratio, max=delta)
    loss = -torch.min(bounded * advantage, torch.clamp(ratio, 1 - low, 1 + high) * advantage)
    is_low = (ratio < 1 - low) & (advantage < 0)
    is_high = (ratio > 1 + high) & (advantage > 0)
    return loss, is_high.float() - is_low.float()


def cispo_terms(
    ratio: torch.Tensor, logps: torch.Tensor, advantages: torch.Tensor, *, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's loss (B, T), `-sg(min(r, 1 + high)) A log p`, and whether its ratio was clipped (1, or 0 if
    not). `sg` stops the gradient, so unlike with `policy_terms`, tokens with a clipped ratio keep a gradient (MiniMax,
    2025, MiniMax-M1, arXiv:2506.13585, equations 4 and 5, without a lower bound, as in the paper's experiments).

    Args:
        ratio: probability ratios (B, T) or (B, 1).
        logps: log-probabilities (B, T) under the current policy.
        advantages: (B,).
    """
    weight = ratio.detach().clamp(max=1 + high)
    return -weight * advantages.unsqueeze(1) * logps, (ratio > 1 + high).float()


def off_policy_rows(
    logps: torch.Tensor, sampler_logps: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, threshold: float
) -> torch.Tensor:
    """Return a mask `(B,) bool` of the rows that have a negative advantage and that the policy has moved away from.

    The policy has moved away from a row if the mean of `log(p_sampler / p)` over the row's tokens, an estimate of
    KL(sampler || policy), is above `threshold` (DeepSeek-AI, 2025, DeepSeek-V3.2, arXiv:2512.02556, "off-policy
    sequence masking").

    Args:
        logps, sampler_logps: log-probabilities (B, T) under the current policy and under the sampler, both of the
            entire vocabulary.
        mask: (B, T), 1 for tokens that contribute to the loss.
        advantages: (B,).
    """
    kl = ((sampler_logps - logps.detach()) * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    return (advantages < 0) & (kl > threshold)


def sampler_weights(log_ratio: torch.Tensor, cap: float) -> torch.Tensor:
    """Return the truncated importance weights `min(p_train / p_sampler, cap)` (B, T). `log_ratio` is `log(p_train /
    p_sampler)` (B, T).

    The sampler (vLLM, possibly a few steps behind) never exactly matches the policy being trained (Yao et al., 2025,
    "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training").
    """
    return torch.exp(log_ratio).clamp(max=cap)


def kl_terms(logps: torch.Tensor, reference_logps: torch.Tensor) -> torch.Tensor:
    """Return a non-negative estimate of KL(policy || reference) at each token (B, T)."""
    difference = reference_logps - logps
    return torch.exp(difference) - difference - 1
