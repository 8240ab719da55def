"""`GRPOTrainer`: what passes through the model, which weights are used for sampling, and complete steps."""

import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from rg_env.core.environment import Environment
from rg_env.errors import InputError
from rg_env.tiny import POLICY_DIR
from rg_env.training import EngineConfig, GRPOTrainer
from rg_env.training.reporting.metrics import StepMetrics, batch_metrics, step_costs
from rg_env.training.rollouts import Rollouts
from rg_env.training.strategy import check_engine

# --- rows without advantage


@pytest.fixture
def micro_batch(make_batch: Any) -> dict[str, Any]:
    """Six rows of different lengths; rows 0, 2 and 5 carry no advantage, and row 5 is the longest."""
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
    model: Any, rows: dict[str, Any], loss_type: str, max_length: int, low: float = 0.2, high: float = 0.2
) -> torch.Tensor:
    """The clipped GRPO loss over every row, token by token (Shao et al., 2024, arXiv:2402.03300, eq. 3; the averages of
    DAPO, arXiv:2503.14476, and Dr. GRPO, arXiv:2503.20783)."""
    per_row, lengths = [], []
    for row, (ids, mask) in enumerate(zip(rows["input_ids"], rows["loss_mask"], strict=True)):
        chosen = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
        old = chosen.detach() if rows["old_logps"] is None else rows["old_logps"][row]
        ratio, advantage = (chosen - old)[mask].exp(), rows["advantages"][row]
        per_row.append(-torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage).sum())
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


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_loss_and_gradient_are_those_of_the_formula(
    make_trainer: Any, micro_batch: dict[str, Any], loss_type: str, old: bool
) -> None:
    """Over all rows, those that are left out of the passes too, with and without log-probs from before."""
    trainer = make_trainer(loss_type=loss_type, epsilon=0.1, epsilon_high=0.3)
    model = trainer.model
    if old:
        with torch.no_grad():
            before = trainer.objective.logps(model, micro_batch["input_ids"], micro_batch["loss_mask"])
        moved = 0.4 * torch.randn(before.shape, generator=torch.Generator().manual_seed(0))
        micro_batch["old_logps"] = before + moved  # some ratios are beyond the clip
    expected = by_the_formula(model, micro_batch, loss_type, trainer.args.max_seq_len, 0.1, 0.3)
    wanted = gradient(model, expected)
    assert wanted.norm() > 0
    loss = trainer.objective(micro_batch)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-4)
    assert (gradient(model, loss) - wanted).norm() < 1e-4 * wanted.norm()


def test_an_output_folder_that_is_not_writable_is_refused_at_once(make_trainer: Any, tmp_path: Path) -> None:
    """Rather than when training begins; nothing is created."""
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*file/run: Not a directory"):
        make_trainer(output_dir=str(tmp_path / "file" / "run"))
    make_trainer(output_dir=str(tmp_path / "run"))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_kl_term_is_that_of_the_initial_model(make_trainer: Any, micro_batch: dict[str, Any]) -> None:
    """beta times the mean of `exp(d) - d - 1`, `d` the log-ratio of the initial model and the policy: of all rows."""
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
    expected = by_the_formula(trainer.model, micro_batch, "bnpo", 0) + 0.3 * kl
    torch.testing.assert_close(trainer.objective(micro_batch), expected.detach(), atol=1e-5, rtol=1e-4)
    assert trainer.metrics.take()["kl"] == pytest.approx(kl.item(), rel=1e-3)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_an_entropy_bonus_is_that_of_the_formula(
    make_trainer: Any, micro_batch: dict[str, Any], loss_type: str
) -> None:
    """`L - c H` (Schulman et al., 2017, arXiv:1707.06347, equation 9), H the entropy at the sampling temperature,
    averaged as the loss is: over all rows, also those without an advantage."""
    trainer = make_trainer(loss_type=loss_type, entropy_coef=0.5, temperature=1.3)
    plain = make_trainer(loss_type=loss_type, temperature=1.3)
    mask = micro_batch["loss_mask"]

    def expected() -> torch.Tensor:
        logps = (trainer.model(micro_batch["input_ids"]).logits[:, :-1] / 1.3).log_softmax(-1)
        entropy = (-(logps.exp() * logps).sum(-1) * mask).sum(1)
        mean = (entropy / mask.sum(1)).mean() if loss_type == "grpo" else entropy.sum() / micro_batch["batch_tokens"][0]
        loss: torch.Tensor = plain.objective(micro_batch) - 0.5 * mean
        return loss

    wanted = gradient(trainer.model, expected())
    loss = trainer.objective(micro_batch)
    torch.testing.assert_close(loss, expected(), atol=1e-5, rtol=1e-4)
    assert (gradient(trainer.model, loss) - wanted).norm() < 1e-4 * wanted.norm()


