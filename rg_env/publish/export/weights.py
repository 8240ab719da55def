"""The weights in a checkpoint of any trainer, as whole tensors by name.

`plain`      safetensors or pytorch_model.bin, one file or several with an index
`deepspeed`  ZeRO-1, 2 and 3, by DeepSpeed's own `zero_to_fp32`
`distcp`     torch.distributed.checkpoint, as FSDP's trainers write it, by torch's own loader
`dtensor`    a file of DTensors for each process (`model_world_size_N_rank_R.pt`), as verl writes them
`adapter`    LoRA adapters

Nothing in a checkpoint is executed: DeepSpeed and torch read with `weights_only=True`, and the metadata of
torch.distributed.checkpoint is read by `training.checkpointing.pickles`.
"""

import contextlib
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from rg_env.core.text import one_line
from rg_env.errors import InputError, RGEnvError
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, weight_files
from rg_env.training.checkpointing.pickles import load, read_metadata, safe_classes

Kind = Literal["plain", "deepspeed", "dtensor", "distcp", "adapter"]
Tensors = dict[str, torch.Tensor]
BIN = "pytorch_model.bin"
_DTENSORS = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


@dataclass(frozen=True)
class Weights:
    """What a reader found."""

    described: str
    tensors: Tensors


def read_weights(kind: Kind, folder: Path) -> Weights:
    """The weights of `kind` in `folder`.

    Raises:
        InputError: a file is missing, damaged, of another checkpoint or of an unknown format.
    """
    try:
        found = _READERS[kind](folder)
        for name, tensor in found.tensors.items():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor) or tensor.is_meta or tensor.is_sparse:
                raise TypeError(f"{name} is not a dense tensor")
        return found
    except RGEnvError:
        raise
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}") from error
    except Exception as error:  # damaged files raise anything
        reason = one_line(f"{type(error).__name__}: {error}", 400)
        raise InputError(f"{folder} has files that are damaged or of an unknown format ({reason})") from error


def has_weights(folder: Path, *names: str) -> bool:
    """Whether there is a file with one of these names, or an index of several."""
    return any((folder / file).is_file() for name in names for file in (name, f"{name}.index.json"))


def check_type(name: str, tensor: torch.Tensor) -> None:
    """Raise `InputError` unless these are floating-point weights that can be exported."""
    if tensor.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        kind = str(tensor.dtype).removeprefix("torch.")
        raise InputError(f"{name} is of type {kind}, as quantized weights are, which are not exported")


def _plain(folder: Path) -> Weights:
    name = WEIGHTS if has_weights(folder, WEIGHTS) else BIN
    return Weights("safetensors" if name == WEIGHTS else BIN, _files(folder, name))


def _files(folder: Path, name: str) -> Tensors:
    found: Tensors = {}
    for file in weight_files(folder, name):
        tensors: Any = load(file) if name == BIN else _safetensors(file)
        if both := sorted(found.keys() & tensors.keys()):
            raise InputError(f"{file}: {both[0]} is in another file, too: which one is meant?")
        found |= tensors
    return found


def _safetensors(file: Path) -> Tensors:
    try:
        return load_file(file)
    except Exception as error:
        raise InputError(f"{file} is truncated, damaged, or not a safetensors file: copy it again") from error


