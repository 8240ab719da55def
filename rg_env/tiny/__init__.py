"""The tiny policy: a model small enough to learn by GRPO in about a minute on two CPU cores, shipped with the package.

    from transformers import AutoModelForCausalLM, AutoTokenizer
    from rg_env.tiny import POLICY_DIR

    model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, torch_dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(POLICY_DIR)

It is Llama-shaped, has fewer than a million parameters, and knows three arithmetic tasks of Reasoning Gym (`TASKS`) in
two ways: worked step by step, which is nearly always right, and as a blurted guess near the answer, which is mostly
wrong. It mostly blurts. What reinforcement learning has to find is that working pays; that is why a reward curve rises
within a dozen steps, and why a trainer that computes its gradient wrongly shows it just as fast.

It is a demonstration and a test instrument, not a language model: it has seen no text but these tasks, under the one
system prompt `SYSTEM_PROMPT`. It was trained on questions of the training split only. `README.md` in this folder has
the recipe and the measurements; `python tools/tiny_build.py --out DIR` makes it again from nothing.

Importing this module costs nothing: no torch, no Reasoning Gym.
"""

from pathlib import Path
from typing import Any

POLICY_DIR: Path = Path(__file__).parent / "policy"
"""Folder of the shipped policy: weights, tokenizer, chat template, generation config."""

SYSTEM_PROMPT = "Think step by step, then give the final answer as <answer>your answer here</answer>."
"""The system message that the policy was trained under; it knows no other."""

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
"""Reasoning Gym task → the config that the policy was trained on."""

MAX_NEW_TOKENS = 90
"""Enough for every worked solution of `TASKS`."""

# configs/models/tiny.yaml has the same once more, for people to read and extend: configs are not part of the package,
# and what is in the package must work without them. A test keeps the two equal.
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
"""The keys of a config's `training` that are its own: chosen by trial for a visible result in a minute."""
