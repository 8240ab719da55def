"""Which weights a configuration wants, and which of a checkpoint's they are."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import AutoModelForCausalLM

from rg_env.core.text import reason_of
from rg_env.errors import ExportError, InputError
from rg_env.training.checkpointing.readers import Stored, check_type

_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
"""What FSDP, activation checkpointing and torch.compile put into names."""


@dataclass(frozen=True)
class Architecture:
    """The model that a configuration describes, without its weights."""

    config: Any

    @cached_property
    def model(self) -> Any:
        """Its parameters on the meta device; what is computed from the configuration alone is there.

        Raises:
            InputError: transformers cannot make it.
        """
        try:
            with init_empty_weights(include_buffers=False):
                model = AutoModelForCausalLM.from_config(self.config, dtype=torch.float32, trust_remote_code=False)
        except Exception as error:  # whatever a strange configuration makes its class raise
            raise InputError(f"config.json describes no model that can be made here: {reason_of(error)}") from error
        model.tie_weights()
        return model.eval()

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Names of tied parameters → the one that stands for them in files."""
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
        """Name → shape of all that a file of this model has, tied ones once, in the order of the model."""
        state = self.model.state_dict()
        return {name: tuple(value.shape) for name, value in state.items() if name not in self.aliases}

    @cached_property
    def _floating(self) -> dict[str, bool]:
        return {name: value.is_floating_point() for name, value in self.model.state_dict().items()}

    def match(self, stored: Mapping[str, Stored]) -> "Matched":
        """Which stored tensor is which of the wanted ones.

        Raises:
            ExportError: one is missing, empty, twice there, of another shape; there are some that the model has not.
            InputError: they are quantized.
        """
        clean: dict[str, str] = {}
        for name in stored:
            short = name
            for wrapper in _WRAPPERS:
                short = short.replace(wrapper, "")
            if short in clean:
                raise ExportError(f"{short} is there twice: as {clean[short]} and as {name}")
            clean[short] = name
        prefix = self._prefix(clean)
        of_model = {name.removeprefix(prefix): full for name, full in clean.items() if name.startswith(prefix)}
        found: dict[str, str] = {}
        twins: list[tuple[str, str]] = []
        others = {alias: kept for alias, kept in self.aliases.items() if alias in of_model}
        for name in self.wanted:
            names = [each for each in (name, *(a for a, kept in others.items() if kept == name)) if each in of_model]
            if names:
                found[name] = of_model[names[0]]
                values = {stored[of_model[each]].alias_of or of_model[each] for each in names}
                twins += [(name, of_model[each]) for each in names[1:]] if len(values) > 1 else []
        self._check(found, stored)
        return Matched(found, twins, self._left_out(of_model, clean, prefix))

    def _check(self, found: Mapping[str, str], stored: Mapping[str, Stored]) -> None:
        if empty := [full for full in found.values() if stored[full].empty and 0 not in self.wanted.get(full, ())]:
            raise ExportError(
                f"{empty[0]} is empty in the checkpoint ({len(empty)} of {len(self.wanted)} are), as ZeRO-3 leaves it "
                "without zero3_save_16bit_model: export the folder that has DeepSpeed's shards (global_stepN), too"
            )
        if missing := [name for name in self.wanted if name not in found]:
            raise ExportError(
                f"{missing[0]} is missing in the checkpoint ({len(missing)} of {len(self.wanted)} that {self.name} has)"
            )
        for name, full in found.items():
            if stored[full].shape != self.wanted[name]:
                raise ExportError(
                    f"{full} has the shape {stored[full].shape}, and {self.wanted[name]} by config.json: is that the "
                    "configuration of another model?"
                )
            if self._floating[name]:
                check_type(full, stored[full])

    def _prefix(self, names: Mapping[str, str]) -> str:
        """What stands before all names of the model, as trainers wrap it: "", "model.", "module.", ..."""
        last = list(self.wanted)[-1]
        probes = [name for name in self.wanted if name.count(".") > 1][:1] or [last]
        prefixes = {name.removesuffix(probe) for probe in probes for name in names if name.endswith(probe)}
        prefixes = {prefix for prefix in prefixes if not prefix or prefix.endswith(".")} | {""}

        def fitting(prefix: str) -> int:
            return sum(f"{prefix}{name}" in names for name in self.wanted)

        return min(sorted(prefixes), key=lambda prefix: (-fitting(prefix), len(prefix)))

    def _left_out(self, of_model: Mapping[str, str], clean: Mapping[str, str], prefix: str) -> list[str]:
        """Tensors beside the model's, such as a value head's; an error where they look like the model's own."""
        ignored = [re.compile(key) for key in self.model._keys_to_ignore_on_load_unexpected or ()]
        buffers = {name for name, _ in self.model.named_buffers()}
        known = {*self.wanted, *self.aliases, *buffers}
        strange = [
            name
            for name in of_model
            if name not in known
            and not name.endswith(".rotary_emb.inv_freq")  # was stored by earlier releases
            and not any(key.search(name) for key in ignored)
        ]
        tops = {name.split(".")[0] for name in self.wanted}
        if own := [name for name in strange if name.split(".")[0] in tops]:
            raise ExportError(
                f"{own[0]} is in the checkpoint ({len(own)} such), and {self.name} has none, by config.json: is that "
                "of another model?"
            )
        beside = [name for name in clean if not name.startswith(prefix)]
        return strange + beside


@dataclass(frozen=True)
class Matched:
    """Where a model's weights are in a checkpoint."""

    names: dict[str, str]
    """Wanted name → stored name."""
    twins: list[tuple[str, str]]
    """Wanted name, and a tied one's stored name: two tensors that must be equal."""
    left_out: Sequence[str]
    """Stored names that are not the model's."""
