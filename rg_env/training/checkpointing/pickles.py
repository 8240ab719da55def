"""Files that torch saved: read without executing anything in them, a tensor at a time.

What may stand in a file besides tensors and plain values is listed here. DeepSpeed's own classes are read as inert
objects, so DeepSpeed itself is not needed.
"""

import pickle
import re
from collections.abc import Callable
from io import RawIOBase
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
    except Exception as error:  # whatever the readers of a damaged file raise
        strange = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if strange:
            raise InputError(
                f"{file} holds {strange[1]}, which no checkpoint read here needs; it was not executed"
            ) from error
        raise InputError(f"{file} is truncated, damaged, or no file of torch: save or copy it again") from error


class Saved:
    """A file of torch's of which a part is wanted: its tensors are described at once, and read when asked for."""

    def __init__(self, path: Path, part: Callable[[Any], Any] = lambda content: content):
        """Raises as `load`; where the part is missing, `InputError` too."""
        self.path = path
        try:
            self.content = part(load(path))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} is not what its name says: it lacks {error}") from error
        self._base: int | None = None

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """All of a tensor of `content`."""
        target = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.into(target.view(-1), tensor)
        return target

    def into(self, target: torch.Tensor, tensor: torch.Tensor, start: int = 0) -> None:
        """Fill `target`, flat and contiguous, with the values of `tensor` from `start` on, as they follow one another.

        They are read from the file, which takes a quarter of the time of copying them out of the mapping, and no memory
        but the target's; where it cannot be known where in the file they stand, they are copied.
        """
        at = self._file_offset(tensor) if target.numel() else None
        if at is None:
            target.copy_(tensor.reshape(-1)[start : start + target.numel()])
            return
        with self.path.open("rb", buffering=0) as file:
            file.seek(at + start * tensor.element_size())
            read_into(file, target, self.path)

    def _file_offset(self, tensor: torch.Tensor) -> int | None:
        """The byte of the file that the mapped tensor begins at."""
        if not tensor.is_contiguous():
            return None
        if self._base is None:
            self._base = _mapping(self.path, tensor.data_ptr())
        at = tensor.data_ptr() - self._base
        return at if self._base >= 0 and 0 <= at < self.path.stat().st_size else None


def read_into(file: RawIOBase, target: torch.Tensor, path: Path) -> None:
    """Fill `target`, flat and contiguous, from where `file` stands. Raises `InputError`: the file ends before."""
    view = memoryview(target.view(torch.uint8).numpy())
    while len(view):
        count = file.readinto(view)
        if not count:
            raise InputError(f"{path} is truncated: copy it again")
        view = view[count:]


def _mapping(path: Path, address: int) -> int:
    """The address that the first byte of `path` has in the mapping around `address`; -1 where that is unknown."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # not Linux
        return -1
    for line in lines:
        area, _, offset, _, _, *_ = line.split(maxsplit=5)
        first, _, end = area.partition("-")
        if int(first, 16) <= address < int(end, 16):
            return int(first, 16) - int(offset, 16) if line.endswith(str(path.resolve())) else -1
    return -1
