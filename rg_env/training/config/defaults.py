"""Training arguments to begin with, by the policy."""

from pathlib import Path
from typing import Any

from rg_env.inference.models import Policy
from rg_env.tiny import TRAINING
from rg_env.training.config.grpo import GRPOConfig


def default_config(policy: Policy, output_dir: str | Path, **overrides: Any) -> GRPOConfig:
    """Training arguments to begin with. `overrides` are fields of `GRPOConfig`; None leaves the default.

    The tiny policy's were chosen by trial for a visible result in a minute; the others are the usual ones for
    fine-tuning an instruction-tuned model on one GPU (16 prompts x 8 rollouts a step), to be tuned.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    return GRPOConfig(**{**default_fields(policy.is_tiny), "output_dir": str(output_dir), **given})


def default_fields(is_tiny: bool) -> dict[str, Any]:
    """The fields that `default_config` sets, for the tiny policy or for any other model."""
    return {**TRAINING, "save_steps": 0} if is_tiny else {"save_steps": 100}
