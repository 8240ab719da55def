"""A user-defined task for training tests: additions, which the tiny policy learns in a few steps."""

import random
import re
from pathlib import Path
from typing import Any

QUESTION = "State the final answer to the following arithmetic problem: {} + {} ="
SYSTEM_PROMPT = "Think step by step, then give the final answer as <answer>your answer here</answer>."


def additions(count: int, seed: int) -> list[tuple[int, int]]:
    """Return random pairs of numbers to add."""
    rng = random.Random(seed)
    return [(rng.randint(1, 99), rng.randint(1, 99)) for _ in range(count)]


def answer_in(text: str) -> str:
    """Return the answer in a completion."""
    found = re.findall(r"<answer>(.*?)</answer>", text)
    return found[-1].strip() if found else ""


def assert_accuracy_rises(env: Any, folder: Path) -> None:
    """Assert that ten steps on `env`, with 100 evaluation rows, raise accuracy by more than its confidence interval."""
    from rg_env.training import EvaluationPlan, GRPOTrainer, default_config, load_policy, train

    policy = load_policy("tiny")
    args = default_config(policy, str(folder / "run"), use_cpu=True, max_steps=10, rollouts_per_step=64)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer)
    results = train(trainer, evaluation=EvaluationPlan(every=0, greedy=False))
    before, after = results["eval_before"], results["eval_after"]
    assert (before["n"], results["steps"]) == (100, 10)
    gain = after["accuracy"] - before["accuracy"]
    print(f"accuracy {before['accuracy']:.2f} to {after['accuracy']:.2f}")
    assert gain > 0.2
    assert gain > 2 * sum(each["errors"]["accuracy"] ** 2 for each in (before, after)) ** 0.5
