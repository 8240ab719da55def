"""What a trainer and the workers of a vLLM server tell each other, and how tensors lie in a bucket.

The trainer hosts the store and is the last rank; the server's workers are ranks 0, 1, … Every wait has a deadline.
"""

import contextlib
import json
import math
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore

PROTOCOL = 1
"""Raised by one whenever trainer and server of different rg-env versions would misunderstand each other."""
ALIGNMENT = 16
"""Bytes: every tensor of a bucket begins at a multiple, so that it can be viewed as any type."""


class Words:
    """JSON values by key, over a `TCPStore` that the trainer hosts."""

    def __init__(self, store: TCPStore, host: str, port: int):
        self.store, self.host, self.port = store, host, port

    @classmethod
    def hosted(cls, host: str, timeout_s: float) -> "Words":
        """Host a store at a free port of the address `host`, and no other."""
        listener = socket.create_server((host, 0))
        port = listener.getsockname()[1]
        store = TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
            master_listen_fd=listener.detach(),  # the store closes it
            use_libuv=False,  # which would not take the listener
        )
        return cls(store, host, port)

    @classmethod
    def joined(cls, host: str, port: int, timeout_s: float) -> "Words":
        """Join a hosted store. Raises `torch.distributed.DistError` if there is none within `timeout_s`."""
        store = TCPStore(
            host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s), use_libuv=False
        )
        return cls(store, host, port)

    def put(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))

    def has(self, key: str) -> bool:
        """Whether there is a value. Raises `torch.distributed.DistError` if the host is gone."""
        return bool(self.store.check([key]))

    def take(self, key: str, timeout_s: float) -> Any:
        """Wait for a value and remove it. Raises `TimeoutError`, or `DistError` if the host is gone."""
        try:
            self.store.wait([key], timedelta(seconds=max(timeout_s, 0.001)))
        except torch.distributed.DistStoreError as error:  # its own time-out
            raise TimeoutError(f"no {key!r} within {timeout_s:g} s") from error
        value = json.loads(self.store.get(key))
        self.store.delete_key(key)
        return value


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies in a bucket."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        size = getattr(torch, self.dtype).itemsize
        return math.ceil(math.prod(self.shape) * size / ALIGNMENT) * ALIGNMENT


def pack(
    tensors: Sequence[tuple[str, torch.Tensor]],
    allocate: Callable[[int], torch.Tensor],
    widest: torch.dtype = torch.float64,
) -> tuple[list[Entry], torch.Tensor]:
    """Named tensors in one flat `uint8` tensor, which `allocate` gives, and where each lies in it.

    Floating-point numbers wider than `widest` are rounded to it.
    """
    entries = []
    for name, tensor in tensors:
        narrow = tensor.is_floating_point() and tensor.dtype.itemsize > widest.itemsize
        dtype = widest if narrow else tensor.dtype
        entries.append(Entry(name, str(dtype).removeprefix("torch."), tuple(tensor.shape)))
    flat = allocate(sum(entry.num_bytes for entry in entries))
    for view, (_, tensor) in zip(unpack(entries, flat), tensors, strict=True):
        view[1].copy_(tensor)
    return entries, flat


def unpack(entries: Sequence[Entry], flat: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The tensors in a bucket, as views."""
    found, start = [], 0
    for entry in entries:
        size = math.prod(entry.shape) * getattr(torch, entry.dtype).itemsize
        view = flat[start : start + size].view(getattr(torch, entry.dtype)).view(entry.shape)
        found.append((entry.name, view))
        start += entry.num_bytes
    return found


def checksum(flat: torch.Tensor) -> int:
    """The sum of a bucket's bytes, eight at a time, modulo 2^64: what was sent against what arrived."""
    return int(flat.view(torch.int64).sum())


def own_address(towards: str, port: int = 9) -> str:
    """This machine's address as `towards` would reach it. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((towards, port))
        return str(probe.getsockname()[0])
    return "127.0.0.1"
