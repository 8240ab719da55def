"""The README's two terminals, for real on a CPU: `vf-vllm` in one process, training in others."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from stack_server import REPOSITORY, RunningServer, cpu_environment
from transformers import AutoModelForCausalLM

PYTHON = Path(sys.executable)
EXAMPLE = str(REPOSITORY / "examples" / "train_ultra_minimal.py")


def run(command: list[str], **options: Any) -> tuple[int, str]:
    """Exit code and output of a program in a session of its own, of which nothing may be left."""
    process = subprocess.Popen(
        command, env=cpu_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, **options,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=400)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)
        raise
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    return process.returncode, output


def rewards(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["reward"] for line in lines if "reward" in line]


def options(server: RunningServer, folder: Path, steps: int) -> list[str]:
    return ["--engine", "vllm", "--vllm-port", str(server.port), "--model", "tiny", "--steps", str(steps),
            "--output-dir", str(folder)]  # fmt: skip


def test_two_processes_under_zero3_learn(server: RunningServer, tmp_path: Path) -> None:
    """Rewards rise by what a broken loss or stale weights would not reach, and what is saved can be loaded."""
    folder = tmp_path / "run"
    launch = [
        str(PYTHON.with_name("accelerate")),
        "launch",
        "--config-file",
        str(REPOSITORY / "configs/zero3_cpu.yaml"),
    ]
    code, output = run([*launch, EXAMPLE, *options(server, folder, 6)])
    assert code == 0, output[-3000:]
    curve = rewards(folder)
    assert sum(curve[3:]) / 3 - sum(curve[:3]) / 3 >= 0.2, curve
    saved = AutoModelForCausalLM.from_pretrained(folder / "checkpoint-6", dtype=torch.float32)
    assert all(parameter.numel() for parameter in saved.parameters())


LORA = """
import sys
from peft import LoraConfig
from rg_env.commands import run_command

def main():
    from rg_env import load_environment
    from rg_env.training import GRPOTrainer, default_config, load_policy, train
    policy = load_policy("tiny")
    env = load_environment(policy.mixture("leg_counting"), num_train_examples=64, num_eval_examples=8)
    args = default_config(policy, sys.argv[1], max_steps=3, vllm_server_port=int(sys.argv[2]), learning_rate=1e-3,
                          per_device_train_batch_size=16, num_batches_ahead=1, weight_sync_check_every=1,
                          vllm_importance_sampling_correction=True)
    lora = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, peft_config=lora, engine="vllm")
    train(trainer)

run_command(main)
"""


def test_the_next_trainer_trains_an_adapter_one_step_ahead(server: RunningServer, tmp_path: Path) -> None:
    """On the same server, correcting for the sampler: what it samples from is nearly, not quite, what is trained."""
    (tmp_path / "lora.py").write_text(LORA)
    code, output = run([str(PYTHON), "lora.py", "run", str(server.port)], cwd=tmp_path)
    assert code == 0, output[-3000:]
    lines = list(map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()))
    steps = [line for line in lines if "reward" in line]
    assert len(steps) == 3
    assert all(line["weight_sync/logprob_difference"] < 1e-3 for line in steps)
    first, last = steps[0], steps[-1]
    assert first["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=1e-3)
    assert last["sampling/mismatch_kl"] > first["sampling/mismatch_kl"]  # the sampler is a step behind by now
    assert (tmp_path / "run" / "checkpoint-3" / "adapter_model.safetensors").is_file()


def test_a_server_killed_in_mid_run_ends_it_with_a_checkpoint(tmp_path: Path) -> None:
    """Within a minute, by one clear line, and with nothing lost that was learnt."""
    server = RunningServer(tmp_path / "vllm.log")
    folder = tmp_path / "run"
    try:
        process = subprocess.Popen(
            [str(PYTHON), EXAMPLE, *options(server, folder, 500)], env=cpu_environment(), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stdout
        seen = []
        for line in process.stdout:
            seen.append(line)
            if line.startswith("step   2/"):
                break
        server.end(signal.SIGKILL)
        killed = time.monotonic()
        output, _ = process.communicate(timeout=120)
        assert time.monotonic() - killed < 60
    finally:
        server.end()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    told = [line for line in output.splitlines() if line.startswith("error: ")]
    assert process.returncode == 1, "".join(seen) + output
    assert len(told) == 1
    assert "Traceback" not in output
    assert str(server) in told[0]
    results = json.loads((folder / "train_results.json").read_text())
    assert (folder / f"checkpoint-{results['steps']}" / "model.safetensors").is_file()


def test_a_run_under_zero3_goes_on(server: RunningServer, tmp_path: Path) -> None:
    """Two processes, from their shards; another number of processes, or none, is told before it starts."""
    folder = tmp_path / "run"
    launch = [
        str(PYTHON.with_name("accelerate")),
        "launch",
        "--config-file",
        str(REPOSITORY / "configs/zero3_cpu.yaml"),
    ]
    code, output = run([*launch, EXAMPLE, *options(server, folder, 2)])
    assert code == 0, output[-3000:]
    code, output = run([str(PYTHON), EXAMPLE, *options(server, folder, 3), "--resume", "auto"])
    assert code == 2, output[-3000:]
    assert "it is of 2 processes, and here are 1" in output
    code, output = run([*launch, EXAMPLE, *options(server, folder, 3), "--resume", "auto"])
    assert code == 0, output[-3000:]
    assert "going on after step 2" in output
    assert len(rewards(folder)) == 3
    results = json.loads((folder / "train_results.json").read_text())
    assert results["resumed_from"].endswith("checkpoint-2")
    saved = AutoModelForCausalLM.from_pretrained(folder / "checkpoint-3", dtype=torch.float32)
    assert all(parameter.numel() for parameter in saved.parameters())
