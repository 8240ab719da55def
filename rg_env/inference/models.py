"""Load models (the user's, the machine's default, or the tiny policy), and provide accelerate's process state."""

import importlib
import os
import re
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from accelerate import PartialState
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import is_flash_attn_2_available, logging

from rg_env.core.hub import hub_answers
from rg_env.core.processes import print_once
from rg_env.core.run_folder import gguf_file, is_missing_folder, model_kind_problem
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.text import listed, reason_of
from rg_env.errors import InputError
from rg_env.inference.chat_templates import end_ids, require_chat_template
from rg_env.tiny import POLICY_DIR, TINY, tiny_mixture

DEFAULT_GPU_MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
Attention = Literal["auto", "flash_attention_2", "sdpa", "eager"]
Dtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class Policy:
    """A model to train, with its tokenizer. `label` is short enough for folder names."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    label: str
    is_tiny: bool = False

    def mixture(self, gym: Any) -> Mixture:
        """Parse `gym` as a mixture. The tiny policy uses its own problem sizes for options that `gym` does not set."""
        return tiny_mixture(gym) if self.is_tiny else Mixture.parse(gym)


def load_policy(model: str | None = None, *, attention: Attention = "auto", dtype: Dtype = "auto") -> Policy:
    """Load `model`: a folder, a GGUF file (whose weights are dequantized), a name on the Hub, or "tiny". If `model` is
    None, load the default model for this machine and print the model's name.

    Args:
        attention: attention implementation. "auto" uses flash-attn if possible (see `flash_attention_problem`), or else
            PyTorch's SDPA, or else, for models that support neither, "eager".
        dtype: dtype of the weights. "auto" selects float32 so that AdamW's small updates are not rounded away. If the
            training argument `bf16` is True, computation still uses bfloat16. With ZeRO-3 and bf16, "auto" selects
            bfloat16 because ZeRO keeps its own float32 copies. "bfloat16" is for LoRA, where it halves the memory
            needed for the frozen weights (PEFT keeps the adapters in float32).

    Raises:
        InputError: the model cannot be loaded, or does not work with these options.
    """
    options = _options(attention, dtype)
    if model is not None and model != TINY:
        return _load(model, *options)
    if model is None and torch.cuda.is_available():
        try:
            policy = _load(DEFAULT_GPU_MODEL, *options)
            print_once(f"Using {DEFAULT_GPU_MODEL}.")
            return policy
        except InputError as error:
            print_once(f"Using the tiny policy: {error}.")
    elif model is None:
        print_once("No GPU found: using the tiny policy included in rg_env.")
    return replace(_load(str(POLICY_DIR), *options), label=TINY, is_tiny=True)


def with_adapters(policy: Policy, folder: str) -> Policy:
    """Load trained adapters into the policy for further training. Raises `InputError` if the adapters are damaged or do
    not match the model."""
    from peft import PeftModel

    try:
        model = PeftModel.from_pretrained(policy.model, folder, is_trainable=True)
    except Exception as error:  # parsers can raise any exception for damaged files
        raise InputError(f"cannot load the adapters in {folder} into {policy.label}: {reason_of(error)}") from error
    return replace(policy, model=model)


def _options(attention: Attention, dtype: Dtype) -> tuple[torch.dtype, list[str | None]]:
    """Return the dtype and the attention implementations to try, in order. Raises `InputError` if a value is invalid or
    cannot be used on this machine."""
    for name, value, choices in (("attention", attention, get_args(Attention)), ("dtype", dtype, get_args(Dtype))):
        if value not in choices:
            raise InputError(f"{name}={value!r} is invalid: use one of {', '.join(choices)}")
    # Read accelerate's environment variables, because transformers detects ZeRO-3 only after training arguments have
    # been created.
    half = _is_zero3() and os.environ.get("ACCELERATE_MIXED_PRECISION") == "bf16"
    weights = getattr(torch, ("bfloat16" if half else "float32") if dtype == "auto" else dtype)
    used: list[str | None] = [attention]
    if attention in ("auto", "flash_attention_2"):
        problem = flash_attention_problem(weights)
        if problem and attention != "auto":
            raise InputError(f"attention='flash_attention_2' cannot be used here: {problem}; use 'auto' or 'sdpa'")
        if attention == "auto":  # with None, transformers chooses SDPA or, for models without it, "eager"
            used = [None] if problem else ["flash_attention_2", None]
    return weights, used


def _is_zero3() -> bool:
    return os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3"


def flash_attention_problem(dtype: torch.dtype) -> str | None:
    """Return the reason flash-attn cannot be used with weights of `dtype`, or None."""
    if dtype not in (torch.bfloat16, torch.float16):
        return f"flash-attn requires half precision, but the weights are {str(dtype).removeprefix('torch.')}"
    if not torch.cuda.is_available():
        return "this machine has no CUDA GPU"
    if (capability := torch.cuda.get_device_capability()) < (8, 0):
        return (
            f"flash-attn requires compute capability 8.0 or higher, but this GPU has {'.'.join(map(str, capability))}"
        )
    try:
        importlib.import_module("flash_attn")
    except Exception as error:  # builds for another torch version can raise any exception
        return f"flash-attn cannot be imported ({reason_of(error)})"
    return None if is_flash_attn_2_available() else "transformers does not support this version of flash-attn"


def _load(name: str, dtype: torch.dtype, attentions: list[str | None]) -> Policy:
    described = describe_model(name)
    options = {"dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True}
    sharding = _shard_while_loading() if _is_zero3() else None
    verbosity = logging.get_verbosity()
    try:
        # Mismatched weights are reported by name below, because the error from transformers refers only to a table in
        # its log.
        logging.set_verbosity_error()
        for attention in attentions:
            try:
                loaded, info = described.load(attn_implementation=attention, **options)
                break
            except (ImportError, ValueError):  # the model does not support this attention
                if attention == attentions[-1]:
                    raise
    except Exception as error:  # parsers can raise any exception for damaged files
        raise _cannot_load(name, "weights", error, described.options) from None
    finally:
        logging.set_verbosity(verbosity)
    del sharding
    _require_weights(name, loaded, info)
    require_chat_template(described.tokenizer)
    try:
        end_ids(loaded, described.tokenizer)
    except InputError as error:
        raise InputError(f"cannot load the model {name!r}: {error}") from None
    return Policy(loaded, described.tokenizer, Path(name).name.removesuffix(".gguf"))


def _shard_while_loading() -> Any:
    """Return an object that, as long as it exists, makes transformers shard models while building them. Without this
    object, each process would load the entire model.

    Return None if the accelerate config does not request sharding (`zero3_init_flag`).
    """
    if os.environ.get("ACCELERATE_DEEPSPEED_ZERO3_INIT", "false") != "true":
        return None
    from accelerate.utils import DeepSpeedPlugin

    processes()  # the process group must exist first
    plugin = DeepSpeedPlugin()
    plugin.set_mixed_precision(os.environ.get("ACCELERATE_MIXED_PRECISION", "no"))
    plugin.set_deepspeed_weakref()
    return plugin


@dataclass(frozen=True)
class ModelDescription:
    """A model's configuration and tokenizer, without its weights."""

    name: str
    config: Any
    tokenizer: PreTrainedTokenizerBase
    options: dict[str, Any]
    """Options for `from_pretrained`."""

    def load(self, **options: Any) -> Any:
        """Return what `AutoModelForCausalLM.from_pretrained` returns for this model and these options."""
        gguf = gguf_file(self.name)
        if gguf is None:
            return AutoModelForCausalLM.from_pretrained(self.name, **self.options, **options)
        found = AutoModelForCausalLM.from_pretrained(gguf.parent, **self.options, **options)
        model: Any = found[0] if isinstance(found, tuple) else found
        # The weights are dequantized, but transformers would refuse to save them.
        model.is_quantized = False
        for holder, names in (
            (model, ("hf_quantizer", "quantization_method")),
            (model.config, ("quantization_config",)),
        ):
            for name in names:
                vars(holder).pop(name, None)
        model.config._name_or_path = self.name
        return found


