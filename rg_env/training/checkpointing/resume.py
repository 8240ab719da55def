"""Checkpoints to go on from: which one, and whether it can be, before anything starts.

Nothing in a checkpoint is executed: pickles are read by torch's restricted reader, and those that DeepSpeed loads
without it are searched for anything but what DeepSpeed writes.
"""

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint
from transformers import TrainerState

from rg_env.core.data.manifest import check_manifest
from rg_env.core.run_folder import RunFolder, checkpoint_step
from rg_env.errors import InputError
from rg_env.training.algorithms.policy import damage as previous_damage
from rg_env.training.algorithms.policy import weights_file
from rg_env.training.checkpointing.distcp import DistcpReader
from rg_env.training.checkpointing.files import weights_damage, weights_problem
from rg_env.training.checkpointing.pickles import DEEPSPEED_TYPES
from rg_env.training.checkpointing.save import CURRICULUM, FACTS, facts, state_file
from rg_env.training.data.curriculum import read_state
from rg_env.training.strategy import OPTIMIZER_FILE, OPTIMIZER_FOLDER, SCALER_FILE

AUTO = "auto"
_STATE = ("random", "sampler", "batch", "tokens", "skipped", "scheduler")
"""What a resumed run restores of each process."""


def chosen(resume: str | Path, folder: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint that `resume` means for a run in `folder`, and what was passed over on the way.

    Raises:
        InputError: a given one is no checkpoint, or `folder` holds newer ones, which would be in the way.
    """
    if str(resume) != AUTO:
        path = Path(resume)
        if path.parent.resolve() == folder.resolve():
            newest = RunFolder(folder).last_checkpoint() or path
            if (checkpoint_step(newest) or 0) > (checkpoint_step(path) or 0):
                raise InputError(
                    f"{folder} has checkpoints after {path.name}, {newest.name} the newest: go on from that one "
                    f"(--resume {AUTO}), or give another output folder"
                )
        problem = _damage(path)
        if problem:
            raise InputError(f"cannot go on from {path}: {problem}")
        return path, []
    passed_over: list[str] = []
    for path in RunFolder(folder).checkpoints():
        problem = _damage(path)
        if problem is None:
            return path, passed_over
        passed_over.append(f"{path}: {problem}")
    return None, passed_over


def check_fit(trainer: Any, path: Path) -> None:
    """Raise `InputError` unless `trainer` can go on from the checkpoint `path` as if it had never stopped."""
    theirs, ours = _facts(path), facts(trainer)

    def refuse(reason: str) -> None:
        raise InputError(f"cannot go on from {path}: {reason}")

    step = step_of(path)
    if theirs["processes"] != ours["processes"]:
        refuse(f"it is of {theirs['processes']} processes, and here are {ours['processes']}: start as many")
    if problem := weights_problem(path, trainer.accelerator.unwrap_model(trainer.model)):
        refuse(f"it is of another model: {problem}")
    if trainer_adapter := getattr(trainer.accelerator.unwrap_model(trainer.model), "peft_config", None):
        _check_adapter(path, next(iter(trainer_adapter.values())))
    if theirs["rows"] != ours["rows"]:
        manifest, here = path.parent / "manifest.json", trainer.env.manifest
        if here is not None and manifest.is_file() and json.loads(manifest.read_text()).get("rows"):
            check_manifest(manifest, here)
        split = next(name for name, value in ours["rows"].items() if theirs["rows"].get(name) != value)
        refuse(f"its {split} rows are others: give the tasks, data and seed of that run")
    if theirs.get("curriculum") != ours["curriculum"]:
        there, here = theirs.get("curriculum"), ours["curriculum"]
        kind = "another" if there and here else "a" if there else "no"
        refuse(f"it was made with {kind} curriculum: give the same one, and the same tasks and seed")
    for name, value in ours.items():
        if theirs.get(name) != value:
            refuse(f"it was made with {name}={theirs.get(name)}, and here it is {value}: give the same")
    if trainer.previous_policy and not all((path / weights_file(n)).is_file() for n in range(ours["processes"])):
        refuse("it was saved without kl_reference='previous'")
    last = trainer.args.max_steps
    if step >= last:
        refuse(f"it is already at step {step} of {last}; increase max_steps to continue")
    if ours["sharding"] == "none":
        count = len(_pickle(path / OPTIMIZER_FILE)["state"])
        trained = sum(parameter.requires_grad for parameter in trainer.model.parameters())
        if count not in (0, trained):
            refuse(f"{OPTIMIZER_FILE} is of {count} parameters, and {trained} are trained here")


def step_of(path: Path) -> int:
    """The step that a whole checkpoint was made after."""
    step: int = _state(path)["global_step"]
    return step


def _damage(path: Path) -> str | None:
    """What makes the folder no whole checkpoint; None if it is one."""
    if not path.is_dir():
        return "there is no such folder: give a folder checkpoint-N of a run"
    try:
        _state(path)
        told = _facts(path)
        processes = told["processes"]
        for process in range(processes):  # the first that is missing ends it, whatever number an edited file tells
            _pickle(path / state_file(process), *_STATE)
            if problem := previous_damage(path, process):
                return problem
        if told["sharding"] == "none":
            _pickle(path / OPTIMIZER_FILE, "state", "param_groups")
            if (path / SCALER_FILE).exists():
                _pickle(path / SCALER_FILE)
        if told.get("curriculum") is not None:
            _curriculum(path / CURRICULUM)
        if problem := weights_damage(path):
            return problem
        if told["sharding"] == "fsdp2":
            _check_shards(path / OPTIMIZER_FOLDER)
        elif told["sharding"] != "none":
            _check_deepspeed(path, processes)
    except InputError as error:
        return str(error)
    return None


def _state(path: Path) -> dict[str, Any]:
    state = _json(path / "trainer_state.json")
    step = state.get("global_step")
    if not isinstance(step, int) or isinstance(step, bool) or step < 1:
        raise InputError("its trainer_state.json has no step")
    try:
        TrainerState(**state)
    except (TypeError, ValueError, AttributeError, KeyError) as error:  # edited, or of another transformers
        raise InputError(f"its trainer_state.json is not what it should be: {error}") from error
    return state


def _facts(path: Path) -> dict[str, Any]:
    found = _json(path / FACTS)
    whole = {"processes", "sharding", "rows"} <= set(found)
    if not (whole and type(found["processes"]) is int and found["processes"] > 0 and isinstance(found["rows"], dict)):
        raise InputError(f"its {FACTS} is not what it should be")
    return found


def _curriculum(file: Path) -> None:
    try:
        read_state(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # InputError among them
        raise InputError(f"{file.name} is missing, truncated or damaged") from error


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file.name}: {error.strerror}; give a folder checkpoint-N that a run left") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file.name} is truncated, or no JSON") from error
    if not isinstance(found, dict):
        raise InputError(f"{file.name} is not what it should be")
    return found


def _pickle(file: Path, *needed: str) -> dict[str, Any]:
    """What torch saved in `file`, with the `needed` keys; its tensors are left on the disk."""
    try:
        found = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except (FileNotFoundError, PermissionError) as error:
        raise InputError(f"{file.name}: {error.strerror}") from error
    except pickle.UnpicklingError as error:
        raise InputError(f"{file.name} holds something that a checkpoint has not; it was not executed") from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise InputError(f"{file.name} is truncated, or damaged") from error
    if not isinstance(found, dict) or not set(needed) <= set(found):
        raise InputError(f"{file.name} is not what it should be")
    return found


def _check_deepspeed(path: Path, processes: int) -> None:
    try:
        tag = (path / "latest").read_text().strip()
    except (OSError, ValueError) as error:
        raise InputError("its DeepSpeed file 'latest' is missing") from error
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
        except Exception as error:  # whatever the reader of a damaged file raises
            raise InputError(f"{tag}/{file.name} is truncated, or damaged") from error
        if strange:
            raise InputError(f"{tag}/{file.name} holds {min(strange)}, which a checkpoint has not; it was not executed")


def _check_shards(folder: Path) -> None:
    """Raise `InputError` unless torch.distributed.checkpoint can load the folder without executing anything."""
    if objects := DistcpReader(folder).objects:
        raise InputError(f"{folder.name} holds {objects[0]}, which is no tensor; it was not executed")


def _check_adapter(path: Path, here: Any) -> None:
    there = _json(path / "adapter_config.json")
    for name in ("lora_alpha", "use_rslora", "use_dora"):
        if there.get(name) != getattr(here, name, None):
            raise InputError(
                f"cannot go on from {path}: its adapter has {name}={there.get(name)}, and here it is "
                f"{getattr(here, name, None)}: give the same"
            )
