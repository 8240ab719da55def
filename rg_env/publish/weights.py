"""Read weights by name from a checkpoint in any supported format.

`plain`      safetensors or pytorch_model.bin, one file or several with an index
`deepspeed`  shards from ZeRO-1, ZeRO-2 or ZeRO-3, read with DeepSpeed's `zero_to_fp32`
`distcp`     torch.distributed.checkpoint, as written by FSDP trainers, read with torch's loader
`dtensor`    one file of DTensors per process (`model_world_size_N_rank_R.pt`), as written by verl
`adapter`    LoRA adapters

Unsharded tensors stay in their memory-mapped files, and sharded tensors are assembled in memory. Code in a checkpoint
is never executed. DeepSpeed and torch read files with `weights_only=True`, and `training.checkpointing.pickles` reads
the metadata of torch.distributed.checkpoint.
"""

import io
import re
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from rg_env.core.text import counted, one_line
from rg_env.errors import InputError, RGEnvError
from rg_env.publish.checkpoint import BIN, Kind
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, weight_files
from rg_env.training.checkpointing.pickles import load, read_metadata, safe_classes

Weights = dict[str, torch.Tensor]


def read_weights(kind: Kind, folder: Path) -> tuple[str, Weights]:
    """Read the weights in `folder`, which have the format `kind`. Returns a description of the format, and the weights.

    Raises:
        InputError: a file is missing, damaged, from another checkpoint or in an unknown format.
    """
    try:
        described, found = _READERS[kind](folder)
        for name, value in found.items():
            if not isinstance(name, str) or not isinstance(value, torch.Tensor) or value.is_meta or value.is_sparse:
                raise TypeError(f"{name} is not a dense tensor")
    except RGEnvError:
        raise
    except Exception as error:  # damaged files can raise any exception
        reason = one_line(f"{type(error).__name__}: {error}", 400)
        raise InputError(f"{folder} has damaged files, or files in an unknown format ({reason})") from error
    return described, {name: value.detach() for name, value in found.items()}


def _plain(folder: Path) -> tuple[str, Weights]:
    found = _files(folder, WEIGHTS)
    return ("safetensors", found) if found else (BIN, _files(folder, BIN))


def _files(folder: Path, name: str) -> Weights:
    found: Weights = {}
    for file in weight_files(folder, name):
        try:
            tensors = load(file) if name == BIN else load_file(file)
        except SafetensorError as error:
            raise InputError(f"{file} is truncated, damaged, or not a safetensors file: copy it again") from error
        if both := sorted(found.keys() & tensors.keys()):
            raise InputError(f"{both[0]} is both in {file} and in another file: keep only one of the two files")
        found |= tensors
    return found


def _deepspeed(folder: Path) -> tuple[str, Weights]:
    # The files are read here first because DeepSpeed's errors do not name the file.
    models, optimizers = (
        {file.name: load(file) for file in sorted(folder.glob(f"*_{kind}_states.pt"))} for kind in ("model", "optim")
    )
    if not models:
        raise InputError(f"{folder} lacks DeepSpeed's *_model_states.pt files: copy the folder again")
    head = next(iter(models.values()))
    if head.get("mp_world_size", 1) != 1 or any("mp_rank_00" not in name for name in (*models, *optimizers)):
        raise InputError(f"{folder} was saved with tensor parallelism, which is not supported")
    for files in (models, optimizers):  # a comparison of shapes would not reveal files from another step
        steps = {name: step for name, content in files.items() if (step := _step(content)) is not None}
        if len(set(steps.values())) > 1:
            named = ", ".join(f"{name} after {counted(step, 'step')}" for name, step in steps.items())
            raise InputError(f"{folder} mixes files from different checkpoints: {named}")
    if not optimizers:  # the model file has the weights in the compute dtype, or empty weights with ZeRO-3
        return "DeepSpeed", head["module"]
    # DeepSpeed passes weights_only=False, which this environment variable overrides.
    weights_only = patch.dict("os.environ", TORCH_FORCE_WEIGHTS_ONLY_LOAD="1")
    quiet = io.StringIO()
    with weights_only, torch.serialization.safe_globals(safe_classes()), redirect_stdout(quiet), redirect_stderr(quiet):
        try:
            from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        except ImportError as error:
            raise InputError(f"reading {folder} requires deepspeed: `pip install deepspeed`") from error
        found = get_fp32_state_dict_from_zero_checkpoint(str(folder.parent), folder.name)
    stage = int(next(iter(optimizers.values()))["optimizer_state_dict"]["zero_stage"])
    return f"ZeRO-{stage} shards of {counted(len(optimizers), 'process')}", found


