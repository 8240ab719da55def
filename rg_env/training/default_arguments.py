"""Training arguments to begin with, by the policy and the machine."""

from pathlib import Path
from typing import Any

import torch

from rg_env.inference.policy import DEFAULT_GPU_MODEL, TINY, Policy
from rg_env.tiny import TASKS, TRAINING
from rg_env.training.arguments import GRPOConfig
from rg_env.training.config import TrainConfig
from rg_env.training.config_sections import ModelConfig, OutputConfig, TaskConfig, TrainingConfig
from rg_env.training.from_config import training_arguments


def default_config(policy: Policy, output_dir: str | Path, **overrides: Any) -> GRPOConfig:
    """Training arguments to begin with. `overrides` are fields of `GRPOConfig`; None leaves the default.

    The tiny policy's were chosen by trial for a visible result in a minute; the others are the usual ones for
    fine-tuning an instruction-tuned model on one GPU (16 prompts x 8 rollouts a step), to be tuned.
    """
    chosen = {"output_dir": str(output_dir), "run_name": Path(output_dir).name, **default_fields(policy.is_tiny)}
    return GRPOConfig(**chosen | {name: value for name, value in overrides.items() if value is not None})


def default_fields(is_tiny: bool) -> dict[str, Any]:
    """The fields that `default_config` sets, for the tiny policy or for any other model: those of a config that names
    the model and nothing else. The seed is the caller's."""
    cuda = torch.cuda.is_available()
    config = TrainConfig(
        model=ModelConfig(name=TINY if is_tiny else DEFAULT_GPU_MODEL),
        tasks={task: TaskConfig() for task in TASKS},
        training=TrainingConfig(**TRAINING) if is_tiny else TrainingConfig(),
        output=OutputConfig(save_every=0) if is_tiny else OutputConfig(),
    )
    given = {name: value for name, value in training_arguments(config).items() if value is not None and name != "seed"}
    by_machine = {"use_cpu": not cuda, "dataloader_pin_memory": False} if is_tiny else {"bf16": cuda}
    return {"report_to": "none", **given, **by_machine}
