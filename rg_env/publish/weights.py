"""Read weights by name from a checkpoint in any supported format; tensors are read lazily.

`plain`      safetensors or pytorch_model.bin, one file or several with an index
`deepspeed`  ZeRO-1, 2 and 3, read with DeepSpeed's `zero_to_fp32`
`distcp`     torch.distributed.checkpoint, as written by FSDP trainers, read with torch's loader
`dtensor`    one file of DTensors per process (`model_world_size_N_rank_R.pt`), as written by verl
`adapter`    LoRA adapters

Files are memory-mapped; for ZeRO-1 and 2, DeepSpeed then assembles all weights in memory. Code in a checkpoint is never
executed: DeepSpeed and torch read files with `weights_only=True`, and `training.checkpointing.pickles` reads the
metadata of torch.distributed.checkpoint.
"""

import contextlib
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from rg_env.core.text import counted, listed, one_line
from rg_env.errors import InputError, RGEnvError
from rg_env.publish.checkpoint import BIN, Kind, has_weights
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, weight_files
from rg_env.training.checkpointing.pickles import load, read_metadata, safe_classes

T = TypeVar("T")
_DTENSORS = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


@dataclass(frozen=True)
class Weight:
    """A tensor of a checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]
    """Reads the tensor; raises `InputError` if its file is damaged."""


Weights = dict[str, Weight]


def in_memory(tensors: Mapping[str, Any]) -> Weights:
    """Wrap tensors that are in memory or memory-mapped. Raises `TypeError` for anything but named dense tensors."""
    found: Weights = {}
    for name, value in tensors.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor) or value.is_meta or value.is_sparse:
            raise TypeError(f"{name} is not a dense tensor")
        found[name] = Weight(tuple(value.shape), value.dtype, value.detach)
    return found


def read_weights(kind: Kind, folder: Path) -> tuple[str, Weights]:
    """Read the weights of format `kind` in `folder`. Returns a description of the format, and the weights.

    Raises:
        InputError: a file is missing, damaged, from another checkpoint or in an unknown format.
    """
    described, found = _guarded(folder, partial(_READERS[kind], folder))
    return described, {name: replace(each, read=partial(_guarded, folder, each.read)) for name, each in found.items()}


def check_type(name: str, dtype: torch.dtype) -> None:
    """Raise `InputError` unless the dtype is floating-point and can be exported."""
    if dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        kind = str(dtype).removeprefix("torch.")
        raise InputError(f"{name} has dtype {kind}: quantized weights cannot be exported")


def _guarded(folder: Path, read: Callable[[], T]) -> T:
    """Return the result of `read()`, or raise an `InputError` with a one-line message."""
    try:
        return read()
    except RGEnvError:
        raise
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}") from error
    except Exception as error:  # damaged files can raise any exception
        reason = one_line(f"{type(error).__name__}: {error}", 400)
        raise InputError(f"{folder} has damaged files, or files in an unknown format ({reason})") from error


def _plain(folder: Path) -> tuple[str, Weights]:
    name = WEIGHTS if has_weights(folder, WEIGHTS) else BIN
    return "safetensors" if name == WEIGHTS else BIN, _files(folder, name)


def _files(folder: Path, name: str) -> Weights:
    found: Weights = {}
    for file in weight_files(folder, name):
        tensors: Any = load(file) if name == BIN else _safetensors(file)
        if both := sorted(found.keys() & tensors.keys()):
            raise InputError(f"{both[0]} is both in {file} and in another file: keep only one of the two files")
        found |= in_memory(tensors)
    return found


def _safetensors(file: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(file)
    except Exception as error:
        raise InputError(f"{file} is truncated, damaged, or not a safetensors file: copy it again") from error


def _deepspeed(folder: Path) -> tuple[str, Weights]:
    models, optimizer = sorted(folder.glob("*_model_states.pt")), sorted(folder.glob("*_optim_states.pt"))
    contents = {file: load(file) for file in (*models, *optimizer)}
    if not models:
        raise InputError(f"{folder} lacks DeepSpeed's *_model_states.pt files: copy the folder again")
    head = contents[models[0]]
    if head.get("mp_world_size", 1) != 1 or any("mp_rank_00" not in file.name for file in contents):
        raise InputError(f"{folder} was saved with tensor parallelism, which is not supported")
    _check_steps(contents)
    if not optimizer:  # the model file has the weights in the compute dtype, except with ZeRO-3
        module = in_memory(head["module"])
        if any(0 in each.shape for each in module.values()):
            raise InputError(f"{models[0]} has empty weights, and the optimizer files are missing from its folder")
        return "DeepSpeed", module
    with _weights_only(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        except ImportError as error:
            raise InputError(f"reading {folder} requires deepspeed: `pip install deepspeed`") from error
        lazy = get_fp32_state_dict_from_zero_checkpoint(str(folder.parent), folder.name, lazy_mode=True)
    stage = int(contents[optimizer[0]]["optimizer_state_dict"]["zero_stage"])
    found = {name: Weight(tuple(each.shape), each.dtype, each.contiguous) for name, each in lazy.items()}
    return f"ZeRO-{stage} shards of {counted(len(optimizer), 'process')}", found


@contextlib.contextmanager
def _weights_only() -> Iterator[None]:
    """Within this context, `torch.load` never executes code, even if a library calls it with `weights_only=False`."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        with torch.serialization.safe_globals(safe_classes()):
            yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _check_steps(contents: dict[Path, Any]) -> None:
    """Raise `InputError` if files are from different steps; comparing shapes would not reveal this."""
    steps = {file: step for file, content in contents.items() if (step := _step(content)) is not None}
    for suffix in ("model_states.pt", "optim_states.pt"):
        same = {file: step for file, step in steps.items() if file.name.endswith(suffix)}
        if len(set(same.values())) > 1:
            named = ", ".join(f"{file.name} after {counted(step, 'step')}" for file, step in same.items())
            raise InputError(f"{next(iter(same)).parent} mixes files from different checkpoints: {named}")


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
    def __init__(self, folder: Path, found: Metadata):
        super().__init__(folder)
        self._found = found

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._found


