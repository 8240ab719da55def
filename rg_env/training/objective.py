"""The part of the trainer that makes a loss of a micro-batch: log-probabilities, reference, terms, average.

The terms are functions of log-probabilities (`loss`); here they are fed, and what they were is logged.
"""

from typing import Any

import torch

from rg_env.training import metrics
from rg_env.training.logprobs import Arrangement, can_share_prompts, completion_logps
from rg_env.training.loss import Clipping, Normaliser, kl_terms, off_policy_rows, policy_terms, sampler_weights
from rg_env.training.phases import Phases
from rg_env.training.previous_policy import PreviousPolicy
from rg_env.training.resumable import ResumableTrainer


class ObjectiveTrainer(ResumableTrainer):
    """Computes the loss of a micro-batch: what `RolloutBatch.tensors` gives, with `advantages` `(B,)`,
    `old_per_token_logps` and `reference_logps` (`(B, L - 1)` or None), and `batch_tokens` `(B,)`, the same for all
    rows: tokens that carry loss, of a micro-batch on average. Subclasses set `phases`."""

    phases: Phases
    previous_policy: PreviousPolicy | None = None

    def _get_per_token_logps(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int | None = None,
        batch_size: int | None = None,
    ) -> torch.Tensor:
        """Log-probabilities `(B, L - 1) float32` of `input_ids (B, L)[:, 1:]`, 0 at positions that carry no loss.

        `attention_mask (B, L)` is what verifiers calls so: 1 where a token carries loss. It is no attention mask, and
        the model does not get it: rows are padded on the right, where causal attention never looks.
        """
        arrangement: Arrangement = "shared" if can_share_prompts(self.model) else "by_length"
        return completion_logps(
            model,
            input_ids,
            attention_mask[:, 1:].bool(),
            temperature=self.temperature,
            max_rows=batch_size,
            arrangement=arrangement if self.accelerator.num_processes == 1 else "in_order",
        )

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """The loss (see `loss`), over the rows that have a gradient, corrected for the sampler if asked.

        With `beta = 0` a row's loss is its advantage times something, so that rows of advantage 0 (whole groups, where
        all rollouts got the same reward) change neither loss nor gradient; only the normaliser counts them. One row
        always stays, so that every rank runs forward and backward the same number of times whatever its data: no rank
        can wait for another, and an optimizer step without any signal stays what it was.
        """
        args = self.args
        mask, advantages = inputs["attention_mask"], inputs["advantages"]
        tokens = inputs["batch_tokens"][0] if self.loss_type == "dapo" else mask[:, 1:].sum()
        normaliser = Normaliser(self.loss_type, len(mask), tokens, self.max_seq_len or mask.shape[1])
        if self.beta == 0.0:
            useful = ((advantages != 0) & mask[:, 1:].any(dim=1)).nonzero().squeeze(1)
            rows = useful if len(useful) else useful.new_zeros(1)
            inputs = {name: None if value is None else value[rows] for name, value in inputs.items()}
            mask, advantages = inputs["attention_mask"], inputs["advantages"]
        ids, keep = inputs["input_ids"], mask[:, 1:]
        with self.phases("log_probs"):
            logps = self._get_per_token_logps(model, ids, mask)
        old = inputs["old_per_token_logps"]
        old = logps.detach() if old is None else old
        weights = log_ratio = None
        if args.vllm_importance_sampling_correction:
            weights, log_ratio = sampler_weights(old, inputs["sampler_logps"], args.vllm_importance_sampling_cap)
        clipping = Clipping(self.epsilon_low, self.epsilon_high, self.delta)
        values, clipped = policy_terms(logps, old, advantages, clipping, weights)
        lost = None
        if (threshold := args.off_policy_mask_threshold) is not None:
            lost = off_policy_rows(logps, inputs["sampler_logps"], advantages, keep, threshold)
            values = values.masked_fill(lost.unsqueeze(1), 0.0)
        kl = None
        if self.beta != 0.0:
            kl = kl_terms(logps, self._reference_logps(inputs, logps))
            values = values + self.beta * kl
        metrics.log_loss(self, keep, clipped, kl, log_ratio, lost)
        return normaliser.mean(values, keep)

    def _reference_logps(self, inputs: dict[str, Any], logps: torch.Tensor) -> torch.Tensor:
        if self.previous_policy is not None:
            known = inputs["reference_logps"]
            return logps.detach() if known is None else known
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        with torch.no_grad():
            if self.ref_model is not None:
                return self._get_per_token_logps(self.ref_model, ids, mask)
            with self.accelerator.unwrap_model(self.model).disable_adapter():
                return self._get_per_token_logps(self.model, ids, mask)

    def _look_back(self, previous: PreviousPolicy, micro_batches: list[dict[str, Any]]) -> None:
        """Before an update: the previous policy's log-probabilities of what it is made from."""
        for part in micro_batches:
            part["reference_logps"] = None
        if previous.known:
            with self.phases("reference"), torch.no_grad(), previous.in_place():
                for part in micro_batches:
                    part["reference_logps"] = self._get_per_token_logps(
                        self.model, part["input_ids"], part["attention_mask"], batch_size=len(part["input_ids"])
                    )
