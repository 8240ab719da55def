"""What can be wrong with a checkpoint: told in one line before training starts; and saves that fail lose nothing."""

import errno
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rg_env.errors import InputError, TrainingError
from rg_env.tiny import POLICY_DIR
from rg_env.training import EvaluationPlan, train
from rg_env.training.algorithms.policy import weights_file
from rg_env.training.checkpointing.files import weights_problem
from rg_env.training.checkpointing.resume import check_fit, chosen
from rg_env.training.strategy import Zero

OPTIONS = {"max_steps": 3, "max_tokens": 4}


def policy() -> Any:
    return AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture
def run(saved: Path, make_trainer: Any, tmp_path: Path) -> Path:
    """The folder of a run with checkpoint-1 and checkpoint-2, to be spoilt."""
    if not (saved / "run").exists():
        options = {**OPTIONS, "max_steps": 2}
        trainer = make_trainer(output_dir=str(saved / "run"), save_steps=1, **options)
        train(trainer, evaluation=EvaluationPlan(every=10))
    shutil.copytree(saved / "run", tmp_path / "run")
    return tmp_path / "run"


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


class Bomb:
    """A pickle of it creates a file when it is executed."""

    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


def edited(**changes: Any) -> Callable[[Path], Any]:
    """Spoils a JSON file."""
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def indexed(path: Path) -> None:
    path.unlink()
    path.with_name(f"{path.name}.index.json").write_text('{"weight_map": ["a"]}')


@pytest.mark.parametrize(
    ("file", "spoil", "words"),
    [
        ("model.safetensors", cut, "weights cannot be read"),
        ("model.safetensors", Path.unlink, "holds neither model.safetensors nor"),
        ("model.safetensors", indexed, "weights cannot be read"),
        ("optimizer.pt", cut, "optimizer.pt is truncated"),
        ("optimizer.pt", Path.unlink, "optimizer.pt is missing"),
        ("optimizer.pt", lambda path: torch.save({"else": 1}, path), "optimizer.pt is truncated or damaged"),
        ("resume_state_0.pt", cut, "resume_state_0.pt is truncated"),
        ("resume_state_0.pt", lambda path: torch.save({}, path), "resume_state_0.pt is truncated or damaged"),
        ("trainer_state.json", cut, "trainer_state.json is truncated"),
        ("trainer_state.json", edited(of_another_release=1), "trainer_state.json is truncated or damaged"),
        ("resume.json", Path.unlink, "resume.json is missing"),
        ("resume.json", edited(processes=10**12), "resume_state_1.pt is missing"),
        ("scaler.pt", lambda path: path.write_bytes(b"?"), "scaler.pt is truncated|scaler.pt holds something"),
        (weights_file(0), lambda path: path.write_bytes(b"?"), "previous_policy_0.safetensors is truncated"),
    ],
)
def test_a_damaged_checkpoint_is_told(
    run: Path, make_trainer: Any, file: str, spoil: Callable[[Path], Any], words: str
) -> None:
    """Which file, in one line, before anything is written; `auto` takes the one before, and saves over the other."""
    spoil(run / "checkpoint-2" / file)
    before = {path: path.stat().st_mtime for path in run.rglob("*")}
    trainer = make_trainer(output_dir=str(run), **OPTIONS)
    with pytest.raises(InputError, match=words) as caught:
        train(trainer, resume=run / "checkpoint-2")
    assert "\n" not in str(caught.value)
    assert {path: path.stat().st_mtime for path in run.rglob("*")} == before
    checkpoint, (passed_over,) = chosen("auto", run)
    assert checkpoint == run / "checkpoint-1"
    assert "checkpoint-2" in passed_over


def test_auto_saves_over_the_damaged_one(run: Path, make_trainer: Any) -> None:
    """Going on from the one before it; nothing half is left."""
    cut(run / "checkpoint-2" / "optimizer.pt")
    trainer = make_trainer(output_dir=str(run), save_steps=1, **OPTIONS)
    assert train(trainer, evaluation=EvaluationPlan(every=10), resume="auto")["resumed_from"].endswith("checkpoint-1")
    assert sorted(path.name for path in run.glob("checkpoint*")) == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    assert chosen("auto", run) == (run / "checkpoint-3", [])


