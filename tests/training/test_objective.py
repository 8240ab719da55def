"""The loss: its terms, and the trainer's options, each with its documented effect."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from run_metrics import logged

from rg_env import Environment
from rg_env.training import EvaluationPlan, train
from rg_env.training.algorithms.loss import equal_rewards, group_advantages, policy_terms, sampler_weights
from rg_env.training.algorithms.policy import PreviousPolicy
from rg_env.training.rollouts import Rollouts

QUESTIONS = ["a dog?", "two dogs?", "a bee and a cow?", "9 ants?"]
ANSWERS = ["4", "8 legs <answer>8</answer>", "6 + 4 = 10", "<answer>54</answer>"]
ADVANTAGES = [0.3, 1.0, -0.2, -0.5]


def gradient(trainer: Any, parts: list[dict[str, Any]]) -> torch.Tensor:
    """The loss of an update is the mean over its micro-batches."""
    trainer.model.zero_grad()
    for part in parts:
        (trainer.objective(part) / len(parts)).backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


@pytest.fixture
def rows(make_batch: Any) -> dict[str, Any]:
    inputs = make_batch(QUESTIONS, ANSWERS)
    tokens = inputs["loss_mask"].sum()
    return {
        **inputs,
        "advantages": torch.tensor(ADVANTAGES),
        "old_logps": None,
        "sampler_logps": torch.zeros(inputs["loss_mask"].shape),
        "batch_tokens": torch.full((4,), tokens / 2),
    }


# --- overlong masking


def test_rollouts_without_loss() -> None:
    """They have no effect; entropy is computed over the remaining tokens."""
    env = Environment([{"question": "1 + 1 =", "answer": "2"}])
    logprobs = ([-1.0, -3.0], [-5.0, -5.0], [-5.0, -5.0], [-1.0, -3.0])
    made = [env.rollout(env.train_rows[0], "2", token_ids=[5, 5], logprobs=each) for each in logprobs]
    rollouts = Rollouts(made, env.score(made), [[1]] * 4)
    batch = rollouts.tokens(left_out={1, 2})
    assert batch.loss_masks == [[1, 1], [0, 0], [0, 0], [1, 1]]
    assert (batch.tokens(), rollouts.tokens().tokens()) == (4, 8)
    assert batch.entropy() == pytest.approx(2.0)


@pytest.mark.parametrize("masks", [False, True])
def test_cut_off_rollouts_carry_no_loss(make_trainer: Any, masks: bool) -> None:
    """With room for four tokens every answer is cut off: only with the option nothing is learned from them."""
    trainer = make_trainer(max_steps=1, max_tokens=2, mask_truncated_completions=masks)
    seen = []
    compute = trainer.objective

    def noting(inputs: dict[str, Any]) -> Any:
        seen.append(int(inputs["loss_mask"].sum()))
        return compute(inputs)

    trainer._loss = noting
    trainer.train()
    assert len(seen) == 2
    assert all((tokens == 0) == masks for tokens in seen)
    assert trainer.state.log_history[0]["completions/clipped_ratio"] == 1


# --- off-policy masking


def test_off_policy_rows_have_no_policy_term(make_trainer: Any, rows: dict[str, Any]) -> None:
    """A row of negative advantage, far below what it was sampled at: the gradient is that without it."""
    trainer = make_trainer(off_policy_mask_threshold=0.5)
    with torch.no_grad():
        now = trainer.objective.logps(trainer.model, rows["input_ids"], rows["loss_mask"])
    away = torch.tensor([2.0, 0.0, 2.0, 0.0])[:, None] * rows["loss_mask"]
    rows |= {"sampler_logps": now + away}
    left_out = {**rows, "advantages": torch.tensor([0.3, 1.0, 0.0, -0.5])}
    ours, expected = gradient(trainer, [rows]), gradient(make_trainer(), [left_out])
    assert (ours - expected).norm() < 1e-5 * expected.norm()
    assert (gradient(make_trainer(), [rows]) - expected).norm() > 0.01 * expected.norm()
    trainer.metrics.take()
    trainer.objective(rows)
    assert trainer.metrics.take()["off_policy_masked"] == 0.25


# --- rows without an advantage


def test_a_micro_batch_without_a_useful_row_has_no_metrics(make_trainer: Any, rows: dict[str, Any]) -> None:
    """Its stand-in row, which keeps every process at the same number of passes, is not averaged in."""
    trainer = make_trainer()

    def figures() -> dict[str, float]:
        return {name: value for name, value in trainer.metrics.take().items() if not name.startswith("time/")}

    trainer.objective(rows)
    trainer.objective({**rows, "advantages": torch.zeros(4), "sampler_logps": rows["sampler_logps"] - 9})
    together = figures()
    trainer.objective(rows)
    assert together == figures()


# --- KL to the previous policy


class Updates:
    """Records the weights at the beginning of each update."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.weights, self.references = trainer, list[dict[str, Any]](), list[Any]()

        def noting(inputs: dict[str, Any]) -> Any:
            self.weights.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
            self.references.append((inputs["input_ids"], inputs["loss_mask"], inputs["reference_logps"]))
            return trainer.objective(inputs)

        trainer._loss = noting