def _deepspeed(folder: Path) -> Weights:
    models, optimizer = sorted(folder.glob("*_model_states.pt")), sorted(folder.glob("*_optim_states.pt"))
    contents = {file: load(file) for file in (*models, *optimizer)}
    if not models:
        raise InputError(f"{folder} has no file *_model_states.pt, which DeepSpeed writes: copy it again")
    head = contents[models[0]]
    if head.get("mp_world_size", 1) != 1 or any("mp_rank_00" not in file.name for file in contents):
        raise InputError(f"{folder} is of a model split by tensor parallelism, which is not read here")
    _check_steps(contents)
    if not optimizer:  # the weights as the model computed with them, except under ZeRO-3
        module: Tensors = head["module"]
        if any(tensor.numel() == 0 for tensor in module.values()):
            raise InputError(f"{models[0]} has empty weights, and there are no optimizer files next to it: copy them")
        return Weights("DeepSpeed", module)
    with _weights_only(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        except ImportError as error:
            raise InputError(f"{folder} can be read with deepspeed only: `pip install deepspeed`") from error
        tensors = get_fp32_state_dict_from_zero_checkpoint(str(folder.parent), folder.name)
    stage = int(contents[optimizer[0]]["optimizer_state_dict"]["zero_stage"])
    return Weights(f"ZeRO-{stage} shards of {_processes(len(optimizer))}", dict(tensors))


@contextlib.contextmanager
def _weights_only() -> Iterator[None]:
    """Within: `torch.load` executes nothing, also where a library calls it with `weights_only=False`."""
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
    """Raise `InputError` if files are of different steps: their values would fit together."""
    steps = {file: step for file, content in contents.items() if (step := _step(content)) is not None}
    for suffix in ("model_states.pt", "optim_states.pt"):
        same = {file: step for file, step in steps.items() if file.name.endswith(suffix)}
        if len(set(same.values())) > 1:
            named = ", ".join(f"{file.name} after {step} steps" for file, step in same.items())
            raise InputError(f"{next(iter(same)).parent} mixes files of different checkpoints: {named}")


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
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return read_metadata(Path(self.path))


def _distcp(folder: Path) -> Weights:
    found = read_metadata(folder)
    tensors: Tensors = {}
    for name, entry in found.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata) or name.startswith("optim"):
            continue
        places = {tuple(chunk.offsets): chunk.sizes.numel() for chunk in entry.chunks}
        if len(places) < len(entry.chunks) or sum(places.values()) != entry.size.numel():
            raise InputError(f"{folder}: the parts of {name} have the same place, or are not all there")
        tensors[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it loads in a single process
        try:
            dcp.load(tensors, storage_reader=_SafeReader(folder), no_dist=True)
        except dcp.CheckpointException as error:  # a BaseException
            raise ValueError(next(iter(error.failures.values()))[0]) from error
    files = len(list(folder.glob("*.distcp")))
    return Weights(f"torch.distributed.checkpoint, {files} file{'' if files == 1 else 's'}", tensors)


def _dtensor(folder: Path) -> Weights:
    matches = [match for file in folder.iterdir() if (match := _DTENSORS.fullmatch(file.name))]
    sizes = {int(match[1]) for match in matches}
    if len(sizes) != 1:
        raise InputError(f"{folder} has files of runs with {sorted(sizes)} processes: leave those of one run")
    size = sizes.pop()
    if len(matches) != size or {int(match[2]) for match in matches} != set(range(size)):
        raise InputError(f"{folder} has {len(matches)} of {size} files model_world_size_{size}_rank_R.pt: copy all")
    parts = [load(folder / f"model_world_size_{size}_rank_{rank}.pt") for rank in range(size)]
    if any(part.keys() != parts[0].keys() for part in parts):
        raise InputError(f"{folder} has files with other names in them: they are of different checkpoints")
    tensors = {name: _joined(name, [part[name] for part in parts]) for name in parts[0]}
    return Weights(f"sharded tensors of {_processes(size)}", tensors)


def _joined(name: str, parts: list[Any]) -> torch.Tensor:
    """The whole of a DTensor from the parts of all processes; a plain tensor is the same in all."""
    if not hasattr(parts[0], "_spec"):
        plain: torch.Tensor = parts[0]
        return plain
    spec = parts[0]._spec
    whole = torch.empty(tuple(spec.shape), dtype=parts[0].dtype)

    def fill(target: torch.Tensor, placements: list[Any], mesh: torch.Tensor) -> None:
        if not placements:
            rank = int(mesh)
            local = parts[rank]._local_tensor
            if rank < 0 or local.shape != target.shape:
                raise InputError(
                    f"the part of {name} of process {rank} has the shape {tuple(local.shape)}, and its "
                    f"place has {tuple(target.shape)}: files of different checkpoints are mixed"
                )
            target.copy_(local)
        elif placements[0].is_replicate():
            fill(target, placements[1:], mesh[0])
        elif type(placements[0]).__name__ == "Shard":  # as torch splits: equal chunks, the last ones smaller or empty
            for chunk, inner in zip(target.chunk(len(mesh), dim=placements[0].dim), mesh, strict=False):
                fill(chunk, placements[1:], inner)
        else:
            raise InputError(f"{name} is split by {placements[0]}, which is not read here")

    fill(whole, list(spec.placements), spec.mesh.mesh)
    return whole


def _processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"


_READERS: dict[Kind, Callable[[Path], Weights]] = {
    "plain": _plain,
    "deepspeed": _deepspeed,
    "dtensor": _dtensor,
    "distcp": _distcp,
    "adapter": lambda folder: Weights("LoRA adapters", _files(folder, ADAPTER)),
}
