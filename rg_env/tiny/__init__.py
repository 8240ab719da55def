"""The tiny policy, a bundled model that is small enough to learn with GRPO in about a minute on two CPU cores.

    from transformers import AutoModelForCausalLM, AutoTokenizer
    from rg_env.tiny import POLICY_DIR

    model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, torch_dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(POLICY_DIR)

The policy has the Llama architecture and fewer than a million parameters, and can solve three arithmetic tasks from
Reasoning Gym (`TASKS`). The policy either works out an answer step by step, and is right about nine times out of ten,
or guesses a number near the answer, and is usually wrong. Before training, the policy mostly guesses. Training has to
discover that working step by step earns more reward. The reward curve rises within a dozen steps, so a wrong gradient
in a trainer shows up just as quickly.

The policy is meant for demonstrations and tests. It is not a general language model, because it was trained only on
questions from the training split of these tasks, with a single system prompt (`core.prompts.SYSTEM_PROMPT`).
`README.md` in this folder contains the recipe and the measurements, and `python tools/tiny_build.py --out DIR` rebuilds
the policy from scratch.

This module imports neither torch nor Reasoning Gym.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rg_env.core.tasks.mixture import Mixture

TINY = "tiny"
"""Name of the policy in configs and commands."""

POLICY_DIR: Path = Path(__file__).parent / "policy"
"""Folder with the bundled policy: weights, tokenizer, chat template and generation config."""

TASKS: dict[str, dict[str, Any]] = {
    "leg_counting": {"min_animals": 1, "max_animals": 3, "min_instances": 1, "max_instances": 6},
    "chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2},
    "simple_equations": {
        "min_terms": 2,
        "max_terms": 2,
        "min_value": 1,
        "max_value": 9,
        "operators_weights": [0.5, 0.5, 0.0],
    },
}
"""Config for each Reasoning Gym task that the policy was trained on."""

MAX_NEW_TOKENS = 90
"""Token limit for completions, enough for every step-by-step solution to the tasks in `TASKS`."""

# configs/models/tiny.yaml repeats these values for people to read and extend, because configs are not part of the
# package. A test checks that both copies are equal.
TRAINING: dict[str, Any] = {
    "max_steps": 25,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "adam_beta2": 0.95,
    "max_grad_norm": 1.0,
    "rollouts_per_step": 128,
    "per_device_train_batch_size": 64,
    "max_prompt_length": 160,
    "max_tokens": MAX_NEW_TOKENS,
    "gradient_checkpointing": False,
    "bf16": False,
}
"""Values for the `training` section of a config, tuned for a visible improvement in about a minute."""


def tiny_mixture(gym: Any) -> "Mixture":
    """Parse `gym`, with the options in `TASKS` as defaults."""
    from rg_env.core.tasks.mixture import Mixture, TaskSpec

    sized = (
        TaskSpec(name=task.name, weight=task.weight, config={**TASKS.get(task.name, {}), **task.config})
        for task in Mixture.parse(gym).tasks
    )
    return Mixture(tasks=tuple(sized))
