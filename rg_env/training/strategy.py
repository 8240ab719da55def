"""Strategies that distribute a model over processes, with a full copy on each (`DataParallel`) or with shards (`Zero`,
`FullySharded`).

The trainer's loop is the same for all strategies. The strategies differ in how they compute gradients and the gradient
norm, take an optimizer step, gather weights for a checkpoint or a server, and save the optimizer's state. Only public
APIs of accelerate, torch and deepspeed are used.

A step with a non-finite loss or gradient is skipped, and the weights, optimizer state and learning rate stay unchanged.
`monitors.StepGuard` reports and counts skipped steps. Three consecutive skipped steps end the run. All processes skip
a step together because a non-finite value on one process makes the shared gradient non-finite on all processes.
DeepSpeed's ZeRO optimizers and the fp16 loss scaler skip such steps themselves. The scaler skips steps to find its
scale, so these steps are reported and count toward the limit of three only if the loss itself is not finite.
"""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from accelerate.utils import DistributedType
from safetensors.torch import load_file
from torch.distributed.checkpoint import state_dict as sharded_state
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from rg_env.errors import InputError
from rg_env.training.algorithms.policy import unwrapped
from rg_env.training.checkpointing.files import (
    ADAPTER,
    OPTIMIZER_FILE,
    OPTIMIZER_FOLDER,
    SCALER_FILE,
    stored_parameters,
    weight_files,
)
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.config.schema import EngineConfig

Sharding = Literal["none", "zero1", "zero2", "zero3", "fsdp2"]
FSDP_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd")
"""Optimizers whose state contains only tensors, so a checkpoint does not need a pickle."""
SHARDED_WEIGHTS = {"zero3": "ZeRO-3", "fsdp2": "FSDP2"}
"""Names of the kinds of sharding in which no process has the complete model."""

LossOf = Callable[[Any], torch.Tensor]
"""Function that computes a micro-batch's loss."""
Updating = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class StepResult:
    """Result of an optimizer step."""

    loss: float
    """Mean loss over micro-batches and processes."""
    grad_norm: float
    """Norm of the gradient before clipping."""
    skipped: Literal["loss", "gradient"] | None
    """The non-finite quantity that caused the step to be skipped, or None if the step was taken."""