@pytest.mark.parametrize("kind", ["torch", "plain"])
@pytest.mark.parametrize("file", ["optimizer.pt", "scaler.pt", "resume_state_0.pt"])
def test_pickles_are_not_executed(run: Path, make_trainer: Any, tmp_path: Path, file: str, kind: str) -> None:
    """One that is not what it says is reported."""
    bomb, path = Bomb(tmp_path / "executed"), run / "checkpoint-2" / file
    if kind == "torch":
        torch.save({"state": bomb}, path)
    else:
        path.write_bytes(pickle.dumps({"state": bomb}))
    with pytest.raises(InputError, match=f"{file} (holds something|is truncated)") as caught:
        train(make_trainer(output_dir=str(run), **OPTIONS), resume=run / "checkpoint-2")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rollouts_per_step": 32}, "rollouts_per_step=16, and here it is 32: give the same"),
        ({"per_device_train_batch_size": 4}, "per_device_train_batch_size=8, and here it is 4: give the same"),
        ({"num_generations": 2}, "num_generations=4, and here it is 2"),
        ({"seed": 5}, "seed=0, and here it is 5"),
        ({"max_steps": 2}, "already at step 2 of 2; increase max_steps to continue"),
        ({"beta": 0.1, "kl_reference": "previous"}, "it was saved without kl_reference='previous'"),
    ],
)
def test_another_run_is_refused(run: Path, make_trainer: Any, fields: dict[str, Any], words: str) -> None:
    """What changes the order of the rows, or needs what is not there; and a run that is over. Nothing is written."""
    before = sorted(run.rglob("*"))
    with pytest.raises(InputError, match=words):
        train(make_trainer(output_dir=str(run), **{**OPTIONS, **fields}), resume="auto")
    assert sorted(run.rglob("*")) == before


def test_other_rows_are_refused(run: Path, make_trainer: Any, make_env: Any) -> None:
    """With what the manifest of that run knows of the difference."""
    trainer = make_trainer(output_dir=str(run), env=make_env(seed=7), **OPTIONS)
    with pytest.raises(InputError, match="seed of the train rows"):
        train(trainer, resume="auto")
    (run / "manifest.json").unlink()
    with pytest.raises(InputError, match="its training rows are others"):
        train(trainer, resume="auto")


def test_another_number_of_processes_is_refused(run: Path, make_trainer: Any) -> None:
    """Each had its own rows and random numbers."""
    edited(processes=2)(run / "checkpoint-2" / "resume.json")
    with pytest.raises(InputError, match="it is of 2 processes, and here are 1"):
        check_fit(make_trainer(output_dir=str(run), **OPTIONS), run / "checkpoint-2")


def test_another_model_is_refused(run: Path, make_trainer: Any) -> None:
    """By the first weight that is missing, or has another shape; also one with an adapter."""
    from peft import LoraConfig

    path = run / "checkpoint-2" / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if "q_proj" in name)
    trainer = make_trainer(output_dir=str(run), **OPTIONS)
    for changed, words in (
        ({**weights, name: weights[name][:-1].clone()}, "has the shape"),
        ({key: value for key, value in weights.items() if key != name}, f"{name} is missing"),
    ):
        save_file(changed, path, metadata={"format": "pt"})
        with pytest.raises(InputError, match=f"of another model: .*{words}"):
            train(trainer, resume="auto")
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    with pytest.raises(InputError, match=r"holds no adapter_model.safetensors"):
        train(make_trainer(model=policy(), output_dir=str(run), peft_config=config, **OPTIONS), resume="auto")


