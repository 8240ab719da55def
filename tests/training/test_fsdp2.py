"""FSDP2 on two CPU processes: real shards, the same updates as one process, and resuming to the bit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

WITHIN_S = 500
CONFIG = Path(__file__).parents[2] / "configs" / "fsdp2_cpu.yaml"
TESTS = str(Path(__file__).parents[1])

SCRIPT = """
from rg_env.commands import prepare_process, run_command

prepare_process()
import json
import os
import sys
import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback
from rg_env import ReasoningGym
from sampled_engine import Sampled
from rg_env.tiny import POLICY_DIR
from rg_env.training import EvaluationPlan, GRPOTrainer, default_config, load_policy, train
from rg_env.training.weight_sync.parameters import sources
from rg_env.training.weight_sync.transfer import Weights


def length(rollout):
    return float(len(rollout.token_ids))


GRPOTrainer._make_engine = lambda self, encoder: Sampled(self.processing_class.eos_token_id)
torch.set_num_threads(1)
PLAN = EvaluationPlan(every=0, before=False, after=False)
OPTIONS = json.loads(sys.argv[1])


def make(folder, **fields):
    policy = load_policy("tiny")
    env = ReasoningGym(policy.mixture("leg_counting"), num_train_examples=64, rewards=[length])
    lora = OPTIONS.get("lora")
    if lora:
        from peft import LoraConfig
        lora = LoraConfig(r=4, target_modules="all-linear", **lora)
    # A loss that does not depend on how the batch is split, and a step that rounding errors do not turn round.
    fields = {"max_steps": 3, "learning_rate": 1e-3, "warmup_steps": 0, "max_grad_norm": 0.1, "loss_type": "dapo",
              "adam_epsilon": 1e-3, **OPTIONS["fields"], **fields}
    args = default_config(policy, folder, rollouts_per_step=24, per_device_train_batch_size=4, num_generations=4,
                          max_tokens=12, **fields)
    return GRPOTrainer(policy.model, env, args, policy.tokenizer, engine="vllm", peft_config=lora or None)


def main():
    trainer = make("run")
    sharded = os.environ.get("ACCELERATE_USE_FSDP") == "true"
    parameters = dict(trainer.model.named_parameters())
    assert all(isinstance(each, DTensor) for each in parameters.values()) is sharded
    model = trainer.accelerator.unwrap_model(trainer.model)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert head.weight is embedding.weight
    train(trainer, evaluation=PLAN)
    sent = {name: tensor.clone() for name, tensor in Weights(model, trainer.strategy)}
    local = sum(each.to_local().numel() if sharded else each.numel() for each in parameters.values())
    whole = sum(each.numel() for each in parameters.values())
    if trainer.accelerator.is_main_process:
        torch.save(sent, "sent.pt")
        print(json.dumps({"share": local / whole, "sharding": trainer.strategy.sharding}))
    if not sharded:
        return 0
    unbroken, resumed = make("unbroken", max_steps=4, save_steps=2), make("resumed", max_steps=4)
    train(unbroken, evaluation=PLAN)
    train(resumed, evaluation=PLAN, resume="unbroken/checkpoint-2")
    for one, other in zip(unbroken.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one.to_local(), other.to_local())
    return 0


run_command(main)
"""


def run(folder: Path, options: dict[str, Any], *launcher: str) -> dict[str, Any]:
    """What the script printed, launched in `folder`."""
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    command = [*launcher, "script.py", json.dumps(options)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": TESTS}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return found


CASES: dict[str, dict[str, Any]] = {
    "all weights, KL to the initial policy": {
        "fields": {"beta": 0.05, "gradient_checkpointing": True, "loss_type": "dr_grpo"}
    },
    "DoRA, two updates a batch, KL to the previous policy": {
        "fields": {"beta": 0.05, "kl_reference": "previous", "num_iterations": 2},
        "lora": {"use_dora": True},
    },
}


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN_S)
@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_as_one(case: str, tmp_path: Path) -> None:
    """Each holds about half of the weights, the head tied; updates are those of one process; whole weights reach a
    server and a checkpoint; and a run resumes to the bit."""
    accelerate = str(Path(sys.executable).with_name("accelerate"))
    launcher = (accelerate, "launch", "--config-file", str(CONFIG), "--main-process-port", "0")
    two = run(tmp_path / "two", CASES[case], *launcher)
    one = run(tmp_path / "one", CASES[case], sys.executable)
    assert (two["sharding"], one["sharding"]) == ("fsdp2", "none")
    assert 0.45 < two["share"] < 0.6
    ours, theirs = (torch.load(tmp_path / name / "sent.pt", weights_only=True) for name in ("two", "one"))
    assert set(ours) == set(theirs)
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=2e-6, rtol=1e-4)
    file = "adapter_model.safetensors" if "lora" in CASES[case] else "model.safetensors"
    saved, expected = (load_file(tmp_path / name / "run" / "checkpoint-3" / file) for name in ("two", "one"))
    assert set(saved) == set(expected)
    for name, tensor in saved.items():
        torch.testing.assert_close(tensor, expected[name], atol=2e-6, rtol=1e-4)
