"""The model in a checkpoint, with its configuration, tokenizer, weights and LoRA adapters."""

import json
import re
import shutil
import warnings
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
from rg_env.publish.checkpoint import TOKENIZER, Checkpoint
from rg_env.publish.weights import Weights, read_weights
from rg_env.training.checkpointing.files import ADAPTER, read_shapes

_CONFIG, _GENERATION = "config.json", "generation_config.json"
_WRAPPERS = re.compile(r"\b(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")
"""Pattern for the parts that FSDP, activation checkpointing and torch.compile insert into weight names."""
_EMPTY = (
    "ZeRO-3 saves empty weights unless zero3_save_16bit_model is set; export the folder that also has DeepSpeed's "
    "shards (global_stepN)"
)


class Companions:
    """Configuration, tokenizer, chat template and generation settings, from the checkpoint or its base model.

    Raises:
        InputError: the configuration or the tokenizer is missing.
    """

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint
        config, tokenizer = checkpoint.config_folder(), checkpoint.tokenizer_folder()
        if config is None or tokenizer is None:
            base = checkpoint.base.source
            try:
                on_hub = Path(snapshot_download(base, allow_patterns=[_CONFIG, _GENERATION, *TOKENIZER]))
            except Exception as error:  # network, file or Hub errors
                raise InputError(f"the base model {base!r} cannot be downloaded: {reason_of(error)}") from error
            config, tokenizer = config or on_hub, tokenizer or on_hub
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
    def dtype(self) -> str:
        """Dtype in which the run loaded the weights or, if unknown, the configuration's dtype, such as "bfloat16"."""
        loaded = self._checkpoint.trained_model.get("dtype")
        found = loaded if loaded in ("float32", "bfloat16") else getattr(self.config, "dtype", None)
        return str(found).removeprefix("torch.")

    def write(self, folder: Path, dtype: str | None) -> None:
        """Copy the tokenizer, configuration and generation settings to `folder`.

        Args:
            dtype: dtype to record in config.json, or None for adapters, which do not have a config.json.

        Raises:
            InputError: the generation settings are damaged.
        """
        for name in TOKENIZER:
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


def match(model: Any, weights: Weights) -> tuple[Weights, list[str]]:
    """Match `weights` to the model. Returns the model's weights (in the model's order, tied weights only once) and the
    names of weights that are not part of the model.

    Raises:
        ExportError: a weight is missing, empty or duplicated, has the wrong shape, differs from a weight to which it
            should be tied, or is from another model.
        InputError: the weights are quantized.
    """
    kind, tied = type(model).__name__, model.all_tied_weights_keys
    wanted = {name: value for name, value in model.state_dict().items() if name not in tied}
    unwrapped: Weights = {}
    for name, value in weights.items():
        short = _WRAPPERS.sub("", name)
        if short in unwrapped:
            raise ExportError(f"{short} is in the checkpoint twice")
        unwrapped[short] = value
    probe = max(wanted, key=len)
    prefixes = sorted({"", *(name.removesuffix(probe) for name in unwrapped if name.endswith(probe))}, key=len)
    prefix = max(prefixes, key=lambda prefix: sum(f"{prefix}{name}" in unwrapped for name in wanted))  # "module.", ...
    own = {name.removeprefix(prefix): value for name, value in unwrapped.items() if name.startswith(prefix)}
    other = [name for name in unwrapped if not name.startswith(prefix)]
    for twin, name in tied.items():
        if twin in own and not torch.equal(own[twin], own.setdefault(name, own[twin])):
            raise ExportError(f"config.json ties {name} and {twin}, but their values in the checkpoint differ")
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
        if value.is_floating_point():
            check_type(name, own[name])
    known = {*wanted, *tied, *(name for name, _ in model.named_buffers())}
    ignored = "|".join([r"\.rotary_emb\.inv_freq$", *(model._keys_to_ignore_on_load_unexpected or ())])
    strange = [name for name in own if name not in known and not re.search(ignored, name)]
    tops = {name.split(".")[0] for name in wanted}
    if unknown := [name for name in strange if name.split(".")[0] in tops]:
        raise ExportError(
            f"{unknown[0]} is in the checkpoint but not in {kind} ({counted(len(unknown), 'such weight')}): "
            "config.json may belong to another model"
        )
    return {name: own[name] for name in wanted}, strange + other


def check_type(name: str, weight: torch.Tensor) -> None:
    """Raise `InputError` unless the weight has a floating-point dtype that can be exported."""
    if weight.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        kind = str(weight.dtype).removeprefix("torch.")
        raise InputError(f"{name} has dtype {kind}, but quantized weights cannot be exported")


# LoRA adapters


def trained_weights(checkpoint: Checkpoint) -> tuple[str, Weights]:
    """Read a checkpoint's weights. If ZeRO-3 left the adapter file empty, read the adapters from the checkpoint's
    shards.

    Returns:
        Description of the format, and the weights.

    Raises:
        InputError: a file is missing or damaged.
        ExportError: the adapters are empty.
    """
    described, found = read_weights(checkpoint.kind, checkpoint.weights)
    if checkpoint.kind != "adapter":
        return described, found
    shards = next(((kind, place) for kind, place in checkpoint.parts.items() if kind not in ("adapter", "plain")), None)
    if shards and not (found and all(value.numel() for value in found.values())):
        described, found = read_weights(*shards)
        described = f"adapters in {described}"
        found = {  # adapter files use PEFT's names, which do not contain the name of the adapter
            re.sub(r"(\.lora_\w+)\.default(?=\.|$)", r"\1", name.replace(".modules_to_save.default", "")): weight
            for name, weight in found.items()
            if re.search(r"\.lora_|\.modules_to_save\.", name) and ".original_module." not in name
        }
    if not found:
        raise InputError(f"{checkpoint.weights} has adapter_config.json but no adapters: copy {ADAPTER} as well")
    for name, weight in found.items():
        if not weight.numel():
            raise ExportError(f"{name} is empty in the checkpoint, which has no shards that contain its value")
        check_type(name, weight)
    return described, found


def adapted(checkpoint: Checkpoint, folder: Path) -> Any:
    """Load the base model in float32 with the adapters in `folder`.

    Raises:
        InputError: the base model cannot be loaded, or PEFT cannot load the adapters.
        ExportError: an adapter is missing or not part of the model.
    """
    from peft import PeftModel, get_peft_model_state_dict

    name = checkpoint.base.source
    described = describe_model(name)
    try:
        base = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **described.options).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT only warns about missing adapters, but an error is raised below
            model = PeftModel.from_pretrained(base, str(folder)).eval()
            loaded = get_peft_model_state_dict(model, save_embedding_layers=False).keys()
    except Exception as error:  # damaged files can raise any exception
        raise InputError(f"cannot load the adapters in {folder} into {name!r}: {reason_of(error)}") from error
    stored = read_shapes(folder, ADAPTER)[0].keys()
    if wrong := sorted(loaded - stored) + sorted(stored - loaded - model.state_dict().keys()):
        problem = "is missing" if wrong[0] in loaded else "is not part of the base model"
        raise ExportError(f"{one_line(wrong[0])} {problem} ({counted(len(wrong), 'such tensor')})")
    return model