def test_another_adapter_is_refused(make_trainer: Any, tmp_path: Path) -> None:
    """Of another rank, or scaled otherwise."""
    from peft import LoraConfig

    def trainer(max_steps: int = 3, **fields: Any) -> Any:
        config = LoraConfig(**{"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **fields})
        options = {**OPTIONS, "max_steps": max_steps, "output_dir": str(tmp_path / "lora")}
        return make_trainer(model=policy(), peft_config=config, **options)

    train(trainer(max_steps=1), evaluation=EvaluationPlan(every=10))
    for fields, words in (({"r": 2}, "has the shape"), ({"lora_alpha": 99}, "lora_alpha=8, and here it is 99")):
        with pytest.raises(InputError, match=words):
            train(trainer(**fields), resume="auto")


def test_newer_checkpoints_are_not_run_over(run: Path, make_trainer: Any) -> None:
    """Going on from an older one would."""
    with pytest.raises(InputError, match="has checkpoints after checkpoint-1, checkpoint-2 the newest"):
        train(make_trainer(output_dir=str(run), **OPTIONS), resume=run / "checkpoint-1")
    with pytest.raises(InputError, match="there is no such folder"):
        train(make_trainer(output_dir=str(run), **OPTIONS), resume=run / "checkpoint-9")
    with pytest.raises(InputError, match=r"trainer_state.json is missing"):
        train(make_trainer(output_dir=str(run), **OPTIONS), resume=run)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_shards_of_fsdp2_are_tensors_alone(run: Path, tmp_path: Path) -> None:
    """torch.distributed.checkpoint would execute anything else."""
    path = run / "checkpoint-2"
    facts = json.loads((path / "resume.json").read_text())
    (path / "resume.json").write_text(json.dumps({**facts, "sharding": "fsdp2"}))

    def problem() -> str:
        with pytest.raises(InputError) as caught:
            chosen(path, run)
        return str(caught.value)

    assert "optimizer/.metadata" in problem()
    dcp.save({"state": {"weight": {"step": torch.tensor(1.0)}}}, checkpoint_id=path / "optimizer", no_dist=True)
    assert chosen(path, run) == (path, [])
    shutil.rmtree(path / "optimizer")
    dcp.save(
        {"state": {"weight": {"step": Bomb(tmp_path / "executed")}}}, checkpoint_id=path / "optimizer", no_dist=True
    )
    assert "contains state.weight.step, which is not a tensor; it was not executed" in problem()


def test_deepspeeds_pickles_are_not_executed_either(run: Path, tmp_path: Path) -> None:
    """DeepSpeed itself would. There must be one of each process, with nothing in them that it never writes."""
    path = run / "checkpoint-2"
    facts = json.loads((path / "resume.json").read_text())
    (path / "resume.json").write_text(json.dumps({**facts, "processes": 2, "sharding": "zero3"}))
    shutil.copy(path / "resume_state_0.pt", path / "resume_state_1.pt")
    (path / "optimizer.pt").unlink()

    def problem() -> str:
        with pytest.raises(InputError) as caught:
            chosen(path, run)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "latest is missing" in problem()
    (path / "latest").write_text("global_step2")
    assert "folder 'global_step2' is missing" in problem()
    (path / "latest").write_text("../..")
    assert "folder '../..' is missing" in problem()
    (path / "latest").write_text("global_step2")
    (path / "global_step2").mkdir()
    first, second = (path / "global_step2" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1))
    torch.save({"weights": torch.zeros(2)}, first)
    assert "has 1 optimizer files, and 2 processes wrote it" in problem()
    torch.save({"weights": torch.zeros(2)}, second)
    assert chosen(path, run) == (path, [])
    torch.save({"weights": Bomb(tmp_path / "executed")}, second)
    assert ", which a checkpoint has not; it was not executed" in problem()
    cut(second)
    assert "truncated" in problem()
    second.write_bytes(pickle.dumps(Bomb(tmp_path / "executed")))
    assert "truncated" in problem()
    assert not (tmp_path / "executed").exists()


# --- saving


def full_disk(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("what", ["weights", "optimizer", "state"])
def test_a_full_disk_loses_nothing(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whatever was being written: the checkpoint before it is whole, and the run ends by one line."""
    trainer = make_trainer(save_steps=1, **OPTIONS)
    save, write = trainer.checkpoints.save, Path.write_text

    def fails_at_two() -> Any:
        if trainer.state.global_step == 2:
            with monkeypatch.context() as patch:
                if what == "weights":
                    patch.setattr("safetensors.torch.save_file", full_disk)
                    patch.setattr("transformers.modeling_utils.safe_save_file", full_disk)
                elif what == "optimizer":
                    patch.setattr(torch, "save", full_disk)
                else:
                    patch.setattr(
                        Path,
                        "write_text",
                        lambda self, *a, **k: full_disk() if "resume" in self.name else write(self, *a, **k),
                    )
                return save()
        return save()

    trainer.checkpoints.save = fails_at_two
    with pytest.raises(TrainingError, match=r"cannot save checkpoint-2 .*: No space left on device; earlier") as caught:
        train(trainer, evaluation=EvaluationPlan(every=10))
    assert caught.value.exit_code == 1
    assert [path.name for path in (tmp_path / "run").glob("checkpoint*")] == ["checkpoint-1"]
    assert chosen("auto", tmp_path / "run") == (tmp_path / "run" / "checkpoint-1", [])


def test_weights_that_were_not_written_whole_are_no_checkpoint(make_trainer: Any, tmp_path: Path) -> None:
    """As ZeRO-3 writes them where it does not gather: empty."""
    trainer = make_trainer(save_steps=1, **OPTIONS)
    save = trainer.strategy.save

    def empty(folder: Path) -> None:
        save(folder)
        if trainer.state.global_step == 2:
            path = folder / "model.safetensors"
            weights = load_file(path)
            save_file({name: value[:0].clone() for name, value in weights.items()}, path)

    trainer.strategy.save = empty
    with pytest.raises(TrainingError, match=r"cannot save checkpoint-2 .* is empty"):
        train(trainer, evaluation=EvaluationPlan(every=10))
    assert [path.name for path in (tmp_path / "run").glob("checkpoint*")] == ["checkpoint-1"]


def test_weights_in_several_files_are_found(tmp_path: Path) -> None:
    """And of tied weights one is enough."""
    model = policy()
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert weights_problem(tmp_path, model) is None
    next(iter(tmp_path.glob("*.safetensors"))).unlink()
    assert "cannot be read" in str(weights_problem(tmp_path, model))


def test_weights_that_nothing_could_load_are_refused_at_the_start(make_args: Any) -> None:
    """Pickles, and shards that ZeRO-3 does not gather; with what to change."""
    with pytest.raises(InputError, match="save_safetensors=False: weights are always saved as safetensors"):
        make_args(save_safetensors=False)
    plugin = SimpleNamespace(zero_stage=3, zero3_save_16bit_model=False, deepspeed_config={})
    accelerator: Any = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin), gradient_accumulation_steps=1)
    with pytest.raises(InputError, match="zero3_save_16bit_model: true in deepspeed_config"):
        Zero(accelerator, make_args())
