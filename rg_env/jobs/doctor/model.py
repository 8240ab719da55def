"""Check a run's model, batch, prompts and memory. This module imports torch but does not load weights."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_CACHE
from transformers import AutoModelForCausalLM

from rg_env.core.config.files import read_config
from rg_env.core.environment import Environment, ReasoningGym
from rg_env.core.prompts import require_chat_template
from rg_env.core.text import counted, gigabytes
from rg_env.errors import InputError, RGEnvError
from rg_env.inference.models import describe_model
from rg_env.inference.protocol import PromptEncoder, prompt_lengths
from rg_env.jobs.doctor.machine import Check, PlannedRun, nearest_folder
from rg_env.tiny import POLICY_DIR, TINY
from rg_env.training.checkpointing.files import WEIGHTS, weight_files, weights_damage, weights_problem
from rg_env.training.config.grpo import batch_problems
from rg_env.training.config.schema import TrainConfig
from rg_env.training.memory_estimate import Estimate, ModelShape, estimate, largest_that_fits
from rg_env.training.preflight import own_rows

_TIGHT = 0.9
"""Fraction of free memory above which fragmentation may cause out-of-memory errors."""


@dataclass(frozen=True)
class Model:
    """Properties of a model, determined without loading its weights."""

    name: str
    """Name under which a server serves the model."""
    tokenizer: Any
    shape: ModelShape
    context: int
    """Context length in tokens (prompt plus completion)."""
    adapter_width: int = 0
    """Number of LoRA parameters per unit of LoRA rank, with adapters on all linear layers except the head."""


@dataclass(frozen=True)
class PromptLengths:
    """Lengths of a run's prompts, in tokens."""

    training: Sequence[int] = ()
    evaluation: Sequence[int] = ()
    """Lengths of the evaluation prompts for the training tasks."""
    others: Sequence[int] = ()
    """Lengths of the evaluation prompts for held-out and labeled tasks."""

    @property
    def own(self) -> list[int]:
        """Lengths of all prompts for the training tasks, to which `max_prompt_length` applies."""
        return [*self.training, *self.evaluation]

    @property
    def evaluated(self) -> list[int]:
        return [*self.evaluation, *self.others]


def check_model(name: str) -> Check:
    """Check that a model's configuration, tokenizer, chat template and weights are on this machine or can be
    downloaded. The check's value is the `Model`, or None if its configuration, tokenizer or chat template cannot be
    used."""
    path = str(POLICY_DIR) if name == TINY else name
    try:
        described = describe_model(path)
        require_chat_template(described.tokenizer)
    except InputError as error:
        return Check("failed", str(error), _fix(str(error)))
    with init_empty_weights():
        empty = AutoModelForCausalLM.from_config(described.config)
    empty.tie_weights()  # init_empty_weights unties the weights, so a tied matrix would be counted twice
    shape = ModelShape.of(described.config, sum(parameter.numel() for parameter in empty.parameters()))
    context = described.config.get_text_config(decoder=True).max_position_embeddings
    model = Model(path, described.tokenizer, shape, context, _adapter_width(empty))
    text = f"{name}: {shape.parameters / 1e6:,.2f} M parameters"
    if Path(path).is_dir():
        # Quantized weights are packed and have different shapes.
        quantized = hasattr(described.config, "quantization_config")
        if problem := weights_damage(Path(path)) if quantized else weights_problem(Path(path), empty):
            fix = "copy or download the model again, with the config.json that belongs to its weights"
            return Check("failed", f"{path}: {problem}", fix, model)
        return Check("ok", f"{text}, on disk", value=model)
    if is_cached(path):
        return Check("ok", f"{text}, in the Hub cache", value=model)
    size, free = 2 * shape.parameters, shutil.disk_usage(nearest_folder(Path(HF_HUB_CACHE))).free
    text, problem, fix = f"{text}; about {gigabytes(size)} to download", "", ""
    if described.options["local_files_only"]:
        problem, fix = ", but the Hub cannot be reached", "connect to the network and unset HF_HUB_OFFLINE"
    elif free < size:
        problem, fix = f", but {HF_HUB_CACHE} has {gigabytes(free)} free", "free some space, or set HF_HOME"
    return Check("failed" if problem else "ok", text + problem, fix, model)


def _fix(reason: str) -> str:
    lower = reason.lower()
    if "gated" in lower or "401" in lower or "403" in lower:
        return "accept the model's license on its Hub page, then run `hf auth login` or set HF_TOKEN in .env"
    if "chat template" in lower:
        return "use an instruction-tuned model, or add a chat_template.jinja to this model's folder"
    return "pass a folder with config.json, tokenizer and safetensors files; a model name on the Hub; or 'tiny'"


