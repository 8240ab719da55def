"""The optimizers and learning rate schedules that `GRPOConfig` can select."""

import importlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from rg_env.errors import InputError
from rg_env.training.config.grpo import GRPOConfig


class OffloadedAdamW(torch.optim.Optimizer):
    """AdamW that keeps float32 copies of the weights ("master weights") and its moments in CPU memory.

    On the GPU, a model in bfloat16 needs 6 bytes per parameter (2 for the weight and 4 for its float32 gradient)
    instead of 16. In CPU memory, the optimizer needs 16 bytes per parameter. Each step updates the copies and writes
    the rounded values to the model, so changes that are too small for bfloat16 add up in the copies (Micikevicius et
    al., 2018, "Mixed Precision Training", arXiv:1710.03740, section 3.1).
    """

    def __init__(self, groups: Any, **adam: Any) -> None:
        super().__init__(groups, adam)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad_dtype = torch.float32  # gradients of micro-batches are accumulated in float32
        self._adam: torch.optim.AdamW | None = None
        """Optimizer for the copies, created in the first step or by `load_state_dict`, after the model's weights have
        been loaded."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Perform one update. Gradients must be finite."""
        adam = self._adam = self._adam or self._on_copies()
        for ours, theirs in zip(self.param_groups, adam.param_groups, strict=True):
            theirs |= {name: value for name, value in ours.items() if name != "params"}
        pairs = list(self._pairs(adam))
        for parameter, copy in pairs:
            copy.grad = None if parameter.grad is None else parameter.grad.to(copy)
        adam.step()
        for parameter, copy in pairs:
            parameter.copy_(copy)
            copy.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the copies and their optimizer state, or an empty dictionary before the first step."""
        if self._adam is None:
            return {}
        return {"adam": self._adam.state_dict(), "copies": [copy.detach() for _, copy in self._pairs(self._adam)]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._adam = self._on_copies() if state_dict else None
        if self._adam is not None:
            for (_, copy), saved in zip(self._pairs(self._adam), state_dict["copies"], strict=True):
                copy.copy_(saved)
            self._adam.load_state_dict(state_dict["adam"])

    def _on_copies(self) -> torch.optim.AdamW:
        def copied(parameter: torch.Tensor) -> torch.nn.Parameter:
            return torch.nn.Parameter(parameter.detach().to("cpu", torch.float32, copy=True))

        groups = [{**group, "params": [copied(each) for each in group["params"]]} for group in self.param_groups]
        return torch.optim.AdamW(groups, fused=True)

    def _pairs(self, adam: torch.optim.AdamW) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for ours, theirs in zip(self.param_groups, adam.param_groups, strict=True):
            yield from zip(ours["params"], theirs["params"], strict=True)


def make_optimizer(args: GRPOConfig, model: Any) -> torch.optim.Optimizer:
    """Return the optimizer that `args.optim` selects, without weight decay for biases or norms. Raises `InputError` if
    the optimizer cannot be used."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise InputError(
            "there is nothing to train because all weights of the model are frozen (requires_grad is False)"
        )
    matrices = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) > 1]
    vectors = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) <= 1]
    groups = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    adam: dict[str, Any] = {
        "lr": args.learning_rate,
        "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon,
    }
    match args.optim:
        case "adamw_offload":
            return OffloadedAdamW(groups, **adam)
        case "adamw_torch" | "adamw_torch_fused":
            return torch.optim.AdamW(groups, fused=args.optim.endswith("fused"), **adam)
        case "adamw_8bit" | "paged_adamw_8bit":
            try:
                bitsandbytes: Any = importlib.import_module("bitsandbytes")
            except ImportError as error:
                raise InputError(f"optim={args.optim!r} needs bitsandbytes: run `pip install bitsandbytes`") from error
            kind = bitsandbytes.optim.PagedAdamW8bit if args.optim.startswith("paged") else bitsandbytes.optim.AdamW8bit
            return kind(groups, **adam)
        case "adafactor":
            from transformers import Adafactor

            return Adafactor(groups, lr=args.learning_rate, scale_parameter=False, relative_step=False)
        case _:
            return torch.optim.SGD(groups, lr=args.learning_rate)


def learning_rate(args: GRPOConfig, update: int) -> float:
    """Return the learning rate for update number `update` (counted from 0). A warmup precedes the schedule that
    `args.lr_scheduler_type` selects, except with "constant".

    "linear" and "cosine" decay to 0 at `max_steps`.
    """
    kind, peak = args.lr_scheduler_type, args.learning_rate
    warmup = 0 if kind == "constant" else args.warmup_steps
    if update < warmup:
        return float(peak * update / warmup)
    done = (update - warmup) / max(1, args.max_steps - warmup)
    if kind == "linear":
        return float(peak * max(0.0, 1 - done))
    if kind == "cosine":
        return float(peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
    return float(peak)
