"""How a model is spread over processes: a copy on each (`DataParallel`), or shards of it (`Zero`, `FullySharded`).

The trainer's loop is the same for all; what differs is here: gradients, their norm, the optimizer's step, whole
weights for a checkpoint or a server, and the optimizer's part of a checkpoint. Public APIs of accelerate, torch and
deepspeed only.

A step whose loss or gradient is not finite is skipped, reported and counted by `StepGuard`; three in a row end the run.
Weights, optimizer state and learning rate stay as they were. All processes skip together: whatever is not finite on one
of them makes the gradient, which they share, not finite everywhere. DeepSpeed's ZeRO optimizers and the loss scaler of
fp16 skip such steps themselves; the scaler finds its scale that way, so that its steps only count if the loss itself is
not finite.
"""

import importlib
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from accelerate.utils import DistributedType
from safetensors.torch import load_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rg_env.errors import InputError, StoppedTogether
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, weight_files
from rg_env.training.checkpointing.save import finite_weights
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.distributed import agree

OPTIMIZER_FILE = "optimizer.pt"
OPTIMIZER_FOLDER = "optimizer"
"""In a checkpoint of `FullySharded`: a folder of torch.distributed.checkpoint."""
SCALER_FILE = "scaler.pt"

Sharding = Literal["none", "zero1", "zero2", "zero3", "fsdp2"]
FSDP_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd")
"""Those whose state is tensors alone, which a checkpoint holds without a pickle."""
SHARDED_WEIGHTS = ("zero3", "fsdp2")
"""With these no process holds the whole model."""

LossOf = Callable[[Any], torch.Tensor]
"""From a micro-batch to its loss."""
Updating = Callable[[], AbstractContextManager[Any]]


