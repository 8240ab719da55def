"""The weights that a configuration describes, and which tensors of a checkpoint they are."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import AutoModelForCausalLM

from rg_env.core.text import reason_of
from rg_env.errors import ExportError, InputError
from rg_env.publish.export.weights import Tensors, check_type

_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
"""What FSDP, activation checkpointing and torch.compile insert into names."""


@dataclass(frozen=True)
class Architecture:
    """The model that a configuration describes, without its weights."""

    config: Any

    def build(self) -> Any:
        """Its parameters are on the meta device; its buffers, computed from the configuration, are real.

        Raises:
            InputError: transformers cannot build it.
        """
        try:
            with init_empty_weights(include_buffers=False):
                model = AutoModelForCausalLM.from_config(self.config, dtype=torch.float32, trust_remote_code=False)
        except Exception as error:  # its class raises anything
            raise InputError(f"config.json does not describe a known model: {reason_of(error)}") from error
        model.tie_weights()
        return model.eval()

    @cached_property
    def model(self) -> Any:
        """Such a model, to read names and shapes from."""
        return self.build()

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Names of tied parameters -> the one that files contain."""
        groups: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            groups.setdefault(id(parameter), []).append(name)
        tied = [re.compile(key) for key in self.model._tied_weights_keys or ()]
        found: dict[str, str] = {}
        for names in groups.values():
            free = [name for name in names if not any(key.search(name) for key in tied)]
            kept = (free or names)[0]
            found |= {name: kept for name in names if name != kept}
        return found

    @cached_property
    def wanted(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of all weights in a file of this model, tied ones once, in the order of the model."""
        state = self.model.state_dict()
        return {name: tuple(value.shape) for name, value in state.items() if name not in self.aliases}

    def match(self, tensors: Tensors) -> tuple[Tensors, list[str]]:
        """The tensor of each weight, and the names of tensors that are not part of the model.

        Raises:
            ExportError: one is missing, empty, ambiguous, of another shape, wrongly tied or of another model.
            InputError: they are quantized.
        """
        clean: dict[str, str] = {}
        for name in tensors:
            short = name
            for wrapper in _WRAPPERS:
                short = short.replace(wrapper, "")
            if short in clean:
                raise ExportError(f"{short} is in the checkpoint twice: as {clean[short]} and as {name}")
            clean[short] = name
        prefix = self._prefix(clean)
        own = {name.removeprefix(prefix): tensors[full] for name, full in clean.items() if name.startswith(prefix)}
        found: Tensors = {}
        for name in self.wanted:
            names = [name, *(alias for alias, kept in self.aliases.items() if kept == name)]
            if not (present := [each for each in names if each in own]):
                continue
            found[name] = own[present[0]]
            for twin in present[1:]:
                if not torch.equal(own[twin], found[name]):
                    raise ExportError(f"config.json ties {name} and {twin}, but their values in the checkpoint differ")
        self._check(found)
        return found, self._left_out(own, clean, prefix)

    def _check(self, found: Tensors) -> None:
        if empty := [name for name, tensor in found.items() if not tensor.numel() and 0 not in self.wanted[name]]:
            raise ExportError(
                f"{empty[0]} is empty in the checkpoint ({len(empty)} of {len(self.wanted)} are), as ZeRO-3 leaves it "
                "without zero3_save_16bit_model: export the folder that also has DeepSpeed's shards (global_stepN)"
            )
        if missing := [name for name in self.wanted if name not in found]:
            raise ExportError(
                f"{missing[0]} is missing in the checkpoint ({len(missing)} of {len(self.wanted)} that {self.name} has)"
            )
        floating = {name: value.is_floating_point() for name, value in self.model.state_dict().items()}
        for name, tensor in found.items():
            if tensor.shape != self.wanted[name]:
                raise ExportError(
                    f"{name} has the shape {tuple(tensor.shape)} in the checkpoint and {self.wanted[name]} in "
                    "config.json, which may be another model's"
                )
            if floating[name]:
                check_type(name, tensor)

    def _prefix(self, names: Mapping[str, str]) -> str:
        """What precedes all names of the model, as trainers wrap it: "", "model.", "module.", ..."""
        probe = next((name for name in self.wanted if name.count(".") > 1), list(self.wanted)[-1])
        prefixes = {name.removesuffix(probe) for name in names if name.endswith(probe)}
        prefixes = {prefix for prefix in prefixes if prefix.endswith(".")} | {""}

        def fitting(prefix: str) -> int:
            return sum(f"{prefix}{name}" in names for name in self.wanted)

        return min(sorted(prefixes), key=lambda prefix: (-fitting(prefix), len(prefix)))

    def _left_out(self, own: Tensors, clean: Mapping[str, str], prefix: str) -> list[str]:
        """Tensors next to the model's, such as a value head's; an error if they look like the model's own."""
        ignored = [re.compile(key) for key in self.model._keys_to_ignore_on_load_unexpected or ()]
        buffers = {name for name, _ in self.model.named_buffers()}
        known = {*self.wanted, *self.aliases, *buffers}
        strange = [
            name
            for name in own
            if name not in known
            and not name.endswith(".rotary_emb.inv_freq")  # stored by earlier releases
            and not any(key.search(name) for key in ignored)
        ]
        tops = {name.split(".")[0] for name in self.wanted}
        if unknown := [name for name in strange if name.split(".")[0] in tops]:
            raise ExportError(
                f"{unknown[0]} is in the checkpoint ({len(unknown)} such), but {self.name} does not have it by "
                "config.json, which may be another model's"
            )
        return strange + [name for name in clean if not name.startswith(prefix)]