def describe_model(name: str) -> ModelDescription:
    """Load the configuration and tokenizer of a model: a folder, a GGUF file, a name on the Hub, or "tiny".

    Raises:
        InputError: a file cannot be loaded, or the model is not a causal language model.
    """
    if name == TINY:
        name = str(POLICY_DIR)
    on_disk = os.path.exists(name)
    if is_missing_folder(name):
        raise InputError(f"the folder {name} does not exist")
    gguf = gguf_file(name)
    if on_disk and not gguf and not (Path(name) / "config.json").is_file():
        raise InputError(f"{name} is not a model folder: config.json and safetensors files are required")
    if gguf and find_spec("gguf") is None:
        raise InputError(
            f"{gguf} needs the package gguf, which is not installed: run `pip install gguf`, or `uv pip install gguf` "
            "in a clone (`./setup.sh` prints where uv is)"
        )
    no_hub = not on_disk and not hub_answers()
    logging.disable_progress_bar()
    options: dict[str, Any] = {"local_files_only": no_hub, "trust_remote_code": False}
    source, part = (name, "config.json") if gguf is None else (str(gguf.parent), gguf.name)
    options |= {"gguf_file": gguf.name} if gguf else {}
    try:
        config = AutoConfig.from_pretrained(source, **options)
        if (problem := model_kind_problem(config.to_dict())) is None:
            part = "tokenizer files" if gguf is None else gguf.name
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            # transformers reads this file in a model folder, but not next to a GGUF file.
            if gguf and (template := gguf.with_name("chat_template.jinja")).is_file():
                part = template.name
                tokenizer.chat_template = template.read_text(encoding="utf-8")
    except Exception as error:  # as with weights, the files may be damaged
        raise _cannot_load(name, part, error, options) from None
    if problem:
        raise InputError(f"cannot load the model {name!r}: {problem}")
    return ModelDescription(name, config, tokenizer, options)


