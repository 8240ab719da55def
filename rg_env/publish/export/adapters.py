"""LoRA adapters: on their base model, merged into it, or found among sharded weights."""

import re
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rg_env.core.text import one_line, reason_of
from rg_env.errors import ExportError, InputError
from rg_env.inference.models import describe_model
from rg_env.publish.export.weights import Tensors
from rg_env.training.checkpointing.files import ADAPTER, read_shapes, weights_problem
from rg_env.training.weight_sync.parameters import unmergeable


def adapters_in(tensors: Tensors) -> Tensors:
    """The adapters among a model's weights, under the names that PEFT gives them in files.

    Raises:
        InputError: there are none.
    """
    found = {
        re.sub(r"\.(lora_[A-Za-z_]+|modules_to_save)\.default(?=\.|$)", _without_adapter_name, name): tensor
        for name, tensor in tensors.items()
        if re.search(r"\.lora_|\.modules_to_save\.", name) and ".original_module." not in name
    }
    if not found:
        raise InputError("neither adapter_model.safetensors nor the shards next to it contain adapters")
    return found


def base_model(name: str) -> Any:
    """The model that adapters were trained on, in float32. Raises `InputError` if it cannot be loaded."""
    described = describe_model(name)
    try:
        return AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **described.options).eval()
    except Exception as error:  # damaged files raise anything
        raise InputError(f"the base model {name!r} cannot be loaded: {reason_of(error)}") from error


def adapted(model: Any, folder: Path) -> Any:
    """`model` with the adapters in `folder`.

    Raises:
        InputError: PEFT cannot load them.
        ExportError: some are missing, empty, or not part of the model.
    """
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing ones, which are an error below
            found = PeftModel.from_pretrained(model, str(folder)).eval()
    except Exception as error:
        raise InputError(f"cannot put the adapters in {folder} on the base model: {reason_of(error)}") from error
    if problem := weights_problem(folder, found) or _unknown(folder, found):
        raise ExportError(f"{folder / ADAPTER}: {problem}")
    return found


def merged(model: Any) -> Tensors:
    """The weights of the plain model that computes what `model` does. Raises `InputError` if there is none."""
    if reason := unmergeable(model):
        raise InputError(f"the adapters cannot be merged: {reason}, or export without --merge-lora")
    tensors: Tensors = model.merge_and_unload().state_dict()
    return tensors


def _unknown(folder: Path, model: Any) -> str | None:
    """Tensors that PEFT ignores silently, because `model` has no place for them."""
    from peft import get_peft_model_state_dict

    places = {*get_peft_model_state_dict(model, save_embedding_layers=False), *model.state_dict()}
    strange = sorted(read_shapes(folder, ADAPTER)[0].keys() - places)
    return f"{one_line(strange[0])} is not part of the base model ({len(strange)} such)" if strange else None


def _without_adapter_name(match: re.Match[str]) -> str:
    """PEFT's files omit the name of the adapter."""
    return "" if match[1] == "modules_to_save" else f".{match[1]}"
