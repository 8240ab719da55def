"""Compute a micro-batch's loss from log-probabilities under the policy and the reference policy. The module `loss`
defines the terms of the loss."""

from typing import Any

import torch
from accelerate import Accelerator

from rg_env.training.algorithms.logprobs import (
    Arrangement,
    can_share_prompts,
    completion_logps,
    head_is_replaceable,
)
from rg_env.training.algorithms.loss import (
    cispo_terms,
    importance_ratios,
    kl_terms,
    mean_loss,
    off_policy_rows,
    policy_terms,
    sampler_weights,
)
from rg_env.training.algorithms.policy import ReferencePolicy, unwrapped
from rg_env.training.collectives import over_processes
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.reporting.metrics import StepMetrics


class Objective:
    """The GRPO loss of a policy, with the settings in `args`.

    A micro-batch contains the tensors from `Rollouts.tensors` as well as `advantages (B,)`, `old_logps` and
    `reference_logps` (each `(B, L - 1)` or None), and `batch_tokens (B,)`. `batch_tokens` is the number of tokens that
    contribute to the loss, averaged over the step's micro-batches, and is the same for all rows.

    Args:
        model: the policy, wrapped for data parallelism or sharding.
        metrics: receives each micro-batch's metrics and the duration of forward passes.
        reference: the reference policy for the KL term. None if there is no such term.
        sampler_cap: upper bound on the importance weights that correct for differences between the sampler and the
            policy, or None for no correction.
    """

    def __init__(
        self,
        args: GRPOConfig,
        accelerator: Accelerator,
        model: Any,
        metrics: StepMetrics,
        *,
        reference: ReferencePolicy | None = None,
        sampler_cap: float | None = None,
    ) -> None:
        self._args, self._accelerator, self._model, self._metrics = args, accelerator, model, metrics
        self._reference, self._sampler_cap = reference, sampler_cap
        head_is_replaceable(model)  # here, because all ranks must find this out together

    def logps(
        self, model: Any, ids: torch.Tensor, mask: torch.Tensor, max_rows: int | None = None, entropy: bool = False
    ) -> torch.Tensor:
        """Return the log-probabilities `(B, L - 1) float32` of `ids (B, L)[:, 1:]` under `model`, with zeros where
        `mask (B, L - 1)` is False. See `completion_logps` for the result with `entropy`.

        Rows are padded on the right. With causal attention, other tokens never attend to padding on the right, so no
        attention mask is needed.
        """
        arrangement: Arrangement = "in_order"
        if self._accelerator.num_processes == 1:
            arrangement = "shared" if can_share_prompts(unwrapped(model)) else "by_length"
        return completion_logps(
            model,
            ids,
            mask,
            temperature=self._args.temperature,
            max_rows=max_rows,
            arrangement=arrangement,
            entropy=entropy,
        )

    @torch.no_grad()
    def old_logps(self, tensors: dict[str, Any]) -> torch.Tensor | None:
        """Return the batch's log-probabilities, computed before the first of several updates on it. Return None if
        there is only one update, because the loss then uses the log-probabilities from its own forward pass."""
        if self._args.num_iterations == 1:
            return None
        rows = self._args.per_device_train_batch_size
        return self.logps(self._model, tensors["input_ids"], tensors["loss_mask"], max_rows=rows)

    def add_reference_logps(self, micro_batches: list[dict[str, Any]]) -> None:
        """Add the reference policy's log-probabilities to an update's micro-batches before the update. Those of the
        initial policy are computed only before the first update on a batch."""
        reference = self._reference
        if reference is not None and not reference.previous and "reference_logps" in micro_batches[0]:
            return
        for part in micro_batches:
            part["reference_logps"] = None
        if reference is None or not reference.known:
            return
        with self._metrics.phase("reference"), torch.no_grad(), reference.in_place():
            for part in micro_batches:
                rows = len(part["input_ids"])
                part["reference_logps"] = self.logps(self._model, part["input_ids"], part["loss_mask"], max_rows=rows)

    def __call__(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the loss of a micro-batch as a scalar tensor, and add metrics that cover all processes' micro-batches
        to `metrics`.

        Without a KL term or an entropy bonus, a row's loss is proportional to its advantage. In that case, rows with an
        advantage of 0 (such as those in groups with equal rewards) contribute nothing to the loss or the gradient.
        These rows are excluded from the forward and backward passes, but not from the loss's divisor. At least one row
        is kept so that every rank runs the same number of passes.
        """
        args = self._args
        mask, advantages = inputs["loss_mask"], inputs["advantages"]
        tokens = inputs["batch_tokens"][0] if args.loss_type in ("dapo", "cispo") else mask.sum()
        rows = len(mask)
        any_useful = True
        if args.beta == 0.0 and args.entropy_coef == 0.0:
            useful = ((advantages != 0) & mask.any(dim=1)).nonzero().squeeze(1)
            any_useful = len(useful) > 0
            kept = useful if any_useful else useful.new_zeros(1)
            inputs = {name: None if value is None else value[kept] for name, value in inputs.items()}
            mask, advantages = inputs["loss_mask"], inputs["advantages"]

        def mean(values: torch.Tensor) -> torch.Tensor:
            return (values * mask).sum() / mask.sum().clamp(min=1)

        with self._metrics.phase("log_probs"):
            logps = self.logps(self._model, inputs["input_ids"], mask, entropy=args.entropy_coef > 0)
        entropy = None
        if args.entropy_coef:
            logps, entropy = logps.unbind()
        old = logps.detach() if inputs["old_logps"] is None else inputs["old_logps"]
        log_ratio = (old - inputs["sampler_logps"]).detach()
        # With truncated or penalized sampling, the sampler's log-probabilities are those of another distribution.
        is_plain = args.sampling.is_plain
        high = args.epsilon_high or args.epsilon
        ratio = importance_ratios(logps, old, mask, args.importance_sampling_level)
        if args.loss_type == "cispo":
            values, clipped = cispo_terms(ratio, logps, advantages, high=high)
        else:
            values, clipped = policy_terms(ratio, advantages, low=args.epsilon, high=high, delta=args.delta)
        found = {"clip_ratio/region_mean": mean(clipped != 0)}
        if is_plain:
            found["sampling/logp_difference"] = mean(log_ratio.abs())
        found |= {f"clip_ratio/low_{each}": mean(clipped < 0) for each in ("mean", "min")}
        found |= {f"clip_ratio/high_{each}": mean(clipped > 0) for each in ("mean", "max")}
        if self._sampler_cap is not None:
            values = values * sampler_weights(log_ratio, self._sampler_cap)
            mismatch = torch.exp(log_ratio)
            found["sampling/importance_sampling_ratio/mean"] = mean(mismatch)
            found["sampling/importance_sampling_ratio/max"] = (mismatch * mask).max()
            found["sampling/mismatch_kl"] = mean(mismatch - log_ratio - 1)
        if args.num_iterations > 1:  # with a single update, the ratio is always 1
            found["policy_ratio/max"] = (torch.exp(logps.detach() - old) * mask).max()
        if (threshold := args.off_policy_mask_threshold) is not None:
            lost = off_policy_rows(logps, inputs["sampler_logps"] if is_plain else old, advantages, mask, threshold)
            found["off_policy_masked"] = lost.float().mean()
            values = values.masked_fill(lost.unsqueeze(1), 0.0)
        if args.beta:
            reference = inputs["reference_logps"]  # None before the first update with the previous policy
            kl = kl_terms(logps, logps.detach() if reference is None else reference)
            found["kl"] = mean(kl.detach())
            values = values + args.beta * kl
        if entropy is not None:
            values = values - args.entropy_coef * entropy
        self._metrics.update(over_processes(self._accelerator, found, counts=any_useful))
        loss = mean_loss(values, mask, args.loss_type, rows=rows, tokens=tokens, max_length=args.max_seq_len)
        return _through_gradient(loss)


def _through_gradient(loss: torch.Tensor) -> torch.Tensor:
    """Return `loss` unchanged. If `loss` is not finite, all gradients also become non-finite so that all ranks detect
    the problem."""
    return loss * (1 + 0 * loss.detach())
