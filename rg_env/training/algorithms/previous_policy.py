"""The policy before its last update, as reference model of a KL term (`kl_reference="previous"`).

A KL term to the initial policy holds a run where it began; one to the policy of an update ago only slows it down: no
update may lead far from where the last one stood (the "local" regularisation that the course "RL for Real" sets as an
exercise). It costs one copy of the weights that are trained, adapters alone under LoRA, and a forward pass an update.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from rg_env.errors import InputError
from rg_env.training.checkpointing.files import read_shapes


def weights_file(process: int) -> str:
    """In a checkpoint, of process `process`: each holds its own shards where the weights are sharded."""
    return f"previous_policy_{process}.safetensors"


def damage(folder: Path, process: int) -> str | None:
    """Why what process `process` has saved in `folder` cannot be read; None if it can, or there is nothing."""
    problem = read_shapes(folder, weights_file(process))[1]
    return problem and f"{weights_file(process)}: {problem}"


class PreviousPolicy:
    """A copy of the weights of `model` that are trained, as this process holds them: all, or its shards."""

    def __init__(self, model: Any):
        self._parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._kept: dict[str, torch.Tensor] = {}

    @property
    def known(self) -> bool:
        """Whether there has been an update: before the first, there is no other policy than the present one."""
        return bool(self._kept)

    def keep(self) -> None:
        """The present weights are the previous ones from now on."""
        now = {name: held(parameter) for name, parameter in self._parameters.items()}
        if not self._kept:
            self._kept = {name: each.clone() for name, each in now.items()}
        for name, each in now.items():
            self._kept[name].copy_(each)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within: the model has the previous weights. All processes take part."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # What ZeRO-3 has gathered is given back, and gathered anew from the shards: small parameters stay gathered.
        gathered = [each for each in self._parameters.values() if _is_gathered(each)]
        if gathered:
            gathered[0].partition(param_list=gathered)
        for name, parameter in self._parameters.items():
            mine, kept = held(parameter), self._kept[name]
            now = mine.clone()
            mine.copy_(kept)
            kept.copy_(now)

    def write(self, folder: Path, process: int) -> None:
        """Save, if there is anything to save."""
        if self._kept:
            save_file(self._kept, folder / weights_file(process))

    def read(self, folder: Path, process: int) -> None:
        """Take up what `write` saved. Raises `InputError` if it is not there, or of another model."""
        file = folder / weights_file(process)
        if not file.is_file():
            raise InputError(f"{file.name} is not in {folder}: it was saved without kl_reference='previous'")
        stored = load_file(file)
        now = {name: held(parameter) for name, parameter in self._parameters.items()}
        if {name: each.shape for name, each in stored.items()} != {name: each.shape for name, each in now.items()}:
            raise InputError(f"{file.name} in {folder} is of another model")
        self._kept = {name: each.to(now[name]) for name, each in stored.items()}


def held(parameter: Any) -> torch.Tensor:
    """What this process holds of a parameter: all, or its shard under ZeRO-3 and FSDP2."""
    found: torch.Tensor = parameter.ds_tensor if hasattr(parameter, "ds_tensor") else parameter.data
    return found.to_local() if isinstance(found, DTensor) else found


def _is_gathered(parameter: Any) -> bool:
    return hasattr(parameter, "ds_status") and parameter.ds_status.name == "AVAILABLE"
