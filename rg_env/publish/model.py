"""A checkpoint's model: its configuration, tokenizer, weights and LoRA adapters."""

import json
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from rg_env.core.text import counted, one_line, reason_of
from rg_env.errors import ExportError, InputError
from rg_env.inference.models import describe_model
from rg_env.publish.checkpoint import TOKENIZER_FILES, Base, Checkpoint, has_weights
from rg_env.publish.weights import Weights, check_type, read_weights
from rg_env.training.checkpointing.files import ADAPTER, read_shapes, weights_problem
from rg_env.training.weight_sync import unmergeable

_TOKENIZER = (
    *TOKENIZER_FILES,
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_CONFIG, _GENERATION = "config.json", "generation_config.json"
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
"""Prefixes that FSDP, activation checkpointing and torch.compile insert into names."""


class Companions:
    """Configuration, tokenizer, chat template and generation settings, from the checkpoint or its base model.

    Raises:
        InputError: the configuration or the tokenizer is missing.
    """

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint
        config, tokenizer = checkpoint.config_folder(), checkpoint.tokenizer_folder()
        base = _downloaded(checkpoint.base) if config is None or tokenizer is None else Path()
        self._config, self._tokenizer = config or base, tokenizer or base

    @property
    def config(self) -> Any:
        """The transformers configuration, read again on each access because models modify it. Raises `InputError` if it
        is damaged."""
        return _read(AutoConfig, self._config, _CONFIG, trust_remote_code=False)

    @cached_property
    def tokenizer(self) -> Any:
        """Tokenizer. Raises `InputError` if it cannot be read."""
        logging.disable_progress_bar()
        return _read(AutoTokenizer, self._tokenizer, "tokenizer", trust_remote_code=False)

    @property
    def dtype(self) -> str | None:
        """Dtype in which the run loaded the weights or, if unknown, the configuration's dtype, such as "bfloat16"."""
        asked = self._checkpoint.trained_model.get("dtype")
        if asked in ("float32", "bfloat16"):
            return str(asked)
        found = getattr(self.config, "dtype", None)
        return None if found is None else str(found).removeprefix("torch.")

    def write(self, folder: Path, dtype: str | None) -> None:
        """Copy all files to `folder`.

        Args:
            dtype: dtype to record in config.json; None for adapters, which have no config.json.

        Raises:
            InputError: the generation settings are damaged.
        """
        for name in _TOKENIZER:
            if (self._tokenizer / name).is_file():
                shutil.copyfile(self._tokenizer / name, folder / name)
        if dtype is None:
            return
        values = json.loads((self._config / _CONFIG).read_text(encoding="utf-8"))
        keys = [key for key in ("dtype", "torch_dtype") if key in values] or ["torch_dtype"]
        values |= dict.fromkeys(keys, dtype)
        (folder / _CONFIG).write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for place in (*self._checkpoint.near, self._config):
            if (place / _GENERATION).is_file():
                _read(GenerationConfig, place, _GENERATION)  # vLLM does not start with a damaged file
                shutil.copyfile(place / _GENERATION, folder / _GENERATION)
                break


def _read(kind: Any, folder: Path, what: str, **options: Any) -> Any:
    try:
        return kind.from_pretrained(folder, local_files_only=True, **options)
    except Exception as error:  # damaged files can raise any exception
        raise InputError(f"the {what} in {folder} cannot be read ({reason_of(error)})") from error


def _downloaded(base: Base) -> Path:
    """Download a base model's files from the Hub, except for its weights, and return their folder."""
    try:
        return Path(snapshot_download(base.source, allow_patterns=[_CONFIG, _GENERATION, *_TOKENIZER]))
    except Exception as error:  # network, file or Hub errors
        raise InputError(f"the base model {base.source!r} cannot be downloaded: {reason_of(error)}") from error


@dataclass(frozen=True)
class Architecture:
    """The model architecture that a configuration describes, without weights."""

    config: Any

    def build(self) -> Any:
        """Build the model with parameters on the meta device. Buffers are allocated, because their values follow from
        the configuration.

        Raises:
            InputError: transformers cannot build the model.
        """
        try:
            with init_empty_weights(include_buffers=False):
                model = AutoModelForCausalLM.from_config(self.config, dtype=torch.float32, trust_remote_code=False)
        except Exception as error:  # model classes can raise any exception
            raise InputError(f"config.json does not describe a known model: {reason_of(error)}") from error
        model.tie_weights()
        return model.eval()

    @cached_property
    def model(self) -> Any:
        """Model for checking the names and shapes of weights."""
        return self.build()

    @property
    def vocabulary(self) -> int:
        """Number of embeddings."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Mapping from the name of each tied parameter to the name under which files store it."""
        groups: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            groups.setdefault(id(parameter), []).append(name)
        tied = [re.compile(key) for key in self.model._tied_weights_keys or ()]
        found: dict[str, str] = {}
        for names in groups.values():
            free = [name for name in names if not any(key.search(name) for key in tied)]
            kept = (free or names)[0]
            found |= {name: kept for name in names if name != kept}
        return found

    @cached_property
    def wanted(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all weights in the model's file, by name, in the model's order; tied weights appear once."""
        state = self.model.state_dict()
        return {name: tuple(value.shape) for name, value in state.items() if name not in self.aliases}

    def match(self, weights: Weights) -> tuple[Weights, list[str]]:
        """Match `weights` to the model. Returns the model's weights, and the names of all other weights.

        Raises:
            ExportError: a weight is missing, empty, ambiguous or wrongly tied, has the wrong shape, or is from another
                model.
            InputError: the weights are quantized.
        """
        clean: dict[str, str] = {}
        for name in weights:
            short = name
            for wrapper in _WRAPPERS:
                short = short.replace(wrapper, "")
            if short in clean:
                raise ExportError(f"{short} is in the checkpoint twice, as {clean[short]} and {name}")
            clean[short] = name
        prefix = self._prefix(clean)
        own = {name.removeprefix(prefix): weights[full] for name, full in clean.items() if name.startswith(prefix)}
        found: Weights = {}
        for name in self.wanted:
            names = [name, *(alias for alias, kept in self.aliases.items() if kept == name)]
            if not (present := [each for each in names if each in own]):
                continue
            found[name] = own[present[0]]
            for twin in present[1:]:
                if not torch.equal(own[twin].read(), found[name].read()):
                    raise ExportError(f"config.json ties {name} and {twin}, but their values in the checkpoint differ")
        self._check(found)
        return found, self._left_out(own) + [name for name in clean if not name.startswith(prefix)]

    def _check(self, found: Weights) -> None:
        total = len(self.wanted)
        if empty := [name for name, each in found.items() if 0 in each.shape and 0 not in self.wanted[name]]:
            raise ExportError(
                f"{empty[0]} is empty in the checkpoint, which has {counted(len(empty), 'empty weight')} out of "
                f"{total}; ZeRO-3 saves empty weights unless zero3_save_16bit_model is set: export the folder that "
                "also has DeepSpeed's shards (global_stepN)"
            )
        if missing := [name for name in self.wanted if name not in found]:
            count = f"{len(missing)} of the {total} weights of {type(self.model).__name__}"
            raise ExportError(f"{missing[0]} is missing from the checkpoint, which lacks {count}")
        floating = {name: value.is_floating_point() for name, value in self.model.state_dict().items()}
        for name, weight in found.items():
            if weight.shape != self.wanted[name]:
                raise ExportError(
                    f"{name} has the shape {weight.shape} in the checkpoint and {self.wanted[name]} according to "
                    "config.json, which may belong to another model"
                )
            if floating[name]:
                check_type(name, weight.dtype)

    def _prefix(self, names: Mapping[str, str]) -> str:
        """Prefix added to all names by a trainer's wrappers: "", "model.", "module.", ..."""
        probe = next((name for name in self.wanted if name.count(".") > 1), list(self.wanted)[-1])
        prefixes = {name.removesuffix(probe) for name in names if name.endswith(probe)}
        prefixes = {prefix for prefix in prefixes if prefix.endswith(".")} | {""}

        def fitting(prefix: str) -> int:
            return sum(f"{prefix}{name}" in names for name in self.wanted)

        return min(sorted(prefixes), key=lambda prefix: (-fitting(prefix), len(prefix)))

    def _left_out(self, own: Sequence[str] | Weights) -> list[str]:
        """Names that are not in the model, such as those of a value head. Raises `ExportError` if they look like names
        from the model itself."""
        ignored = [re.compile(key) for key in self.model._keys_to_ignore_on_load_unexpected or ()]
        ignored.append(re.compile(r"\.rotary_emb\.inv_freq$"))  # stored by earlier releases of transformers
        buffers = {name for name, _ in self.model.named_buffers()}
        known = {*self.wanted, *self.aliases, *buffers}
        strange = [name for name in own if name not in known and not any(key.search(name) for key in ignored)]
        tops = {name.split(".")[0] for name in self.wanted}
        if unknown := [name for name in strange if name.split(".")[0] in tops]:
            raise ExportError(
                f"{unknown[0]} is in the checkpoint but not in {type(self.model).__name__} "
                f"({counted(len(unknown), 'such weight')}): config.json may belong to another model"
            )
        return strange


# LoRA adapters


def trained_weights(checkpoint: Checkpoint) -> tuple[str, Weights]:
    """Read a checkpoint's weights. If ZeRO-3 left the adapter file empty, read the adapters from the shards next to it.

    Returns:
        Description of the format, and the weights.

    Raises:
        InputError: a file is missing or damaged.
        ExportError: the adapters are empty.
    """
    if checkpoint.kind != "adapter":
        return read_weights(checkpoint.kind, checkpoint.weights)
    folder = checkpoint.weights
    described, found = read_weights("adapter", folder) if has_weights(folder, ADAPTER) else ("", {})
    empty = [name for name, weight in found.items() if 0 in weight.shape]
    shards = [(kind, place) for kind, place in checkpoint.parts.items() if kind not in ("adapter", "plain")]
    if shards and (empty or not found):
        described, found = read_weights(*shards[0])
        return f"adapters in {described}", _adapters_in(found)
    if not found:
        raise InputError(f"{folder} has adapter_config.json but no {ADAPTER}: copy the latter, too")
    if empty:
        raise ExportError(f"{empty[0]} is empty in the checkpoint, and there are no shards next to it")
    for name, weight in found.items():
        check_type(name, weight.dtype)
    return described, found


def _adapters_in(weights: Weights) -> Weights:
    """Adapter weights among a model's weights, under the names that PEFT uses in files (without the adapter name)."""
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
            warnings.simplefilter("ignore")  # PEFT only warns about missing adapters; an error is raised below
            found = PeftModel.from_pretrained(base, str(folder)).eval()
    except Exception as error:
        raise InputError(f"cannot load the adapters in {folder} into the base model: {reason_of(error)}") from error
    if problem := weights_problem(folder, found) or _unknown(folder, found):
        raise ExportError(f"{folder / ADAPTER}: {problem}")
    return found


def merged(model: Any) -> dict[str, torch.Tensor]:
    """Merge the adapters into the base model and return its weights. Raises `InputError` if they cannot be merged."""
    if reason := unmergeable(model):
        raise InputError(f"the adapters cannot be merged: {reason}, or export without --merge-lora")
    tensors: dict[str, torch.Tensor] = model.merge_and_unload().state_dict()
    return tensors


def _unknown(folder: Path, model: Any) -> str | None:
    """Describe the tensors, if any, that PEFT would silently ignore because they are not part of `model`."""
    from peft import get_peft_model_state_dict

    places = {*get_peft_model_state_dict(model, save_embedding_layers=False), *model.state_dict()}
    strange = sorted(read_shapes(folder, ADAPTER)[0].keys() - places)
    if not strange:
        return None
    return f"{one_line(strange[0])} is not part of the base model ({counted(len(strange), 'such tensor')})"
