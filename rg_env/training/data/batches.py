"""A model made ready for training (adapters, gradient checkpointing, no dropout), and the initial model for KL.

From scored rollouts to the tensors of a training step: what each process gets, and how it is split.
"""

import copy
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rg_env.errors import InputError
from rg_env.training.config.grpo import GRPOConfig


@dataclass(frozen=True)
class TokenBatch:
    """The tokens of one batch of N rollouts, the same on all processes; groups of equal prompts stand together."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    loss_masks: list[list[int]]
    """1 for a completion token that contributes to the loss."""
    sampler_logps: list[list[float]]
    """Log-probability of each completion token when it was sampled."""
    rewards: list[float]

    def tokens(self) -> int:
        """Tokens that contribute to the loss."""
        return sum(map(sum, self.loss_masks))

    def entropy(self) -> float:
        """Mean entropy per token of the distribution that was sampled from, in nats: `-mean(log p(token))`.

        Estimated from the samples (Cover & Thomas, 2006, section 2.1): unbiased, and noisy with few rollouts.
        """
        kept = map(compress, self.sampler_logps, self.loss_masks)
        return -sum(map(sum, kept)) / max(1, self.tokens())

    def without_loss(self, rows: Iterable[int]) -> "TokenBatch":
        """The same batch in which these rollouts do not contribute to the loss."""
        masks = list(self.loss_masks)
        for row in rows:
            masks[row] = [0] * len(masks[row])
        return replace(self, loss_masks=masks)

    def tensors(self, rows: slice, *, pad_token: int, device: Any) -> dict[str, torch.Tensor]:
        """Rows as tensors, padded on the right: `input_ids (B, L) int64`, `loss_mask (B, L - 1) bool` and
        `sampler_logps (B, L - 1) float32`, both of `input_ids[:, 1:]`."""
        ids, masks, logps = [], [], []
        for i in range(len(self.prompt_ids))[rows]:
            prompt, completion = self.prompt_ids[i], self.completion_ids[i]
            ids.append(prompt + completion)
            masks.append([0] * len(prompt) + self.loss_masks[i])
            logps.append([0.0] * len(prompt) + list(self.sampler_logps[i]))
        width = max(map(len, ids))

        def padded(lists: list[list[Any]], value: Any, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([row + [value] * (width - len(row)) for row in lists], dtype=dtype, device=device)

        return {
            "input_ids": padded(ids, pad_token, torch.long),
            "loss_mask": padded(masks, 0, torch.bool)[:, 1:],
            "sampler_logps": padded(logps, 0.0, torch.float32)[:, 1:],
        }


def micro_batches(tensors: dict[str, Any], parts: int) -> list[dict[str, Any]]:
    """Rows in random order, in `parts` equal parts; None stays None."""
    size = next(len(value) for value in tensors.values() if value is not None)
    order = torch.randperm(size).chunk(parts)
    return [{name: None if value is None else value[rows] for name, value in tensors.items()} for rows in order]


def repeated(rows: Sequence[Any], times: int) -> list[Any]:
    """Each row `times` times in a row: the rows of a batch from its prompts."""
    return [row for row in rows for _ in range(times)]


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
    """The initial model as it is now, for a KL term; None if there is none, or if turning adapters off gives it.

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
