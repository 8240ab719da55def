"""Weights in files that each process saved of its own shards, as verl does: `model_world_size_N_rank_R.pt`.

Each file has a state dict whose tensors are DTensors: the process's part, how the whole is split, over which mesh of
processes. Split dimensions are put together in the order of the mesh; of replicas one is taken. Plain tensors are the
same in all files. (FSDP's older ShardedTensors know no mesh, and need the processes to be loaded: not read here.)
"""

import re
from pathlib import Path
from typing import Any

import torch

from rg_env.errors import InputError
from rg_env.training.checkpointing.pickles import Saved
from rg_env.training.checkpointing.readers import Stored

FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


class DTensorReader:
    """Reads the folder with these files. Raises `InputError`: one is missing, damaged, or split in another way."""

    def __init__(self, folder: Path):
        found = {
            (int(match[1]), int(match[2])): path for path in folder.iterdir() if (match := FILE.fullmatch(path.name))
        }
        if not found:
            raise InputError(f"{folder} has no file model_world_size_N_rank_R.pt, with numbers: copy it again")
        sizes = {size for size, _ in found}
        if len(sizes) != 1:
            raise InputError(
                f"{folder} has files of runs with {' and '.join(map(str, sorted(sizes)))} processes: leave one run's"
            )
        size = sizes.pop()
        missing = next((rank for rank in range(max(size, 1)) if (size, rank) not in found), None)
        if missing is not None or not size:
            raise InputError(
                f"{folder} lacks model_world_size_{size}_rank_{missing}.pt ({len(found)} of {size} files are "
                "there): copy all of them"
            )
        self._folder = folder
        self._files = [Saved(found[size, rank], dict) for rank in range(size)]
        first = self._files[0].content
        for file in self._files[1:]:
            if list(file.content) != list(first):
                raise InputError(f"{file.path} does not belong to {self._files[0].path.name}: it has other names")
        self._stored = {
            name: Stored(tuple(value.shape), value.dtype)
            for name, value in first.items()
            if isinstance(value, torch.Tensor)
        }
        self.described = f"sharded tensors of {size} process{'es' if size > 1 else ''}"

    def stored(self) -> dict[str, Stored]:
        return self._stored

    def read(self, name: str) -> torch.Tensor:
        first = self._files[0].content[name]
        if not hasattr(first, "_spec"):
            return self._files[0].whole(first)
        spec = first._spec
        mesh = spec.mesh.mesh
        whole = torch.empty(tuple(spec.shape), dtype=first.dtype)
        filled = self._fill(whole, name, list(spec.placements), mesh)
        if filled != whole.numel():
            raise InputError(f"{self._folder}: the shards of {name} have {filled} of {whole.numel()} values")
        return whole

    def _fill(self, whole: torch.Tensor, name: str, placements: list[Any], mesh: torch.Tensor) -> int:
        """Put the parts of the processes in `mesh` (whose dimensions `placements` belong to) into `whole`.

        Returns how many values that were.
        """
        if not placements:
            rank = int(mesh)
            if not 0 <= rank < len(self._files):
                raise InputError(f"{self._folder}: {name} is split over a process {rank}, of which there is no file")
            part = self._files[rank].content[name]
            local: torch.Tensor = part._local_tensor
            if local.shape != whole.shape:
                raise InputError(
                    f"{self._files[rank].path}: its part of {name} has the shape {tuple(local.shape)}, and "
                    f"{tuple(whole.shape)} is its place: files of different checkpoints are mixed"
                )
            whole.copy_(self._files[rank].whole(local))
            return local.numel()
        placement, rest = placements[0], placements[1:]
        if placement.is_replicate():
            return self._fill(whole, name, rest, mesh[0])
        if type(placement).__name__ != "Shard":
            raise InputError(f"{self._folder}: {name} is split by {placement}, which is not read here")
        # As torch does: chunks of equal size, the last ones smaller or empty.
        chunks = whole.chunk(len(mesh), dim=placement.dim)
        return sum(self._fill(chunk, name, rest, mesh[index]) for index, chunk in enumerate(chunks))
