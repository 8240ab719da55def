"""Weights in DeepSpeed's checkpoints (`global_stepN/*_states.pt`), put together tensor by tensor.

What is trained is kept in float32 by the optimizer, flat and split over the processes; that is what is read here:

- ZeRO-1 and 2: the parameters of a group, one after the other (with padding between some, which the files tell), make
  a vector; each process has a part of it, and the parts follow one another.
- ZeRO-3: each parameter is split by itself into as many parts as there are processes, the last one padded; a process
  has its parts of all parameters, one after the other, in one vector or several.

Frozen parameters stand beside the model: whole (ZeRO-1, 2), or split (ZeRO-3). Without ZeRO the model's file has all.
The format is DeepSpeed's `checkpoint/constants.py`, and what 0.19 writes.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rg_env.errors import InputError
from rg_env.training.checkpointing.pickles import Inert, Saved
from rg_env.training.checkpointing.readers import Stored

_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_SHARDED = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_WHOLE = re.compile(r"mp_rank_(\d+)_model_states\.pt")


@dataclass(frozen=True)
class _Place:
    """Where a parameter's values are: in the vector of its group, or in that of each process."""

    group: int
    start: int


@dataclass(frozen=True)
class _Part:
    """`count` values from `start` on of these flat tensors, which follow one another."""

    file: Saved
    flats: Sequence[torch.Tensor]
    start: int
    count: int

    def into(self, target: torch.Tensor) -> int:
        """Fill `target`, as far as there are so many; returns how many there were."""
        start, filled = self.start, 0
        for flat in self.flats:
            taken = max(0, min(target.numel() - filled, flat.numel() - start))
            if taken:
                self.file.into(target[filled : filled + taken], flat, start)
            start, filled = max(0, start - flat.numel()), filled + taken
        return filled


