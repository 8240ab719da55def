"""The terms of the loss, and the trainer's options that change it."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, TrainerCallback

from rg_env import Environment
from rg_env.errors import InputError
from rg_env.tiny import POLICY_DIR
from rg_env.training import GRPOConfig, GRPOTrainer
from rg_env.training.algorithms.loss import equal_rewards, group_advantages, importance_ratios, policy_terms
from rg_env.training.algorithms.objective import Objective
from rg_env.training.algorithms.policy import ReferencePolicy
from rg_env.training.rollouts import Rollouts


@pytest.fixture
def micro_batch(make_batch: Any) -> dict[str, Any]:
    """Six rows of different lengths; rows 0, 2 and 5 have no advantage, and row 5 is the longest."""
    questions = ["a dog?", "two dogs?", "a bee and a cow?", "9 ants?", "no legs?", "a snake?"]
    answers = ["4", "8 legs <answer>8</answer>", "6 + 4 = 10", "<answer>54</answer>", "x", "0 " * 20]
    inputs = make_batch(questions, answers)
    tokens = inputs["loss_mask"].sum()
    return {
        **inputs,
        "advantages": torch.tensor([0.0, 1.0, 0.0, -0.5, 0.7, 0.0]),
        "old_logps": None,
        "sampler_logps": torch.zeros(inputs["loss_mask"].shape),
        "batch_tokens": torch.full((6,), 1.5 * tokens),
    }


def by_the_formula(
    model: Any,
    rows: dict[str, Any],
    loss_type: str,
    max_length: int,
    low: float = 0.2,
    high: float = 0.2,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the clipped GRPO loss over every row, token by token (Shao et al., 2024, arXiv:2402.03300, eq. 3; the
    averages of DAPO, arXiv:2503.14476, and Dr. GRPO, arXiv:2503.20783)."""
    per_row, lengths = [], []
    for row, (ids, mask) in enumerate(zip(rows["input_ids"], rows["loss_mask"], strict=True)):
        chosen = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
        old = chosen.detach() if rows["old_logps"] is None else rows["old_logps"][row]
        ratio, advantage = (chosen - old)[mask].exp(), rows["advantages"][row]
        terms = -torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
        per_row.append((terms if weights is None else terms * weights[row][mask]).sum())
        lengths.append(int(mask.sum()))
    total = torch.stack(per_row)
    if loss_type == "grpo":
        return (total / torch.tensor(lengths)).mean()
    divisor = {
        "bnpo": sum(lengths),
        "dapo": rows["batch_tokens"][0],
        "dr_grpo": len(lengths) * max_length,
    }
    return total.sum() / divisor[loss_type]