def _adapter_width(model: Any) -> int:
    head = model.get_output_embeddings()
    linear = (each for each in model.modules() if isinstance(each, torch.nn.Linear) and each is not head)
    return sum(each.in_features + each.out_features for each in linear)


def is_cached(name: str) -> bool:
    """Whether the Hub cache contains all of a model's weights, rather than only some after an interrupted download."""
    config = try_to_load_from_cache(name, "config.json")
    try:
        return isinstance(config, str) and bool(weight_files(Path(config).parent, WEIGHTS))
    except InputError:
        return False


def check_batch(planned: PlannedRun) -> Check:
    """Check that a step's rollouts divide evenly among groups, processes and micro-batches."""
    args, processes = planned.config.training, planned.processes
    for key, message in batch_problems(args, processes):
        finding, _, sizes = message.partition("; try ")
        return Check("failed", f"{key}: {finding}", f"training.{key}={sizes}")
    parts = args.accumulation(processes)
    micro_batches = f"{counted(parts, 'micro-batch')} on each of {counted(processes, 'process')}"
    prompts = f"{counted(args.prompts_per_step, 'prompt')} x {args.num_generations}"
    return Check("ok", f"{args.rollouts_per_step} rollouts per step: {prompts}, in {micro_batches}")


def check_prompts(planned: PlannedRun, model: Model) -> Check:
    """Check the run's training and evaluation prompts against their limits. The check's value is the `PromptLengths`,
    or None if the prompts could not be measured."""
    config = planned.config
    if config.data is not None and not config.data.is_file:
        finding = f"{config.data.path} is read from the Hub when the run starts, so its prompts were not measured"
        return Check("skipped", finding)
    encoder, place = PromptEncoder(model.tokenizer), "tasks" if config.data is None else "data"
    try:
        if config.data is None:
            own: Environment = ReasoningGym(**config.environment_arguments())
        else:
            own = Environment(*own_rows(config), **config.prompt_arguments())
        lengths, others = prompt_lengths(own, encoder), []
        for label, arguments in config.evaluation_environments():
            place = f"evaluation.tasks.{label}" if label else "evaluation.tasks"
            others += prompt_lengths(ReasoningGym(**arguments), encoder)["evaluation"]
    except RGEnvError as error:
        return Check("failed", str(error), f"correct the value of {place}; `rg-env tasks NAME` shows a task's options")
    measured = PromptLengths(**lengths, others=others)
    return replace(judge_prompts(planned, model.context, measured), value=measured)


def judge_prompts(planned: PlannedRun, context: int, lengths: PromptLengths) -> Check:
    """Check prompt lengths against the limits. `context` is the model's context length in tokens."""
    training = planned.config.training
    limit, longest = training.max_prompt_length, max(lengths.own)
    if too_long := sum(length > limit for length in lengths.own):
        verb = "is" if too_long == 1 else "are"
        finding = (
            f"{too_long} of {len(lengths.own)} prompts {verb} longer than {limit} tokens; the longest has {longest}"
        )
        other = "configure tasks with shorter prompts" if planned.config.data is None else "shorten these questions"
        fix = f"set training.max_prompt_length={longest}, or {other}"
        return Check("failed", finding, fix)
    limits = [(" prompt", "training.max_tokens", longest, training.max_tokens)]
    if lengths.evaluated:
        evaluated = max(lengths.evaluated), planned.evaluation_tokens
        limits.append((" evaluation prompt", "evaluation.max_tokens", *evaluated))
    for kind, key, prompt, new in limits:
        finding = f"the longest{kind} has {prompt} tokens; with {new} new tokens, it exceeds the"
        if prompt + new > context:
            fits = f"{key}={context - prompt}" if prompt < context else "other tasks"
            fix = f"use {fits}, or a model with a longer context"
            return Check("failed", f"{finding} model's context of {context} tokens", fix)
    text = f"all {len(lengths.own)} prompts are within {limit} tokens; the longest has {longest}"
    if lengths.others:
        text = (
            f"{text}; evaluations use {len(lengths.others)} more prompts, the longest of which has "
            f"{max(lengths.others)}"
        )
    return Check("ok", text)


def cached_tokens(planned: PlannedRun, lengths: PromptLengths | None, most: int | None = None) -> tuple[int, int]:
    """Return the maximum numbers of tokens in the embedded engine's KV cache during training and during evaluation.

    Args:
        most: maximum number of completions in a batch (default: `engine.max_batch_size`).
    """
    if planned.uses_vllm:
        return 0, 0
    training, evaluation = planned.config.training, planned.config.evaluation
    most = most or planned.config.engine.max_batch_size
    longest = max(lengths.own) if lengths else training.max_prompt_length
    evaluated = lengths.evaluated if lengths else []
    happens = evaluation.before or evaluation.after or evaluation.every != 0
    answers = len(evaluated) * (evaluation.rollouts_per_example + evaluation.greedy) if happens else 0
    return (
        min(training.rollouts_per_step, most) * (longest + training.max_tokens),
        min(answers, most) * (max(evaluated, default=0) + planned.evaluation_tokens),
    )