def test_the_reference_is_the_policy_of_an_update_ago(make_trainer: Any) -> None:
    """The reference of each update, also with several updates per batch; the first update has neither reference nor
    KL."""
    trainer = make_trainer(
        beta=0.1, kl_reference="previous", max_steps=4, num_iterations=2, learning_rate=1e-3,
        lr_scheduler_type="constant", per_device_train_batch_size=16,
    )  # fmt: skip
    updates = Updates(trainer)
    trainer.train()
    assert updates.references[0][2] is None
    kls = [line["kl"] for line in trainer.state.log_history if "kl" in line]
    assert kls[0] == 0
    assert all(kl > 0 for kl in kls[1:])
    for before, (ids, mask, reference) in zip(updates.weights[:-1], updates.references[1:], strict=True):
        trainer.model.load_state_dict(before)
        with torch.no_grad():
            expected = trainer.objective.logps(trainer.model, ids, mask)
        torch.testing.assert_close(reference, expected, atol=1e-4, rtol=1e-4)


def test_weights_are_swapped_in_and_out(model: Any, tmp_path: Path) -> None:
    """Also after a checkpoint."""
    previous = PreviousPolicy(model)
    before = model.lm_head.weight.detach().clone()
    previous.keep()
    assert not previous.known
    previous.advance()
    previous.write(tmp_path, 0)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    resumed = PreviousPolicy(model)
    resumed.read(tmp_path, 0)
    for each in (previous, resumed):
        with each.in_place():
            assert torch.equal(model.lm_head.weight, before)
        assert torch.equal(model.lm_head.weight, 2 * before)


def test_adapters_alone_are_kept(make_trainer: Any) -> None:
    """Under LoRA the copy has the adapters' size."""
    from peft import LoraConfig

    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = make_trainer(beta=0.1, kl_reference="previous", peft_config=config, max_steps=2, learning_rate=1e-2)
    trainer.train()
    kept = trainer.previous_policy._kept
    assert kept
    assert all("lora_" in name for name in kept)
    assert trainer.state.log_history[1]["kl"] > 0


# --- entropy


def test_entropy_is_that_of_the_policy(make_trainer: Any, tmp_path: Path) -> None:
    """The estimate from sampled tokens agrees with the sum over the vocabulary, at the positions that were sampled."""
    trainer = make_trainer(
        max_steps=1, learning_rate=1e-9, rollouts_per_step=256, per_device_train_batch_size=128, num_generations=8,
        max_tokens=48, temperature=1.3,
    )  # fmt: skip
    exact, tokens = [], []

    def noting(inputs: dict[str, Any]) -> Any:
        with torch.no_grad():
            logps = torch.log_softmax(trainer.model(input_ids=inputs["input_ids"]).logits[:, :-1].float() / 1.3, -1)
        mask = inputs["loss_mask"]
        exact.append(float((-(logps.exp() * logps).sum(-1) * mask).sum()))
        tokens.append(int(mask.sum()))
        return trainer.objective(inputs)

    trainer._loss = noting
    train(trainer, evaluation=EvaluationPlan(every=0, before=False, after=False))
    estimate = logged(tmp_path / "run")[0]["entropy"]
    assert sum(tokens) > 1000
    assert estimate == pytest.approx(sum(exact) / sum(tokens), rel=0.1)


