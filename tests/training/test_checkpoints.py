"""Problems with a checkpoint are reported on one line before training starts, and a failed save loses nothing."""

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rg_env.errors import InputError, TrainingError
from rg_env.tiny import POLICY_DIR
from rg_env.training import EvaluationPlan, train
from rg_env.training.checkpointing.checkpoints import chosen
from rg_env.training.checkpointing.files import weights_problem
from rg_env.training.strategy import Zero

OPTIONS = {"max_steps": 3, "max_tokens": 4}
NONE = EvaluationPlan(before=False, after=False, every=0)


def policy() -> Any:
    return AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved") / "run"


@pytest.fixture
def run(saved: Path, make_trainer: Any, tmp_path: Path) -> Path:
    """The folder of a run with checkpoint-1 and checkpoint-2, copied so that a test can damage it."""
    if not saved.exists():
        train(make_trainer(output_dir=str(saved), save_steps=1, **{**OPTIONS, "max_steps": 2}), evaluation=NONE)
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run"


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def edit(path: Path, **changes: Any) -> None:
    """Change a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def update_sizes(checkpoint: Path) -> None:
    """Record the current sizes of the files in resume.json."""
    files = [path for path in checkpoint.rglob("*") if path.is_file() and path.name != "resume.json"]
    sizes = {str(path.relative_to(checkpoint)): path.stat().st_size for path in files}
    edit(checkpoint / "resume.json", files=sizes)


def problem(path: Path) -> str:
    """Return the one-line reason why a run cannot resume from `path`."""
    with pytest.raises(InputError) as caught:
        chosen(path, path.parent)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        ("model.safetensors", cut, "model.safetensors is missing or damaged"),
        ("optimizer.pt", Path.unlink, "optimizer.pt is missing or damaged (it has 0 of"),
        ("resume_state_0.pt", lambda path: torch.save({}, path), "resume_state_0.pt is missing or damaged"),
        ("trainer_state.json", cut, "trainer_state.json is damaged"),
        ("resume.json", Path.unlink, "resume.json is missing: pass the checkpoint-N folder of a run"),
        ("resume.json", cut, "resume.json is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_reported(
    run: Path, make_trainer: Any, file: str, damage: Callable[[Path], Any], words: str
) -> None:
    """The error names the file. "auto" resumes from the previous checkpoint and overwrites the damaged one."""
    damage(run / "checkpoint-2" / file)
    assert words in problem(run / "checkpoint-2")
    results = train(make_trainer(output_dir=str(run), save_steps=1, **OPTIONS), evaluation=NONE, resume="auto")
    assert results["resumed_from"].endswith("checkpoint-1")
    assert sorted(path.name for path in run.glob("checkpoint*")) == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    assert chosen(run / "checkpoint-3", run) == run / "checkpoint-3"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rollouts_per_step": 32}, "rollouts_per_step=16, but this run has 32: use the same value"),
        ({"num_generations": 2}, "num_generations=4, but this run has 2"),
        ({"seed": 5}, "seed=0, but this run has 5"),
        ({"optim": "sgd"}, "optim=adamw_torch, but this run has sgd"),
        ({"max_steps": 1}, "already at step 2 of 1; increase max_steps to continue"),
        ({"beta": 0.1, "kl_reference": "previous"}, "it was saved without kl_reference='previous'"),
    ],
)
def test_a_run_with_other_settings_is_refused(run: Path, make_trainer: Any, fields: dict[str, Any], words: str) -> None:
    """Settings that must stay the same, settings that need a missing file, and fewer steps are rejected. Nothing is
    written."""
    before = sorted(run.rglob("*"))
    with pytest.raises(InputError, match=words):
        train(make_trainer(output_dir=str(run), **{**OPTIONS, **fields}), resume="auto")
    assert sorted(run.rglob("*")) == before


def test_other_rows_or_processes_are_refused(run: Path, make_trainer: Any, make_env: Any) -> None:
    """If the rows differ, the error includes the difference between the two manifests."""
    trainer = make_trainer(output_dir=str(run), env=make_env(seed=7), **OPTIONS)
    with pytest.raises(InputError, match="seed of the train rows"):
        train(trainer, resume="auto")
    (run / "manifest.json").unlink()
    with pytest.raises(InputError, match="its training rows are different"):
        train(trainer, resume="auto")
    edit(run / "checkpoint-2" / "resume.json", processes=2)
    with pytest.raises(InputError, match="it was saved by 2 processes, not 1: set the number of processes to 2"):
        train(trainer, resume="auto")


def test_another_model_is_refused(run: Path, make_trainer: Any) -> None:
    """The error names the first weight that is missing or has another shape, including the weights of an adapter."""
    from peft import LoraConfig

    path = run / "checkpoint-2" / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if "q_proj" in name)
    for changed, words in (
        ({**weights, name: weights[name][:-1].clone()}, "has the shape"),
        ({key: value for key, value in weights.items() if key != name}, f"{name} is missing"),
    ):
        save_file(changed, path, metadata={"format": "pt"})
        update_sizes(run / "checkpoint-2")
        with pytest.raises(InputError, match=f"its weights do not match the model because .*{words}"):
            train(make_trainer(output_dir=str(run), **OPTIONS), resume="auto")
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    with pytest.raises(InputError, match=r"does not contain adapter_model.safetensors"):
        train(make_trainer(model=policy(), output_dir=str(run), peft_config=config, **OPTIONS), resume="auto")


def test_another_adapter_is_refused(make_trainer: Any, tmp_path: Path) -> None:
    """An adapter with another rank or scale is refused."""
    from peft import LoraConfig

    def trainer(max_steps: int = 3, **fields: Any) -> Any:
        config = LoraConfig(**{"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **fields})
        options = {**OPTIONS, "max_steps": max_steps, "output_dir": str(tmp_path / "lora")}
        return make_trainer(model=policy(), peft_config=config, **options)

    train(trainer(max_steps=1), evaluation=NONE)
    for fields, words in (({"r": 2}, "has the shape"), ({"lora_alpha": 99}, r"lora_alpha=8, but this run has 99")):
        with pytest.raises(InputError, match=words):
            train(trainer(**fields), resume="auto")


def test_newer_checkpoints_are_not_overwritten(run: Path, make_trainer: Any) -> None:
    """Resuming from an older checkpoint is refused, because the run would overwrite the newer ones."""
    for path, words in (
        (run / "checkpoint-1", "has checkpoints after checkpoint-1: resume from the newest, checkpoint-2"),
        (run / "checkpoint-9", "resume.json is missing"),
        (run, "resume.json is missing"),
    ):
        with pytest.raises(InputError, match=words):
            train(make_trainer(output_dir=str(run), **OPTIONS), resume=path)


# --- saving


@pytest.mark.slow
def test_a_full_disk_loses_nothing(make_trainer: Any, tmp_path: Path) -> None:
    """Whichever file was being written, the previous checkpoint stays complete and the run ends with a one-line
    error."""
    for number, blocked in enumerate(("model.safetensors", "optimizer.pt", "resume_state_0.pt")):
        folder = tmp_path / str(number)
        trainer = make_trainer(model=policy(), output_dir=str(folder), save_steps=1, **OPTIONS)
        begin = trainer.checkpoints._begin

        def begin_on_a_full_disk(part: Path, begin: Any = begin, blocked: str = blocked) -> None:
            begin(part)
            if part.name == "checkpoint-2":
                (part / blocked).mkdir() if blocked.endswith("safetensors") else (part / blocked).symlink_to(
                    "/dev/full"
                )

        trainer.checkpoints._begin = begin_on_a_full_disk
        with pytest.raises(TrainingError, match=r"^cannot save checkpoint-2 in .*; earlier checkpoints are unchanged"):
            train(trainer, evaluation=NONE)
        assert [path.name for path in folder.glob("checkpoint*")] == ["checkpoint-1"]
        assert chosen("auto", folder) == folder / "checkpoint-1"


def test_a_checkpoint_with_empty_weights_is_not_saved(make_trainer: Any, tmp_path: Path) -> None:
    """ZeRO-3 writes empty weights if it does not gather them."""
    trainer = make_trainer(save_steps=1, **OPTIONS)
    save = trainer.strategy.save

    def empty(folder: Path) -> None:
        save(folder)
        if trainer.state.global_step == 2:
            path = folder / "model.safetensors"
            save_file({name: value[:0].clone() for name, value in load_file(path).items()}, path)

    trainer.strategy.save = empty
    with pytest.raises(TrainingError, match=r"cannot save checkpoint-2 .* is empty"):
        train(trainer, evaluation=NONE)
    assert [path.name for path in (tmp_path / "run").glob("checkpoint*")] == ["checkpoint-1"]


def test_weights_in_several_files_are_found(tmp_path: Path) -> None:
    """Of several tied weights, one stored weight is enough."""
    model = policy()
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert weights_problem(tmp_path, model) is None
    next(iter(tmp_path.glob("*.safetensors"))).unlink()
    assert "which is listed in model.safetensors.index.json" in str(weights_problem(tmp_path, model))


def test_weight_formats_that_cannot_be_loaded_are_refused_at_the_start(make_args: Any) -> None:
    """Saving pickles, or shards that ZeRO-3 would not gather, is rejected, and the error explains what to change."""
    with pytest.raises(InputError, match="save_safetensors=False: weights are always saved as safetensors"):
        make_args(save_safetensors=False)
    plugin = SimpleNamespace(zero_stage=3, zero3_save_16bit_model=False, deepspeed_config={})
    accelerator: Any = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin), gradient_accumulation_steps=1)
    with pytest.raises(InputError, match="zero3_save_16bit_model: true in deepspeed_config"):
        Zero(accelerator, make_args())


def zero(stage: int, config: dict[str, Any], *, parts: int = 2) -> Any:
    """Return stand-ins for accelerate's objects, for `parts` micro-batches in bf16."""
    plugin = SimpleNamespace(zero_stage=stage, zero3_save_16bit_model=True, deepspeed_config=config)
    return SimpleNamespace(
        state=SimpleNamespace(deepspeed_plugin=plugin), gradient_accumulation_steps=parts, num_processes=1,
        mixed_precision="bf16",
    )  # fmt: skip


