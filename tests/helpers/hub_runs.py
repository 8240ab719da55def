"""Small runs of the tiny policy for publishing tests."""

from pathlib import Path
from typing import Any

CONFIG = Path(__file__).parents[2] / "configs/train/tiny.yaml"
SMALL = [
    "tasks={leg_counting: {weight: 2}, chain_sum: {}}",
    "splits.num_train_examples=60",
    "splits.num_eval_examples=12",
    "evaluation.tasks={simple_equations: {num_examples: 6}, long_sums: {task: chain_sum, num_examples: 5}}",
    "evaluation.every=2",
    "training.max_steps=4",
    "training.rollouts_per_step=16",
    "training.per_device_train_batch_size=8",
    "training.max_tokens=60",
    "output.save_every=2",
    "logging.examples_every=0",
]


def train(*overrides: str, config: Path = CONFIG, resume: str | None = None) -> dict[str, Any]:
    """Train in this process."""
    from rg_env.training import load_train_config, run_config

    return run_config(load_train_config(config, [*(SMALL if config == CONFIG else []), *overrides]), resume=resume)
