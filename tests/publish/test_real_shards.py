"""Tests of exporting checkpoints that DeepSpeed and FSDP2 wrote on two processes."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_files import TOKENIZER
from forked_python import PYTHON
from transformers import AutoModelForCausalLM

from rg_env.errors import InputError
from rg_env.tiny import POLICY_DIR

pytestmark = [pytest.mark.slow, pytest.mark.timeout(560), pytest.mark.usefixtures("forks")]
Export = Callable[..., tuple[Path, list[str]]]
WITHIN_S = 500
"""Imports take most of this time; a busy machine takes three times as long."""

# The Trainer of transformers writes ZeRO-3 as in a real run; the libraries themselves write the other formats.
SCRIPT = """
from rg_env.commands import prepare_process

prepare_process()
import os
import deepspeed
import torch
from rg_env.inference.models import processes

processes()
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from rg_env.tiny import POLICY_DIR
from rg_env.training import load_policy

rank = int(os.environ["RANK"])
rows = [{"input_ids": torch.arange(n, n + 12), "labels": torch.arange(n, n + 12)} for n in range(40)]
policy = load_policy("tiny")
arguments = TrainingArguments(
    "trainer", max_steps=2, per_device_train_batch_size=2, learning_rate=1e-2, report_to="none", use_cpu=True,
    disable_tqdm=True, save_strategy="steps", save_steps=2, dataloader_pin_memory=False,
)
trainer = Trainer(policy.model, arguments, train_dataset=rows, processing_class=policy.tokenizer)
trainer.train()


def keep(name, model, sharded):
    parameters = dict(model.named_parameters())
    with deepspeed.zero.GatheredParameters(list(parameters.values()), enabled=sharded):
        if rank == 0:
            torch.save({name: value.detach().clone() for name, value in parameters.items()}, f"{name}.pt")


keep("trainer", policy.model, True)
from transformers.integrations import deepspeed as integration
integration.unset_hf_deepspeed_config()
ids = torch.arange(10).view(1, 10)
for name, stage, half, frozen in (("z1", 1, False, False), ("z2", 2, True, False), ("z2f", 2, False, True),
                                  ("z3b", 3, True, False), ("z3f", 3, False, True)):
    model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.bfloat16 if half else torch.float32)
    for key, parameter in model.named_parameters():
        parameter.requires_grad = not frozen or "layers.1" in key
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": [p for p in trained if p.ndim == n], "weight_decay": 0.1 * n} for n in (1, 2)]
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}, "bf16": {"enabled": half},
              "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}}}
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=groups)
    for _ in range(2):
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    engine.save_checkpoint(name)
    keep(name, model, stage == 3)
model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
fully_shard(model, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model(input_ids=ids, labels=ids).loss.backward()
optimizer.step()
state = model.state_dict()
dcp.save({"model": state}, checkpoint_id="fsdp/pytorch_model_fsdp_0")
whole = {key: value.full_tensor() for key, value in state.items() if key != "lm_head.weight"}  # tied
if rank == 0:
    torch.save(whole, "fsdp.pt")
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # the libraries' threads can abort an interpreter that ends in the usual way
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on two processes and return the folder with all checkpoints."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "write.py").write_text(SCRIPT)
    config = Path(__file__).parents[2] / "configs" / "zero3_cpu.yaml"
    command = [*PYTHON, "-m", "accelerate.commands.launch", "--config-file", str(config), "--main-process-port", "0"]
    command += ["--no_python", *PYTHON, "write.py"]
    extensions = folder / "extensions"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(extensions)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr[-4000:]
    assert not extensions.exists(), "compiled without need"
    for name in ("config.json", *TOKENIZER):
        for kind in ("z1", "z2", "z2f", "z3b", "z3f", "fsdp"):
            shutil.copyfile(POLICY_DIR / name, folder / kind / name)
    return folder


@pytest.mark.parametrize("kind", ["trainer", "z1", "z2", "z2f", "z3b", "z3f", "fsdp"])
def test_checkpoints_of_real_libraries_are_exported(written: Path, exported: Export, tmp_path: Path, kind: str) -> None:
    """Each weight equals the one in the processes when they saved, rounded to their compute dtype. FSDP's shards are
    first merged with the command in the error."""
    folder, base_model = written / kind, None
    if kind == "fsdp":
        with pytest.raises(InputError, match="another trainer's shards") as error:
            exported(folder)
        (command,) = re.findall("`(accelerate .*) MODEL`", str(error.value))
        folder, base_model = tmp_path / "merged", str(written / kind)
        subprocess.run([Path(sys.executable).with_name("accelerate"), *command.split()[1:], folder], check=True)
    out, lines = exported(folder, out=tmp_path / "out", dtype="fp32", base=base_model)
    assert any(line.startswith("verified: every tensor equals the trained tensor") for line in lines)
    loaded = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    trained = torch.load(written / f"{kind}.pt")
    base = dict(AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32).named_parameters())
    assert trained.keys() == base.keys()
    for name, value in trained.items():
        assert torch.equal(loaded.get_parameter(name).to(value.dtype), value), name
    moved = [name for name, value in trained.items() if not torch.equal(value.float(), base[name])]
    assert len(moved) == (9 if kind.endswith("f") else len(base))  # the weights were trained
