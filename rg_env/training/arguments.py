"""`GRPOConfig`: verifiers' training arguments, with defaults that work and errors that tell what to change."""

import math
from dataclasses import dataclass

from verifiers.trainers import GRPOConfig as VerifiersGRPOConfig

from rg_env.core.world import world_size
from rg_env.errors import InputError
from rg_env.training.groups import check_groups

_CHOICES = {
    "loss_type": ("bnpo", "grpo", "dr_grpo", "dapo"),
    "scale_rewards": ("group", "batch", "none"),
    "kl_reference": ("initial", "previous"),
}


@dataclass
class GRPOConfig(VerifiersGRPOConfig):
    """`vf.GRPOConfig` 0.1.6, field for field, and what the vLLM engine needs besides.

    weight_sync_transport: "nccl" between different GPUs, by the host "shm" (shared memory) or "gloo" (a socket), or
        "auto".
    weight_sync_timeout: seconds; deadline of each wait for the server's workers.
    weight_sync_check_every: syncs between two comparisons of the server's log-probabilities with the trainer's; the
        first is always compared.
    vllm_importance_sampling_correction: weigh each token by min(p_trainer / p_sampler, cap); for `num_batches_ahead`
        above 0, and for numerical differences between vLLM and the trainer.
    vllm_importance_sampling_cap: that cap.
    loss_type: "bnpo", "grpo", "dr_grpo", and "dapo" besides (see `loss`).
    scale_rewards: by what advantages are divided: "group", "batch" or "none" (see `advantages`); True is "group".
    mask_truncated_completions: rollouts that the token limit cut off carry no loss, though their group is compared with
        them ("overlong filtering", Yu et al., 2025, DAPO, arXiv:2503.14476, section 3.4).
    rollouts_as_steps: services plot over rollouts instead of updates.
    kl_reference: of the KL term that `beta` weighs: the "initial" model, or the "previous" policy, of an update ago.
        The original's `sync_ref_model`, on by default, mixes the policy into the former now and then (configs have it
        off), and has no effect on the latter.
    off_policy_mask_threshold: rows with negative advantage whose mean log(p_sampler / p) is above it have no policy
        term (see `loss.off_policy_rows`); for several updates a batch, and batches ahead.
    filter_groups: groups whose answers are all right or all wrong are replaced by those of other prompts ("dynamic
        sampling", DAPO, section 3.2; see `group_filter`).
    filter_groups_rounds: how often other prompts are asked for a batch, at most.

    Three defaults differ: `lr_scheduler_type` is "constant" (the original's None is rejected by transformers 4.56 and
    later), `max_data_workers` is None (a process takes longer to start than a few thousand prompts to check), and
    `mask_truncated_completions` is off (the original's looks at `max_seq_len` alone, so that it rarely does anything).

    Raises:
        InputError: the batch cannot be divided into groups, or a number, one that a launcher sets among them, cannot be
            what it is.
    """

    lr_scheduler_type: str | None = "constant"
    max_data_workers: int | None = None
    weight_sync_transport: str = "auto"
    weight_sync_timeout: float = 120.0
    weight_sync_check_every: int = 50
    vllm_importance_sampling_correction: bool = False
    vllm_importance_sampling_cap: float = 2.0
    scale_rewards: str | bool = "group"
    mask_truncated_completions: bool = False
    rollouts_as_steps: bool = False
    kl_reference: str = "initial"
    off_policy_mask_threshold: float | None = None
    filter_groups: bool = False
    filter_groups_rounds: int = 3

    def __post_init__(self) -> None:
        for name in ("max_prompt_length", "max_tokens", "max_seq_len"):
            if (length := getattr(self, name)) is not None and length < 1:
                raise InputError(f"{name}={length}: must be at least 1 token")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InputError(f"learning_rate={self.learning_rate}: must be above 0 and finite")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InputError(f"temperature={self.temperature}: must be above 0 and finite")
        if isinstance(self.scale_rewards, bool):
            self.scale_rewards = "group" if self.scale_rewards else "none"
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(choices)}")
        if self.kl_reference == "previous" and self.beta == 0.0:
            raise InputError("kl_reference='previous' without a KL term: give it a weight with beta")
        if (threshold := self.off_policy_mask_threshold) is not None and not 0 < threshold < math.inf:
            raise InputError(f"off_policy_mask_threshold={threshold}: must be above 0 and finite")
        if self.filter_groups_rounds < 1:
            raise InputError(f"filter_groups_rounds={self.filter_groups_rounds}: must be at least 1")
        check_groups(
            per_device=self.per_device_train_batch_size,
            processes=world_size(),
            accumulation=self.steps_per_generation or self.gradient_accumulation_steps,
            num_generations=self.num_generations,
            batch=self.generation_batch_size,
        )
        super().__post_init__()
