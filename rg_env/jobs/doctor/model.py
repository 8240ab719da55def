"""The model of a run: whether it can be loaded, and what it and its rollouts take of memory. Imports torch."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_CACHE
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from rg_env.core.prompts import require_chat_template
from rg_env.errors import InputError
from rg_env.inference.models import DEFAULT_GPU_MODEL, TINY, describe_model
from rg_env.jobs.doctor.asked_run import AskedRun, Check, gigabytes
from rg_env.jobs.doctor.machine import nearest_folder
from rg_env.jobs.doctor.tokens import PromptLengths, cached_tokens
from rg_env.tiny import POLICY_DIR
from rg_env.training.reporting.memory import Estimate, ModelShape, estimate, largest_that_fits

_INDEX = "model.safetensors.index.json"
_TIGHT = 0.9
"""Of the free memory: above, fragmentation may be too much."""


@dataclass(frozen=True)
class Model:
    """What the doctor knows of the model that it was asked about."""

    name: str
    """As the trainer gives it to a server."""
    is_tiny: bool
    tokenizer: Any
    shape: ModelShape
    context: int
    """Tokens of prompt and completion together, at most."""
    adapter_width: int = 0
    """Numbers that LoRA of rank 1 on all linear layers but the head trains."""


def chosen_name(run: AskedRun, *, cuda: bool) -> str:
    """The model of `run`, or the machine's default as `load_policy` takes it."""
    if run.model is not None:
        return run.model
    return DEFAULT_GPU_MODEL if cuda else TINY


def check_model(name: str) -> tuple[Check, Model | None]:
    """Whether configuration, tokenizer, chat template and weights are there, or can be downloaded; without loading."""
    is_tiny = name == TINY
    path = str(POLICY_DIR) if is_tiny else name
    try:
        described = describe_model(path)
        require_chat_template(described.tokenizer)
    except InputError as error:
        return Check("model", "failed", str(error), _fix(str(error))), None
    with init_empty_weights():
        empty = AutoModelForCausalLM.from_config(described.config)
    empty.tie_weights()  # which making them empty undid: a tied matrix would count twice
    shape = ModelShape.of(described.config, sum(parameter.numel() for parameter in empty.parameters()))
    context = described.config.get_text_config(decoder=True).max_position_embeddings
    model = Model(path, is_tiny, described.tokenizer, shape, context, _adapter_width(empty))
    text = f"{name}: {_millions(shape.parameters)} parameters"
    try:
        files = stored_weights(path)
        stored = sum(_parameters_in(file) for file in files if file.suffix == ".safetensors")
    except InputError as error:
        return Check("model", "failed", str(error), "copy or download the model again"), model
    if 0 < stored < shape.parameters and not hasattr(described.config, "quantization_config"):  # those are packed
        finding = f"{text} by its config.json, and its files hold {_millions(stored)}"
        return Check("model", "failed", finding, "give a folder whose config.json belongs to its weights"), model
    if files:
        return Check("model", "ok", f"{text}, {gigabytes(sum(file.stat().st_size for file in files))} on disk"), model
    size, free = 2 * shape.parameters, shutil.disk_usage(nearest_folder(Path(HF_HUB_CACHE))).free
    if described.options["local_files_only"]:
        finding = f"{text}; its weights are not stored, and the hub cannot be reached"
        return Check(
            "model", "failed", finding, "connect to the network (HF_HUB_OFFLINE unset), or give a folder"
        ), model
    if free < size:
        finding = f"{text}; to download about {gigabytes(size)}, and {HF_HUB_CACHE} has {gigabytes(free)} free"
        return Check("model", "failed", finding, "make room, or set HF_HOME to a folder on another disk"), model
    return Check("model", "ok", f"{text}; to download, about {gigabytes(size)}"), model


def _fix(reason: str) -> str:
    lower = reason.lower()
    if "gated" in lower or "401" in lower or "403" in lower:
        return "accept its licence on its page of the hub, then `hf auth login`, or HF_TOKEN in .env"
    if "chat template" in lower:
        return "use an instruction-tuned model, or add a chat_template.jinja to its folder"
    return "check --model: a folder with config.json, tokenizer and safetensors files, a name on the hub, or 'tiny'"


def _adapter_width(model: Any) -> int:
    head = model.get_output_embeddings()
    linear = (each for each in model.modules() if isinstance(each, torch.nn.Linear) and each is not head)
    return sum(each.in_features + each.out_features for each in linear)


