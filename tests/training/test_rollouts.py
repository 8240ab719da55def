"""What was sampled is what is trained on, token for token."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from rg_env.core.environment import Environment
from rg_env.inference.protocol import Completion, PromptEncoder, Sampling
from rg_env.training.rollouts import RolloutSampler

ROWS = [{"question": f"{n} + {n} =", "answer": str(2 * n)} for n in range(4)]


class Scripted:
    """An engine that answers with given completions."""

    def __init__(self, completions: list[Completion], end: int) -> None:
        self.completions, self.end_ids = completions, frozenset({end})
        self.prompts: list[list[int]] = []

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        self.prompts = [list(prompt) for prompt in prompts]
        return self.completions[: len(prompts)]


@pytest.fixture
def sampled(tokenizer: Any) -> Any:
    """Rollouts with an end token, without one, of special tokens within the text, and of nothing but the end."""
    end = tokenizer.eos_token_id
    text = tokenizer("<answer>2</answer>")["input_ids"]
    special = tokenizer.pad_token_id if tokenizer.pad_token_id != end else tokenizer.all_special_ids[0]
    ids = [[*text, end], text, [text[0], special, *text[1:], end], [end]]
    completions = [
        Completion(each, [-0.5 * (n + 1) for n in range(len(each))], "stop" if each[-1] == end else "length")
        for each in ids
    ]
    engine = Scripted(completions, end)
    env = Environment(ROWS)
    found = RolloutSampler(env, engine, PromptEncoder(tokenizer)).sample(env.train_rows, Sampling())
    return found, completions, engine, env


def test_tensors_are_prompt_and_sampled_tokens(sampled: Any, tokenizer: Any) -> None:
    """Special tokens and the end token included, each with the log-probability it was sampled at, and no others."""
    found, completions, engine, env = sampled
    tensors = found.tokens().tensors(slice(None), pad_token=0, device="cpu")
    for row, (prompt, completion) in enumerate(zip(engine.prompts, completions, strict=True)):
        assert prompt == tokenizer.apply_chat_template(
            env.train_rows[row]["prompt"], add_generation_prompt=True, return_dict=False
        )
        length = len(prompt) + len(completion.token_ids)
        assert tensors["input_ids"][row, :length].tolist() == prompt + completion.token_ids
        mask = tensors["loss_mask"][row]
        assert mask.nonzero().squeeze(1).tolist() == list(range(len(prompt) - 1, length - 1))
        assert tensors["input_ids"][row, 1:][mask].tolist() == completion.token_ids
        assert tensors["sampler_logps"][row][mask].tolist() == completion.logprobs
        assert not tensors["sampler_logps"][row][~mask].any()


def test_what_the_engine_samples_is_what_the_loss_sees(make_trainer: Any) -> None:
    """With the engine's log-probabilities those of the trainer, token by token."""
    trainer = make_trainer(max_steps=1, max_tokens=12, temperature=1.2)
    given: list[Completion] = []
    generate = trainer.engine.generate

    def kept(*args: Any) -> list[Completion]:
        given.extend(generate(*args))
        return given

    trainer.engine.generate = kept
    batch = trainer._next_batch(0)
    tensors = batch.tensors(slice(None), pad_token=trainer._pad_token(), device="cpu")
    mask = tensors["loss_mask"]
    assert [ids[row].tolist() for ids, row in zip(tensors["input_ids"][:, 1:], mask, strict=True)] == [
        completion.token_ids for completion in given
    ]
    assert any(completion.token_ids[-1] in trainer.engine.end_ids for completion in given)
    with torch.no_grad():
        logps = trainer.objective.logps(trainer.model, tensors["input_ids"], mask)
    torch.testing.assert_close(logps[mask], tensors["sampler_logps"][mask], atol=1e-4, rtol=1e-4)


def test_batches_ahead_come_in_order_and_errors_reach_who_asks(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    env = Environment(ROWS)
    engine = Scripted([Completion([7, end], [-1.0, -1.0], "stop")] * 4, end)
    sampler = RolloutSampler(env, engine, PromptEncoder(tokenizer))
    sampler.submit(0, env.train_rows[:1], Sampling())
    sampler.submit(1, env.train_rows[1:3], Sampling())
    assert sampler.submitted(1)
    assert not sampler.submitted(2)
    assert len(sampler.get(1)) == 2
    assert len(sampler.get(0)) == 1
    engine.generate = lambda *_: 1 / 0  # type: ignore[method-assign, assignment]
    sampler.submit(2, env.train_rows, Sampling())
    with pytest.raises(ZeroDivisionError):
        sampler.wait_idle()
    with pytest.raises(ZeroDivisionError):
        sampler.get(2)


# --- prompts


def test_rollouts_are_scored_one_batch_at_a_time(tokenizer: Any) -> None:
    """A batch ahead and groups that are replaced meanwhile: rewards of users need not be thread-safe."""
    end, inside, most = tokenizer.eos_token_id, [0], [0]

    def slow(rollout: Any) -> float:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        return 1.0

    env = Environment(ROWS, rewards=[slow])
    sampler = RolloutSampler(env, Scripted([Completion([end], [-1.0], "stop")] * 4, end), PromptEncoder(tokenizer))
    sampler.submit(0, env.train_rows, Sampling())
    for _ in range(3):
        sampler.sample(env.train_rows, Sampling())
    assert len(sampler.get(0)) == 4
    assert most == [1]


def test_only_the_last_end_token_is_taken_off(tokenizer: Any) -> None:
    ids = tokenizer("a b")["input_ids"]
    assert PromptEncoder(tokenizer).decode([[*ids, ids[-1]], [*ids], []], frozenset({ids[-1]})) == [
        tokenizer.decode(ids), tokenizer.decode(ids[:-1]), ""
    ]  # fmt: skip
