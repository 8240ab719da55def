"""Layout and backing file for tensors in memory shared by two processes on one machine.

The file is in `/dev/shm` and is unlinked as soon as both processes have mapped it, so its memory is freed when both
exit.
"""

import math
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

MEMORY = Path("/dev/shm")
PREFIX = "rg-env-"
ALIGNMENT = 16
"""Alignment of tensors, in bytes. With this alignment, a tensor's bytes can be viewed as any dtype."""


SHAPE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
"""Config keys whose values distinguish models of different sizes."""


@dataclass(frozen=True)
class PackedTensor:
    """One tensor in a bucket, stored contiguously."""

    name: str
    dtype: str
    """Name of the torch dtype."""
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Number of bytes from the start of this tensor to the start of the next."""
        return _aligned(math.prod(self.shape) * _torch_type(self.dtype).itemsize)


def pack(tensors: Sequence[tuple[str, torch.Tensor]], flat: torch.Tensor) -> list[PackedTensor]:
    """Copy named tensors consecutively into `flat` (uint8). Raises `ValueError` if the tensors do not fit."""
    entries = [
        PackedTensor(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors
    ]
    for (_, place), (_, tensor) in zip(unpack(entries, flat), tensors, strict=True):
        place.copy_(tensor)
    return entries


def unpack(entries: Sequence[PackedTensor], flat: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Return a bucket's tensors as views of `flat`. Raises `ValueError` for entries beyond the end of `flat`."""
    if sum(each.num_bytes for each in entries) > _aligned(len(flat)):
        raise ValueError(f"the tensors in this bucket exceed its {len(flat)} bytes")
    found, start = [], 0
    for each in entries:
        dtype = _torch_type(each.dtype)
        view = flat[start : start + math.prod(each.shape) * dtype.itemsize].view(dtype).view(each.shape)
        found.append((each.name, view))
        start += each.num_bytes
    return found


def reserve(name: str, num_bytes: int) -> Path:
    """Create a shared-memory file of `num_bytes` bytes, accessible only to the current user. Raises `OSError` if there
    is not enough memory."""
    path = MEMORY / f"{PREFIX}{name}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)  # without this, a lack of memory would cause a bus error later
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)
    return path


def mapped(path: str | Path) -> torch.Tensor:
    """Map a file created by `reserve` into a tensor `(bytes,) uint8`. Raises `ValueError` for any other file, because
    anyone who can reach the server's port can pass a path."""
    status = os.lstat(path)
    named = Path(path).parent == MEMORY and Path(path).name.startswith(PREFIX)
    if not (named and stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()):
        raise ValueError(f"{path} is not an rg-env shared-memory file")
    return torch.from_file(str(path), shared=True, size=status.st_size, dtype=torch.uint8)


def _torch_type(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is not a torch dtype")
    return found


def _aligned(num_bytes: int) -> int:
    return math.ceil(num_bytes / ALIGNMENT) * ALIGNMENT
