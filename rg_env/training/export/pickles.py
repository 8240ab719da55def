"""Files that torch saved: read without executing anything in them, and without staying in memory.

What may stand in a file besides tensors and plain values is listed here. DeepSpeed's own classes are read as inert
objects, so DeepSpeed itself is not needed.
"""

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from rg_env.errors import InputError

DEEPSPEED_TYPES = {
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
}
"""What DeepSpeed 0.17 to 0.19 writes besides plain values and tensors."""
WINDOW_BYTES = 128 * 2**20


class Inert:
    """Stands for an object of a class that is not imported: `arguments` it was made with."""

    arguments: tuple[Any, ...]

    def __new__(cls, *arguments: Any) -> "Inert":
        made = super().__new__(cls)
        made.arguments = arguments
        return made


class _LossScaler(Inert):
    """torch's reader wants a class of its own for each name."""


class _DynamicLossScaler(Inert): ...


class _ZeroStage(Inert): ...


class _Fragment(Inert): ...


def _allowed() -> list[Any]:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    stand_ins = (_DynamicLossScaler, _LossScaler, _ZeroStage, _Fragment)
    # Up to torch 2.4 these were in torch.distributed._tensor.
    earlier = "torch.distributed._tensor"
    return [
        *zip(stand_ins, sorted(DEEPSPEED_TYPES), strict=True),
        *(DeviceMesh, DTensor, DTensorSpec, TensorMeta, Replicate, Shard),
        (DTensor, f"{earlier}.api.DTensor"),
        (DTensor, f"{earlier}.DTensor"),
        (DTensorSpec, f"{earlier}._dtensor_spec.DTensorSpec"),
        (DTensorSpec, f"{earlier}.placement_types.DTensorSpec"),
        (TensorMeta, f"{earlier}._dtensor_spec.TensorMeta"),
        (TensorMeta, f"{earlier}.placement_types.TensorMeta"),
        (Replicate, f"{earlier}.placement_types.Replicate"),
        (Shard, f"{earlier}.placement_types.Shard"),
    ]


def load(file: Path) -> Any:
    """What torch saved in `file`, its tensors mapped, not read.

    Raises:
        InputError: it is missing, damaged, or holds something that is neither a tensor nor a plain value.
    """
    return _load(file, file, mmap=True)


def load_bytes(content: BinaryIO, file: Path) -> Any:
    """The same of a part of `file`, read into memory."""
    return _load(content, file, mmap=False)


def _load(source: Any, file: Path, mmap: bool) -> Any:
    try:
        with torch.serialization.safe_globals(_allowed()):
            return torch.load(source, map_location="cpu", mmap=mmap, weights_only=True)
    except (FileNotFoundError, PermissionError) as error:
        raise InputError(f"{file}: {error.strerror}") from error
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{file} holds {_strange(error)}, which no checkpoint read here needs; it was not executed"
        ) from error
    except Exception as error:  # whatever the readers of a damaged file raise
        raise InputError(f"{file} is truncated, damaged, or no file of torch: save or copy it again") from error


def _strange(error: Exception) -> str:
    """What torch's restricted reader stumbled over."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error)) or re.search(r"global[^:]*: ([\w.]+)", str(error))
    return found[1] if found else "something else than tensors and plain values"


class Window:
    """The files of a checkpoint, mapped while they are read, and mapped anew after every `limit` bytes.

    Else each page that was ever read would count as memory of this process.
    """

    def __init__(self, limit: int = WINDOW_BYTES):
        self._limit, self._spent = limit, 0
        self._files: list[Mapped] = []

    def file(self, path: Path, part: Callable[[Any], Any] = lambda content: content) -> "Mapped":
        """`path`, of which `part` is wanted."""
        self._files.append(Mapped(path, part))
        return self._files[-1]

    def spend(self, num_bytes: int) -> None:
        """Count what was read. Tensors that were taken from a file before stay as they are."""
        self._spent += num_bytes
        if self._spent >= self._limit:
            self._spent = 0
            for file in self._files:
                file.release()


class Mapped:
    """A file of torch's of which a part is wanted."""

    def __init__(self, path: Path, part: Callable[[Any], Any]):
        self.path, self._part = path, part
        self._content: Any = None

    @property
    def content(self) -> Any:
        """That part, its tensors mapped. Raises as `load`; where the part is missing, `InputError` too."""
        if self._content is None:
            try:
                self._content = self._part(load(self.path))
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                raise InputError(f"{self.path} is not what its name says: it lacks {error}") from error
        return self._content

    def release(self) -> None:
        self._content = None
