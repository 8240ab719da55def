"""Training on another author's taskset, which uses only tasks and rewards of Verifiers' v1 API."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import verifiers.v1 as vf
from additions_task import QUESTION, SYSTEM_PROMPT, additions, answer_in, assert_accuracy_rises

from rg_env.adapters.v1_training import TasksetEnvironment


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
        for a, b in additions(self.config.count, self.config.seed):
            yield AdditionTask(
                AdditionData(prompt=QUESTION.format(a, b), system_prompt=SYSTEM_PROMPT, answer=str(a + b)),
                self.config.task,
            )


@pytest.mark.slow
def test_a_run_learns_to_add(tmp_path: Path) -> None:
    """With the tasks' own prompt and reward, accuracy rises by more than its confidence interval."""
    evaluation = AdditionTaskset(AdditionConfig(count=100, seed=2))
    assert_accuracy_rises(TasksetEnvironment(AdditionTaskset(AdditionConfig()), evaluation), tmp_path)
