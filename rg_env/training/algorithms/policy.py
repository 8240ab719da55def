"""The policy as it is trained (adapters, gradient checkpointing, no dropout), and what a KL term compares it with.

That is the initial model (`reference_of`), or the policy before its last update (`PreviousPolicy`,
`kl_reference="previous"`). A KL term to the initial policy keeps a run near its start; one to the policy before the
last update only limits the size of each update (the "local" regularization that the course "RL for Real" sets as an
exercise). It costs a copy of the trained weights (of adapters only under LoRA; two during an update), and a forward
pass per update.
"""

import copy
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from rg_env.errors import InputError
from rg_env.training.config.grpo import GRPOConfig


def prepare_policy(model: Any, args: GRPOConfig, peft_config: Any, *, training: bool) -> Any:
    """`model`, with fresh adapters if a `peft_config` is given.

    Dropout is turned off: the log-probabilities of the policy must be those that it sampled with.
    """
    if peft_config is not None:
        from peft import PeftModel, get_peft_model

        if isinstance(model, PeftModel):
            raise InputError("the model has adapters already: leave out peft_config to train those")
        model = get_peft_model(model, peft_config)
    if args.use_liger_kernel:
        # What transformers' own trainer calls: liger's public functions patch classes, for all models of the process.
        liger: Any = importlib.import_module("liger_kernel.transformers")
        liger._apply_liger_kernel_to_instance(model=model)
    if args.gradient_checkpointing and training:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if hasattr(model, "peft_config"):
            model.enable_input_require_grads()
    for module in model.modules():
        if type(module).__name__ == "Dropout":
            module.p = 0.0
    return model


def reference_of(model: Any, args: GRPOConfig) -> Any:
    """A copy of the initial model for a KL term; None without a KL term, or if turning adapters off gives it.

    Raises:
        InputError: the model is sharded already, and cannot be loaded a second time.
    """
    if args.beta == 0.0 or args.kl_reference != "initial" or hasattr(model, "peft_config"):
        return None
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        name = model.config._name_or_path
        try:
            options = {"dtype": model.dtype, "attn_implementation": model.config._attn_implementation}
            reference = AutoModelForCausalLM.from_pretrained(name, **options)
        except OSError as error:
            raise InputError(f"beta={args.beta:g} needs the initial model a second time: {error}") from error
    else:
        reference = copy.deepcopy(model)
    reference.eval()
    for parameter in reference.parameters():
        parameter.requires_grad_(False)
    return reference


def weights_file(process: int) -> str:
    """In a checkpoint, of process `process`: each holds its own shards where the weights are sharded."""
    return f"previous_policy_{process}.safetensors"


class PreviousPolicy:
    """A copy of the weights of `model` that are trained, as this process holds them: all, or its shards."""

    def __init__(self, model: Any):
        self._parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._kept: dict[str, torch.Tensor] = {}
        self._candidate: dict[str, torch.Tensor] = {}

    @property
    def known(self) -> bool:
        """Whether there has been an update: before the first, the current policy is the only one."""
        return bool(self._kept)

    def keep(self) -> None:
        """Copy the present weights, before an update that may be skipped; `advance` after one that was made."""
        self._candidate = {name: held(parameter).clone() for name, parameter in self._parameters.items()}

    def advance(self) -> None:
        """The weights of the last `keep` are the previous policy's from now on."""
        self._kept, self._candidate = self._candidate, {}

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
        # What ZeRO-3 has gathered is given back, and gathered again from the shards: small parameters stay gathered.
        sharded = [each for each in self._parameters.values() if hasattr(each, "ds_status")]
        gathered = [each for each in sharded if each.ds_status.name == "AVAILABLE"]
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
        """Continue from what `write` saved."""
        stored = load_file(folder / weights_file(process))
        self._kept = {name: stored[name].to(held(each)) for name, each in self._parameters.items()}


def held(parameter: Any) -> torch.Tensor:
    """What this process holds of a parameter: all, or its shard under ZeRO-3 and FSDP2."""
    found: torch.Tensor = parameter.ds_tensor if hasattr(parameter, "ds_tensor") else parameter.data
    return found.to_local() if isinstance(found, DTensor) else found