class DataParallel:
    """A full copy of the model on each process, with averaged gradients (DDP). This strategy is also used for a single
    process.

    The other strategies inherit from this class. All methods are collective operations.
    """

    sharding: Sharding = "none"
    backward_updates = False
    """Whether the last backward pass also clips the gradients, updates the weights and clears the gradients."""

    def __init__(self, accelerator: Accelerator, args: GRPOConfig) -> None:
        self._accelerator, self._args = accelerator, args
        self._model: Any = None
        self._optimizer: Any = None

    def prepare(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        """Wrap the model and the optimizer for training."""
        self._model, self._optimizer = self._accelerator.prepare(model, optimizer)
        return self._model, self._optimizer

    def step(self, loss_of: LossOf, parts: list[Any], rates: Sequence[float], updating: Updating) -> StepResult:
        """Take one optimizer step on the micro-batches `parts`. `rates` contains the learning rate of each parameter
        group. The context manager `updating()` wraps the update itself. If a loss or the gradient is not finite, the
        weights and the optimizer's state stay unchanged."""
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        losses = [self._backward(loss_of, part, updating, number == len(parts)) for number, part in enumerate(parts, 1)]
        norm, skipped = self._update(updating)
        loss = float(self._accelerator.reduce(torch.stack(losses).float().mean(), reduction="mean"))
        return StepResult(loss, norm, None if not skipped else "gradient" if math.isfinite(loss) else "loss")

    def _backward(self, loss_of: LossOf, part: Any, updating: Updating, is_last: bool) -> torch.Tensor:
        """Accumulate a micro-batch's gradient and return its loss."""
        with self._accelerator.accumulate(self._model):
            loss = loss_of(part)
            with updating() if is_last and self.backward_updates else nullcontext():
                self._accelerator.backward(loss)
        return loss.detach()

    def _update(self, updating: Updating) -> tuple[float, bool]:
        """Clip the gradient and, if it is finite, update the weights. Return the gradient's norm and whether the step
        was skipped."""
        accelerator = self._accelerator
        accelerator.unscale_gradients()
        found = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._args.max_grad_norm or math.inf)
        norm = float(found.full_tensor() if isinstance(found, DTensor) else found)  # the same on all processes
        with updating():
            if math.isfinite(norm) or accelerator.scaler is not None:  # the fp16 scaler may skip steps itself
                self._optimizer.step()
        self._optimizer.zero_grad()
        return norm, not math.isfinite(norm)

    def gathered(self, parameters: list[Any]) -> AbstractContextManager[Any]:
        """Unshard `parameters` on all processes while this context is active."""
        return nullcontext()

    def whole(self, parameter: Any) -> torch.Tensor:
        """Return the unsharded tensor of a parameter. Call this method within `gathered`."""
        return parameter.data

    def state_dict(self) -> Any:
        """Return all unsharded weights by name on the main process. On other processes, the result may be None or
        empty."""
        return unwrapped(self._model).state_dict()

    def save(self, folder: Path) -> None:
        """Save the optimizer's state and anything else that a resumed run needs from this strategy."""
        if self._accelerator.is_main_process:
            torch.save(self._optimizer.state_dict(), folder / OPTIMIZER_FILE)
            if self._accelerator.scaler is not None:
                torch.save(self._accelerator.scaler.state_dict(), folder / SCALER_FILE)

    def load(self, folder: Path) -> None:
        """Load a checkpoint's weights and the state written by `save`."""
        load_weights(folder, unwrapped(self._model))
        self._optimizer.load_state_dict(torch.load(folder / OPTIMIZER_FILE, map_location="cpu", weights_only=True))
        if self._accelerator.scaler is not None and (folder / SCALER_FILE).exists():
            self._accelerator.scaler.load_state_dict(torch.load(folder / SCALER_FILE, weights_only=True))


