"""Read files saved by torch without executing any code in them.

torch's reader (`weights_only=True`) is safe for tensors and for the classes listed in this module. The `.metadata` file
of torch.distributed.checkpoint is a plain pickle, and torch would execute any code in it. `read_metadata` uses its own
unpickler, which allows only the classes that `.metadata` needs.
"""

import pickle
import re
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import metadata

from rg_env.core.text import one_line
from rg_env.errors import InputError

DEEPSPEED_TYPES = {
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
}
"""Classes in checkpoints from DeepSpeed 0.17 to 0.19, in addition to plain values and tensors."""
_STAGES = ("disabled", "optimizer_states", "gradients", "weights")
"""Names of DeepSpeed's ZeRO stages 0 to 3."""
METADATA = ".metadata"


def load(file: Path) -> Any:
    """Return the contents of `file`, with memory-mapped tensors.

    Raises:
        InputError: the file is missing or damaged, or contains anything other than tensors, plain values and known
            classes.
    """
    try:
        with torch.serialization.safe_globals(safe_classes()):
            return torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except (FileNotFoundError, PermissionError) as error:
        raise InputError(f"{file}: {error.strerror}") from error
    except Exception as error:  # a damaged file can raise any exception
        strange = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if strange:
            raise InputError(f"{file} contains {strange[1]}, which no checkpoint needs; it was not executed") from error
        raise InputError(f"{file} is truncated, damaged, or not a torch file: copy it again") from error


def safe_classes() -> list[Any]:
    """Return the classes that FSDP and DeepSpeed checkpoints contain, for `torch.serialization.safe_globals`."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    own = [DTensor, DTensorSpec, TensorMeta, Replicate, Shard]
    # These names refer to the same classes in checkpoints from torch 2.4 and earlier.
    modules = ("", "api.", "placement_types.", "_dtensor_spec.")
    earlier = [(kind, f"torch.distributed._tensor.{module}{kind.__name__}") for kind in own for module in modules]
    # DeepSpeed may not be installed, so its objects are read as inert placeholders and the ZeRO stage is read as a
    # number.
    stand_ins = {name: type(name.rpartition(".")[2], (_Inert,), {}) for name in DEEPSPEED_TYPES}
    stand_ins["deepspeed.runtime.zero.config.ZeroStageEnum"] = _Stage
    named = ((kind, name) for name, kind in stand_ins.items())
    return [DeviceMesh, *own, *earlier, *named, (_member, "builtins.getattr")]


class _Inert:
    def __new__(cls, *arguments: Any) -> "_Inert":
        return super().__new__(cls)


class _Stage(int):
    """ZeRO stage."""


def _member(kind: object, name: object) -> _Stage:
    """Return a ZeRO stage. This function replaces `getattr`, which Python 3.11.0 to 3.11.3 use to pickle enum
    members."""
    if kind is not _Stage or name not in _STAGES:
        raise pickle.UnpicklingError("GLOBAL builtins.getattr")
    return _Stage(_STAGES.index(name))


def read_metadata(folder: Path) -> metadata.Metadata:
    """Read the metadata of a torch.distributed.checkpoint folder, and check the folder's files against the metadata.

    Raises:
        InputError: a file is missing or damaged, or the metadata contains unknown classes.
    """
    file = folder / METADATA
    try:
        with file.open("rb") as stream:
            found = _MetadataUnpickler(stream).load()
        ends: dict[str, int] = {}
        for name, entry in found.state_dict_metadata.items():
            for chunk in getattr(entry, "chunks", ()):
                place = found.storage_data[metadata.MetadataIndex(name, chunk.offsets)]
                if place.offset < 0 or place.length < 0 or Path(place.relative_path).name != place.relative_path:
                    raise ValueError(f"{name} has an invalid location: {place.relative_path}, offset {place.offset}")
                ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    except OSError as error:
        raise InputError(
            f"{file}: {error.strerror}; the .distcp files cannot be read without this file, so copy it as well"
        ) from error
    except _UnknownClass as error:
        raise InputError(
            f"{file} contains {one_line(error)}, which no checkpoint needs; it was not executed"
        ) from error
    except Exception as error:  # a damaged pickle can raise any exception
        raise InputError(
            f"{file} is truncated, damaged, or in another format ({one_line(error)}): copy it again"
        ) from error
    for name, end in ends.items():
        size = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if size < end:
            problem = f"is missing or truncated (it has {size:,} of at least {end:,} bytes)"
            raise InputError(f"{one_line(folder / name)} {problem}: copy all files again")
    return found


def non_tensors(folder: Path) -> list[str]:
    """Return the names of the pickled entries in a torch.distributed.checkpoint folder. Loading such entries could
    execute code. Raises the same errors as `read_metadata`."""
    entries = read_metadata(folder).state_dict_metadata
    return [one_line(name) for name, entry in entries.items() if not isinstance(entry, metadata.TensorStorageMetadata)]


class _UnknownClass(Exception):
    """Raised if the metadata contains an unexpected class."""


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _METADATA_CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module in ("pathlib", "pathlib._local") and name in ("PosixPath", "WindowsPath"):
            return PurePosixPath
        kind = getattr(torch, name, None) if module == "torch" and "." not in name else None
        if isinstance(kind, torch.dtype):
            return kind
        raise _UnknownClass(f"{module}.{name}")


_METADATA_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        *("Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
        *("TensorProperties", "_MEM_FORMAT_ENCODING", "StorageMeta"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
}