class ZeroReader:
    """Reads the folder `global_stepN` of a DeepSpeed checkpoint.

    Raises:
        InputError: a file is missing, damaged, of another run, or of a format that is not read here.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        optimizer = self._by_rank(_OPTIMIZER)
        self._sharded = bool(self._matching(_SHARDED))
        models = self._by_rank(_SHARDED) if self._sharded else self._single_model()
        self._models = [Saved(path, lambda content: {**content}) for path in models]
        _check_steps(models, [_count(model.content.get("global_steps")) for model in self._models])
        head = self._models[0].content
        try:
            self._read_head(head)
        except InputError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"{models[0]} is not what DeepSpeed writes: it lacks {error}") from error
        self._ranks: list[Saved] = []
        self._places: dict[str, _Place] = {}
        if optimizer:
            self._read_optimizer(optimizer)
        elif self._sharded:
            raise InputError(
                f"{folder} has no optimizer files (zero_pp_rank_*_optim_states.pt), which hold the weights under "
                "ZeRO-3: copy them, too"
            )
        else:
            self._check_whole(models[0])
        processes = len(optimizer) or 1
        stage = f"ZeRO-{self._stage}" if optimizer else "DeepSpeed"
        self.described = f"{stage} shards of {processes} process{'es' if processes > 1 else ''}"

    def stored(self) -> dict[str, Stored]:
        head = self._models[0].content
        found = {name: Stored(shape, torch.float32) for name, shape in self._shapes.items()}
        if not self._ranks:
            found = {name: Stored(tuple(tensor.shape), tensor.dtype) for name, tensor in head["module"].items()}
        for name, shape in self._frozen.items():
            found[name] = Stored(shape, head["frozen_param_fragments"][name].dtype)
        for name in self._buffers:
            found[name] = Stored(tuple(head["module"][name].shape), head["module"][name].dtype)
        for name, original in self._shared.items():
            if original in found:
                found[name] = Stored(found[original].shape, found[original].dtype, alias_of=original)
        return found

    def read(self, name: str) -> torch.Tensor:
        name = self._shared.get(name, name)
        if name in self._places:
            return self._trained(name)
        if name in self._frozen:
            fragments = [(model, [model.content["frozen_param_fragments"][name]]) for model in self._models]
            return self._joined([_Part(file, parts, 0, parts[0].numel()) for file, parts in fragments], name)
        return self._models[0].whole(self._models[0].content["module"][name])

    def _trained(self, name: str) -> torch.Tensor:
        place, count = self._places[name], math.prod(self._shapes[name])
        if self._stage == 3:
            share = -(-count // len(self._ranks))
            return self._joined([_Part(rank, rank.content, place.start, share) for rank in self._ranks], name)
        parts, start, left = [], place.start, count
        for rank in self._ranks:
            flat = rank.content[place.group]
            taken = max(0, min(left, flat.numel() - start))
            parts.append(_Part(rank, [flat], start, taken))
            start, left = max(0, start - flat.numel()), left - taken
        return self._joined(parts, name)

    def _joined(self, parts: Sequence["_Part"], name: str) -> torch.Tensor:
        shape = self._shapes[name] if name in self._shapes else self._frozen[name]
        whole, at = torch.empty(math.prod(shape), dtype=parts[0].flats[0].dtype), 0
        for part in parts:
            at += part.into(whole[at : at + part.count])  # what is beyond the end is padding
        if at != whole.numel():
            raise InputError(f"{self._folder}: the shards have {at} of {whole.numel()} values of {name}")
        return whole.view(shape)

    def _read_head(self, head: dict[str, Any]) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._groups: list[list[str]] = []
        for group in head["param_shapes"] or []:
            self._groups.append(list(group))
            self._shapes |= {name: tuple(shape) for name, shape in group.items()}
        self._frozen = {name: tuple(shape) for name, shape in (head.get("frozen_param_shapes") or {}).items()}
        self._buffers = list(head.get("buffer_names") or [])
        shared = head.get("shared_params") or {}
        self._shared: dict[str, str] = dict(shared.items() if isinstance(shared, dict) else shared)
        if head.get("mp_world_size", 1) != 1:
            raise InputError(
                f"{self._folder} is of a model split by tensor parallelism (over {head['mp_world_size']} processes), "
                "which is not read here: convert it with the tools of the trainer that wrote it"
            )

    def _read_optimizer(self, files: list[Path]) -> None:
        first = Saved(files[0], lambda content: content["optimizer_state_dict"]).content
        stage = first.get("zero_stage", 1)
        self._stage = int(stage.arguments[0] if isinstance(stage, Inert) else stage)
        written = first.get("partition_count", len(files))
        written = max(written) if isinstance(written, list) else int(written)
        if written != len(files):
            raise InputError(
                f"{self._folder} has the optimizer files of {len(files)} processes, and {written} wrote it: copy all"
            )
        if (self._stage == 3) != self._sharded:
            raise InputError(f"{self._folder} mixes files of ZeRO-{self._stage} and of another stage: copy it again")
        if self._sharded and len(self._models) != written:
            raise InputError(
                f"{self._folder} has the model files of {len(self._models)} processes, and {written} wrote it: copy all"
            )
        key = "fp32_flat_groups" if self._stage == 3 else "single_partition_of_fp32_groups"
        steps: list[int | None] = []

        def flats(content: Any) -> list[torch.Tensor]:
            steps.append(_steps(content["optimizer_state_dict"]))
            return list(content["optimizer_state_dict"][key])

        self._ranks = [Saved(path, flats) for path in files]
        _check_steps(files, steps)
        sizes = [[part.numel() for part in rank.content] for rank in self._ranks]
        for rank, path in zip(sizes, files, strict=True):
            if len(rank) != len(sizes[0]) or (self._stage == 3 and rank != sizes[0]):
                raise InputError(f"{path} does not belong to {files[0].name}: its parts have other sizes")
        if self._stage == 3:
            self._place_split(sum(sizes[0]))
        else:
            paddings = first.get("param_alignment_paddings")
            self._place_grouped([sum(rank[group] for rank in sizes) for group in range(len(sizes[0]))], paddings)

    def _place_split(self, available: int) -> None:
        at = 0
        for name, shape in self._shapes.items():
            self._places[name] = _Place(0, at)
            at += -(-math.prod(shape) // len(self._ranks))
        self._check_sizes(at, available)

    def _place_grouped(self, available: list[int], paddings: list[list[int]] | None) -> None:
        if len(available) != len(self._groups):
            raise InputError(
                f"{self._folder}: its optimizer has {len(available)} groups, its model {len(self._groups)}: the files "
                "are of different checkpoints"
            )
        for group, names in enumerate(self._groups):
            at = 0
            for number, name in enumerate(names):
                self._places[name] = _Place(group, at)
                at += math.prod(self._shapes[name]) + (paddings[group][number] if paddings else 0)
            unit = 2 * len(self._ranks)  # groups are padded to this
            self._check_sizes(-(-at // unit) * unit, -(-available[group] // unit) * unit)

    def _check_sizes(self, wanted: int, available: int) -> None:
        if wanted != available:
            raise InputError(
                f"{self._folder}: the shards hold {available} values, and the parameters take {wanted}: files of "
                "different checkpoints, or of another number of processes, are mixed"
            )

    def _check_whole(self, path: Path) -> None:
        """The model's file alone is enough where it has all weights, in the type that the model computed in."""
        module = self._models[0].content.get("module")
        if not module or any(tensor.numel() == 0 for tensor in module.values() if isinstance(tensor, torch.Tensor)):
            raise InputError(f"{path} has empty weights, and there are no optimizer files beside it: copy them, too")
        self._frozen, self._buffers = {}, []

    def _matching(self, pattern: re.Pattern[str]) -> list[tuple[int, int, Path]]:
        found = [(match, path) for path in self._folder.iterdir() if (match := pattern.fullmatch(path.name))]
        if pattern is _WHOLE:
            return sorted((0, int(match[1]), path) for match, path in found)
        return sorted((int(match[1]), int(match[2]), path) for match, path in found)

    def _by_rank(self, pattern: re.Pattern[str]) -> list[Path]:
        found = self._matching(pattern)
        if any(part for _, part, _ in found):
            raise InputError(f"{self._folder} is of a model split by tensor parallelism, which is not read here")
        ranks = {rank for rank, _, _ in found}
        missing = next((rank for rank in range(max(ranks, default=-1)) if rank not in ranks), None)
        if missing is not None:
            raise InputError(
                f"{self._folder} lacks the file of process {missing} (like {found[0][2].name}): copy all of them"
            )
        return [path for _, _, path in found]

    def _single_model(self) -> list[Path]:
        found = self._matching(_WHOLE)
        if not found:
            raise InputError(f"{self._folder} has no file *_model_states.pt, which DeepSpeed writes: copy it again")
        if len(found) > 1:
            raise InputError(f"{self._folder} is of a model split by tensor parallelism, which is not read here")
        return [found[0][2]]


def _check_steps(files: Sequence[Path], steps: Sequence[int | None]) -> None:
    """Raise `InputError` where files are of different steps: their values have the same places, and fit together."""
    told = [(file, step) for file, step in zip(files, steps, strict=True) if step is not None]
    if other := [(file, step) for file, step in told if step != told[0][1]]:
        raise InputError(
            f"{other[0][0]} was saved after {other[0][1]} steps, and {told[0][0].name} after {told[0][1]}: files of "
            "different checkpoints are mixed"
        )


def _steps(optimizer: Any) -> int | None:
    """The updates that an optimizer has made, by its own count; None: it keeps none, or not in the usual place."""
    base = optimizer.get("base_optimizer_state") or optimizer.get("optimizer_state_dict")
    if not isinstance(base, dict):
        return None
    kept = [*dict(base.get("state") or {}).values(), *(base.get("param_groups") or [])]
    found = [_count(each.get("step")) for each in kept if isinstance(each, dict)]
    return max((step for step in found if step is not None), default=None)


def _count(value: Any) -> int | None:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return int(value) if isinstance(value, int | float) else None