def run_estimate(
    planned: PlannedRun, model: Model, lengths: PromptLengths | None, micro_batch: int, most: int | None = None
) -> Estimate:
    """Estimate the memory that a training process needs. `lengths` is None if the prompts could not be measured. For
    `most`, see `cached_tokens`."""
    config, training = planned.config, planned.config.training
    longest = max(lengths.own) if lengths else training.max_prompt_length
    spread = longest - min(lengths.own) if lengths else 0
    return estimate(
        model.shape,
        micro_batch=micro_batch,
        tokens=longest + training.max_tokens,
        logit_tokens=training.max_tokens + spread,
        shards=planned.processes if planned.zero3 else 1,
        checkpointing=training.gradient_checkpointing,
        bf16=bool(training.bf16),
        reference=training.beta != 0.0,
        adapter_parameters=config.lora.r * model.adapter_width if config.lora else 0,
        frozen_bytes=2 if config.model.dtype == "bfloat16" else 4,
        cached_tokens=max(cached_tokens(planned, lengths, most)),
    )


def check_memory(planned: PlannedRun, model: Model, lengths: PromptLengths | None, free: int, place: str) -> Check:
    """Check that the estimated memory fits in `free`, the number of bytes available to one process. `place` describes
    where this memory is."""

    def need(micro_batch: int, most: int | None = None) -> int:
        return run_estimate(planned, model, lengths, micro_batch, most).total

    batch = planned.config.training.micro_batch(planned.processes)
    whole = run_estimate(planned, model, lengths, batch)
    in_training, in_evaluation = cached_tokens(planned, lengths)
    in_evaluations = in_evaluation > in_training
    parts = {
        "state": whole.state + whole.gathered,
        "logits": whole.logits,
        "activations": whole.activations,
        f"engine's cache{' in evaluations' * in_evaluations}": whole.cache,
    }
    shown = ", ".join(f"{name} {gigabytes(size)}" for name, size in parts.items() if size)
    shards = f", ZeRO-3 over {planned.processes}" if planned.zero3 else ""
    text = (
        f"each process needs about {gigabytes(whole.total)}; {gigabytes(free)} is free {place} (estimate: "
        f"{shown}{shards})"
    )
    if whole.total <= _TIGHT * free:
        return Check("ok", text)
    if fitting := largest_that_fits(int(_TIGHT * free), batch, need):
        fix = f"set training.per_device_train_batch_size={fitting} (the number of rollouts per step stays the same)"
    elif planned.uses_vllm:
        fix = "use more --processes (ZeRO-3 shards the state), a lower training.max_tokens, a smaller model, or LoRA"
    elif turns := next((n for n in (256, 128, 64, 32, 16) if need(batch, most=n) <= _TIGHT * free), None):
        fix = f"set engine.max_batch_size={turns} (which slows generation), or reduce training.max_tokens"
    else:
        fix = "use LoRA, a smaller model, or engine.kind=vllm with --processes N (ZeRO-3)"
    if place.startswith("on GPU") and (files := preset_for(planned.config, free)):
        fix = f"{fix}; or use a config that extends {' and '.join(map(str, files))}, which should fit on the GPU"
    return Check("failed" if whole.total > free else "warning", text, fix)


def preset_for(config: TrainConfig, free: int, folder: Path = Path("configs/models")) -> list[Path]:
    """Return the best preset in `folder` for `free` bytes of GPU memory, as a list of config files. If the preset is
    for a model other than the run's, the config of the preset's model comes first. The list is empty if no preset fits.

    Presets for the same model are preferred, then those that train adapters if and only if `config` does, and then
    those for larger GPUs.
    """
    sizes = {file: int(match[1]) for file in folder.glob("*.yaml") if (match := re.search(r"_(\d+)gb$", file.stem))}
    fitting = [file for file, size in sizes.items() if 0.95e9 * size <= free]
    models = {file: file.with_name(f"{file.stem.partition('_')[0]}.yaml") for file in fitting}

    def is_same_model(file: Path) -> bool:
        return read_config(models[file], []).get(("model", "name")) == config.model.name

    def fitness(file: Path) -> tuple[bool, bool, int, str]:
        same_method = (read_config(file, []).get(("lora", "r")) is None) == (config.lora is None)
        return is_same_model(file), same_method, sizes[file], file.name

    if not fitting:
        return []
    best = max(fitting, key=fitness)
    return [best] if is_same_model(best) else [models[best], best]
