"""The model in a checkpoint, with its configuration, tokenizer, weights and LoRA adapters."""

import json
import re
import shutil
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import logging

from rg_env.core.text import counted, one_line, reason_of
from rg_env.errors import ExportError, InputError
from rg_env.inference.models import describe_model
from rg_env.publish.checkpoint import TOKENIZER, Checkpoint
from rg_env.publish.weights import StateDict
from rg_env.training.checkpointing.files import ADAPTER, read_shapes, stored_parameters, weight_files

_CONFIG, _GENERATION = "config.json", "generation_config.json"
_EMPTY = (
    "ZeRO-3 saves empty weights unless zero3_save_16bit_model is set; export the folder that also has DeepSpeed's "
    "shards (global_stepN)"
)


class ModelFiles:
    """A model's files without its weights: configuration, tokenizer, chat template and generation settings. They come
    from the checkpoint or its base model.

    Raises:
        InputError: the configuration or the tokenizer is missing.
    """

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint
        base, own = checkpoint.base, [checkpoint.folder, checkpoint.folder.parent]  # a global_stepN folder has neither
        folders = [*own, *([base.folder] if base.folder else [])]
        config = _first(folders[len(own) :] if checkpoint.kind == "adapter" else folders, [_CONFIG])
        tokenizer = _first(folders, TOKENIZER[:5])
        if base.on_hub and not (config and tokenizer):
            try:
                on_hub = Path(snapshot_download(base.source, allow_patterns=[_CONFIG, _GENERATION, *TOKENIZER]))
            except Exception as error:  # network, file or Hub errors
                raise InputError(f"the base model {base.name!r} cannot be downloaded: {reason_of(error)}") from error
            config, tokenizer = config or on_hub, tokenizer or on_hub
        if not (config and tokenizer):
            missing = "tokenizer (tokenizer.json, tokenizer.model, ...)" if config else _CONFIG
            raise InputError(f"{checkpoint.folder} has no {missing}: pass the base model as --base NAME_OR_FOLDER")
        self._config, self._tokenizer = config, tokenizer

    @property
    def config(self) -> Any:
        """The transformers configuration, read again on each access because models modify it. Raises `InputError` if
        config.json is damaged."""
        return _read(AutoConfig, self._config, _CONFIG, trust_remote_code=False)

    @cached_property
    def tokenizer(self) -> Any:
        """Tokenizer. Raises `InputError` if the tokenizer's files cannot be read."""
        logging.disable_progress_bar()
        return _read(AutoTokenizer, self._tokenizer, "tokenizer", trust_remote_code=False)

    @property
    def dtype(self) -> torch.dtype | None:
        """Dtype in which the run loaded the weights or, if unknown, the configuration's dtype, if any."""
        loaded = self._checkpoint.trained_model.get("dtype")
        return getattr(torch, loaded) if loaded in ("float32", "bfloat16") else getattr(self.config, "dtype", None)

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        """Copy the tokenizer, generation settings and configuration, with `dtype` in config.json, to `folder`.

        Raises:
            InputError: the generation settings are damaged.
        """
        for name in TOKENIZER:
            if (self._tokenizer / name).is_file():
                shutil.copyfile(self._tokenizer / name, folder / name)
        values = json.loads((self._config / _CONFIG).read_text(encoding="utf-8"))
        keys = [key for key in ("dtype", "torch_dtype") if key in values] or ["torch_dtype"]
        values |= dict.fromkeys(keys, str(dtype).removeprefix("torch."))
        (folder / _CONFIG).write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for place in (self._checkpoint.folder, self._config):
            if (place / _GENERATION).is_file():
                _read(GenerationConfig, place, _GENERATION)  # vLLM does not start with a damaged file
                shutil.copyfile(place / _GENERATION, folder / _GENERATION)
                break