def stored_weights(name: str) -> list[Path]:
    """The files of the weights; none: there are none yet, and the hub has them.

    Raises:
        InputError: one is missing.
    """
    folder = Path(name)

    def find(file: str) -> Path | None:
        if folder.is_dir():
            return folder / file if (folder / file).is_file() else None
        found = try_to_load_from_cache(name, file)
        return Path(found) if isinstance(found, str) else None

    if single := find("model.safetensors"):
        files = [single]
    elif index := find(_INDEX):
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(f"{index} is no index of weights: {type(error).__name__}") from error
        files = [file for shard in names if (file := find(shard))]
        if len(files) < len(names):
            if not folder.is_dir():
                return []  # a download that was broken off goes on where it was
            missing = next(shard for shard in names if not find(shard))
            raise InputError(f"{name} lacks {missing}, which {_INDEX} names")
    elif other := find("pytorch_model.bin") or find("pytorch_model.bin.index.json"):
        return [other]
    elif folder.is_dir():
        raise InputError(f"{name} has no weights: no model.safetensors, and no {_INDEX}")
    else:
        return []
    return files


def _parameters_in(file: Path) -> int:
    """Numbers in a safetensors file, by its header. Raises `InputError` if it is damaged."""
    try:
        with safe_open(file, "pt") as tensors:  # compares the file's size with its header
            return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    except Exception as error:  # its own kind, with no common base
        pointer = file.stat().st_size < 1024 and file.read_bytes().startswith(b"version https://git-lfs")
        why = "it is a Git LFS pointer, not the weights" if pointer else str(error)
        raise InputError(f"{file} cannot be read: {why}") from error


def run_estimate(
    run: AskedRun, settings: Mapping[str, Any], model: Model, lengths: PromptLengths | None, micro_batch: int
) -> Estimate:
    """What one process of the run takes. `lengths`: of the prompts, where they could be measured."""
    longest = max(lengths.own) if lengths else settings["max_prompt_length"]
    spread = longest - min(lengths.own) if lengths else 0
    return estimate(
        model.shape,
        micro_batch=micro_batch,
        tokens=longest + settings["max_tokens"],
        logit_tokens=settings["max_tokens"] + spread,
        shards=run.processes if run.zero3 else 1,
        checkpointing=bool(settings.get("gradient_checkpointing")),
        bf16=bool(settings.get("bf16")),
        reference=settings.get("beta", 0.0) != 0.0,
        adapter_parameters=run.lora_rank * model.adapter_width,
        frozen_bytes=run.frozen_bytes,
        cached_tokens=max(cached_tokens(run, settings, lengths)),
    )


def check_memory(
    run: AskedRun,
    settings: Mapping[str, Any],
    model: Model,
    lengths: PromptLengths | None,
    room: int | None,
    place: str,
) -> Check:
    """The estimate against `room`, the bytes that are free at `place` for one process; None: not known."""

    def need(micro_batch: int) -> int:
        return run_estimate(run, settings, model, lengths, micro_batch).total

    batch = settings["per_device_train_batch_size"]
    whole = run_estimate(run, settings, model, lengths, batch)
    trained, evaluated = cached_tokens(run, settings, lengths)
    parts = {
        "state": whole.state + whole.gathered,
        "logits": whole.logits,
        "activations": whole.activations,
        f"engine's cache{' in evaluations' if evaluated > trained else ''}": whole.cache,
    }
    shown = ", ".join(f"{name} {gigabytes(size)}" for name, size in parts.items() if size)
    shards = f", ZeRO-3 over {run.processes}" if run.zero3 else ""
    text = f"about {gigabytes(whole.total)} a process"
    if room is None:
        return Check("memory", "skipped", f"{text} ({shown}{shards}); how much is free is not known here")
    text = f"{text} of {gigabytes(room)} free {place} ({shown}{shards})"
    if whole.total <= _TIGHT * room:
        return Check("memory", "ok", text)
    if fitting := largest_that_fits(int(_TIGHT * room), batch, need):
        fix = f"--per-device-batch-size {fitting} (a step stays the same)"
    elif run.engine == "embedded":
        shorter = "evaluation.max_tokens" if evaluated > trained and run.from_config else "--max-tokens"
        fix = f"shorter {shorter}, a smaller --model, LoRA (peft_config), or --engine vllm --processes N (ZeRO-3)"
    else:
        fix = "more --processes (ZeRO-3 divides the state), shorter --max-tokens, a smaller --model, or LoRA"
    return Check("memory", "failed" if whole.total > room else "warning", text, fix)


def checkpoint_bytes(run: AskedRun, model: Model) -> int:
    """Weights and Adam's moments in fp32; under ZeRO-3 the fp32 weights stand beside bf16 ones."""
    return (14 if run.zero3 else 12) * model.shape.parameters


def checkpoint_count(settings: Mapping[str, Any]) -> int:
    """How many checkpoints a run leaves: one at its end, and those on the way."""
    steps, every = settings["max_steps"], settings.get("save_steps") or 0
    if every < 1:
        return 1
    count = max(1, -(-steps // every))
    return min(count, settings.get("save_total_limit") or count)


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"
