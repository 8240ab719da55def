"""A run that learns on an environment that is not ours: rows, parser and rubric of Verifiers' v0 API alone."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
import verifiers as vf
from datasets import Dataset

from rg_env.training import EvaluationPlan, GRPOTrainer, default_config, load_policy, train


def additions(count: int, seed: int) -> Dataset:
    rng = random.Random(seed)
    pairs = [(rng.randint(1, 99), rng.randint(1, 99)) for _ in range(count)]
    question = "State the final answer to the following arithmetic problem: {} + {} ="
    return Dataset.from_list([{"question": question.format(a, b), "answer": str(a + b)} for a, b in pairs])


def stated(text: str) -> str:
    found = re.findall(r"<answer>(.*?)</answer>", text)
    return found[-1].strip() if found else ""


async def accuracy(completion: Any, answer: str, parser: vf.Parser) -> float:
    return float(parser.parse_answer(completion) == answer)


def one_answer(completion: Any) -> float:
    return float(completion[-1]["content"].count("<answer>") == 1)


@pytest.mark.slow
def test_it_learns_to_add(tmp_path: Path) -> None:
    """The accuracy of the environment's own rubric rises by more than its interval, under its own prompt."""
    parser = vf.Parser(extract_fn=stated)
    env = vf.SingleTurnEnv(
        dataset=additions(512, 1),
        eval_dataset=additions(100, 2),
        system_prompt="Think step by step, then give the final answer as <answer>your answer here</answer>.",
        parser=parser,
        rubric=vf.Rubric(funcs=[accuracy, one_answer], weights=[1.0, 0.1], parser=parser),
    )
    policy = load_policy("tiny")
    args = default_config(policy, str(tmp_path / "run"), use_cpu=True, max_steps=10, rollouts_per_step=64)
    results = train(
        GRPOTrainer(policy.model, env, args, policy.tokenizer), evaluation=EvaluationPlan(every=0, greedy=False)
    )
    before, after = results["eval_before"], results["eval_after"]
    assert (before["n"], results["steps"]) == (100, 10)
    gain = after["accuracy"] - before["accuracy"]
    print(f"accuracy {before['accuracy']:.2f} to {after['accuracy']:.2f}")
    assert gain > 0.2
    assert gain > 2 * (before["accuracy_se"] ** 2 + after["accuracy_se"] ** 2) ** 0.5
