"""LoRA adapters: read them from a checkpoint, load them on the base model, merge them."""

import re
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rg_env.core.text import one_line, reason_of
from rg_env.errors import ExportError, InputError
from rg_env.inference.models import describe_model
from rg_env.publish.checkpoint import Checkpoint, has_weights
from rg_env.publish.weights import Weights, check_type, read_weights
from rg_env.training.checkpointing.files import ADAPTER, read_shapes, weights_problem
from rg_env.training.weight_sync.parameters import unmergeable


def read_adapters(checkpoint: Checkpoint) -> tuple[str, Weights]:
    """Read the adapters' file, or the shards next to it if ZeRO-3 left the file empty.

    Raises:
        InputError: both are missing, or a file is damaged.
        ExportError: the adapters are empty.
    """
    folder = checkpoint.weights
    described, found = read_weights("adapter", folder) if has_weights(folder, ADAPTER) else ("", {})
    empty = [name for name, weight in found.items() if 0 in weight.shape]
    shards = [(kind, place) for kind, place in checkpoint.parts.items() if kind not in ("adapter", "plain")]
    if shards and (empty or not found):
        described, found = read_weights(*shards[0])
        return f"adapters in {described}", _adapters_in(found)
    if not found:
        raise InputError(f"{folder} has adapter_config.json but no {ADAPTER}: copy this file, too")
    if empty:
        raise ExportError(f"{empty[0]} is empty in the checkpoint, and there are no shards next to it")
    for name, weight in found.items():
        check_type(name, weight.dtype)
    return described, found


def _adapters_in(weights: Weights) -> Weights:
    """Adapters among a model's weights, under PEFT's names in files (without the adapter name)."""
    found = {
        re.sub(r"(\.lora_\w+)\.default(?=\.|$)", r"\1", name.replace(".modules_to_save.default", "")): weight
        for name, weight in weights.items()
        if re.search(r"\.lora_|\.modules_to_save\.", name) and ".original_module." not in name
    }
    if not found:
        raise InputError(f"neither {ADAPTER} nor the shards next to it contain adapters")
    return found


def adapted(checkpoint: Checkpoint, folder: Path) -> Any:
    """Load the base model in float32 with the adapters in `folder`.

    Raises:
        InputError: the base model cannot be loaded, or PEFT cannot load the adapters.
        ExportError: an adapter is missing, empty, or not part of the model.
    """
    from peft import PeftModel

    name = checkpoint.base.source
    described = describe_model(name)
    try:
        base = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **described.options).eval()
    except Exception as error:  # damaged files can raise any exception
        raise InputError(f"the base model {name!r} cannot be loaded: {reason_of(error)}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing adapters, which are an error below
            found = PeftModel.from_pretrained(base, str(folder)).eval()
    except Exception as error:
        raise InputError(f"cannot load the adapters in {folder} on the base model: {reason_of(error)}") from error
    if problem := weights_problem(folder, found) or _unknown(folder, found):
        raise ExportError(f"{folder / ADAPTER}: {problem}")
    return found


def merged(model: Any) -> dict[str, torch.Tensor]:
    """Merge the adapters and return the weights of the plain model. Raises `InputError` if they cannot be merged."""
    if reason := unmergeable(model):
        raise InputError(f"the adapters cannot be merged: {reason}, or export without --merge-lora")
    tensors: dict[str, torch.Tensor] = model.merge_and_unload().state_dict()
    return tensors


def _unknown(folder: Path, model: Any) -> str | None:
    """Describe tensors that PEFT would silently ignore because they are not part of `model`, if any."""
    from peft import get_peft_model_state_dict

    places = {*get_peft_model_state_dict(model, save_embedding_layers=False), *model.state_dict()}
    strange = sorted(read_shapes(folder, ADAPTER)[0].keys() - places)
    return f"{one_line(strange[0])} is not part of the base model ({len(strange)} in all)" if strange else None
