"""Checks of a run's model, batch and prompts, and of the memory that they take. Imports torch, loads no weights."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_CACHE
from transformers import AutoModelForCausalLM

from rg_env.core.environment import ReasoningGym
from rg_env.core.prompts import require_chat_template
from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import InputError, RGEnvError
from rg_env.inference.models import TINY, describe_model, tiny_mixture
from rg_env.inference.prompts import PromptEncoder
from rg_env.jobs.doctor.checks import Check, PlannedRun, gigabytes
from rg_env.jobs.doctor.machine import nearest_folder
from rg_env.jobs.launch import longest_sequence
from rg_env.tiny import POLICY_DIR
from rg_env.training.checkpointing.files import WEIGHTS, read_shapes, weight_files
from rg_env.training.checks import prompt_lengths
from rg_env.training.config.grpo import batch_problems
from rg_env.training.reporting.memory import Estimate, ModelShape, estimate, largest_that_fits

_TIGHT = 0.9
"""Share of the free memory above which fragmentation may be too much."""
_ENGINE_BATCH = 512
"""Most sequences that the embedded engine decodes at once."""


@dataclass(frozen=True)
class Model:
    """What the doctor knows of a model without its weights."""

    name: str
    """The name that a server serves it under."""
    tokenizer: Any
    shape: ModelShape
    context: int
    """Most tokens of prompt and completion together."""
    adapter_width: int = 0
    """Parameters of LoRA of rank 1 on all linear layers but the head."""


@dataclass(frozen=True)
class PromptLengths:
    """Tokens of each prompt of a run."""

    training: Sequence[int] = ()
    evaluation: Sequence[int] = ()
    """Evaluation prompts of the training tasks."""
    others: Sequence[int] = ()
    """Evaluation prompts of held-out tasks and of labels."""

    @property
    def own(self) -> list[int]:
        """Prompts of the training tasks, which `max_prompt_length` limits."""
        return [*self.training, *self.evaluation]

    @property
    def evaluated(self) -> list[int]:
        return [*self.evaluation, *self.others]


def check_model(name: str) -> tuple[Check, Model | None]:
    """Whether configuration, tokenizer, chat template and weights are stored here, or can be downloaded."""
    path = str(POLICY_DIR) if name == TINY else name
    try:
        described = describe_model(path)
        require_chat_template(described.tokenizer)
    except InputError as error:
        return Check("model", "failed", str(error), _fix(str(error))), None
    with init_empty_weights():
        empty = AutoModelForCausalLM.from_config(described.config)
    empty.tie_weights()  # emptying untied them: a tied matrix would count twice
    shape = ModelShape.of(described.config, sum(parameter.numel() for parameter in empty.parameters()))
    context = described.config.get_text_config(decoder=True).max_position_embeddings
    model = Model(path, described.tokenizer, shape, context, _adapter_width(empty))
    text = f"{name}: {_millions(shape.parameters)} parameters"
    try:
        files = stored_weights(path)
        stored = _stored_parameters(files)
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
        fix = "connect to the network (HF_HUB_OFFLINE unset), or give a folder"
        return Check("model", "failed", finding, fix), model
    if free < size:
        finding = f"{text}; to download about {gigabytes(size)}, and {HF_HUB_CACHE} has {gigabytes(free)} free"
        return Check("model", "failed", finding, "free some space, or set HF_HOME to a folder on another disk"), model
    return Check("model", "ok", f"{text}; to download, about {gigabytes(size)}"), model


def _fix(reason: str) -> str:
    lower = reason.lower()
    if "gated" in lower or "401" in lower or "403" in lower:
        return "accept its licence on its page of the hub, then `hf auth login`, or HF_TOKEN in .env"
    if "chat template" in lower:
        return "use an instruction-tuned model, or add a chat_template.jinja to its folder"
    return "give a folder with config.json, tokenizer and safetensors files, a name on the hub, or 'tiny'"


def _adapter_width(model: Any) -> int:
    head = model.get_output_embeddings()
    linear = (each for each in model.modules() if isinstance(each, torch.nn.Linear) and each is not head)
    return sum(each.in_features + each.out_features for each in linear)


def stored_weights(name: str) -> list[Path]:
    """The weight files of a folder or of the hub's cache; empty if they have yet to be downloaded.

    Raises:
        InputError: the folder holds no weights, or lacks some.
    """
    folder, is_folder = Path(name), Path(name).is_dir()
    if not is_folder:
        cached = try_to_load_from_cache(name, "config.json")
        if not isinstance(cached, str):
            return []
        folder = Path(cached).parent
    try:
        files = weight_files(folder, WEIGHTS) or sorted(folder.glob("pytorch_model*.bin"))
    except InputError:
        if is_folder:
            raise
        return []  # an interrupted download will be resumed
    if is_folder and not files:
        raise InputError(f"{name} has no weights: neither {WEIGHTS} nor an index of it")
    return files


def _stored_parameters(files: Sequence[Path]) -> int:
    """Number of parameters in safetensors files, by their headers. Raises `InputError` if one is damaged."""
    if not files:
        return 0
    if any(file.stat().st_size < 1024 and file.read_bytes().startswith(b"version https://git-lfs") for file in files):
        raise InputError("a weight file is a Git LFS pointer, not the weights")
    shapes, problem = read_shapes(files[0].parent, WEIGHTS)
    if problem:
        raise InputError(problem)
    return sum(map(math.prod, shapes.values()))


def check_batch(planned: PlannedRun) -> Check:
    """Whether a step's rollouts can be divided into groups, processes and micro-batches."""
    args, processes = planned.config.training, planned.processes
    for key, message in batch_problems(args, processes):
        finding, _, sizes = message.partition("; try ")
        return Check("batch", "failed", f"{key}: {finding}", planned.setting(f"training.{key}", sizes))
    parts = args.accumulation(processes)
    micro_batches = f"{parts} micro-batch{'es' * (parts > 1)} on each of {processes} process{'es' * (processes > 1)}"
    prompts = f"{args.prompts_per_step} prompts x {args.num_generations}"
    return Check("batch", "ok", f"{args.rollouts_per_step} rollouts a step: {prompts}, in {micro_batches}")


