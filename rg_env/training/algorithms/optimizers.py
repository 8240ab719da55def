"""The optimizers and learning rate schedules that `GRPOConfig` can select."""

import importlib
import math
from typing import Any

import torch

from rg_env.errors import InputError
from rg_env.training.config.grpo import GRPOConfig


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
    `args.lr_scheduler_type` selects, except with "constant". The first update already has a learning rate above 0, and
    the last update of the warmup has the peak.

    "linear" and "cosine" decay to 0 at `max_steps`.
    """
    kind, peak = args.lr_scheduler_type, args.learning_rate
    warmup = 0 if kind == "constant" else args.warmup_steps
    if update < warmup:
        return float(peak * (update + 1) / warmup)
    done = (update - warmup) / max(1, args.max_steps - warmup)
    if kind == "linear":
        return float(peak * max(0.0, 1 - done))
    if kind == "cosine":
        return float(peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
    return float(peak)
