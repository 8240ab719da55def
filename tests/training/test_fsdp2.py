"""FSDP2 on two CPU processes: real shards, the same updates as one process, and bit-identical resuming."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from process_scripts import CONFIGS, WITHIN_S, accelerate, run_script, torchrun
from safetensors.torch import load_file

SCRIPT = """
from torch.distributed.tensor import DTensor
from rg_env.training import from_config, load_train_config
from rg_env.training.weight_sync import ModelWeights

GRPOTrainer._make_engine = lambda self, *_: Sampled(self.processing_class.eos_token_id)
OPTIONS = json.loads(sys.argv[1])


def make(folder, **fields):
    policy = load_policy("tiny")
    env = ReasoningGym(policy.mixture("leg_counting"), num_train_examples=64, rewards=[length])
    lora = OPTIONS.get("lora")
    if lora:
        from peft import LoraConfig
        lora = LoraConfig(r=4, target_modules="all-linear", **lora)
    # A loss that does not depend on how the batch is split, and a step that rounding errors do not reverse.
    fields = {"max_steps": 3, "learning_rate": 1e-3, "warmup_steps": 0, "max_grad_norm": 0.1, "loss_type": "dapo",
              "adam_epsilon": 1e-3, **OPTIONS["fields"], **fields}
    args = arguments(policy, folder, rollouts_per_step=24, **fields)
    return GRPOTrainer(policy.model, env, args, policy.tokenizer, engine="vllm", peft_config=lora or None)


class Loaded(Exception):
    pass


def loaded_weights():  # this process's weights before `rg-env train` creates its trainer
    def stop(config, policy, env, folder):
        raise Loaded(float(policy.model.get_input_embeddings().weight.abs().sum()))

    make_trainer, from_config.make_trainer = from_config.make_trainer, stop
    try:
        from_config.run_config(load_train_config(OPTIONS["config"], ["output.dir=unused"]))
    except Loaded as loaded:
        return loaded.args[0]
    finally:
        from_config.make_trainer = make_trainer


def main():
    sharded = os.environ.get("ACCELERATE_USE_FSDP") == "true"
    assert (loaded_weights() > 0) is (RANK == "0"), "only the main process loads the weights"
    trainer = make("run")
    loss_of, shards = trainer._loss, []

    def watched(part):  # gradients are sharded after each micro-batch
        shards.append([isinstance(each.grad, DTensor) for each in trainer.model.parameters() if each.requires_grad])
        return loss_of(part)

    trainer._loss = watched
    parameters = dict(trainer.model.named_parameters())
    assert all(isinstance(each, DTensor) for each in parameters.values()) is sharded
    model = trainer.accelerator.unwrap_model(trainer.model)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert head.weight is embedding.weight
    train(trainer, evaluation=NONE)
    if sharded:
        assert all(shards[1]) and not any(shards[0])
    sent = {name: tensor.clone() for name, tensor in ModelWeights(model, trainer.strategy)}
    local = sum(each.to_local().numel() if sharded else each.numel() for each in parameters.values())
    whole = sum(each.numel() for each in parameters.values())
    if trainer.accelerator.is_main_process:
        torch.save(sent, "sent.pt")
        print(json.dumps({"share": local / whole, "sharding": trainer.strategy.sharding}))
    if not sharded:
        return 0
    unbroken, resumed = make("unbroken", max_steps=4, save_steps=2), make("resumed", max_steps=4)
    train(unbroken, evaluation=NONE)
    train(resumed, evaluation=NONE, resume="unbroken/checkpoint-2")
    for one, other in zip(unbroken.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one.to_local(), other.to_local())
    return 0


run_command(main)
"""


CASES: dict[str, dict[str, Any]] = {
    "all weights, KL to the initial policy, entropy bonus": {
        "fields": {"beta": 0.05, "entropy_coef": 0.01, "gradient_checkpointing": True, "loss_type": "dr_grpo"}
    },
    "DoRA, two updates a batch, KL to the previous policy": {
        "fields": {"beta": 0.05, "kl_reference": "previous", "num_iterations": 2},
        "lora": {"use_dora": True},
    },
}


LONG = ("DoRA, two updates a batch, KL to the previous policy",)


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN_S)
@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.full_matrix] * (c in LONG)) for c in CASES])
@pytest.mark.usefixtures("forks")
def test_two_processes_train_as_one(case: str, tmp_path: Path) -> None:
    """Only one process loads the weights, each process holds about half of the weights and of the gradients (also
    between micro-batches), updates equal those of one process, whole weights reach a server and a checkpoint, and a
    resumed run is bit-identical."""
    printed = []
    for name, launcher in (("two", accelerate("fsdp2_cpu.yaml")), ("one", torchrun(1))):
        (tmp_path / name).mkdir()
        done = run_script(
            tmp_path / name,
            launcher,
            SCRIPT,
            json.dumps({**CASES[case], "config": str(CONFIGS / "train" / "tiny.yaml")}),
        )
        assert done.returncode == 0, done.stderr[-4000:]
        printed.append(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))))
    two, one = printed
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