def check_prompts(planned: PlannedRun, model: Model) -> tuple[Check, PromptLengths | None]:
    """The prompts that the run would train and evaluate on against their limits, and their lengths."""
    config = planned.config
    mixture = tiny_mixture if config.model.name == TINY else Mixture.parse
    environments = [(planned.setting("tasks"), {**config.environment_arguments(), "gym": config.gym})]
    for label, arguments in config.evaluation_environments():
        environments.append((f"evaluation.tasks.{label}" if label else "evaluation.tasks", arguments))
    measured: list[dict[str, list[int]]] = []
    for place, arguments in environments:
        try:
            env = ReasoningGym(**{**arguments, "gym": mixture(arguments["gym"])})
        except RGEnvError as error:
            fix = f"change {place}; `rg-env tasks NAME` shows what it offers"
            return Check("prompts", "failed", str(error), fix), None
        measured.append(prompt_lengths(env, PromptEncoder(model.tokenizer)))
    others = [length for of_splits in measured[1:] for length in of_splits["evaluation"]]
    lengths = PromptLengths(**measured[0], others=others)
    return judge_prompts(planned, model.context, lengths), lengths


def judge_prompts(planned: PlannedRun, context: int, lengths: PromptLengths) -> Check:
    """`context`: most tokens of prompt and completion together that the model takes."""
    training = planned.config.training
    limit, longest, new = training.max_prompt_length, max(lengths.own), training.max_tokens
    if too_long := sum(length > limit for length in lengths.own):
        finding = f"{too_long} of {len(lengths.own)} are longer than {limit} tokens, the longest has {longest}"
        fix = f"{planned.setting('training.max_prompt_length', longest)}, or a task config with shorter ones"
        return Check("prompts", "failed", finding, fix)
    if longest + new > context:
        finding = f"the longest has {longest} tokens, with {new} new ones more than the {context} that the model takes"
        fits = planned.setting("training.max_tokens", context - longest) if longest < context else "another task"
        return Check("prompts", "failed", finding, f"{fits}, or a model with a longer context")
    text = f"all {len(lengths.own)} within {limit} tokens, the longest has {longest}"
    if not lengths.evaluated:
        return Check("prompts", "ok", text)
    longest, new = max(lengths.evaluated), planned.evaluation_tokens
    finding = f"the longest evaluation prompt has {longest} tokens, with {new} new ones more than the"
    if longest + new > context:
        fits = f"evaluation.max_tokens={context - longest}" if longest < context else "other evaluation.tasks"
        fix = f"{fits}, or a model with a longer context"
        return Check("prompts", "failed", f"{finding} {context} that the model takes", fix)
    if planned.uses_vllm and longest + new > (launched := longest_sequence(planned.config)):
        finding = f"{finding} {launched} that `rg-env launch` starts a server for"
        fix = f"its option --max-model-len {longest + new}, or {planned.setting('training.max_prompt_length', longest)}"
        return Check("prompts", "warning", finding, fix)
    if lengths.others:
        text = f"{text}; {len(lengths.others)} more in evaluations, the longest has {max(lengths.others)}"
    return Check("prompts", "ok", text)