# --- advantages and the terms of the loss as functions; the whole loss is tested in `test_trainer.py`


def test_clipping() -> None:
    """A ratio beyond its bound does not lower the loss further; a bound that would lower the loss is not applied."""
    old = torch.zeros(2, 3)
    logps = torch.log(torch.tensor([[0.5, 1.0, 2.0], [0.5, 1.0, 2.0]]))
    values, clipped = policy_terms(logps, old, torch.tensor([1.0, -1.0]), low=0.2, high=0.3)
    torch.testing.assert_close(values, torch.tensor([[-0.5, -1.0, -1.3], [0.8, 1.0, 2.0]]))
    assert clipped.tolist() == [[0, 0, 1], [-1, 0, 0]]
    bounded, _ = policy_terms(logps, old, torch.tensor([1.0, -1.0]), low=0.2, high=0.3, delta=1.5)
    assert bounded[1, 2].item() == pytest.approx(1.5)


def test_tokens_that_are_likelier_for_the_sampler_count_less() -> None:
    """None counts more than the cap."""
    log_ratio = torch.log(torch.tensor([[0.1 / 0.2, 1.0, 0.9 / 0.1]]))
    torch.testing.assert_close(sampler_weights(log_ratio, cap=2.0), torch.tensor([[0.5, 1.0, 2.0]]))


REWARDS = st.integers(2, 5).flatmap(
    lambda size: st.lists(st.lists(st.floats(-2, 2, width=16), min_size=size, max_size=size), min_size=1, max_size=6)
)


@given(groups=REWARDS)
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_are_those_of_the_formula(groups: list[list[float]], scale: Any) -> None:
    rewards = np.array(groups, dtype=np.float64)
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    spread: Any = {"group": rewards.std(axis=1, ddof=1, keepdims=True), "batch": rewards.std(ddof=1), "none": 1 - 1e-4}
    expected = np.where(np.ptp(rewards, axis=1, keepdims=True) < 1e-6, 0.0, centred / (spread[scale] + 1e-4))
    ours = group_advantages(torch.tensor(rewards, dtype=torch.float32).flatten(), rewards.shape[1], scale)
    np.testing.assert_allclose(ours.numpy(), expected.flatten(), atol=2e-3)


def test_the_three_scales_differ() -> None:
    """A group with one right answer of four, one with two, and one without any."""
    rewards = torch.tensor([0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0], dtype=torch.float32)
    by_scale = {scale: group_advantages(rewards, 4, scale) for scale in ("group", "batch", "none")}  # type: ignore[arg-type]
    best = {scale: (values[3].item(), values[5].item()) for scale, values in by_scale.items()}
    assert best["group"] == pytest.approx((0.75 / 0.5, 0.5 / 0.57735), abs=1e-3)
    assert best["none"] == pytest.approx((0.75, 0.5))
    assert best["batch"][0] / best["batch"][1] == pytest.approx(1.5)
    assert best["batch"][0] == pytest.approx(0.75 / rewards.std().item(), abs=1e-3)
    assert all(values[8:].abs().max() == 0 for values in by_scale.values())


def test_rounding_errors_are_no_variance() -> None:
    """Covers sums of rewards that are mathematically equal."""
    groups = torch.tensor([[0.1 + 0.2, 0.3], [0.3, 0.4]])
    assert equal_rewards(groups).tolist() == [True, False]