def gradient(model: Any, loss: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_matches(trainer: Any, loss: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare a loss and its gradient, which must not be zero, with the formula's."""
    expected_gradient = gradient(trainer.model, expected)
    assert expected_gradient.norm() > 0
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
    assert (gradient(trainer.model, loss) - expected_gradient).norm() < 1e-4 * expected_gradient.norm()


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_loss_and_gradient_match_the_formula(
    make_trainer: Any, micro_batch: dict[str, Any], loss_type: str, old: bool
) -> None:
    """The loss covers all rows, including those left out of the passes, with and without earlier log-probabilities."""
    trainer = make_trainer(loss_type=loss_type, epsilon=0.1, epsilon_high=0.3)
    model = trainer.model
    if old:
        with torch.no_grad():
            before = trainer.objective.logps(model, micro_batch["input_ids"], micro_batch["loss_mask"])
        moved = 0.4 * torch.randn(before.shape, generator=torch.Generator().manual_seed(0))
        micro_batch["old_logps"] = before + moved  # some ratios are clipped
    expected = by_the_formula(model, micro_batch, loss_type, trainer.args.max_seq_len, 0.1, 0.3)
    assert_matches(trainer, trainer.objective(micro_batch), expected)


def moved_logps(trainer: Any, micro_batch: dict[str, Any], by: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Set `old_logps` to log-probabilities that differ from the policy's by up to `by`, and return the policy's
    log-probabilities, with gradients, as plain logits give them, and the log-ratios."""
    ids = micro_batch["input_ids"]
    logps = trainer.model(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    moved = by * (2 * torch.rand(logps.shape, generator=torch.Generator().manual_seed(0)) - 1)
    micro_batch["old_logps"] = logps.detach() - moved
    return logps, logps - micro_batch["old_logps"]


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_sequence_level_ratios_match_the_formula(
    make_trainer: Any, micro_batch: dict[str, Any], loss_type: Any
) -> None:
    """GSPO (Zheng et al., 2025, arXiv:2507.18071, equations 5 and 7): the mean over rollouts of `min(s A, clip(s) A)`,
    where s is the geometric mean of the token ratios. With "dapo", rollouts are weighted by their number of tokens."""
    trainer = make_trainer(loss_type=loss_type, importance_sampling_level="sequence", epsilon=0.03, epsilon_high=0.05)
    _, log_ratio = moved_logps(trainer, micro_batch, 0.8)
    mask, advantages = micro_batch["loss_mask"], micro_batch["advantages"]
    lengths = mask.sum(1)
    # Of the three rollouts with an advantage, the first is clipped.
    change = (log_ratio.detach() * mask).sum(1) / lengths - torch.tensor([0.0, 0.2, 0.0, 0.2, 0.02, 0.0])
    micro_batch["old_logps"] += change[:, None]
    s = (((log_ratio - change[:, None]) * mask).sum(1) / lengths).exp()
    terms = -torch.min(s * advantages, s.clamp(0.97, 1.05) * advantages)
    expected = terms.mean() if loss_type == "grpo" else (terms * lengths).sum() / micro_batch["batch_tokens"][0]
    assert_matches(trainer, trainer.objective(micro_batch), expected)


def test_cispo_matches_the_formula(make_trainer: Any, micro_batch: dict[str, Any]) -> None:
    """MiniMax-M1 (2025, arXiv:2506.13585, equations 4 and 5): `sg(min(r, 1 + high)) A log p`, averaged over all tokens
    of the step. Clipped tokens keep their gradient."""
    trainer = make_trainer(loss_type="cispo", epsilon_high=0.25)
    logps, log_ratio = moved_logps(trainer, micro_batch, 0.8)
    mask, ratio = micro_batch["loss_mask"], log_ratio.detach().exp()
    assert (ratio[mask] > 1.25).any()
    terms = ratio.clamp(max=1.25) * micro_batch["advantages"][:, None] * logps
    expected = -(terms * mask).sum() / micro_batch["batch_tokens"][0]
    assert_matches(trainer, trainer.objective(micro_batch), expected)
    used = mask & (micro_batch["advantages"] != 0)[:, None]
    clipped = trainer.metrics.take()["clip_ratio/high_mean"]
    assert clipped == pytest.approx(((ratio > 1.25) & used).sum().item() / used.sum().item())


def test_cispo_has_no_two_sided_clipping(make_args: Any) -> None:
    with pytest.raises(InputError, match=r"delta.*has no effect with loss_type=cispo"):
        make_args(loss_type="cispo", delta=2.0)


def test_the_kl_term_is_relative_to_the_initial_model(make_trainer: Any, micro_batch: dict[str, Any]) -> None:
    """The KL term is beta times the mean of `exp(d) - d - 1` over the tokens of all rows, where `d` is the log-ratio of
    the initial model and the policy."""
    trainer = make_trainer(beta=0.3)
    initial = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
    with torch.no_grad():
        trainer.model.lm_head.weight.mul_(1.3)
    mask, ids = micro_batch["loss_mask"], micro_batch["input_ids"]

    def logps(model: Any) -> torch.Tensor:
        chosen: torch.Tensor = model(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
        return chosen

    difference = (logps(initial) - logps(trainer.model)).detach()
    kl = ((difference.exp() - difference - 1) * mask).sum() / mask.sum()
    assert kl > 0.01
    tokens = micro_batch["batch_tokens"][0]
    expected = by_the_formula(trainer.model, micro_batch, "dapo", 0) + 0.3 * kl * mask.sum() / tokens
    trainer.objective.add_reference_logps([micro_batch])
    torch.testing.assert_close(trainer.objective(micro_batch), expected.detach(), atol=1e-5, rtol=1e-4)
    assert trainer.metrics.take()["kl"] == pytest.approx(kl.item(), rel=1e-3)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_the_entropy_bonus_matches_the_formula(make_trainer: Any, micro_batch: dict[str, Any], loss_type: str) -> None:
    """The loss is `L - c H` (Schulman et al., 2017, arXiv:1707.06347, equation 9), where H is the entropy at the
    sampling temperature, averaged like the loss over all rows, including those without an advantage."""
    trainer = make_trainer(loss_type=loss_type, entropy_coef=0.5, temperature=1.3)
    plain = make_trainer(loss_type=loss_type, temperature=1.3)
    mask = micro_batch["loss_mask"]

    def expected() -> torch.Tensor:
        logps = (trainer.model(micro_batch["input_ids"]).logits[:, :-1] / 1.3).log_softmax(-1)
        entropy = (-(logps.exp() * logps).sum(-1) * mask).sum(1)
        mean = (entropy / mask.sum(1)).mean() if loss_type == "grpo" else entropy.sum() / micro_batch["batch_tokens"][0]
        loss: torch.Tensor = plain.objective(micro_batch) - 0.5 * mean
        return loss

    assert_matches(trainer, trainer.objective(micro_batch), expected())


def test_rows_without_advantage_are_not_forwarded(make_trainer: Any, micro_batch: dict[str, Any]) -> None:
    """Three of six rows pass through the model, cut to their own width. If no row has an advantage, one row passes with
    a gradient of zero, so that ranks stay in step. With a KL term, all rows pass."""

    def forwarded(trainer: Any, **changes: Any) -> list[tuple[int, ...]]:
        shapes: list[tuple[int, ...]] = []
        hook = trainer.model.register_forward_pre_hook(
            lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        )
        trainer.model.zero_grad()
        trainer.objective({**micro_batch, **changes}).backward()
        hook.remove()
        return shapes

    trainer = make_trainer()
    (shape,) = forwarded(trainer)
    assert shape[0] == 3
    assert shape[1] < micro_batch["input_ids"].shape[1]
    (shape,) = forwarded(trainer, advantages=torch.zeros(6))
    assert shape[0] == 1
    assert all(parameter.grad.abs().max() == 0 for parameter in trainer.model.parameters())
    assert forwarded(make_trainer(beta=0.1), reference_logps=None)[0][0] == 6


def test_an_update_is_the_gradient_of_the_whole_step(make_trainer: Any, model: Any) -> None:
    """With plain gradient descent, the weights move by the learning rate times the mean gradient of the micro-batches,
    which contain each rollout of the step once."""
    trainer = make_trainer(
        max_steps=1, optim="sgd", max_grad_norm=0.0, learning_rate=1e-3, lr_scheduler_type="constant"
    )
    before = {name: value.clone() for name, value in model.named_parameters()}
    parts: list[dict[str, Any]] = []
    split = trainer._split

    def kept(batch: Any) -> list[dict[str, Any]]:
        parts.extend(split(batch))
        return parts

    trainer._split = kept
    trainer.train()
    sampled = [[*ids, *rollout.token_ids] for ids, rollout in
               zip(trainer.rollouts.prompt_ids, trainer.rollouts.rollouts, strict=True)]  # fmt: skip
    trained = [
        row[: int(mask.nonzero().max()) + 2].tolist()
        for part in parts
        for row, mask in zip(part["input_ids"], part["loss_mask"], strict=True)
    ]
    assert len(parts) == 2
    assert sorted(trained) == sorted(sampled)
    after = {name: value.detach().clone() for name, value in model.named_parameters()}
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(before[name])
    loss = torch.stack([by_the_formula(model, part, "dapo", 0) for part in parts]).mean()
    model.zero_grad()
    loss.backward()
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    expected = torch.cat([-1e-3 * value.grad.flatten() for value in model.parameters()])
    assert expected.norm() > 0
    assert (moved - expected).norm() < 0.01 * expected.norm()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss.item(), abs=1e-4)
    assert trainer.state.log_history[0]["grad_norm"] == pytest.approx(float(expected.norm()) / 1e-3, rel=0.01)


def test_the_first_update_does_not_depend_on_the_micro_batch(tokenizer: Any, make_env: Any, make_args: Any) -> None:
    """With the default loss and schedule, micro-batches of any size give the same loss, gradient and weights, and the
    first update changes the weights."""

    def first(micro_batch: int) -> tuple[float, torch.Tensor, torch.Tensor]:
        given = make_args(max_steps=1, per_device_train_batch_size=micro_batch, max_tokens=60).model_dump()
        left = {"loss_type", "warmup_steps", "max_grad_norm"}  # to their defaults
        args = GRPOConfig(**{name: value for name, value in given.items() if name not in left})
        model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
        trainer, gradients = GRPOTrainer(model, make_env(), args, tokenizer), list[torch.Tensor]()

        class Watch(TrainerCallback):
            def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
                gradients.append(
                    torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
                )

        before = torch.cat([each.detach().flatten() for each in model.parameters()])
        trainer.add_callback(Watch())
        trainer.train()
        after = torch.cat([each.detach().flatten() for each in model.parameters()])
        lengths = [len(rollout.token_ids) for rollout in trainer.rollouts.rollouts]
        assert len(set(lengths)) > 2
        return trainer.state.log_history[0]["loss"], gradients[0], after - before

    loss, gradient, moved = first(16)
    assert gradient.norm() > 0
    assert moved.norm() > 0
    for micro_batch in (1, 4):
        other_loss, other_gradient, other_moved = first(micro_batch)
        assert other_loss == pytest.approx(loss, abs=1e-6)
        assert (other_gradient - gradient).norm() < 1e-4 * gradient.norm()
        assert (other_moved - moved).norm() < 0.02 * moved.norm()  # AdamW turns tiny gradients into whole steps


def test_groups_stay_together_in_micro_batches(make_trainer: Any) -> None:
    """Micro-batches of 8 rollouts contain two groups of 4 each, so each prompt is processed in one micro-batch."""
    trainer = make_trainer(max_steps=1)
    parts: list[dict[str, Any]] = []
    trainer._loss = lambda part: parts.append(part) or trainer.objective(part)
    trainer.train()
    prompts = [
        {tuple(ids[: int(mask.int().argmax()) + 1].tolist())
         for ids, mask in zip(part["input_ids"], part["loss_mask"], strict=True)}
        for part in parts
    ]  # fmt: skip
    assert [len(each) for each in prompts] == [2, 2]
    assert not prompts[0] & prompts[1]


# --- masking of truncated completions


def test_rollouts_can_be_left_out_of_the_loss() -> None:
    """The loss mask excludes the tokens of rollouts in `left_out`."""
    env = Environment([{"question": "1 + 1 =", "answer": "2"}])
    logprobs = ([-1.0, -3.0], [-5.0, -5.0], [-5.0, -5.0], [-1.0, -3.0])
    made = [env.rollout(env.train_rows[0], "2", token_ids=[5, 5], logprobs=each) for each in logprobs]
    rollouts = Rollouts(made, env.score(made), [[1]] * 4)
    assert rollouts.tensors(0, left_out={1, 2})["loss_mask"].sum(dim=1).tolist() == [2, 0, 0, 2]
    assert rollouts.tensors(0)["loss_mask"].sum() == 8
    assert rollouts.entropy() == pytest.approx(3.5)


@pytest.mark.parametrize("masks", [False, True])
def test_truncated_rollouts_are_masked_only_with_the_option(make_trainer: Any, masks: bool) -> None:
    """Every answer in this run is truncated, so with `mask_truncated_completions` no token is left."""
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


def test_off_policy_rows_have_no_policy_term(make_trainer: Any, micro_batch: dict[str, Any]) -> None:
    """A row with a negative advantage and a much lower probability than when it was sampled does not affect the
    gradient."""
    trainer = make_trainer(off_policy_mask_threshold=0.5)
    with torch.no_grad():
        now = trainer.objective.logps(trainer.model, micro_batch["input_ids"], micro_batch["loss_mask"])
    away = torch.tensor([2.0, 2.0, 0.0, 2.0, 0.0, 0.0])[:, None] * micro_batch["loss_mask"]
    rows = {**micro_batch, "sampler_logps": now + away}
    left_out = {**rows, "advantages": torch.tensor([0.0, 1.0, 0.0, 0.0, 0.7, 0.0])}
    ours, plain = gradient(trainer.model, trainer.objective(rows)), make_trainer()
    expected = gradient(plain.model, plain.objective(left_out))
    assert (ours - expected).norm() < 1e-5 * expected.norm()
    assert (gradient(plain.model, plain.objective(rows)) - expected).norm() > 0.01 * expected.norm()
    trainer.metrics.take()
    trainer.objective(rows)
    assert trainer.metrics.take()["off_policy_masked"] == pytest.approx(1 / 3)  # relative to the rows with an advantage


@pytest.mark.parametrize("truncation", [{"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.5}, {"repetition_penalty": 1.3}])
def test_truncated_sampling_masks_no_rollout_of_the_current_policy(
    make_trainer: Any, truncation: dict[str, Any]
) -> None:
    """The sampler's log-probabilities are those of a truncated distribution, so they are not compared with the
    policy's, which has not moved since sampling."""
    trainer = make_trainer(max_steps=1, off_policy_mask_threshold=0.01, learning_rate=1e-6, **truncation)
    trainer.train()
    (log,) = trainer.state.log_history
    assert log["grad_norm"] > 0
    assert log["off_policy_masked"] == 0
    assert "sampling/logp_difference" not in log


# --- importance sampling correction


def test_policy_terms_are_multiplied_by_importance_weights(make_trainer: Any, micro_batch: dict[str, Any]) -> None:
    """The weights apply token by token and are capped."""
    trainer = make_trainer()
    parts = trainer.args, trainer.accelerator, trainer.model, trainer.metrics
    with torch.no_grad():
        now = trainer.objective.logps(trainer.model, micro_batch["input_ids"], micro_batch["loss_mask"])
    log_ratio = torch.randn(now.shape, generator=torch.Generator().manual_seed(0))
    rows = {**micro_batch, "sampler_logps": now - log_ratio}
    expected = by_the_formula(trainer.model, rows, "dapo", 0, weights=log_ratio.exp().clamp(max=1.5))
    assert_matches(trainer, Objective(*parts, sampler_cap=1.5)(rows), expected)


# --- rows without an advantage


def test_a_micro_batch_without_a_useful_row_has_no_metrics(make_trainer: Any, micro_batch: dict[str, Any]) -> None:
    """Averages exclude the stand-in row, which keeps every process at the same number of passes."""
    trainer = make_trainer()

    def figures() -> dict[str, float]:
        return {name: value for name, value in trainer.metrics.take().items() if not name.startswith("time/")}

    trainer.objective(micro_batch)
    useless = {"advantages": torch.zeros(6), "sampler_logps": micro_batch["sampler_logps"] - 9}
    trainer.objective({**micro_batch, **useless})
    together = figures()
    trainer.objective(micro_batch)
    assert together == figures()


# --- KL to the policy at the start


@pytest.mark.parametrize("kind", ["trained adapters", "trained biases", "all weights"])
def test_the_reference_is_the_policy_at_the_start(make_trainer: Any, model: Any, kind: str) -> None:
    """The KL is 0 at first, also for adapters that had been trained before, and then equals that to a copy of the
    policy at the start, also if biases of the base model are trained."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=4, target_modules="all-linear", task_type="CAUSAL_LM", bias="all" if "bias" in kind else "none"
    )
    if "bias" in kind:
        for layer in model.model.layers:
            layer.mlp.up_proj.bias = torch.nn.Parameter(torch.zeros(model.config.intermediate_size))
    given = {"model": model, "peft_config": config} if "bias" in kind else {"model": model}
    if "adapters" in kind:
        given["model"] = get_peft_model(model, config)
        for name, parameter in given["model"].named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    trainer = make_trainer(
        **given, beta=0.1, max_steps=3, learning_rate=1e-2, lr_scheduler_type="constant",
        num_iterations=2 if "bias" in kind else 3,  # the reference is computed again for a second batch
        per_device_train_batch_size=16,
    )  # fmt: skip
    start, expected = copy.deepcopy(trainer.model), list[float]()

    def noting(part: dict[str, Any]) -> Any:
        ids, mask = part["input_ids"], part["loss_mask"]
        with torch.no_grad():
            ours, theirs = (trainer.objective.logps(each, ids, mask) for each in (trainer.model, start))
        terms = (theirs - ours).exp() - (theirs - ours) - 1
        expected.append(((terms * mask).sum() / mask.sum()).item())
        return trainer.objective(part)

    trainer._loss = noting
    trainer.train()
    logged = [line["kl"] for line in trainer.state.log_history]
    assert logged[0] == 0
    assert logged[2] > 0.001
    assert logged == pytest.approx(expected, rel=1e-3, abs=1e-7)


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


def test_the_reference_is_the_policy_before_the_last_update(make_trainer: Any) -> None:
    """Each update has its own reference, also with several updates per batch. The first one has no reference and a KL
    of 0."""
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
    """The previous weights can be swapped in and out, also after resuming from a checkpoint."""
    previous = ReferencePolicy(model, previous=True)
    before = model.lm_head.weight.detach().clone()
    previous.keep()
    assert not previous.known
    previous.advance()
    previous.write(tmp_path, 0)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    resumed = ReferencePolicy(model, previous=True)
    resumed.read(tmp_path, 0)
    for each in (previous, resumed):
        with each.in_place():
            assert torch.equal(model.lm_head.weight, before)
        assert torch.equal(model.lm_head.weight, 2 * before)


def test_only_adapters_are_kept(make_trainer: Any) -> None:
    """With LoRA, only the adapters of the previous policy are copied."""
    from peft import LoraConfig

    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = make_trainer(beta=0.1, kl_reference="previous", peft_config=config, max_steps=2, learning_rate=1e-2)
    trainer.train()
    kept = trainer.reference._kept
    assert kept
    assert all("lora_" in name for name in kept)
    assert trainer.state.log_history[1]["kl"] > 0


# --- advantages and the terms of the loss as functions


def test_clipping() -> None:
    """A ratio beyond its bound does not lower the loss further; a bound that would lower the loss is not applied."""
    old = torch.zeros(2, 3)
    logps = torch.log(torch.tensor([[0.5, 1.0, 2.0], [0.5, 1.0, 2.0]]))
    ratio = importance_ratios(logps, old, torch.ones(2, 3), "token")
    values, clipped = policy_terms(ratio, torch.tensor([1.0, -1.0]), low=0.2, high=0.3)
    torch.testing.assert_close(values, torch.tensor([[-0.5, -1.0, -1.3], [0.8, 1.0, 2.0]]))
    assert clipped.tolist() == [[0, 0, 1], [-1, 0, 0]]
    bounded, _ = policy_terms(ratio, torch.tensor([1.0, -1.0]), low=0.2, high=0.3, delta=1.5)
    assert bounded[1, 2].item() == pytest.approx(1.5)


REWARDS = st.integers(2, 5).flatmap(
    lambda size: st.lists(st.lists(st.floats(-2, 2, width=16), min_size=size, max_size=size), min_size=1, max_size=6)
)


@given(groups=REWARDS)
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_match_the_formula(groups: list[list[float]], scale: Any) -> None:
    rewards = np.array(groups, dtype=np.float64)
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    spread: Any = {"group": rewards.std(axis=1, ddof=1, keepdims=True), "batch": rewards.std(ddof=1), "none": 1 - 1e-4}
    expected = np.where(np.ptp(rewards, axis=1, keepdims=True) < 1e-6, 0.0, centred / (spread[scale] + 1e-4))
    ours = group_advantages(torch.tensor(rewards, dtype=torch.float32).flatten(), rewards.shape[1], scale)
    np.testing.assert_allclose(ours.numpy(), expected.flatten(), atol=2e-3)


def test_an_offset_does_not_hide_the_differences_between_rewards() -> None:
    """In float32, 1e9 and 1e9 + 1 are the same number. Rounding errors of sums still count as equal."""
    rewards = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    plain = group_advantages(rewards, 4, "group")
    assert plain.abs().min() > 0.8
    torch.testing.assert_close(group_advantages(rewards + 1e9, 4, "group"), plain)
    assert plain.dtype == torch.float32
    far = 1e20 * torch.tensor([[0.1 + 0.2, 0.3]], dtype=torch.float64)
    assert equal_rewards(far).all()


def test_rounding_errors_do_not_count_as_variance() -> None:
    """Sums of rewards that are mathematically equal count as equal."""
    groups = torch.tensor([[0.1 + 0.2, 0.3], [0.3, 0.4]])
    assert equal_rewards(groups).tolist() == [True, False]
