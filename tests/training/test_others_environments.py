"""Training on another author's taskset, which uses only tasks and rewards of Verifiers' v1 API."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from v1_api import vf

from rg_env.adapters.v1_training import TasksetEnvironment
from rg_env.training import EvaluationPlan, GRPOTrainer, default_config, load_policy, train

QUESTION = "State the final answer to the following arithmetic problem: {} + {} ="  # known to the tiny policy
SYSTEM_PROMPT = "Think step by step, then give the final answer as <answer>your answer here</answer>."


def answer_in(text: str) -> str:
    found = re.findall(r"<answer>(.*?)</answer>", text)
    return found[-1].strip() if found else ""


class AdditionData(vf.TaskData):
    answer: str = ""


class AdditionTask(vf.Task[AdditionData]):
    @vf.reward
    async def accuracy(self, trace: vf.Trace) -> float:
        return float(answer_in(trace.last_reply) == self.data.answer)

    @vf.reward(weight=0.1)
    async def one_answer(self, task: AdditionData, trace: vf.Trace) -> float:
        assert task.answer
        return float(trace.last_reply.count("<answer>") == 1)

    @vf.metric
    async def tokens(self, trace: vf.Trace) -> float:
        (branch,) = trace.branches
        assert len(branch.token_ids) == len(branch.logprobs) == trace.num_output_tokens
        return float(sum(branch.sampled_mask))


class AdditionConfig(vf.TasksetConfig):
    count: int = 512
    seed: int = 1


class AdditionTaskset(vf.Taskset[AdditionTask, AdditionConfig]):
    def load(self) -> Iterator[AdditionTask]:
        rng = random.Random(self.config.seed)
        for _ in range(self.config.count):
            a, b = rng.randint(1, 99), rng.randint(1, 99)
            yield AdditionTask(
                AdditionData(prompt=QUESTION.format(a, b), system_prompt=SYSTEM_PROMPT, answer=str(a + b)),
                self.config.task,
            )


@pytest.mark.slow
def test_a_run_learns_to_add(tmp_path: Path) -> None:
    """With the tasks' own prompt and reward, accuracy rises by more than its confidence interval."""
    env = TasksetEnvironment(AdditionTaskset(AdditionConfig()), AdditionTaskset(AdditionConfig(count=100, seed=2)))
    policy = load_policy("tiny")
    args = default_config(policy, str(tmp_path / "run"), use_cpu=True, max_steps=10, rollouts_per_step=64)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer)
    results = train(trainer, evaluation=EvaluationPlan(every=0, greedy=False))
    before, after = results["eval_before"], results["eval_after"]
    assert (before["n"], results["steps"]) == (100, 10)
    gain = after["accuracy"] - before["accuracy"]
    print(f"accuracy {before['accuracy']:.2f} to {after['accuracy']:.2f}")
    assert gain > 0.2
    assert gain > 2 * sum(each["errors"]["accuracy"] ** 2 for each in (before, after)) ** 0.5