OFFLOAD = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}


@pytest.mark.parametrize(
    ("stage", "given", "expected"),
    [
        (2, {}, "fp32"), (3, {}, "fp32"), (3, OFFLOAD, "fp32"),
        (3, {"data_types": {"grad_accum_dtype": "bf16"}}, "bf16"),
    ],
)  # fmt: skip
def test_zero_adds_up_micro_batches_in_float32(
    make_args: Any, stage: int, given: dict[str, Any], expected: str
) -> None:
    """DeepSpeed's default is the data type of the computation, which rounds small gradients away. A user's own value is
    kept."""
    config = copy.deepcopy(given)
    Zero(zero(stage, config), make_args())
    assert config["data_types"] == {"grad_accum_dtype": expected}


@pytest.mark.parametrize(
    ("stage", "given", "fix"), [(1, {}, "set zero_stage: 2"), (2, OFFLOAD, "with an offloaded .* set zero_stage: 3")]
)
def test_zero_that_would_add_up_in_bf16_is_refused(make_args: Any, stage: int, given: Any, fix: str) -> None:
    """A single micro-batch is not added to another."""
    with pytest.raises(InputError, match=f"ZeRO-{stage} .*{fix} in the accelerate config"):
        Zero(zero(stage, copy.deepcopy(given)), make_args())
    Zero(zero(stage, copy.deepcopy(given), parts=1), make_args())


def test_only_adamw_is_offloaded(make_args: Any) -> None:
    """accelerate would replace any other optimizer with Adam."""
    strategy = Zero(zero(3, copy.deepcopy(OFFLOAD)), make_args())
    with pytest.raises(InputError, match="SGD cannot be offloaded to the CPU: use optim=adamw_torch, or set"):
        strategy.prepare(None, torch.optim.SGD([torch.zeros(1, requires_grad=True)]))
