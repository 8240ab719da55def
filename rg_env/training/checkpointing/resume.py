"""Checkpoints to resume from: which one, and whether this trainer can, before anything starts.

Nothing in a checkpoint is executed: pickles are read by torch's restricted reader, and those that DeepSpeed loads
without it are searched for anything but what DeepSpeed writes.
"""

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.serialization import get_unsafe_globals_in_checkpoint
from transformers import TrainerState

from rg_env.core.data.manifest import check_manifest
from rg_env.core.run_folder import RunFolder, checkpoint_step
from rg_env.errors import InputError
from rg_env.training.algorithms.policy import weights_file
from rg_env.training.checkpointing.files import weights_damage, weights_problem
from rg_env.training.checkpointing.pickles import DEEPSPEED_TYPES, non_tensors
from rg_env.training.checkpointing.save import CURRICULUM, FACTS, STATE, facts, state_file
from rg_env.training.data.curriculum import read_state
from rg_env.training.strategy import OPTIMIZER_FILE, OPTIMIZER_FOLDER, SCALER_FILE

AUTO = "auto"


def chosen(resume: str | Path, folder: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint that `resume` means for a run in `folder`, and the damaged ones that were passed over.

    Raises:
        InputError: a given one is not a checkpoint, or `folder` holds newer ones, which would be in the way.
    """
    if str(resume) != AUTO:
        path = Path(resume)
        if path.parent.resolve() == folder.resolve():
            newest = RunFolder(folder).last_checkpoint() or path
            if (checkpoint_step(newest) or 0) > (checkpoint_step(path) or 0):
                raise InputError(
                    f"{folder} has checkpoints after {path.name}, {newest.name} the newest: resume from that one "
                    f"(--resume {AUTO}), or give another output folder"
                )
        if problem := _damage(path):
            raise InputError(f"cannot resume from {path}: {problem}")
        return path, []
    passed_over: list[str] = []
    for path in RunFolder(folder).checkpoints():
        problem = _damage(path)
        if problem is None:
            return path, passed_over
        passed_over.append(f"{path}: {problem}")
    return None, passed_over


def step_of(path: Path) -> int:
    """The step after which a checkpoint was made."""
    return TrainerState.load_from_json(str(path / STATE)).global_step


def check_fit(trainer: Any, path: Path) -> None:
    """Raise `InputError` unless `trainer` can continue from the checkpoint `path` as if it had never stopped."""
    theirs, ours = json.loads((path / FACTS).read_text()), facts(trainer)
    model = trainer.accelerator.unwrap_model(trainer.model)

    def refuse(reason: str) -> None:
        raise InputError(f"cannot resume from {path}: {reason}")

    if theirs["processes"] != ours["processes"]:
        refuse(f"it is of {theirs['processes']} processes, and here are {ours['processes']}: start as many")
    if problem := weights_problem(path, model):
        refuse(f"it is of another model: {problem}")
    if adapters := getattr(model, "peft_config", None):
        there, here = json.loads((path / "adapter_config.json").read_text()), next(iter(adapters.values()))
        for name in ("lora_alpha", "use_rslora", "use_dora"):
            if there.get(name) != (own := getattr(here, name, None)):
                refuse(f"its adapter has {name}={there.get(name)}, and here it is {own}: give the same")
    if theirs["rows"] != ours["rows"]:
        manifest, own_rows = path.parent / "manifest.json", trainer.env.manifest
        if own_rows is not None and manifest.is_file() and json.loads(manifest.read_text()).get("rows"):
            check_manifest(manifest, own_rows)  # which names the difference
        split = next(name for name, value in ours["rows"].items() if theirs["rows"].get(name) != value)
        refuse(f"its {split} rows are others: give the tasks, data and seed of that run")
    if theirs["curriculum"] != ours["curriculum"]:
        refuse("its curriculum is another, or one of the two has none: give the same, and the same tasks and seed")
    for name, value in ours.items():
        if theirs.get(name) != value:
            refuse(f"it was made with {name}={theirs.get(name)}, and here it is {value}: give the same")
    if trainer.previous_policy and not all((path / weights_file(n)).is_file() for n in range(ours["processes"])):
        refuse("it was saved without kl_reference='previous'")
    if (step := step_of(path)) >= (last := trainer.args.max_steps):
        refuse(f"it is already at step {step} of {last}; increase max_steps to continue")
    if ours["sharding"] == "none":
        count = len(_load(path / OPTIMIZER_FILE)["state"])
        trained = sum(parameter.requires_grad for parameter in trainer.model.parameters())
        if count not in (0, trained):
            refuse(f"{OPTIMIZER_FILE} is of {count} parameters, and {trained} are trained here")


def _damage(path: Path) -> str | None:
    """Why the folder is not a complete checkpoint; None if it is one."""
    if not path.is_dir():
        return "there is no such folder: give a folder checkpoint-N of a run"
    try:
        with _reading(path / STATE):
            step_of(path)
        with _reading(path / FACTS):
            made = json.loads((path / FACTS).read_text())
            processes, sharding, curriculum = int(made["processes"]), made["sharding"], made["curriculum"]
        for process in range(processes):
            _load(path / state_file(process), "random", "sampler", "batch", "tokens", "skipped", "scheduler")
            previous = path / weights_file(process)
            with _reading(previous):
                if previous.exists():
                    safe_open(previous, framework="np").__enter__()
        if sharding == "none":
            _load(path / OPTIMIZER_FILE, "state", "param_groups")
        if (path / SCALER_FILE).exists():
            _load(path / SCALER_FILE)
        if curriculum is not None:
            with _reading(path / CURRICULUM):
                read_state((path / CURRICULUM).read_text(encoding="utf-8"))
        if problem := weights_damage(path):
            return problem
        if sharding == "fsdp2":
            if objects := non_tensors(path / OPTIMIZER_FOLDER):
                return f"{OPTIMIZER_FOLDER} contains {objects[0]}, which is not a tensor; it was not executed"
        elif sharding != "none":
            _check_deepspeed(path, processes)
    except InputError as error:
        return str(error)
    return None


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn whatever a reader of `file` raises into an `InputError` that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{file.name} is missing: give a folder checkpoint-N of a run") from error
    except pickle.UnpicklingError as error:
        raise InputError(f"{file.name} holds something that a checkpoint has not; it was not executed") from error
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, EOFError, SafetensorError) as error:
        raise InputError(f"{file.name} is truncated or damaged") from error


def _load(file: Path, *needed: str) -> dict[str, Any]:
    """What torch saved in `file`, with the `needed` keys; its tensors are left on the disk."""
    with _reading(file):
        values: dict[str, Any] = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        for key in needed:
            values[key]
    return values


def _check_deepspeed(path: Path, processes: int) -> None:
    with _reading(path / "latest"):
        tag = (path / "latest").read_text().strip()
    shards = path / tag
    if shards.parent != path or not shards.is_dir():
        raise InputError(f"its DeepSpeed folder {tag[:40]!r} is missing")
    files = sorted(shards.glob("*.pt"))
    optimizer = [file for file in files if file.name.endswith("optim_states.pt")]
    if len(optimizer) != processes:
        raise InputError(f"{tag} has {len(optimizer)} optimizer files, and {processes} processes wrote it")
    for file in files:
        try:
            strange = set(get_unsafe_globals_in_checkpoint(file)) - DEEPSPEED_TYPES
        except Exception as error:  # any exception of a reader of a damaged file
            raise InputError(f"{tag}/{file.name} is truncated or damaged") from error
        if strange:
            raise InputError(f"{tag}/{file.name} holds {min(strange)}, which a checkpoint has not; it was not executed")