def _first(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    """Return the first folder that contains one of the files in `names`, or None."""
    return next((folder for folder in folders if any((folder / name).is_file() for name in names)), None)


def _read(kind: Any, folder: Path, what: str, **options: Any) -> Any:
    try:
        return kind.from_pretrained(folder, local_files_only=True, **options)
    except Exception as error:  # damaged files can raise any exception
        raise InputError(f"the {what} in {folder} cannot be read ({reason_of(error)})") from error


def build(config: Any) -> Any:
    """Build the model with parameters on the meta device. Buffers are allocated because the configuration determines
    their values.

    Raises:
        InputError: transformers cannot build the model.
    """
    try:
        with init_empty_weights(include_buffers=False):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:  # model classes can raise any exception
        raise InputError(f"config.json does not describe a known model: {reason_of(error)}") from error
    model.tie_weights()
    return model.eval()


def match(model: Any, weights: StateDict) -> StateDict:
    """Return the model's weights by their names on the Hub (see `stored_parameters`), in the model's order and tied
    weights only once. The names in `weights` are those on the Hub, or those in memory.

    Raises:
        ExportError: a weight is missing, empty, or not part of the model, has the wrong shape, or differs from a weight
            to which it should be tied.
        InputError: the weights are quantized.
    """
    kind, tied, own = type(model).__name__, model.all_tied_weights_keys, dict(weights)
    wanted = stored_parameters(model)
    for twin, name in tied.items():
        if twin in own and not torch.equal(own[twin], own.setdefault(name, own[twin])):
            raise ExportError(f"config.json ties {name} and {twin}, but their values in the checkpoint differ")
    if wanted.keys() - own.keys() and own.keys() >= model.state_dict().keys() - tied.keys():
        own = revert_weight_conversion(model, {name: value for name, value in own.items() if name not in tied})
    if missing := [name for name in wanted if name not in own]:
        raise ExportError(
            f"{missing[0]} is missing from the checkpoint, which lacks {counted(len(missing), 'weight')} of {kind}"
        )
    for name, value in wanted.items():
        if own[name].shape != value.shape:
            raise ExportError(
                f"{name} has the shape {tuple(own[name].shape)} in the checkpoint and {tuple(value.shape)} in {kind}: "
                + ("config.json may belong to another model" if own[name].numel() else _EMPTY)
            )
        if value.is_floating_point() and (not own[name].is_floating_point() or own[name].element_size() == 1):
            raise InputError(f"{name} has dtype {own[name].dtype}, but quantized weights cannot be exported")
    known = {*wanted, *tied, *(name for name, _ in model.named_buffers())}
    ignored = "|".join([r"\.rotary_emb\.inv_freq$", *(model._keys_to_ignore_on_load_unexpected or ())])
    if unknown := [name for name in own if name not in known and not re.search(ignored, name)]:
        raise ExportError(
            f"{one_line(unknown[0])} is in the checkpoint but not in {kind} ({counted(len(unknown), 'such weight')}): "
            "config.json may belong to another model"
        )
    return {name: own[name] for name in wanted}


def adapted(checkpoint: Checkpoint) -> Any:
    """Load the base model in float32 with the checkpoint's adapters.

    Raises:
        InputError: the base model cannot be loaded, or PEFT cannot load the adapters.
        ExportError: an adapter is missing or not part of the model.
    """
    from peft import PeftModel, get_peft_model_state_dict

    folder, name = checkpoint.folder, checkpoint.base.source
    if not weight_files(folder, ADAPTER):
        raise InputError(f"{folder} has adapter_config.json but no adapters: copy {ADAPTER} as well")
    described = describe_model(name)
    try:
        base = described.load(dtype=torch.float32).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT only warns about missing adapters, but an error is raised below
            model = PeftModel.from_pretrained(base, str(folder)).eval()
            loaded = get_peft_model_state_dict(model, save_embedding_layers=False).keys()
    except Exception as error:  # damaged files can raise any exception
        raise InputError(f"cannot load the adapters in {folder} into {name!r}: {reason_of(error)}") from error
    stored = read_shapes(folder, ADAPTER).keys()
    if wrong := sorted(loaded - stored) + sorted(stored - loaded - model.state_dict().keys()):
        problem = "is missing" if wrong[0] in loaded else "is not part of the base model"
        raise ExportError(f"{one_line(wrong[0])} {problem} ({counted(len(wrong), 'such tensor')})")
    return model