class Strategy(Protocol):
    """What the loop needs to know of how the model is spread."""

    @property
    def sharding(self) -> Sharding:
        """What is sharded, and by whom."""

    def prepare(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        """Model and optimizer, wrapped for training."""

    def prepare_reference(self, model: Any) -> Any:
        """A second model that is never trained, spread in the same way."""

    def step(self, loss_of: LossOf, parts: list[Any], rates: Sequence[float], updating: Updating) -> "StepResult":
        """One optimizer step from micro-batches, with a learning rate for each parameter group; `updating()` is entered
        around the update itself. Nothing changes if a loss or the gradient is not finite."""

    def gathered(self, parameters: list[Any]) -> AbstractContextManager[Any]:
        """Within: these parameters are whole on all processes. A collective operation."""

    def whole(self, parameter: Any) -> torch.Tensor:
        """All of a parameter, within `gathered`. A collective operation."""

    def state_dict(self) -> Any:
        """All weights by name, whole, on the main process; others may get None. A collective operation."""

    def save(self, folder: Path) -> None:
        """The optimizer's state, and what else a resumed run needs of the shards. A collective operation."""

    def load(self, folder: Path) -> None:
        """Load the weights of a checkpoint, and what `save` wrote there. A collective operation."""


@dataclass(frozen=True)
class StepResult:
    """What became of an optimizer step."""

    loss: float
    """Mean over micro-batches and processes."""
    grad_norm: float
    """Before clipping."""
    skipped: Literal["loss", "gradient"] | None
    """What was not finite; None if the step was made."""


def make_strategy(accelerator: Accelerator, args: GRPOConfig) -> Strategy:
    """The strategy that the launcher's configuration asks for. Raises `InputError` for those that are not supported."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return Zero(accelerator, args)
    # By the launcher's word: on CPUs accelerate itself passes over it, and would run DDP.
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        return FullySharded(accelerator, args)
    return DataParallel(accelerator, args)


class DataParallel:
    """A whole copy of the model on each process; gradients are averaged (DDP). One process is the simplest case."""

    sharding: Sharding = "none"

    def __init__(self, accelerator: Accelerator, args: GRPOConfig) -> None:
        self._accelerator, self._args = accelerator, args
        self._model: Any = None
        self._optimizer: Any = None

    def prepare(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        self._model, self._optimizer = self._accelerator.prepare(model, optimizer)
        return self._model, self._optimizer

    def prepare_reference(self, model: Any) -> Any:
        return self._accelerator.prepare_model(model, evaluation_mode=True)

    def step(self, loss_of: LossOf, parts: list[Any], rates: Sequence[float], updating: Updating) -> StepResult:
        set_learning_rates(self._optimizer, rates)
        total: torch.Tensor | float = 0.0
        for part in parts:
            with self._accelerator.accumulate(self._model):
                loss = loss_of(part)
                total = total + loss.detach()
                self._accelerator.backward(loss)
        norm = self._accelerator.clip_grad_norm_(self._model.parameters(), self._args.max_grad_norm or math.inf)
        norm = float(norm)  # the same on all processes, which share gradients
        with updating():
            if math.isfinite(norm) or self._accelerator.scaler is not None:  # the scaler of fp16 skips by itself
                self._optimizer.step()
        self._optimizer.zero_grad()
        return _result(_mean_loss(self._accelerator, total, len(parts)), norm, not math.isfinite(norm))

    def gathered(self, parameters: list[Any]) -> AbstractContextManager[Any]:
        return nullcontext()

    def whole(self, parameter: Any) -> torch.Tensor:
        return parameter.data

    def state_dict(self) -> Any:
        return self._accelerator.unwrap_model(self._model).state_dict()

    def save(self, folder: Path) -> None:
        if self._accelerator.is_main_process:
            torch.save(self._optimizer.state_dict(), folder / OPTIMIZER_FILE)
            if self._accelerator.scaler is not None:
                torch.save(self._accelerator.scaler.state_dict(), folder / SCALER_FILE)

    def load(self, folder: Path) -> None:
        load_weights(folder, self._accelerator.unwrap_model(self._model))
        state = torch.load(folder / OPTIMIZER_FILE, map_location="cpu", weights_only=True)
        self._optimizer.load_state_dict(state)
        if self._accelerator.scaler is not None and (folder / SCALER_FILE).exists():
            self._accelerator.scaler.load_state_dict(torch.load(folder / SCALER_FILE, weights_only=True))


class Zero:
    """DeepSpeed ZeRO, by accelerate's plugin: optimizer state, gradients and, at stage 3, weights are sharded."""

    def __init__(self, accelerator: Accelerator, args: GRPOConfig) -> None:
        self._accelerator, self._args = accelerator, args
        plugin = accelerator.state.deepspeed_plugin
        self.sharding: Sharding = f"zero{plugin.zero_stage}"  # type: ignore[assignment]
        if plugin.zero_stage == 3 and not plugin.zero3_save_16bit_model:
            raise InputError(
                "the accelerate configuration has zero3_save_16bit_model off, with which ZeRO-3 saves empty weights: "
                "set zero3_save_16bit_model: true in deepspeed_config, as configs/zero3.yaml does"
            )
        config = plugin.deepspeed_config
        config["train_micro_batch_size_per_gpu"] = args.per_device_train_batch_size
        config["gradient_accumulation_steps"] = accelerator.gradient_accumulation_steps
        config["train_batch_size"] = args.rollouts_per_step
        config["gradient_clipping"] = float(args.max_grad_norm)
        config["zero_allow_untested_optimizer"] = True
        self._engine: Any = None
        self._optimizer: Any = None

    def prepare(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        self._engine, self._optimizer = self._accelerator.prepare(model, optimizer)
        return self._engine, self._optimizer

    def prepare_reference(self, model: Any) -> Any:
        import copy

        import deepspeed

        config = copy.deepcopy(self._accelerator.state.deepspeed_plugin.deepspeed_config)
        if self.sharding != "zero3":
            config["zero_optimization"]["stage"] = 0
        config.pop("optimizer", None)
        reference, *_ = deepspeed.initialize(model=model, config=config)
        reference.eval()
        return reference

    def step(self, loss_of: LossOf, parts: list[Any], rates: Sequence[float], updating: Updating) -> StepResult:
        set_learning_rates(self._optimizer, rates)
        total: torch.Tensor | float = 0.0
        for part in parts:
            with self._accelerator.accumulate(self._engine):
                loss = loss_of(part)
                total = total + loss.detach()
                # DeepSpeed clips, steps and clears gradients within the last one.
                with updating() if self._accelerator.sync_gradients else nullcontext():
                    self._accelerator.backward(loss)
        loss, norm = _mean_loss(self._accelerator, total, len(parts)), self._engine.get_global_grad_norm()
        return _result(loss, math.nan if norm is None else float(norm), self._accelerator.optimizer_step_was_skipped)

    def gathered(self, parameters: list[Any]) -> AbstractContextManager[Any]:
        if self.sharding != "zero3":
            return nullcontext()
        import deepspeed

        context: AbstractContextManager[Any] = deepspeed.zero.GatheredParameters(parameters)
        return context

    def whole(self, parameter: Any) -> torch.Tensor:
        return parameter.data

    def state_dict(self) -> Any:
        return self._accelerator.get_state_dict(self._engine)

    def save(self, folder: Path) -> None:
        # A process that cannot write must not leave the others waiting at the barrier that follows.
        failures: list[Exception] = []
        writer = self._engine.checkpoint_engine
        write = writer.save

        def attempt(*args: Any, **kwargs: Any) -> Any:
            try:
                return write(*args, **kwargs)
            except (OSError, RuntimeError) as error:
                failures.append(error)

        writer.save = attempt
        try:
            # Of LoRA without the frozen base, which the run has loaded from elsewhere.
            lora = hasattr(self._engine.module, "peft_config")
            self._engine.save_checkpoint(str(folder), exclude_frozen_parameters=lora)
        finally:
            del writer.save
        if failures:
            raise failures[0]

    def load(self, folder: Path) -> None:
        self._engine.load_checkpoint(str(folder), load_module_strict=not hasattr(self._engine.module, "peft_config"))


class FullySharded:
    """FSDP2: torch's `fully_shard`. Each layer's weights, gradients and optimizer state are sharded over all processes.

    Prepared by torch and not by accelerate, which passes over FSDP on CPUs in silence.
    """

    sharding: Sharding = "fsdp2"

    def __init__(self, accelerator: Accelerator, args: GRPOConfig) -> None:
        if accelerator.mixed_precision == "fp16":
            raise InputError("FSDP2 trains in bf16 or float32: set mixed_precision to bf16 or 'no', or use ZeRO-3")
        if args.optim not in FSDP_OPTIMIZERS:
            raise InputError(f"optim={args.optim!r} does not work with FSDP2: one of {', '.join(FSDP_OPTIMIZERS)}")
        self._accelerator, self._args = accelerator, args
        self._mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
        self._model: Any = None
        self._optimizer: Any = None

    def prepare(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._model = self._sharded(model)
        sharded = dict(model.named_parameters())
        for group in optimizer.param_groups:  # made for the parameters that the shards have replaced
            group["params"] = [sharded[names[id(parameter)]] for parameter in group["params"]]
        self._optimizer = optimizer
        return self._model, self._optimizer

    def prepare_reference(self, model: Any) -> Any:
        return self._sharded(model)

    def _sharded(self, model: Any) -> Any:
        """Each layer a unit of its own, which is whole only while it computes; the rest (embedding, head) another."""
        half = torch.bfloat16 if self._accelerator.mixed_precision == "bf16" else None
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32 if half else None)
        base = model.get_base_model() if hasattr(model, "peft_config") else model
        layers = set(base._no_split_modules or ())
        # The main process's weights are everybody's: where accelerate is configured for FSDP, transformers loads them
        # there alone once the processes know each other.
        whole = model.state_dict() if self._accelerator.is_main_process else {}
        for module in [each for each in model.modules() if type(each).__name__ in layers]:
            fully_shard(module, mesh=self._mesh, mp_policy=policy)
        # Resharded after forward, which is not the default of the outermost one: weights that change between two
        # passes (`PreviousPolicy`, a checkpoint that is loaded) would leave it with old ones.
        fully_shard(model, mesh=self._mesh, mp_policy=policy, reshard_after_forward=True)
        model.to(self._accelerator.device)  # buffers
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, whole, options=options)
        return model

    def step(self, loss_of: LossOf, parts: list[Any], rates: Sequence[float], updating: Updating) -> StepResult:
        set_learning_rates(self._optimizer, rates)
        total: torch.Tensor | float = 0.0
        for number, part in enumerate(parts, start=1):
            self._model.set_requires_gradient_sync(number == len(parts))
            loss = loss_of(part)
            total = total + loss.detach()
            self._model.unshard()  # the head, which `logprobs` runs again in the backward pass, outside of its hooks
            (loss / len(parts)).backward()
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        found = torch.nn.utils.clip_grad_norm_(trained, self._args.max_grad_norm or math.inf)
        norm = float(found.full_tensor() if isinstance(found, DTensor) else found)
        with updating():
            if math.isfinite(norm):
                self._optimizer.step()
        self._optimizer.zero_grad()
        return _result(_mean_loss(self._accelerator, total, len(parts)), norm, not math.isfinite(norm))

    def gathered(self, parameters: list[Any]) -> AbstractContextManager[Any]:
        return nullcontext()  # `whole` gathers each by itself

    def whole(self, parameter: Any) -> torch.Tensor:
        return parameter.detach().full_tensor() if isinstance(parameter, DTensor) else parameter.data

    def state_dict(self) -> Any:
        whole = get_model_state_dict(self._model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        names = {name for name, _ in self._model.named_parameters()}  # tied ones once
        tied = {name for name, _ in self._model.named_parameters(remove_duplicate=False)} - names
        return {name: tensor for name, tensor in whole.items() if name not in tied}

    def save(self, folder: Path) -> None:
        state = get_optimizer_state_dict(self._model, self._optimizer)["state"]
        try:
            dcp.save({"state": state}, checkpoint_id=folder / OPTIMIZER_FOLDER)
        except CheckpointException as error:  # the same on all processes; not an Exception
            raise _first_failure(error) from error

    def load(self, folder: Path) -> None:
        names = saved_names(self._model)
        whole = {names[name]: tensor for name, tensor in read_weights(folder, self._model).items() if name in names}
        options = StateDictOptions(full_state_dict=True, strict=False)
        set_model_state_dict(self._model, whole, options=options)
        state = get_optimizer_state_dict(self._model, self._optimizer)
        dcp.load({"state": state["state"]}, checkpoint_id=folder / OPTIMIZER_FOLDER)
        set_optimizer_state_dict(self._model, self._optimizer, state)


def _first_failure(error: CheckpointException) -> Exception:
    cause = next(iter(error.failures.values()))[0]
    return cause if isinstance(cause, OSError) else RuntimeError(str(cause))


def _result(loss: float, norm: float, skipped: bool) -> StepResult:
    return StepResult(loss, norm, None if not skipped else "gradient" if math.isfinite(loss) else "loss")


def set_learning_rates(optimizer: Any, rates: Sequence[float]) -> None:
    """Set the learning rate of each parameter group."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _mean_loss(accelerator: Accelerator, total: Any, parts: int) -> float:
    """The loss of a step: the mean over micro-batches and processes."""
    mean = torch.as_tensor(total, device=accelerator.device, dtype=torch.float32) / parts
    return float(accelerator.reduce(mean, reduction="mean"))


def read_weights(folder: Path, model: Any) -> dict[str, torch.Tensor]:
    """The whole weights in `folder` by their names in the model; of a model with an adapter, the adapter's."""
    adapter = getattr(model, "peft_config", None) is not None
    found: dict[str, torch.Tensor] = {}
    for file in weight_files(folder, ADAPTER if adapter else WEIGHTS):
        found |= load_file(file)
    return found


def saved_names(model: Any) -> dict[str, str]:
    """Names in the file of its weights → names of its parameters."""
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if getattr(model, "peft_config", None) is None:
        return {name: name for name in parameters}
    from peft import get_peft_model_state_dict

    marks = {name: torch.empty(0, device="meta") for name in parameters}
    by_mark = {id(mark): name for name, mark in marks.items()}
    saved = get_peft_model_state_dict(model, state_dict=marks, save_embedding_layers=False)
    return {name: by_mark[id(mark)] for name, mark in saved.items()}


def load_weights(folder: Path, model: Any) -> None:
    """Load the weights in `folder` into `model`; of a model with an adapter, the adapter's."""
    found = read_weights(folder, model)
    if getattr(model, "peft_config", None) is not None:
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, found)
    else:
        model.load_state_dict(found, strict=False)  # tied weights are stored once; `check_fit` has compared all others
        model.tie_weights()


def make_optimizer(args: GRPOConfig, model: Any) -> torch.optim.Optimizer:
    """The optimizer that `args.optim` names; biases and norms have no weight decay. Raises `InputError`."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise InputError("there is nothing to train: all weights of the model are frozen (requires_grad is False)")
    matrices = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) > 1]
    vectors = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) <= 1]
    groups = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    adam = {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
    match args.optim:
        case "adamw_torch" | "adamw_torch_fused":
            return torch.optim.AdamW(groups, fused=args.optim.endswith("fused"), **adam)
        case "adamw_8bit" | "paged_adamw_8bit":
            try:
                bitsandbytes: Any = importlib.import_module("bitsandbytes")
            except ImportError as error:
                raise InputError(f"optim={args.optim!r} needs bitsandbytes: pip install bitsandbytes") from error
            kind = bitsandbytes.optim.PagedAdamW8bit if args.optim.startswith("paged") else bitsandbytes.optim.AdamW8bit
            return kind(groups, **adam)
        case "adafactor":
            from transformers import Adafactor

            return Adafactor(groups, lr=args.learning_rate, scale_parameter=False, relative_step=False)
        case _:
            return torch.optim.SGD(groups, lr=args.learning_rate)


MOST_IN_A_ROW = 3


class StepGuard:
    """Counts the steps that were skipped."""

    def __init__(self, accelerator: Accelerator, learning_rate: float, bf16: bool) -> None:
        self._accelerator, self._learning_rate, self._bf16 = accelerator, learning_rate, bf16
        self.say: Callable[[str], Any] = lambda line: print(line, flush=True)
        self.skipped = 0
        """Steps of the run so far."""
        self._in_a_row = 0
        self._what = ""

    def counts(self) -> list[int]:
        """For `set_counts` of a resumed run."""
        return [self.skipped, self._in_a_row]

    def set_counts(self, counts: list[int]) -> None:
        """Continue from `counts()`."""
        self.skipped, in_a_row = counts
        self._in_a_row = in_a_row % MOST_IN_A_ROW  # a run that was ended gets as many again

    def count(self, result: StepResult, step: int) -> None:
        """Count step number `step`."""
        if result.skipped is None:
            self._in_a_row = 0
            return
        self.skipped += 1
        self._what = result.skipped
        if result.skipped == "gradient" and self._accelerator.mixed_precision == "fp16":
            return
        self._in_a_row += 1
        if self._accelerator.is_main_process:
            self.say(
                f"step {step}: skipped, non-finite {self._what} ({self._in_a_row}/{MOST_IN_A_ROW} consecutive); "
                "weights and optimizer unchanged"
            )

    def end_if_hopeless(self, model: Any, step: int) -> None:
        """Raise after the last skipped step that a run may have in a row, or if the weights are not finite.

        Raises:
            StoppedTogether, TrainingError: on all processes.
        """
        if not self._in_a_row:
            return
        problem = None
        if not finite_weights(model):
            problem = (
                f"the weights are not finite after step {step}: an earlier update overflowed; lower "
                f"training.learning_rate ({self._learning_rate:g}) and resume from an earlier checkpoint"
            )
        agree(self._accelerator, problem)
        if self._in_a_row >= MOST_IN_A_ROW:
            bf16 = ", or set training.bf16=false" if self._bf16 else ""
            raise StoppedTogether(
                f"{MOST_IN_A_ROW} consecutive steps were skipped, up to step {step}: non-finite {self._what}; weights "
                f"are unchanged: lower training.learning_rate or training.max_grad_norm{bf16}, and resume with "
                "--resume auto"
            )
