"""Tensors in memory that two processes of one machine share: their layout, and the file behind it.

The file is in the machine's memory file system and unlinked as soon as both sides have it: nothing is left of it,
however they end.
"""

import json
import math
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

MEMORY = Path("/dev/shm")
PREFIX = "rg-env-"
HEADER = 4096
"""Bytes at the beginning of the file for the worker's description of itself (JSON)."""
ALIGNMENT = 16
"""Bytes: every tensor begins at a multiple, so that it can be viewed as any type."""


SHAPE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
"""Sizes in a model's configuration that distinguish models."""


@dataclass(frozen=True)
class Entry:
    """One tensor of a bucket; tensors follow one another."""

    name: str
    dtype: str
    """Its name in torch."""
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes up to the next tensor."""
        return _aligned(math.prod(self.shape) * _torch_type(self.dtype).itemsize)


def entry(name: str, tensor: torch.Tensor, widest: torch.dtype) -> Entry:
    """The place of a tensor; floating-point numbers wider than `widest` are rounded to it."""
    narrow = tensor.is_floating_point() and tensor.dtype.itemsize > widest.itemsize
    return Entry(name, str(widest if narrow else tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def pack(tensors: Sequence[tuple[str, torch.Tensor]], flat: torch.Tensor, widest: torch.dtype) -> list[Entry]:
    """Copy named tensors into `flat` (uint8), one behind the other. ValueError if they do not fit."""
    entries = [entry(name, tensor, widest) for name, tensor in tensors]
    for (_, place), (_, tensor) in zip(unpack(entries, flat), tensors, strict=True):
        place.copy_(tensor)
    return entries


def unpack(entries: Sequence[Entry], flat: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The tensors in a bucket, as views. ValueError for entries that `flat` does not hold."""
    if sum(each.num_bytes for each in entries) > _aligned(len(flat)):
        raise ValueError(f"the tensors of this bucket take more than its {len(flat)} bytes")
    found, start = [], 0
    for each in entries:
        dtype = _torch_type(each.dtype)
        view = flat[start : start + math.prod(each.shape) * dtype.itemsize].view(dtype).view(each.shape)
        found.append((each.name, view))
        start += each.num_bytes
    return found


def reserve(name: str, num_bytes: int) -> Path:
    """A file of `num_bytes` of memory, for this user alone. OSError if there is too little, or no such file system."""
    path = MEMORY / f"{PREFIX}{name}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)  # later, a lack of memory would be a bus error
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)
    return path


def mapped(path: str | Path) -> torch.Tensor:
    """The memory of such a file, (bytes,) uint8. ValueError for any other file, because anyone who reaches the
    server's port may name one."""
    status = os.lstat(path)
    named = Path(path).parent == MEMORY and Path(path).name.startswith(PREFIX)
    if not (named and stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()):
        raise ValueError(f"{path} is not shared memory of rg-env's")
    return torch.from_file(str(path), shared=True, size=status.st_size, dtype=torch.uint8)


def write_header(memory: torch.Tensor, values: dict[str, Any]) -> None:
    """Write `values` for the other side."""
    text = json.dumps(values).encode()[:HEADER].ljust(HEADER)
    memory[:HEADER] = torch.frombuffer(bytearray(text), dtype=torch.uint8)


def read_header(memory: torch.Tensor) -> dict[str, Any]:
    """The values that the other side wrote. ValueError if it wrote none."""
    values: dict[str, Any] = json.loads(bytes(memory[:HEADER].tolist()).strip(b" \0"))
    return values


def _torch_type(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is not a type of tensors")
    return found


def _aligned(num_bytes: int) -> int:
    return math.ceil(num_bytes / ALIGNMENT) * ALIGNMENT