def _distcp(folder: Path) -> tuple[str, Weights]:
    metadata = read_metadata(folder)
    found: Weights = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata) or name.startswith("optim"):
            continue
        places = {tuple(chunk.offsets): chunk.sizes.numel() for chunk in entry.chunks}
        if len(places) < len(entry.chunks) or sum(places.values()) != entry.size.numel():
            raise InputError(f"{folder}: the parts of {name} overlap or are incomplete")
        read = partial(_distcp_tensor, folder, metadata, name)
        found[name] = Weight(tuple(entry.size), entry.properties.dtype, read)
    files = len(list(folder.glob("*.distcp")))
    return f"torch.distributed.checkpoint, {counted(files, 'file')}", found


def _distcp_tensor(folder: Path, metadata: Metadata, name: str) -> torch.Tensor:
    entry = metadata.state_dict_metadata[name]
    assert isinstance(entry, TensorStorageMetadata)
    state = {name: torch.empty(entry.size, dtype=entry.properties.dtype)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns about loading in a single process
        try:
            dcp.load(state, storage_reader=_SafeReader(folder, metadata), no_dist=True)
        except dcp.CheckpointException as error:  # a BaseException
            raise ValueError(next(iter(error.failures.values()))[0]) from error
    return state[name]


def _dtensor(folder: Path) -> tuple[str, Weights]:
    matches = [match for file in folder.iterdir() if (match := _DTENSORS.fullmatch(file.name))]
    sizes = {int(match[1]) for match in matches}
    if len(sizes) != 1:
        numbers = listed(sorted(map(str, sizes)))
        raise InputError(
            f"{folder} has files from runs with different numbers of processes ({numbers}): keep those from one run"
        )
    size = sizes.pop()
    if len(matches) != size or {int(match[2]) for match in matches} != set(range(size)):
        files = f"model_world_size_{size}_rank_R.pt"
        raise InputError(f"{folder} has only {len(matches)} of the {size} files {files}: copy all of them")
    parts = [load(folder / f"model_world_size_{size}_rank_{rank}.pt") for rank in range(size)]
    if any(part.keys() != parts[0].keys() for part in parts):
        raise InputError(f"{folder} has files with different weight names: they are from different checkpoints")
    same = {name: each for name, each in parts[0].items() if not hasattr(each, "_spec")}  # identical in all processes
    found = in_memory(same)
    for name in parts[0].keys() - found.keys():
        pieces = [part[name] for part in parts]
        found[name] = Weight(tuple(pieces[0]._spec.shape), pieces[0].dtype, partial(_joined, name, pieces))
    return f"sharded tensors of {counted(size, 'process')}", found


def _joined(name: str, parts: list[Any]) -> torch.Tensor:
    """Assemble a DTensor from the parts of all processes."""
    spec = parts[0]._spec
    whole = torch.empty(tuple(spec.shape), dtype=parts[0].dtype)

    def fill(target: torch.Tensor, placements: list[Any], mesh: torch.Tensor) -> None:
        if not placements:
            rank = int(mesh)
            local = parts[rank]._local_tensor
            if rank < 0 or local.shape != target.shape:
                raise InputError(
                    f"process {rank}'s part of {name} has shape {tuple(local.shape)} instead of "
                    f"{tuple(target.shape)}: files from different checkpoints are mixed"
                )
            target.copy_(local)
        elif placements[0].is_replicate():
            fill(target, placements[1:], mesh[0])
        elif type(placements[0]).__name__ == "Shard":
            # Like torch, split into equal chunks, of which the last ones can be smaller or empty.
            for chunk, inner in zip(target.chunk(len(mesh), dim=placements[0].dim), mesh, strict=False):
                fill(chunk, placements[1:], inner)
        else:
            raise InputError(f"{name} has the placement {placements[0]}, which is not supported")

    fill(whole, list(spec.placements), spec.mesh.mesh)
    return whole


_READERS: dict[Kind, Callable[[Path], tuple[str, Weights]]] = {
    "plain": _plain,
    "deepspeed": _deepspeed,
    "dtensor": _dtensor,
    "distcp": _distcp,
    "adapter": lambda folder: ("LoRA adapters", _files(folder, ADAPTER)),
}