def _cannot_load(name: str, part: str, error: Exception, options: dict[str, Any]) -> InputError:
    reason = f"{part}: {reason_of(error)}"
    if options["local_files_only"]:
        reason = "it is not a local folder, the Hub cannot be reached, and the model is not in the Hub cache"
    return InputError(f"cannot load the model {name!r}: {reason}")


def _require_weights(name: str, model: PreTrainedModel, info: dict[str, Any]) -> None:
    """Raise `InputError` if any layers were randomly initialized because matching weights were missing, or if the
    weights have more layers than the model. Tied layers do not need their own weights. Print a line if other weights
    are not used."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    missing = set(info["missing_keys"])
    loaded = {id(parameter) for key, parameter in parameters.items() if key not in missing}
    lacking = sorted(key for key in missing if id(parameters.get(key)) not in loaded)
    mismatched = sorted(key if isinstance(key, str) else key[0] for key in info["mismatched_keys"])
    for keys, what in ((lacking, "lack"), (mismatched, "disagree with its config.json on the shape of")):
        if keys:
            raise InputError(f"cannot load the model {name!r}: its weights {what} {listed(keys)}")
    unused = sorted(info["unexpected_keys"])
    stacks = {_layer_of(key)[0] for key in parameters}
    config = model.config.get_text_config(decoder=True)
    extra = getattr(config, "num_nextn_predict_layers", None) or 0  # layers for speculative decoding only
    for key in unused:
        stack, layer = _layer_of(key)
        if layer is not None and stack in stacks and layer >= config.num_hidden_layers + extra:
            raise InputError(
                f"cannot load the model {name!r}: config.json has num_hidden_layers={config.num_hidden_layers}, but "
                f"its weights have more layers ({key})"
            )
    if unused:
        print_once(f"{name}: {type(model).__name__} does not use the weights {listed(unused)}")


def _layer_of(key: str) -> tuple[str, int | None]:
    """Return the name of the stack of layers that a weight belongs to, and the layer's number, for example
    "model.layers" and 2. The number is None for other weights."""
    found = re.match(r"(.*?)\.(\d+)\.", key)
    return (found[1], int(found[2])) if found else (key, None)


def best_device() -> str:
    """Return the default device: CUDA, Apple's GPU, or the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


TIMEOUT = timedelta(hours=12)
"""Timeout for collective operations. The other processes wait while the main process samples, grades or
evaluates. The launcher, not this timeout, detects dead processes."""


def processes(*, cpu: bool | None = None) -> PartialState:
    """Return accelerate's process state. Use the CPU if `cpu` is True, or if `cpu` is None and there is no GPU.

    accelerate keeps the arguments of the first call. If `cpu` were not passed, accelerate would treat each process in a
    CPU run as a separate run. Therefore, no other module may create a `PartialState`.
    """
    if cpu is None:
        cpu = not torch.cuda.is_available()
    if cpu and os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        import deepspeed

        # While connecting, DeepSpeed would compile this extension for a minute or two; only its inference uses it.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return PartialState(cpu=cpu, timeout=TIMEOUT)