def test_rows_without_advantage_are_not_forwarded(make_trainer: Any, micro_batch: dict[str, Any]) -> None:
    """Three of six rows go through the model, cut to their own width; without any advantage one, so that ranks stay in
    step, with a gradient of zero; all with a KL term."""

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


# --- whole steps


def test_an_update_is_the_gradient_of_the_whole_step(make_trainer: Any, model: Any) -> None:
    """With plain gradient descent, the weights move by the learning rate times the mean gradient of the micro-batches,
    which are all rollouts of the step, each once."""
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
    loss = torch.stack([by_the_formula(model, part, "bnpo", 0) for part in parts]).mean()
    model.zero_grad()
    loss.backward()
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    expected = torch.cat([-1e-3 * value.grad.flatten() for value in model.parameters()])
    assert expected.norm() > 0
    assert (moved - expected).norm() < 0.01 * expected.norm()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss.item(), abs=1e-4)
    assert trainer.state.log_history[0]["grad_norm"] == pytest.approx(float(expected.norm()) / 1e-3, rel=0.01)


def history(trainer: Any) -> list[tuple[float, float]]:
    trainer.train()
    return [(log["reward"], log["loss"], log["grad_norm"]) for log in trainer.state.log_history if "reward" in log]


def test_the_same_seed_gives_the_same_run(make_trainer: Any) -> None:
    """Rewards, losses and gradients, step by step, whatever random numbers were drawn before; another seed others."""
    runs = []
    for seed, before in ((3, 1), (3, 2), (4, 1)):
        torch.manual_seed(before)
        model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
        runs.append(history(make_trainer(model=model, max_steps=2, seed=seed)))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_lora_trains_the_adapter_only(make_trainer: Any, model: Any) -> None:
    """With `peft_config` the engine samples through the adapter."""
    from peft import LoraConfig

    before = model.model.layers[0].mlp.up_proj.weight.clone()
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = make_trainer(peft_config=config, max_steps=2, learning_rate=1e-2)
    trainer.train()
    assert torch.equal(before, trainer.model.base_model.model.model.layers[0].mlp.up_proj.weight)
    adapter = [p for name, p in trainer.model.named_parameters() if "lora_B" in name]
    assert any(p.abs().max() > 0 for p in adapter)
    assert trainer.engine.model is trainer.model


@pytest.mark.parametrize("env", [3, "leg_counting", None])
def test_what_is_not_an_environment_is_refused(make_args: Any, model: Any, tokenizer: Any, env: Any) -> None:
    with pytest.raises(InputError, match="env must be an rg_env ReasoningGym or Environment"):
        GRPOTrainer(model, env, make_args(), tokenizer)


# --- what is logged