def needed_tokens(planned: PlannedRun, lengths: PromptLengths | None) -> int:
    """Tokens of prompt and completion together that an engine must accept."""
    others = lengths.others if lengths else ()
    return max([longest_sequence(planned.config), *(length + planned.evaluation_tokens for length in others)])


def cached_tokens(planned: PlannedRun, lengths: PromptLengths | None) -> tuple[int, int]:
    """Tokens that the embedded engine keeps keys and values of at once: in training, and in an evaluation."""
    if planned.uses_vllm:
        return 0, 0
    training, evaluation = planned.config.training, planned.config.evaluation
    longest = max(lengths.own) if lengths else training.max_prompt_length
    evaluated = lengths.evaluated if lengths else []
    happens = evaluation.before or evaluation.after or evaluation.every != 0
    answers = len(evaluated) * (evaluation.rollouts_per_example + evaluation.greedy) if happens else 0
    return (
        min(training.rollouts_per_step, _ENGINE_BATCH) * (longest + training.max_tokens),
        min(answers, _ENGINE_BATCH) * (max(evaluated, default=0) + planned.evaluation_tokens),
    )


def run_estimate(planned: PlannedRun, model: Model, lengths: PromptLengths | None, micro_batch: int) -> Estimate:
    """Memory of one process of the run. `lengths`: of the prompts, if they could be measured."""
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
        cached_tokens=max(cached_tokens(planned, lengths)),
    )


def check_memory(planned: PlannedRun, model: Model, lengths: PromptLengths | None, free: int, place: str) -> Check:
    """The estimate against `free`, the bytes that are free at `place` for one process."""

    def need(micro_batch: int) -> int:
        return run_estimate(planned, model, lengths, micro_batch).total

    batch = planned.config.training.per_device_train_batch_size
    whole = run_estimate(planned, model, lengths, batch)
    in_training, in_evaluation = cached_tokens(planned, lengths)
    parts = {
        "state": whole.state + whole.gathered,
        "logits": whole.logits,
        "activations": whole.activations,
        f"engine's cache{' in evaluations' if in_evaluation > in_training else ''}": whole.cache,
    }
    shown = ", ".join(f"{name} {gigabytes(size)}" for name, size in parts.items() if size)
    shards = f", ZeRO-3 over {planned.processes}" if planned.zero3 else ""
    text = f"about {gigabytes(whole.total)} a process of {gigabytes(free)} free {place} ({shown}{shards})"
    if whole.total <= _TIGHT * free:
        return Check("memory", "ok", text)
    smaller = f"a smaller {planned.setting('model.name')}"
    if fitting := largest_that_fits(int(_TIGHT * free), batch, need):
        fix = f"{planned.setting('training.per_device_train_batch_size', fitting)} (a step stays the same)"
    elif planned.uses_vllm:
        shorter = f"shorter {planned.setting('training.max_tokens')}"
        fix = f"more --processes (ZeRO-3 divides the state), {shorter}, {smaller}, or LoRA"
    else:
        key = "evaluation" if in_evaluation > in_training and planned.options is None else "training"
        vllm = planned.setting("engine.kind", "vllm")
        fix = f"shorter {planned.setting(f'{key}.max_tokens')}, {smaller}, LoRA, or {vllm} with --processes N (ZeRO-3)"
    return Check("memory", "failed" if whole.total > free else "warning", text, fix)


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"
