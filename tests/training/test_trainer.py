"""`GRPOTrainer`: complete steps, and the metrics that they log."""

import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rg_env.core.environment import Environment
from rg_env.errors import InputError
from rg_env.training import EngineConfig
from rg_env.training.reporting.metrics import StepMetrics, step_costs
from rg_env.training.rollouts import Rollouts
from rg_env.training.strategy import check_engine

# --- complete steps


def test_an_output_folder_that_is_not_writable_is_refused_at_once(make_trainer: Any, tmp_path: Path) -> None:
    """The error is raised when the trainer is created, and no folder is created."""
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write to .*: Not a directory"):
        make_trainer(output_dir=str(tmp_path / "file" / "run"))
    make_trainer(output_dir=str(tmp_path / "run"))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_lora_trains_the_adapter_only(make_trainer: Any, model: Any) -> None:
    """With `peft_config`, the engine samples through the adapter."""
    from peft import LoraConfig

    before = model.model.layers[0].mlp.up_proj.weight.clone()
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = make_trainer(peft_config=config, max_steps=2, learning_rate=1e-2)
    trainer.train()
    assert torch.equal(before, trainer.model.base_model.model.model.layers[0].mlp.up_proj.weight)
    adapter = [p for name, p in trainer.model.named_parameters() if "lora_B" in name]
    assert any(p.abs().max() > 0 for p in adapter)
    assert trainer.engine.model is trainer.model


# --- metrics


def test_completion_metrics_are_what_was_sampled(make_trainer: Any) -> None:
    """Lengths, completed and truncated completions, and token counts match the sampled rollouts."""
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
    for line, batch in zip(trainer.state.log_history, batches, strict=True):
        lengths = [len(rollout.token_ids) for rollout in batch.rollouts]
        ended = [len(r.token_ids) for r in batch.rollouts if r.token_ids[-1] in ends]
        seen += sum(lengths) + sum(map(len, batch.prompt_ids))
        assert line["num_tokens"] == seen
        assert line["completions/mean_length"] == pytest.approx(sum(lengths) / 16)
        assert (line["completions/min_length"], line["completions/max_length"]) == (min(lengths), max(lengths))
        assert line["completions/clipped_ratio"] == pytest.approx(1 - len(ended) / 16)
        assert line["completions/mean_terminated_length"] == pytest.approx(sum(ended) / max(1, len(ended)))
    assert 0 < trainer.state.log_history[0]["completions/clipped_ratio"] < 1


def test_the_embedded_engine_refuses_sharded_weights() -> None:
    """ZeRO-3 and FSDP2 shard the weights, whereas with ZeRO-2 each process has all of them."""
    check_engine(EngineConfig(), "none")
    check_engine(EngineConfig(), "zero2")
    check_engine(EngineConfig(kind="vllm"), "zero3")
    with pytest.raises(InputError, match="cannot generate from weights sharded with ZeRO-3"):
        check_engine(EngineConfig(), "zero3")
    with pytest.raises(InputError, match="cannot generate from weights sharded with FSDP2"):
        check_engine(EngineConfig(), "fsdp2")


def test_answers_of_a_group_are_counted() -> None:
    """Distinct extracted answers are counted; a completion without an answer has none."""
    env = Environment([{"question": "1 + 1 =", "answer": "2"}])
    texts = ["<answer>2</answer>", "<answer> 2 </answer>", "<answer>3</answer>", "2", "none", "<answer>2</answer>"]
    rollouts = [env.rollout(env.train_rows[0], text, token_ids=[1], logprobs=[0.0]) for text in texts]
    metrics = Rollouts(rollouts, env.score(rollouts), [[1]] * 6).metrics(num_generations=3)
    assert (metrics["answers/distinct_mean"], metrics["answers/diverse_ratio"]) == (1.5, 0.5)
    assert metrics["completions/answered_ratio"] == pytest.approx(4 / 6)


def test_metrics_named_max_keep_the_maximum() -> None:
    metrics = StepMetrics()
    metrics.update({"policy_ratio/max": 1.0, "policy_ratio/mean": 1.0})
    metrics.update({"policy_ratio/max": 9.0, "policy_ratio/mean": 2.0})
    assert metrics.take() == {"policy_ratio/max": 9.0, "policy_ratio/mean": 1.5}


# --- the costs of a step


def test_memory_is_the_peak_of_this_process() -> None:
    """The peak is in units of 10^9 bytes and is not below the current use."""
    kept = torch.ones(50_000_000)  # 0.2 GB
    costs = step_costs(0.5, 300)
    assert (costs["step_time"], costs["tokens_per_second"]) == (0.5, 600)
    now = psutil.Process().memory_info().rss / 1e9
    assert len(kept)
    # Earlier tests in this process may have needed more, but no more than the machine has.
    assert now - 0.05 < costs["memory/peak_rss_gb"] < psutil.virtual_memory().total / 1e9
    assert ("memory/peak_gpu_gb" in costs) == torch.cuda.is_available()


def test_the_time_of_a_phase_excludes_nested_phases() -> None:
    """Time between phases is not counted."""
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