def test_completion_metrics_are_what_was_sampled(make_trainer: Any) -> None:
    """Lengths, ended and cut off completions, tokens seen."""
    trainer = make_trainer(max_steps=2, max_tokens=6)
    batches = []
    sample = trainer.sampler.sample

    def kept(*args: Any) -> Any:
        batches.append(sample(*args))
        return batches[-1]

    trainer.sampler.sample = kept
    trainer.train()
    seen = 0
    ends = trainer.engine.end_ids
    for line, found in zip(trainer.state.log_history, batches, strict=True):
        lengths = [len(rollout.token_ids) for rollout in found.rollouts]
        ended = [len(r.token_ids) for r in found.rollouts if r.token_ids[-1] in ends]
        seen += sum(lengths) + sum(map(len, found.prompt_ids))
        assert line["num_tokens"] == seen
        assert line["completions/mean_length"] == pytest.approx(sum(lengths) / 16)
        assert (line["completions/min_length"], line["completions/max_length"]) == (min(lengths), max(lengths))
        assert line["completions/clipped_ratio"] == pytest.approx(1 - len(ended) / 16)
        assert line["completions/mean_terminated_length"] == pytest.approx(sum(ended) / max(1, len(ended)))
    assert 0 < trainer.state.log_history[0]["completions/clipped_ratio"] < 1


def test_the_embedded_engine_refuses_sharded_weights() -> None:
    """Only ZeRO-3 shards the model; in the other stages, each process has all of it."""
    check_engine(EngineConfig(), "none")
    check_engine(EngineConfig(), "zero2")
    check_engine(EngineConfig(kind="vllm"), "zero3")
    with pytest.raises(InputError, match="cannot generate from weights sharded with ZeRO-3"):
        check_engine(EngineConfig(), "zero3")
    with pytest.raises(InputError, match="cannot generate from weights sharded with FSDP2"):
        check_engine(EngineConfig(), "fsdp2")


def test_answers_of_a_group_are_counted() -> None:
    """Different ones, as they were extracted; a completion without an answer has none."""
    env = Environment([{"question": "1 + 1 =", "answer": "2"}])
    texts = ["<answer>2</answer>", "<answer> 2 </answer>", "<answer>3</answer>", "2", "none", "<answer>2</answer>"]
    rollouts = [env.rollout(env.train_rows[0], text, token_ids=[1], logprobs=[0.0]) for text in texts]
    found = batch_metrics(Rollouts(rollouts, env.score(rollouts), [[1]] * 6), num_generations=3)
    assert (found["answers/distinct_mean"], found["answers/diverse_ratio"]) == (1.5, 0.5)
    assert found["completions/answered_ratio"] == pytest.approx(4 / 6)


def test_the_largest_of_several_is_logged_as_such() -> None:
    metrics = StepMetrics()
    metrics.update({"policy_ratio/max": 1.0, "policy_ratio/mean": 1.0})
    metrics.update({"policy_ratio/max": 9.0, "policy_ratio/mean": 2.0})
    assert metrics.take() == {"policy_ratio/max": 9.0, "policy_ratio/mean": 1.5}


# --- what a step costs, as it is logged


def test_memory_is_the_peak_of_this_process() -> None:
    """In units of 10^9 bytes, and not less than it is now."""
    kept = torch.ones(50_000_000)  # 0.2 GB
    costs = step_costs(0.5, 300)
    assert (costs["step_time"], costs["tokens_per_second"]) == (0.5, 600)
    now = psutil.Process().memory_info().rss / 1e9
    assert len(kept)
    assert now - 0.05 < costs["memory/peak_rss_gb"] < max(3 * now, now + 2)
    assert ("memory/peak_gpu_gb" in costs) == torch.cuda.is_available()


def test_a_phase_counts_without_those_within_it() -> None:
    """And no time between phases."""
    metrics = StepMetrics()
    with metrics.phase("outer"):
        time.sleep(0.02)
        with metrics.phase("inner"):
            time.sleep(0.05)
        time.sleep(0.02)
    time.sleep(0.1)
    with metrics.phase("inner"):
        time.sleep(0.05)
    seconds = metrics.take()
    assert seconds["time/outer"] == pytest.approx(0.04, abs=0.03)
    assert seconds["time/inner"] == pytest.approx(0.1, abs=0.04)
    assert metrics.take() == {}
