"""LoRA adapters: read by themselves, or as the weights of the model that they make of their base model.

Merged weights are computed one at a time, as for a vLLM server (`weight_sources`): the base model stays as it is, and
is the only copy in memory.
"""

import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rg_env.core.text import one_line, reason_of
from rg_env.errors import ExportError, InputError
from rg_env.inference.models import describe_model
from rg_env.training.checkpointing.files import ADAPTER, read_shapes, weights_problem
from rg_env.training.checkpointing.readers import Reader, Stored
from rg_env.training.weight_sync.parameters import sources, unmergeable

CONFIG = "adapter_config.json"


class AdapterReader:
    """The adapters among the weights of sharded files, under the names that PEFT gives them in files."""

    def __init__(self, reader: Reader):
        self._reader = reader
        self.described = f"adapters in {reader.described}"
        self._names = {
            _file_name(name): name
            for name in reader.stored()
            if re.search(r"\.lora_|\.modules_to_save\.", name) and ".original_module." not in name
        }
        if not self._names:
            raise InputError("neither adapter_model.safetensors nor the shards beside it have adapters in them")

    def stored(self) -> dict[str, Stored]:
        stored = self._reader.stored()
        return {short: stored[name] for short, name in self._names.items()}

    def read(self, name: str) -> torch.Tensor:
        return self._reader.read(self._names[name])


class MergedReader:
    """The weights of a model with adapters, merged: what it computes, as tensors of the plain model.

    Raises:
        InputError: they cannot be told so.
    """

    def __init__(self, model: Any, described: str):
        if reason := unmergeable(model):
            raise InputError(f"the adapters cannot be merged: {reason}, or export without --merge-lora")
        self.described = f"{described}, merged"
        self._sources = {source.name: source for source in sources(model)}

    def stored(self) -> dict[str, Stored]:
        return {
            name: Stored(tuple(source.parameters[0].shape), torch.float32) for name, source in self._sources.items()
        }

    def read(self, name: str) -> torch.Tensor:
        with torch.no_grad():
            return self._sources[name].tensor().detach()


def base_model(name: str) -> Any:
    """The model that adapters were trained on, in float32. Raises `InputError`: it cannot be loaded."""
    described = describe_model(name)
    try:
        return AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **described.options).eval()
    except Exception as error:  # damaged files raise whatever their parser raises
        raise InputError(f"the base model {name!r} cannot be loaded: {reason_of(error)}") from error


def adapted(model: Any, folder: Path) -> Any:
    """`model` with the adapters in `folder`.

    Raises:
        InputError: PEFT cannot put them on it.
        ExportError: some are missing, empty, or belong nowhere.
    """
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of missing ones, which are an error below
            found = PeftModel.from_pretrained(model, str(folder)).eval()
    except Exception as error:
        raise InputError(f"cannot put the adapters in {folder} on the base model: {reason_of(error)}") from error
    if problem := weights_problem(folder, found) or _strange(folder, found):
        raise ExportError(f"{folder / ADAPTER}: {problem}")
    return found


def _strange(folder: Path, model: Any) -> str | None:
    """What PEFT passes over in silence: tensors that `model` has no place for."""
    from peft import get_peft_model_state_dict

    places = {*get_peft_model_state_dict(model, save_embedding_layers=False), *model.state_dict()}
    strange = sorted(read_shapes(folder, ADAPTER)[0].keys() - places)
    return f"{one_line(strange[0])} belongs nowhere in the base model ({len(strange)} such)" if strange else None


def copy_config(source: Path, folder: Path) -> None:
    """`adapter_config.json`, as it is, for PEFT to find its base model by."""
    shutil.copyfile(source / CONFIG, folder / CONFIG)


def _file_name(name: str) -> str:
    """PEFT's files leave out what an adapter is called."""
    return re.sub(r"\.(lora_[A-Za-z_]+|modules_to_save)\.default(?=\.|$)", _without_name, name)


def _without_name(match: re.Match[str]) -> str:
    return "" if match[1] == "modules_to_save" else f".{match[1]}"
