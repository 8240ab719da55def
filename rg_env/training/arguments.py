"""`GRPOConfig`: verifiers' training arguments, with defaults that work and errors that tell what to change."""

import math
from dataclasses import dataclass

from verifiers.trainers import GRPOConfig as VerifiersGRPOConfig

from rg_env.errors import InputError
from rg_env.training.groups import check_groups
from rg_env.training.world import world_size


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

    Two defaults differ: `lr_scheduler_type` is "constant" (the original's None is rejected by transformers 4.56 and
    later), and `max_data_workers` is 1 (eight processes take longer to start than a few thousand prompts to check).

    Raises:
        InputError: the batch cannot be divided into groups, or a number, one that a launcher sets among them, cannot be
            what it is.
    """

    lr_scheduler_type: str | None = "constant"
    max_data_workers: int = 1
    weight_sync_transport: str = "auto"
    weight_sync_timeout: float = 120.0
    weight_sync_check_every: int = 50
    vllm_importance_sampling_correction: bool = False
    vllm_importance_sampling_cap: float = 2.0

    def __post_init__(self) -> None:
        for name in ("max_prompt_length", "max_tokens", "max_seq_len"):
            if (length := getattr(self, name)) is not None and length < 1:
                raise InputError(f"{name}={length}: must be at least 1 token")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InputError(f"learning_rate={self.learning_rate}: must be above 0 and finite")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InputError(f"temperature={self.temperature}: must be above 0 and finite")
        check_groups(
            per_device=self.per_device_train_batch_size,
            processes=world_size(),
            accumulation=self.steps_per_generation or self.gradient_accumulation_steps,
            num_generations=self.num_generations,
            batch=self.generation_batch_size,
        )
        super().__post_init__()
