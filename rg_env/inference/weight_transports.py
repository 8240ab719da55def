"""How buckets of weights travel from a trainer, the last rank, to the workers of a vLLM server, all other ranks.

- `NcclTransport`: between different GPUs.
- `SharedMemory`: through a piece of this machine's memory, which both sides map. For CPUs, and where server and trainer
  have one GPU between them, which NCCL refuses. Filling it and loading from it are the only two copies.
- `GlooTransport`: the same through a socket, where there is no such memory (macOS, containers that give little).
"""

import math
import os
import stat
from datetime import timedelta
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

TransportName = Literal["nccl", "shm", "gloo"]
MEMORY = Path("/dev/shm")
PREFIX = "rg-env-"
_PAGE = 4096
SLOTS = 2
"""Buckets in shared memory: one is filled while the workers load the other."""


class Transport(Protocol):
    """Carries flat `uint8` tensors from the last rank to all others."""

    device: torch.device
    """Where they are."""

    def buffer(self, num_bytes: int) -> torch.Tensor:
        """A tensor (num_bytes,) uint8 for the next bucket: filled before `broadcast` on the last rank, or by it."""

    def broadcast(self, flat: torch.Tensor) -> None:
        """Bring what is in the last rank's buffer into those of the others. Raises `RuntimeError`."""

    def close(self) -> None: ...


class GlooTransport:
    """Works between any two processes, on one machine or two."""

    device = torch.device("cpu")

    def __init__(self, store: TCPStore, session: str, rank: int, world_size: int, address: str, timeout_s: float):
        options = ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        self._source = world_size - 1
        self._group = ProcessGroupGloo(PrefixStore(f"gloo/{session}", store), rank, world_size, options)
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def buffer(self, num_bytes: int) -> torch.Tensor:
        # Kept: the pages of a new one would have to be made first, which takes as long as the transfer.
        if len(self._buffer) < num_bytes:
            self._buffer = torch.empty(num_bytes, dtype=torch.uint8)
        return self._buffer[:num_bytes]

    def broadcast(self, flat: torch.Tensor) -> None:
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = self._source, 0
        self._group.broadcast([flat], options).wait()

    def close(self) -> None:
        del self._group


class SharedMemory:
    """A file in the machine's memory file system, open on both sides and unlinked at once: nothing is left of it.

    Args:
        path: of a file that `reserve` has made.
    """

    device = torch.device("cpu")

    def __init__(self, path: str):
        size = _checked(path)
        self._slots = torch.from_file(path, shared=True, size=size, dtype=torch.uint8).chunk(SLOTS)
        self._turn = 0

    @staticmethod
    def reserve(session: str, slot_bytes: int) -> str:
        """Make the file and reserve its memory. Raises `OSError` if there is too little, or no such file system."""
        path = MEMORY / f"{PREFIX}{session}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            slot_bytes = math.ceil(slot_bytes / _PAGE) * _PAGE
            os.posix_fallocate(descriptor, 0, SLOTS * slot_bytes)  # later, a lack of memory would be a bus error
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        return str(path)

    def buffer(self, num_bytes: int) -> torch.Tensor:
        slot = self._slots[self._turn % SLOTS]
        if num_bytes > len(slot):
            raise RuntimeError(f"a bucket of {num_bytes} bytes, where {len(slot)} are reserved")
        self._turn += 1
        return slot[:num_bytes]

    def broadcast(self, flat: torch.Tensor) -> None:
        """Nothing to do: what is told of a bucket is told after it was filled."""

    def close(self) -> None:
        self._slots = ()


class NcclTransport:
    """Between different GPUs, by vLLM's own NCCL communicator."""

    def __init__(self, store: TCPStore, session: str, rank: int, world_size: int, device: torch.device):
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup

        self.device = device
        self._source = world_size - 1
        group = StatelessProcessGroup(
            rank=rank, world_size=world_size, store=PrefixStore(f"nccl/{session}", store), socket=None
        )
        self._communicator = PyNcclCommunicator(group, device=device)

    def buffer(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def broadcast(self, flat: torch.Tensor) -> None:
        self._communicator.broadcast(flat, src=self._source)

    def close(self) -> None:
        communicator, self._communicator = self._communicator, None
        if communicator is not None and getattr(communicator, "comm", None) is not None:
            communicator.nccl.ncclCommDestroy(communicator.comm)


def _checked(path: str) -> int:
    """Size of a file that may be mapped: one of ours. Whoever can reach the server's port may name any."""
    status = os.lstat(path)
    named = Path(path).parent == MEMORY and Path(path).name.startswith(PREFIX)
    if not (named and stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()):
        raise RuntimeError(f"{path} is no shared memory of rg-env's")
    return status.st_size
