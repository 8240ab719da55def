"""Prepare the policy (adapters, gradient checkpointing, no dropout), and keep the reference policy for the KL term.

`ReferencePolicy` contains the trained weights (with LoRA, only the adapters) either from the start of training or from
before the last update (`kl_reference="previous"`). A KL term against the initial policy keeps the policy near it. A KL
term against the previous policy limits only the size of each update (the "local" regularization from an exercise in the
course "RL for Real"). The previous policy requires a second copy during an update.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from transformers.utils import is_liger_kernel_available

from rg_env.core.text import reason_of
from rg_env.errors import InputError, MissingExtraError, install_command
from rg_env.training.config.grpo import GRPOConfig

LIGER = "liger_kernel.transformers.monkey_patch"
"""The liger-kernel module that transformers imports."""


def check_liger(args: GRPOConfig, device: torch.device) -> None:
    """Raise an exception if `use_liger_kernel` is set but cannot be used. Without this check, the run would fail in its
    first step.

    Raises:
        InputError: the run is not on a GPU, or liger-kernel is incompatible with the installed transformers.
        MissingExtraError: liger-kernel is not installed.
    """
    if not args.use_liger_kernel:
        return
    if device.type != "cuda":
        raise InputError(f"use_liger_kernel=True: Liger's kernels need a GPU, but this run is on {device.type}")
    if not is_liger_kernel_available():
        raise MissingExtraError(
            f"use_liger_kernel=True needs liger-kernel: run `{install_command('train')}`, or set use_liger_kernel=False"
        )
    try:
        importlib.import_module(LIGER)
    except ImportError as error:
        raise InputError(f"use_liger_kernel=True, but liger-kernel cannot be imported: {reason_of(error)}") from error


def prepare_policy(model: Any, args: GRPOConfig, peft_config: Any) -> Any:
    """Return `model` prepared for training, with new adapters if `peft_config` is given.

    Dropout and the noise of some routers are turned off because the log-probabilities in training must match those in
    sampling.
    """
    if peft_config is not None:
        from peft import PeftModel, get_peft_model

        if isinstance(model, PeftModel):
            raise InputError("the model already has adapters: omit peft_config to train these adapters")
        try:
            model = get_peft_model(model, peft_config)
        except ValueError as error:  # target_modules do not match, or PEFT does not support a module
            raise InputError(f"cannot add LoRA adapters to {type(model).__name__}: {reason_of(error)}") from error
    if args.use_liger_kernel:
        # transformers' Trainer also calls this private function. Liger's public functions patch classes, which affects
        # all models in the process.
        liger: Any = importlib.import_module("liger_kernel.transformers")
        liger._apply_liger_kernel_to_instance(model=model)
    if args.gradient_checkpointing:
        # transformers 5.23 renamed the method, and the old name warns.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        if hasattr(model, "peft_config"):
            model.enable_input_require_grads()
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if not isinstance(value, float):
                continue
            # Many models pass a rate (`attention_dropout`, `layerdrop`) to a function instead of using nn.Dropout.
            if "drop" in name or (name == "p" and "Dropout" in type(module).__name__):
                setattr(module, name, 0.0)
            elif "jitter" in name:  # a router; PhiMoE's also needs the value without noise
                module.register_forward_pre_hook(_evaluate)
    return model


def _evaluate(module: torch.nn.Module, _: Any) -> None:
    """Let a module compute as in evaluation, although the model is being trained."""
    module.training = False


def unwrapped(model: Any) -> Any:
    """Return the model inside the wrapper of DDP or DeepSpeed. `Accelerator.unwrap_model` would import DeepSpeed, even
    for a run without it, which takes about a second."""
    deepspeed: Any = getattr(sys.modules.get("deepspeed"), "DeepSpeedEngine", ())
    return model.module if isinstance(model, (torch.nn.parallel.DistributedDataParallel, deepspeed)) else model


def weights_file(process: int) -> str:
    """Return the name of the checkpoint file that contains `process`'s part of the previous policy."""
    return f"previous_policy_{process}.safetensors"


class ReferencePolicy:
    """Copy of the weights that `model` had at the start, or with `previous` before the last update: all trained weights
    or, with sharding, this process's shards.

    The log-probabilities of the reference are computed with the model itself, while the copy is swapped in. The
    reference therefore includes everything that is trained, such as adapters that had been trained before and biases.
    """

    def __init__(self, model: Any, *, previous: bool):
        self._parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self.previous = previous
        """Whether the reference is the policy before the last update."""
        self._candidate: dict[str, torch.Tensor] = {}
        self._kept = {} if previous else self._copy()

    def _copy(self) -> dict[str, torch.Tensor]:
        return {name: local_shard(parameter).clone() for name, parameter in self._parameters.items()}

    @property
    def known(self) -> bool:
        """Whether there is a reference. A previous policy exists only after the first update."""
        return bool(self._kept)

    def keep(self) -> None:
        """Copy the current weights before an update, if the reference is the previous policy. Call `advance` after the
        update, unless it was skipped."""
        if self.previous:
            self._candidate = self._copy()

    def advance(self) -> None:
        """Use the weights from the last call to `keep` as the previous policy."""
        if self.previous:
            self._kept, self._candidate = self._candidate, {}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Keep the reference's weights in the model while this context is active. This is a collective operation."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # ZeRO-3 keeps small parameters gathered. Partition these parameters before the swap so that ZeRO-3 gathers the
        # swapped shards.
        sharded = [each for each in self._parameters.values() if hasattr(each, "ds_status")]
        gathered = [each for each in sharded if each.ds_status.name == "AVAILABLE"]
        if gathered:
            gathered[0].partition(param_list=gathered)
        for name, parameter in self._parameters.items():
            mine, kept = local_shard(parameter), self._kept[name]
            now = mine.clone()
            mine.copy_(kept)
            kept.copy_(now)

    def write(self, folder: Path, process: int) -> None:
        """Save the previous weights, if there are any. The initial policy is not saved, because a resumed run starts
        from it."""
        if self.previous and self._kept:
            save_file(self._kept, folder / weights_file(process))

    def read(self, folder: Path, process: int) -> None:
        """Load the weights that `write` saved, if the reference is the previous policy."""
        if not self.previous:
            return
        stored = load_file(folder / weights_file(process))
        self._kept = {name: stored[name].to(local_shard(each)) for name, each in self._parameters.items()}


def local_shard(parameter: Any) -> torch.Tensor:
    """Return this process's shard of a parameter with ZeRO-3 or FSDP2, or the full parameter without sharding."""
    shard: torch.Tensor = parameter.ds_tensor if hasattr(parameter, "ds_tensor") else parameter.data
    return shard.to_local() if isinstance(shard, DTensor) else shard


def finite_weights(model: Any) -> bool:
    """Whether all trained weights of `model` are finite. With sharding, only this process's shards are checked."""
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return all(bool(local_shard(parameter).isfinite().all()) for parameter in trained)