def _step(content: Any) -> int | None:
    if "optimizer_state_dict" not in content:
        return content.get("global_steps")
    optimizer = content["optimizer_state_dict"]
    base = optimizer.get("base_optimizer_state") or optimizer.get("optimizer_state_dict")
    if not isinstance(base, dict):
        return None
    kept = [*(base.get("state") or {}).values(), *(base.get("param_groups") or [])]
    return max((int(each["step"]) for each in kept if isinstance(each, dict) and "step" in each), default=None)


class _SafeReader(dcp.FileSystemReader):
    """Checkpoint reader that does not execute code in the metadata."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return read_metadata(Path(self.path))


def _distcp(folder: Path) -> tuple[str, Weights]:
    found: Weights = {}
    for name, entry in read_metadata(folder).state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata) or name.startswith("optim"):
            continue
        missing = torch.ones(entry.size, dtype=torch.bool)
        for chunk in entry.chunks:
            missing[tuple(slice(at, at + n) for at, n in zip(chunk.offsets, chunk.sizes, strict=True))] = False
        if missing.any() or sum(chunk.sizes.numel() for chunk in entry.chunks) != entry.size.numel():
            raise InputError(f"{folder}: the parts of {name} overlap or are incomplete")
        found[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    with warnings.catch_warnings():
        # torch warns about loading in a single process, which is intended here.
        warnings.simplefilter("ignore", UserWarning)
        try:
            dcp.load(found, storage_reader=_SafeReader(folder), no_dist=True)
        except dcp.CheckpointException as error:  # a BaseException
            raise ValueError(next(iter(error.failures.values()))[0]) from error
    files = len(list(folder.glob("*.distcp")))
    return f"torch.distributed.checkpoint, {counted(files, 'file')}", found


def _dtensor(folder: Path) -> tuple[str, Weights]:
    names = {file.name for file in folder.glob("model_world_size_*_rank_*.pt")}
    size = int(re.findall(r"\d+", min(names))[0])
    files = [f"model_world_size_{size}_rank_{rank}.pt" for rank in range(min(size, len(names)))]
    if len(files) < size or names != set(files):
        raise InputError(
            f"{folder} must contain all {size} model_world_size_{size}_rank_R.pt files of a single run "
            f"({len(names)} found)"
        )
    parts = [load(folder / name) for name in files]
    if any(part.keys() != parts[0].keys() for part in parts):
        raise InputError(f"{folder} has files with different weight names, so they are from different checkpoints")
    found = {name: _joined(name, [part[name] for part in parts]) for name in parts[0]}
    return f"sharded tensors of {counted(size, 'process')}", found


def _joined(name: str, parts: list[Any]) -> torch.Tensor:
    """Assemble a DTensor from the parts held by all processes."""
    if not hasattr(parts[0], "_spec"):
        return parts[0]  # this is a plain tensor, which is identical in all processes
    spec = parts[0]._spec

    def part(mesh: torch.Tensor, placements: list[Any]) -> torch.Tensor:
        if not placements:
            return parts[int(mesh)]._local_tensor
        if placements[0].is_replicate():
            return part(mesh[0], placements[1:])
        if type(placements[0]).__name__ != "Shard":
            raise InputError(f"{name} has the placement {placements[0]}, which is not supported")
        return torch.cat([part(each, placements[1:]) for each in mesh], dim=placements[0].dim)

    whole = part(spec.mesh.mesh, list(spec.placements))
    if whole.shape != spec.shape:
        raise InputError(f"the parts of {name} do not fit together, because files from different checkpoints are mixed")
    return whole


_READERS: dict[Kind, Callable[[Path], tuple[str, Weights]]] = {
    "plain": _plain,
    "deepspeed": _deepspeed,
    "dtensor": _dtensor,
    "distcp": _distcp,
    "adapter": lambda folder: ("LoRA adapters", _files(folder, ADAPTER)),
}