class Zero(DataParallel):
    """DeepSpeed ZeRO through accelerate's plugin: optimizer state, gradients and, at stage 3, weights are sharded."""

    backward_updates = True

    def __init__(self, accelerator: Accelerator, args: GRPOConfig) -> None:
        super().__init__(accelerator, args)
        plugin = accelerator.state.deepspeed_plugin
        self.sharding: Sharding = f"zero{plugin.zero_stage}"  # type: ignore[assignment]
        if plugin.zero_stage == 3 and not plugin.zero3_save_16bit_model:
            raise InputError(
                "zero3_save_16bit_model is off in the accelerate config, so ZeRO-3 would save empty weights; "
                "set zero3_save_16bit_model: true in deepspeed_config, as configs/zero3.yaml does"
            )
        plugin.deepspeed_config |= {
            "train_micro_batch_size_per_gpu": args.micro_batch(accelerator.num_processes),
            "gradient_accumulation_steps": accelerator.gradient_accumulation_steps,
            "train_batch_size": args.rollouts_per_step,
            "gradient_clipping": float(args.max_grad_norm),
            "zero_allow_untested_optimizer": True,
        }
        offload = plugin.deepspeed_config.get("zero_optimization", {}).get("offload_optimizer") or {}
        self._offloads = offload.get("device", "none") != "none"
        # As with the other strategies, a step's micro-batches add up in float32. At stage 1, DeepSpeed would then use
        # another optimizer class for bf16, with which no run has been tested. At stage 2, it keeps the sum of an
        # offloaded optimizer in the data type of the computation in any case.
        if plugin.zero_stage == 3 or (plugin.zero_stage == 2 and not self._offloads):
            plugin.deepspeed_config.setdefault("data_types", {}).setdefault("grad_accum_dtype", "fp32")
        elif accelerator.mixed_precision == "bf16" and accelerator.gradient_accumulation_steps > 1:
            raise InputError(
                f"ZeRO-{plugin.zero_stage}{' with an offloaded optimizer' * self._offloads} would add up a step's "
                "micro-batches in bf16, which rounds small gradients away: set zero_stage: "
                f"{2 + self._offloads} in the accelerate config"
            )

    def prepare(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        if self._offloads and type(optimizer) is not torch.optim.AdamW:  # accelerate would use Adam without a message
            raise InputError(
                f"{type(optimizer).__name__} cannot be offloaded to the CPU: use optim=adamw_torch, or set "
                "offload_optimizer_device: none in the accelerate config"
            )
        return super().prepare(model, optimizer)

    def _update(self, updating: Updating) -> tuple[float, bool]:
        norm = self._model.get_global_grad_norm()
        return math.nan if norm is None else float(norm), self._accelerator.optimizer_step_was_skipped

    def gathered(self, parameters: list[Any]) -> AbstractContextManager[Any]:
        import deepspeed

        context: AbstractContextManager[Any] = deepspeed.zero.GatheredParameters(
            parameters, enabled=self.sharding == "zero3"
        )
        return context

    def state_dict(self) -> Any:
        return self._accelerator.get_state_dict(self._model)

    def save(self, folder: Path) -> None:
        # A process that cannot write must not leave other processes waiting at the barrier after the write.
        failures: list[Exception] = []
        writer = self._model.checkpoint_engine
        write = writer.save

        def attempt(*args: Any, **kwargs: Any) -> Any:
            try:
                return write(*args, **kwargs)
            except (OSError, RuntimeError) as error:
                failures.append(error)

        writer.save = attempt
        try:
            # With LoRA, the frozen base model is excluded because a resumed run loads it from its original location.
            lora = hasattr(self._model.module, "peft_config")
            self._model.save_checkpoint(str(folder), exclude_frozen_parameters=lora)
        finally:
            del writer.save
        if failures:
            raise failures[0]

    def load(self, folder: Path) -> None:
        self._model.load_checkpoint(str(folder), load_module_strict=not hasattr(self._model.module, "peft_config"))


class FullySharded(DataParallel):
    """FSDP2 with torch's `fully_shard`. Each layer's weights, gradients and optimizer state are sharded over all
    processes.

    The model is sharded by torch directly because accelerate silently ignores FSDP on CPUs.
    """

    sharding: Sharding = "fsdp2"

    def __init__(self, accelerator: Accelerator, args: GRPOConfig) -> None:
        if accelerator.mixed_precision == "fp16":
            raise InputError("FSDP2 trains in bf16 or float32: set mixed_precision to bf16 or 'no', or use ZeRO-3")
        if args.optim not in FSDP_OPTIMIZERS:
            raise InputError(f"optim={args.optim!r} does not work with FSDP2: use one of {', '.join(FSDP_OPTIMIZERS)}")
        super().__init__(accelerator, args)
        self._mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))

    def prepare(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._model = self._shard(model)
        sharded = dict(model.named_parameters())
        for group in optimizer.param_groups:  # the optimizer still refers to the parameters that the shards replaced
            group["params"] = [sharded[names[id(parameter)]] for parameter in group["params"]]
        self._optimizer = optimizer
        return self._model, self._optimizer

    def _shard(self, model: Any) -> Any:
        """Shard `model`. Each layer is a unit that is gathered only during its computation. The remaining modules
        (embedding, head) form another unit."""
        half = torch.bfloat16 if self._accelerator.mixed_precision == "bf16" else None
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32 if half else None)
        base = model.get_base_model() if hasattr(model, "peft_config") else model
        layers = set(base._no_split_modules or ())
        # The main process broadcasts its weights. If accelerate is configured for FSDP and the processes are already
        # connected, transformers loads the weights only on that process.
        whole = model.state_dict() if self._accelerator.is_main_process else {}
        for module in [each for each in model.modules() if type(each).__name__ in layers]:
            fully_shard(module, mesh=self._mesh, mp_policy=policy)
        # Resharding after forward is not the default for the outermost module. Without resharding, the module would
        # keep old weights when the weights change between two passes (`ReferencePolicy`, loading a checkpoint).
        fully_shard(model, mesh=self._mesh, mp_policy=policy, reshard_after_forward=True)
        model.to(self._accelerator.device)  # moves the buffers
        options = sharded_state.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        sharded_state.set_model_state_dict(model, whole, options=options)
        return model

    def _backward(self, loss_of: LossOf, part: Any, updating: Updating, is_last: bool) -> torch.Tensor:
        # Gradients are reduced and sharded after each micro-batch (torch's default). Otherwise, each process would keep
        # the whole gradient between micro-batches.
        loss = loss_of(part)
        self._model.unshard()  # needed for the head, which `logprobs` recomputes in the backward pass without its hooks
        (loss / self._accelerator.gradient_accumulation_steps).backward()
        return loss.detach()

    def whole(self, parameter: Any) -> torch.Tensor:
        return parameter.detach().full_tensor() if isinstance(parameter, DTensor) else parameter.data

    def state_dict(self) -> Any:
        whole = sharded_state.get_model_state_dict(
            self._model, options=sharded_state.StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        names = {name for name, _ in self._model.named_parameters()}  # tied weights occur only once
        tied = {name for name, _ in self._model.named_parameters(remove_duplicate=False)} - names
        return {name: tensor for name, tensor in whole.items() if name not in tied}

    def save(self, folder: Path) -> None:
        state = sharded_state.get_optimizer_state_dict(self._model, self._optimizer)["state"]
        try:
            dcp.save({"state": state}, checkpoint_id=folder / OPTIMIZER_FOLDER)
        except CheckpointException as error:  # CheckpointException is a BaseException that is raised on all processes
            cause = next(iter(error.failures.values()))[0]
            raise cause if isinstance(cause, OSError) else RuntimeError(str(cause)) from error

    def load(self, folder: Path) -> None:
        load_weights(folder, self._model)
        state = sharded_state.get_optimizer_state_dict(self._model, self._optimizer)
        dcp.load({"state": state["state"]}, checkpoint_id=folder / OPTIMIZER_FOLDER)
        sharded_state.set_optimizer_state_dict(self._model, self._optimizer, state)


def make_strategy(accelerator: Accelerator, args: GRPOConfig) -> DataParallel:
    """Return the strategy for the launcher's configuration. Raises `InputError` if the configuration is not
    supported."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return Zero(accelerator, args)
    # The launcher's variable is read because accelerate ignores FSDP on CPUs and would run DDP.
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        return FullySharded(accelerator, args)
    return DataParallel(accelerator, args)


def check_engine(engine: EngineConfig, sharding: Sharding) -> None:
    """Raise `InputError` if the engine cannot sample from a model with this kind of sharding."""
    if engine.kind == "embedded" and sharding in SHARDED_WEIGHTS:
        raise InputError(
            f"the embedded engine cannot generate from weights sharded with {SHARDED_WEIGHTS[sharding]}: start a vLLM "
            "server and use engine.kind=vllm (in Python: engine='vllm'), or train with configs/ddp.yaml"
        )


@torch.no_grad()
def load_weights(folder: Path, model: Any) -> None:
    """Load the weights in `folder` into `model`, which may be sharded by torch. For a model with an adapter, only the
    adapter's weights are loaded. `check_fit` has already compared names and shapes."""
    if hasattr(model, "peft_config"):
        parameters = stored_parameters(model)
        stored = {name: each for file in weight_files(folder, ADAPTER) for name, each in load_file(file).items()}
    else:  # only transformers can convert the weights from the Hub's layout
        parameters = dict(model.named_parameters())
        kind: Any = next(each for each in type(model).__mro__ if not issubclass(each, FSDPModule))
        stored = dict(kind.from_pretrained(folder, dtype=model.dtype, local_files_only=True).named_parameters())
    for name, tensor in stored.items():
        parameter = parameters.get(name)
        if isinstance(parameter, DTensor):
            tensor = distribute_tensor(tensor.to(parameter.device), parameter.device_mesh, parameter.placements)
        if parameter is not None:
            parameter.copy_(tensor)
