"""The README's setup with two terminals, on a CPU: vLLM in one process, training in others."""

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
from forked_python import PYTHON
from process_scripts import accelerate
from stack_server import REPOSITORY, RunningServer, cpu_environment
from transformers import AutoModelForCausalLM

from rg_env import ReasoningGym
from rg_env.errors import ServerError
from rg_env.publish.export import ExportRequest, export
from rg_env.training import EngineConfig, GRPOTrainer, default_config, load_policy

PROGRAMS = Path(sys.executable).parent
pytestmark = pytest.mark.usefixtures("forks")
# Like examples/train_ultra_minimal.py, but with fewer evaluation problems, because two cores both serve and train.
SCRIPT = """
import json, sys
from rg_env.commands import run_command

def main():
    from peft import LoraConfig
    from rg_env import ReasoningGym
    from rg_env.training import EngineConfig, EvaluationPlan, GRPOTrainer, default_config, load_policy, train
    options = json.loads(sys.argv[1])
    lora = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM") if options.pop("lora", False) else None
    resume = options.pop("resume", None)
    policy = load_policy("tiny")
    engine = EngineConfig(kind="vllm", **options.pop("engine"))
    env = ReasoningGym(policy.mixture("leg_counting"), num_train_examples=512, num_eval_examples=8)
    args = default_config(policy, "run", **options)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, peft_config=lora, engine=engine)
    train(trainer, evaluation=EvaluationPlan(every=1000), resume=resume)

run_command(main)
"""


def start(folder: Path, server: RunningServer, *launcher: str, **options: Any) -> "subprocess.Popen[str]":
    """Start training in `folder`, in a session of its own."""
    (folder / "script.py").write_text(SCRIPT)
    options["engine"] = {"port": server.port, **options.get("engine", {})}
    return subprocess.Popen(
        [*(launcher or PYTHON), "script.py", json.dumps(options)],
        cwd=folder,
        env=cpu_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]", timeout_s: float = 900) -> str:
    """Return the process's output once it ends, and check that no process of its session is left."""
    try:
        output, _ = process.communicate(timeout=timeout_s)
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return output


def steps(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "loss" in line]


@pytest.mark.parametrize(
    ("launcher", "exported_from"),
    [
        ([str(PROGRAMS / "accelerate"), "launch", "--config-file", str(REPOSITORY / "configs" / "zero3_cpu.yaml")],
         "ZeRO-3 shards of 2 processes, step 6"),
        (accelerate("fsdp2_cpu.yaml"), "safetensors, step 6"),
    ],
    ids=["zero3", "fsdp2"],
)  # fmt: skip
def test_two_processes_train_a_sharded_model(
    server: RunningServer, tmp_path: Path, launcher: list[str], exported_from: str
) -> None:
    """Rewards rise more than they would with a broken loss or stale weights. The checkpoint can be loaded, and its
    export has the same weights and passes verification."""
    process = start(tmp_path, server, *launcher, max_steps=6)
    output = finish(process)
    assert process.returncode == 0, output[-3000:]
    curve = [line["reward"] for line in steps(tmp_path)]
    assert sum(curve[3:]) / 3 - sum(curve[:3]) / 3 >= 0.2, curve
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint-6", dtype=torch.float32)
    assert all(parameter.numel() for parameter in saved.parameters())
    messages: list[str] = []
    exported = AutoModelForCausalLM.from_pretrained(export(ExportRequest(tmp_path / "run"), messages.append))
    assert messages[0].endswith(f"checkpoint-6: {exported_from}")
    assert messages[-1].startswith("verified: ")
    assert messages[-1].startswith("verified: every tensor equals the trained tensor")
    for name, parameter in saved.named_parameters():
        assert torch.equal(exported.get_parameter(name), parameter), name


def test_an_adapter_trains_while_the_server_samples_one_batch_ahead(server: RunningServer, tmp_path: Path) -> None:
    """Importance sampling corrects for samples from a policy that is one step old.

    Meanwhile, groups without a learning signal are replaced, so the server receives requests in addition to the batch
    ahead.
    """
    process = start(
        tmp_path,
        server,
        lora=True,
        max_steps=3,
        learning_rate=1e-3,
        rollouts_per_step=32,
        per_device_train_batch_size=16,
        engine={"num_batches_ahead": 1, "importance_sampling_correction": True},
        num_generations=4,
        filter_groups=True,
    )
    output = finish(process)
    assert process.returncode == 0, output[-3000:]
    lines = steps(tmp_path)
    assert len(lines) == 3
    assert all(line["weight_sync/logprob_difference"] < 1e-3 for line in lines)
    first, last = lines[0], lines[-1]
    assert first["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=1e-3)
    assert last["sampling/mismatch_kl"] > first["sampling/mismatch_kl"]  # the last batch was sampled from older weights
    prompts = 32 // 4  # per step
    assert all(line["filter_groups/asked"] >= prompts for line in lines)
    assert any(line["filter_groups/asked"] > prompts for line in lines)
    mixed = [line["filter_groups/mixed"] * line["filter_groups/asked"] for line in lines]
    assert min(mixed) >= prompts  # enough groups for every batch
    assert (tmp_path / "run" / "checkpoint-3" / "adapter_model.safetensors").is_file()


def test_a_server_with_a_short_context_is_reported_before_training(server: RunningServer, tmp_path: Path) -> None:
    """The error is one line that names the option to change, the exit code is 2, and no run folder is created."""
    policy = load_policy("tiny")
    env = ReasoningGym(policy.mixture("leg_counting"), num_train_examples=32, num_eval_examples=0)
    args = default_config(policy, str(tmp_path / "run"), max_tokens=500)
    with pytest.raises(ServerError, match=r"accepts at most 512 tokens .*--max-model-len") as caught:
        GRPOTrainer(policy.model, env, args, policy.tokenizer, engine=EngineConfig(kind="vllm", port=server.port))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_lost_server_ends_the_run_with_a_checkpoint(server_to_end: RunningServer, tmp_path: Path) -> None:
    """If the server hangs or is killed, the run ends within 100 seconds, with one error line and a checkpoint of its
    last step. A server that recovers accepts the next trainer."""
    for kind in (signal.SIGSTOP, signal.SIGKILL):
        try:
            check_lost_server(server_to_end, kind, tmp_path / kind.name)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server_to_end.process.pid, signal.SIGCONT)


def check_lost_server(server: RunningServer, kind: signal.Signals, folder: Path) -> None:
    """Train, send the signal `kind` to the server after the second step, and check how the run ends."""
    folder.mkdir()
    process = start(folder, server, max_steps=500, rollouts_per_step=32, per_device_train_batch_size=16,
                    engine={"weight_sync_timeout": 15.0})  # fmt: skip
    assert process.stdout
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.startswith("step   2/"):
            break
    os.killpg(server.process.pid, kind)
    lost_at = time.monotonic()
    output = finish(process, timeout_s=600)
    assert time.monotonic() - lost_at < 100
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert process.returncode == 1, "".join(seen) + output
    assert len(errors) == 1
    assert "Traceback" not in output
    assert str(server) in errors[0]
    results = json.loads((folder / "run" / "train_results.json").read_text())
    assert results["steps"] >= 2
    assert (folder / "run" / f"checkpoint-{results['steps']}" / "model.safetensors").is_file()
