"""Training on other authors' environments for Verifiers' v0 API, with only their rows, parsers and rubrics."""

from pathlib import Path
from typing import Any

import pytest
from additions_task import QUESTION, SYSTEM_PROMPT, additions, answer_in, assert_accuracy_rises
from datasets import Dataset
from v0_api import vf

from rg_env.errors import RewardError


def rows(count: int, seed: int) -> Dataset:
    return Dataset.from_list(
        [{"question": QUESTION.format(a, b), "answer": str(a + b)} for a, b in additions(count, seed)]
    )


async def accuracy(completion: Any, answer: str, parser: vf.Parser) -> float:
    return float(parser.parse_answer(completion) == answer)


def one_answer(completion: Any) -> float:
    return float(completion[-1]["content"].count("<answer>") == 1)


@pytest.mark.slow
def test_a_run_learns_to_add(tmp_path: Path) -> None:
    """With the environment's own prompt and rubric, accuracy rises by more than its confidence interval."""
    parser = vf.Parser(extract_fn=answer_in)
    rubric = vf.Rubric(funcs=[accuracy, one_answer], weights=[1.0, 0.1], parser=parser)
    env = vf.SingleTurnEnv(
        dataset=rows(512, 1), eval_dataset=rows(100, 2), system_prompt=SYSTEM_PROMPT, parser=parser, rubric=rubric
    )
    assert_accuracy_rises(env, tmp_path)


def test_rewards_use_the_weights_of_the_rubric(make_trainer: Any) -> None:
    dataset = rows(16, 1)

    def short(completion: Any) -> float:
        return 1.0 / (1 + len(completion[-1]["content"]))

    env = vf.SingleTurnEnv(dataset=dataset, eval_dataset=dataset, rubric=vf.Rubric(funcs=[short], weights=[2.0]))
    trainer = make_trainer(env=env, max_steps=1)
    trainer.train()
    (line,) = trainer.state.log_history
    lengths = [len(rollout.text) for rollout in trainer.rollouts.rollouts]
    assert line["rewards/short/mean"] == pytest.approx(sum(1 / (1 + length) for length in lengths) / 16)
    assert line["reward"] == pytest.approx(2 * line["rewards/short/mean"])


def test_a_rubric_may_require_a_semaphore(make_trainer: Any) -> None:
    """Rubrics of Verifiers 0.1.8 and 0.1.9 require one."""

    class Older(vf.Rubric):  # type: ignore[misc]
        async def score_group(self, states: Any, score_sem: Any) -> None:
            async with score_sem:
                await super().score_group(states)

    def short(completion: Any) -> float:
        return 1.0 / (1 + len(completion[-1]["content"]))

    env = vf.SingleTurnEnv(dataset=rows(16, 1))
    env.rubric = Older(funcs=[short])  # Verifiers 0.3.1 would wrap it in a group that passes no semaphore.
    trainer = make_trainer(env=env, max_steps=1)
    trainer.train()
    assert 0 < trainer.state.log_history[0]["rewards/short/mean"] < 1


def test_a_reward_that_fails_ends_the_run(make_trainer: Any) -> None:
    """The error names the reward; Verifiers would score it as 0."""

    def failing(completion: Any) -> float:
        raise KeyError("no")

    env = vf.SingleTurnEnv(dataset=rows(16, 1), rubric=vf.Rubric(funcs=[failing]))
    with pytest.raises(RewardError, match="reward 'failing' raised KeyError"):
        make_trainer(env=env, max_steps=1).train()
