"""The tensors sent to the server, and their division into buckets.

With LoRA, the merged weights of adapted layers (base + update) are sent. They are computed on a copy, because merging
and unmerging the model itself would leave rounding errors. Tied weights are sent under each name, because vLLM silently
keeps the old LM head if it only receives the embedding.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rg_env.errors import InputError
from rg_env.inference.vllm.shared_weights import ALIGNMENT

BUCKET_BYTES = 128 * 2**20
_WITHOUT_HEAD = ("cohere", "cohere2", "gemma2", "gemma3n_text")
"""Model types with tied weights where vLLM 0.32 rejects the head's weights, because it lacks a module of that name."""


@dataclass(frozen=True)
class Source:
    """One tensor to send: its name on the server, its parameters, and the function that computes it from them."""

    name: str
    parameters: tuple[nn.Parameter, ...]
    tensor: Callable[[], torch.Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        """The unsharded shape of the tensor."""
        # ZeRO-3 replaces a sharded parameter with an empty tensor that has the shape as an attribute.
        return tuple(getattr(self.parameters[0], "ds_shape", self.parameters[0].shape))

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.parameters[0].element_size()

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the trainer's tensor."""
        return self.parameters[0].dtype


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.data


def sources(model: nn.Module, whole: Callable[[Any], torch.Tensor] = _itself) -> list[Source]:
    """All weights of `model`; tied weights are included under each name.

    Args:
        whole: returns the unsharded tensor of a parameter (`DataParallel.whole`).
    """
    adapted = dict(_adapted_layers(model))
    found = []
    headless = _is_tied(model) and model.config.get_text_config(decoder=True).model_type in _WITHOUT_HEAD
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if headless and "lm_head." in name:
            continue
        if ".lora_" in name or ".original_module." in name:
            continue
        owner = name.removesuffix(".weight")
        layer = adapted.get(owner.removesuffix(".base_layer"))
        clean = server_name(name)
        if layer is not None and name.endswith(".base_layer.weight"):
            found.append(_merged(clean, parameter, layer, whole))
        else:
            found.append(_plain(clean, parameter, whole))
    return found


def check_sendable(model: Any) -> None:
    """Raise `InputError` if a plain model's weights cannot represent `model`."""
    if reason := unmergeable(model):
        raise InputError(f"the vLLM engine cannot serve what is trained: {reason}")


def unmergeable(model: Any) -> str | None:
    """The reason why `sources` cannot represent `model`; None if it can."""
    if any(not p.is_floating_point() for p in model.parameters()):
        return "its weights are quantized; load it unquantized"
    for config in getattr(model, "peft_config", {}).values():
        kind = getattr(config.peft_type, "value", config.peft_type)
        if kind != "LORA":
            return f"{kind} adapters are not merged into weights; use LoRA"
        for option in ("lora_bias", "trainable_token_indices", "target_parameters", "alora_invocation_tokens"):
            if getattr(config, option, None):
                return f"LoRA with {option} is more than merged weights; leave {option} out"
    for name, layer in _adapted_layers(model):
        for variant in layer.lora_variant.values():
            if not type(variant).__name__.startswith("Dora"):
                return f"the LoRA of {server_name(name)} is a {type(variant).__name__}; use LoRA or DoRA"
    return "the model ties head and embedding, and the adapter unties them; adapt neither" if _untied(model) else None


def _is_tied(model: Any) -> bool:
    config = getattr(model, "config", None)
    return config is not None and bool(config.get_text_config(decoder=True).tie_word_embeddings)


def _untied(model: Any) -> bool:
    """Whether an adapter gives the LM head and the embedding different weights although the configuration ties them."""
    if not getattr(model, "peft_config", None) or not model.config.get_text_config(decoder=True).tie_word_embeddings:
        return False
    ends = [model.get_base_model().get_input_embeddings(), model.get_base_model().get_output_embeddings()]
    if any(hasattr(end, "lora_A") for end in ends):
        return True
    weights = [end.modules_to_save[end.active_adapters[0]] if hasattr(end, "modules_to_save") else end for end in ends]
    return weights[0].weight is not weights[1].weight


def server_name(name: str) -> str:
    """Name of a parameter in the model before PEFT wrapped it."""
    for part in ("base_model.model.", ".base_layer", "modules_to_save.default."):
        name = name.replace(part, "")
    return name


def buckets(found: Sequence[Source], num_bytes: int = BUCKET_BYTES) -> Iterator[list[Source]]:
    """Group consecutive sources into buckets of at most `num_bytes`. A larger source has its own bucket."""
    bucket: list[Source] = []
    size = 0
    for source in found:
        if bucket and size + source.num_bytes > num_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append(source)
        size += source.num_bytes
    if bucket:
        yield bucket


def largest_bucket(found: Sequence[Source]) -> int:
    """Maximum bucket size for these sources in bytes, including alignment."""
    return max((sum(source.num_bytes + ALIGNMENT for source in bucket) for bucket in buckets(found)), default=0)


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    try:
        from peft.tuners.lora import LoraLayer
    except ImportError:
        return
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


def _plain(name: str, parameter: nn.Parameter, whole: Callable[[Any], torch.Tensor]) -> Source:
    return Source(name, (parameter,), lambda: whole(parameter))


def _merged(name: str, base: nn.Parameter, layer: Any, whole: Callable[[Any], torch.Tensor]) -> Source:
    adapters = [key for key in layer.active_adapters if key in layer.scaling]
    parts = [base]
    for kind in ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"):
        held = getattr(layer, kind, None)
        for key in adapters:
            if held is not None and key in held:
                value = held[key]
                parts += [value] if isinstance(value, nn.Parameter) else list(value.parameters())

    def tensor() -> torch.Tensor:
        if layer.merged:
            return whole(base)
        merged = base.data.float()  # a copy, unless it is float32 already
        for key in adapters:
            if key in layer.lora_variant:  # DoRA and similar variants
                merged = layer.lora_variant[key].merge_safe(layer, key, merged.clone())
            else:
                merged = merged + layer.get_delta_weight(key).float()
        return whole(merged)

    return Source(name, tuple(parts), tensor)
