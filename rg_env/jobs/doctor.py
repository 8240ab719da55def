"""`rg-env doctor`: the checks that decide whether a training run can start on this machine. Each result is one line,
with a fix if there is a problem.

    for check in diagnose(planned_run("configs/train/tiny.yaml", [])):
        print(check.line())

The doctor does not train. It downloads only a model's configuration and tokenizer, and otherwise writes only to the row
cache. Access tokens are never shown. A "failed" check means that the run would fail.

Importing this module is cheap. Drivers and compiled packages can hang or crash, so they are probed in subprocesses with
timeouts before any module that needs torch is imported.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rg_env.core.config.files import Document, overridden, read_config
from rg_env.core.processes import run, run_python, world_size
from rg_env.core.run_folder import OUTPUTS, RunFolder, gguf_file
from rg_env.core.text import counted, gigabytes, reason_of, user_error
from rg_env.errors import InputError, OutputFolderError, RGEnvError, ServerError, how_to_install
from rg_env.inference.chat_templates import require_chat_template
from rg_env.inference.machine import port_problem, visible_gpus
from rg_env.inference.protocol import PromptEncoder, context_length, prompt_lengths
from rg_env.inference.vllm.client import NOT_LISTENING, VllmServer
from rg_env.inference.vllm.command import start_hint
from rg_env.jobs.launch import longest_sequence
from rg_env.tiny import POLICY_DIR, TINY, TRAINING
from rg_env.training import preflight
from rg_env.training.checkpointing.files import WEIGHTS, weight_files
from rg_env.training.config.load import checked_config
from rg_env.training.config.schema import TrainConfig
from rg_env.training.memory_estimate import MemoryEstimate, ModelShape, estimate, largest_that_fits

SMI_S, IMPORT_S = 10.0, 90.0
"""Timeouts for nvidia-smi and for imports in a subprocess, in seconds."""
_SHARED_MEMORY = 10**9
"""Size of /dev/shm that several processes may need, in bytes. Docker's default is 64 MB."""
_TIGHT = 0.9
"""Fraction of free memory above which fragmentation may cause out-of-memory errors."""


@dataclass(frozen=True)
class PlannedRun:
    """A training run planned for this machine, with one training process per GPU."""

    config: TrainConfig
    processes: int = 1

    @property
    def uses_vllm(self) -> bool:
        return self.config.engine.kind == "vllm"

    @property
    def zero3(self) -> bool:
        """Whether processes shard the model's state, as configured in `configs/zero3.yaml`. Sharding requires a server
        because the embedded engine cannot generate from shards."""
        return self.uses_vllm and self.processes > 1

    @property
    def server_is_local(self) -> bool:
        return self.config.engine.host in ("127.0.0.1", "localhost", "::1", "0.0.0.0")

    @property
    def evaluation_tokens(self) -> int:
        """Maximum number of new tokens per completion in evaluations."""
        return self.config.evaluation.max_tokens or self.config.training.max_tokens


@dataclass(frozen=True)
class PromptLengths:
    """Lengths of a run's prompts, in tokens."""

    training: Sequence[int] = ()
    evaluation: Sequence[int] = ()
    """Lengths of the evaluation prompts for the training tasks."""
    others: Sequence[int] = ()
    """Lengths of the evaluation prompts for held-out and labeled tasks, to which `max_prompt_length` does not apply."""


@dataclass(frozen=True)
class Check:
    """Result of a check, with a finding and a fix. Status "failed" means that the run would fail, and "warning" that it
    might fail, be inefficient, or not behave as intended."""

    name: str = field(default="", kw_only=True)
    """Name of the check, set by `diagnose`."""
    status: str
    """"ok", "skipped", "warning" or "failed"."""
    finding: str
    fix: str = ""
    value: Any = None
    """Value that the check determined, for use by other checks."""

    def line(self) -> str:
        """Format the check as one line, even if an error's text spans several lines."""
        text = f"{self.finding}; fix: {self.fix}" if self.fix else self.finding
        return f"{self.status:<8} {self.name:<13} {' '.join(text.split())}"


def planned_run(file: str | None, overrides: Sequence[str], processes: int = 1) -> PlannedRun:
    """Load the config in `file`, or by default a run of the tiny policy on leg_counting, with `overrides`.

    Raises:
        InputError: the config is invalid, or does not fit the number of processes.
    """
    default = Document({"model": TINY, "tasks": ["leg_counting"]}, Path("the default run"))
    document = read_config(file, overrides) if file else overridden(default, overrides)
    if not file and TINY in (document.get(("model",)), document.get(("model", "name"))):
        default.values["training"] = TRAINING
        document = overridden(default, overrides)
    return PlannedRun(checked_config(document, processes=processes), processes)


def diagnose(planned: PlannedRun) -> Iterator[Check]:
    """Run the checks and yield each result as soon as it is available. If the trainer cannot be imported, the checks of
    the model are left out."""
    yield (packages := _run("packages", check_packages, planned))
    yield _run("gpus", check_gpus, planned, gpus := ask_gpus())
    yield _run("shared memory", check_shared_memory, planned)
    yield _run("logins", check_logins, planned)
    if not packages.value:
        return
    yield (check := _run("model", check_model, planned.config.model.name))
    if (model := check.value) is None:
        return
    yield (prompts := _run("prompts", check_prompts, planned, model))
    yield _run("server", check_server, planned, model.name, prompts.value)
    yield _run("memory", check_memory, planned, model, prompts.value, *free_memory(planned, gpus))
    yield _run("output folder", check_output, planned, model.adapters(planned) or model.shape.parameters)


def model_checks(config: TrainConfig) -> Iterator[Check]:
    """Run the checks of the model, of the prompts in the user's own data and of memory, and yield each result. No rows
    are drawn, and no other process is started."""
    planned = PlannedRun(config, world_size())
    yield (model := _run("model", check_model, config.model.name))
    if model.status != "ok":
        return
    prompts = None
    if config.data is not None:
        yield (prompts := _run("prompts", check_prompts, planned, model.value))
    lengths, gpus = prompts.value if prompts else None, Gpus(torch=probe_torch())
    yield _run("memory", check_memory, planned, model.value, lengths, *free_memory(planned, gpus))


def _run(name: str, check: Callable[..., Check], *arguments: Any) -> Check:
    """Run a check. Convert an error to a warning so that the remaining checks still run."""
    try:
        found = check(*arguments)
    except Exception as error:
        found = Check("warning", f"could not be checked: {user_error(error)}")
    return replace(found, name=name)


@dataclass(frozen=True)
class Gpus:
    """The GPUs, as reported by `nvidia-smi` and by torch."""

    listed: Sequence[str] = ()
    """One line of nvidia-smi output per GPU: index, name, total memory, used memory and driver version. Empty
    without an NVIDIA driver or GPU."""
    driver_problem: str = ""
    torch: dict[str, Any] = field(default_factory=dict)
    """Result of `probe_torch`. Empty if torch cannot be imported."""


def ask_gpus() -> Gpus:
    """Query the GPUs by running `nvidia-smi`, and then `probe_torch` in a subprocess."""
    fields = "index,name,memory.total,memory.used,driver_version"
    smi = run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], SMI_S)
    lines = [line.strip() for line in smi.output.splitlines() if line.strip()]
    listed = [line for line in lines if line[0].isdigit()]
    problem = ""
    if smi.timed_out or (smi.code and "no devices were found" not in smi.output.lower()):
        messages = [line for line in lines if line not in listed]
        problem = f"nvidia-smi: {messages[0][:300] if messages else smi.reason}"  # the lines after the first are advice
    program = f"import json; from {__name__} import probe_torch; print(json.dumps(probe_torch()))"
    probe = run_python(IMPORT_S, "-c", program)
    return Gpus(listed, problem, json.loads(probe.output.splitlines()[-1]) if probe.code == 0 else {})


def probe_torch() -> dict[str, Any]:
    """Return the free memory in bytes of each CUDA device that works, the error of the first one that does not, and
    whether CUDA works at all (`usable`)."""
    import torch

    found: dict[str, Any] = {"usable": False, "devices": [], "problem": ""}
    try:
        torch.cuda.init()  # unlike `is_available`, raises an error with the reason
        found["usable"] = True
        for index in range(torch.cuda.device_count()):
            (torch.ones(2, device=f"cuda:{index}") + 1).sum().item()  # fails if torch has no kernels for the device
            found["devices"].append(torch.cuda.mem_get_info(index)[0])
    except Exception as error:  # CUDA can raise any exception
        found["problem"] = reason_of(error)
    return found


def check_packages(planned: PlannedRun) -> Check:
    """Check that the trainer can be imported and, if the run needs it, vLLM, whose code the trainer uses to send
    weights. The check's value is whether the trainer can be imported."""
    for module, extra in (("rg_env.training.trainer", "train"), ("vllm", "vllm"))[: 1 + planned.uses_vllm]:
        imported = run_python(IMPORT_S, "-c", f"import {module}")
        if imported.code != 0:
            finding = f"{module} cannot be imported: {imported.reason}"
            return Check("failed", finding, how_to_install(extra), extra != "train")
    return Check("ok", "the trainer can be imported", value=True)


def check_gpus(planned: PlannedRun, gpus: Gpus) -> Check:
    """Check that torch can use the GPUs that the driver reports, and that there are enough GPUs: one per training
    process, plus one for vLLM on this machine unless it shares the only GPU. A machine without GPUs passes because
    training also works on a CPU."""
    listed, processes, devices = "; ".join(gpus.listed), planned.processes, gpus.torch.get("devices", [])
    if not (gpus.listed or gpus.driver_problem or devices):
        return Check("ok", "no NVIDIA GPU, so training uses the CPU")
    # A single process with the embedded engine would use the CPU.
    needed = planned.uses_vllm or processes > 1 or gpus.torch.get("usable", True)
    if problem := gpus.driver_problem or gpus.torch.get("problem", "torch does not work"):
        fix = "repair or update the NVIDIA driver, install torch for this GPU and driver, or set CUDA_VISIBLE_DEVICES"
        return Check("failed" if needed else "warning", f"{listed}: {problem}".removeprefix(": "), fix)
    seen = counted(len(devices), "GPU")
    if processes > len(devices):
        fix = f"use --processes {len(devices)}, or list more GPUs in CUDA_VISIBLE_DEVICES"
        return Check("failed", f"{processes} processes, but torch sees {seen}", fix)
    if planned.uses_vllm and planned.server_is_local and 1 < len(gpus.listed) <= processes:
        finding = f"{processes} processes leave none of the {len(gpus.listed)} GPUs for vLLM"
        return Check("failed", finding, "reduce --processes, or run vLLM on another machine")
    return Check("ok", "; ".join([*gpus.listed, f"torch works on {seen}"]))


def check_server(planned: PlannedRun, model: str, lengths: PromptLengths | None) -> Check:
    """Check the vLLM server that the run would use: its port, `model`, and context length."""
    if not planned.uses_vllm:
        return Check("skipped", "the embedded engine does not need a server")
    engine = planned.config.engine
    server, start = VllmServer(engine.host, engine.port), f"`{start_hint(model, engine.port)}`"
    another = f"choose another engine.port, and run {start} with that port"
    problem = server.health_problem(timeout_s=5.0)
    if problem == NOT_LISTENING:
        if planned.server_is_local and (taken := port_problem(server.port)):
            return Check("failed", f"port {server.port}: {taken}", another)
        there = "" if planned.server_is_local else " on that host, or correct engine.host"
        return Check("warning", f"nothing is listening at {server} yet", f"before training, run {start}{there}")
    try:
        if problem:
            raise ServerError(f"{server} is not a healthy vLLM server: {problem}")
        info = server.info()
    except ServerError as error:
        return Check("failed", str(error).partition(": use the port")[0], another)
    if info.name != model:
        return Check("failed", f"{server} serves {info.name!r}, not {model!r}", f"restart it: {start}")
    tokens = longest_sequence(planned.config, lengths.others if lengths else ())
    if info.max_model_len < tokens:
        finding = f"{server} accepts {info.max_model_len} tokens, but a prompt plus its completion can have {tokens}"
        return Check("failed", finding, f"restart it with --max-model-len {tokens}, or reduce training.max_tokens")
    return Check("ok", f"vLLM at {server} serves {info.name!r} with up to {info.max_model_len} tokens")


def check_shared_memory(planned: PlannedRun) -> Check:
    """Check the size of /dev/shm, through which NCCL and vLLM's workers communicate."""
    if not (planned.uses_vllm or planned.processes > 1) or not os.path.isdir("/dev/shm"):
        return Check("skipped", "required only for vLLM and for several processes")
    if (size := shutil.disk_usage("/dev/shm").total) >= _SHARED_MEMORY:
        return Check("ok", f"/dev/shm has {gigabytes(size)}")
    finding = f"/dev/shm has {gigabytes(size)}, but several processes may need {gigabytes(_SHARED_MEMORY)}"
    return Check("warning", finding, "start the container with `--shm-size=8g` or `--ipc=host`")


def free_memory(planned: PlannedRun, gpus: Gpus) -> tuple[int, str]:
    """Return the free memory per training process, in bytes, and its location: the run's GPU with the least free
    memory, or this machine's memory."""
    if devices := gpus.torch.get("devices", [])[: planned.processes]:
        return min(devices), "on the GPU"
    import psutil

    return psutil.virtual_memory().available // planned.processes, "in this machine's memory for it"


def check_output(planned: PlannedRun, parameters: int) -> Check:
    """Check that the output folder is writable and has room for checkpoints of this number of trained parameters."""
    output, steps = planned.config.output, planned.config.training.max_steps
    try:
        folder = RunFolder.choose(output.dir, "check")
    except OutputFolderError as error:
        return Check("failed", str(error).partition("; choose")[0], "choose another output folder")
    existing = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
    free = shutil.disk_usage(existing).free
    # A checkpoint contains fp32 weights and Adam moments and, under ZeRO-3, also bf16 weights.
    size = (14 if planned.zero3 else 12) * parameters
    count = max(1, -(-steps // output.save_every)) if output.save_every else 1
    count = min(count, output.save_total_limit or count)
    text = f"{folder if output.dir else OUTPUTS}: {gigabytes(free)} free"
    needed = f"for {counted(count, 'checkpoint')} of {gigabytes(size)}"
    if free >= size * count:
        return Check("ok", f"{text}, {needed}")
    fix = "free some space, choose another output folder, or set output.save_total_limit=1"
    return Check("failed" if free < size else "warning", f"{text}: not enough {needed}", fix)


def check_logins(planned: PlannedRun) -> Check:
    """Check the logins that the run needs: Hugging Face for uploads, and Weights & Biases for logging. Gated models
    also need a Hugging Face token. No part of a token is ever shown."""
    from huggingface_hub import get_token

    try:
        preflight.check_hub(planned.config.hub)
        preflight.check_logins(planned.config.logging)
    except InputError as error:
        return Check("failed", str(error))
    return Check("ok", "Hugging Face token found" if get_token() else "no Hugging Face token: only public models")


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

    def adapters(self, planned: PlannedRun) -> int:
        """Return the number of trained parameters with LoRA, or 0 without LoRA."""
        return planned.config.lora.r * self.adapter_width if planned.config.lora else 0


def check_model(name: str) -> Check:
    """Check that a model's configuration, tokenizer, chat template and weights are on this machine or can be
    downloaded. The check's value is the `Model`, or None if its configuration, tokenizer or chat template cannot be
    used."""
    import torch
    from accelerate import init_empty_weights
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoModelForCausalLM

    from rg_env.inference.models import describe_model

    path = str(POLICY_DIR) if name == TINY else name
    try:
        described = describe_model(path)
        require_chat_template(described.tokenizer)
    except InputError as error:
        is_gated = any(word in str(error).lower() for word in ("gated", "401", "403"))
        login = "accept the model's license on its Hub page, then run `hf auth login` or set HF_TOKEN in .env"
        return Check("failed", str(error), login if is_gated else "use another model folder or name on the Hub")
    with init_empty_weights():
        empty = AutoModelForCausalLM.from_config(described.config)
    empty.tie_weights()  # init_empty_weights unties the weights, so a tied matrix would be counted twice
    head = empty.get_output_embeddings()
    linear = [each for each in empty.modules() if isinstance(each, torch.nn.Linear) and each is not head]
    width = sum(each.in_features + each.out_features for each in linear)
    shape = ModelShape.of(described.config, sum(parameter.numel() for parameter in empty.parameters()))
    context = context_length(described.config, described.tokenizer)
    model = Model(path, described.tokenizer, shape, context, width)
    text = f"{name}: {shape.parameters / 1e6:,.2f} M parameters"
    if gguf_file(path):
        return Check("ok", f"{text}, on this machine", value=model)
    cached = None if Path(path).is_dir() else try_to_load_from_cache(path, "config.json")
    folder = Path(cached).parent if isinstance(cached, str) else Path(path)
    with contextlib.suppress(InputError):  # some of the weights are missing
        if weight_files(folder, WEIGHTS):
            return Check("ok", f"{text}, on this machine", value=model)
    if Path(path).is_dir():
        return Check("failed", f"{path} does not contain all weights", "copy or download the model again", model)
    text = f"{text}; about {gigabytes(2 * shape.parameters)} to download"
    if described.options["local_files_only"]:
        return Check("failed", f"{text}, but the Hub cannot be reached", "connect to the network", model)
    return Check("ok", text, value=model)


def check_prompts(planned: PlannedRun, model: Model) -> Check:
    """Check the run's training and evaluation prompts against their limits. The check's value is the `PromptLengths`,
    or None if the prompts could not be measured."""
    config = planned.config
    if config.data is not None and not config.data.is_file:
        finding = f"{config.data.path} is read from the Hub when the run starts, so its prompts were not measured"
        return Check("skipped", finding)
    try:
        encoder = PromptEncoder(model.tokenizer, config.prompt.chat_template_kwargs)
        data = config.data
        own = preflight.fitting(config, preflight.own_rows(config), encoder) if data else config.environment()
        gyms = [gym for _, gym in config.evaluation_environments()]
    except RGEnvError as error:
        return Check("failed", str(error), "correct the tasks or the data; `rg-env tasks NAME` shows a task's options")
    others = [length for gym in gyms for length in prompt_lengths(gym, encoder)["evaluation"]]
    measured = PromptLengths(**prompt_lengths(own, encoder), others=others)
    return replace(judge_prompts(planned, model.context, measured), value=measured)


def judge_prompts(planned: PlannedRun, context: int, lengths: PromptLengths) -> Check:
    """Check prompt lengths against the limits. `context` is the model's context length in tokens."""
    training, own = planned.config.training, [*lengths.training, *lengths.evaluation]
    limit, longest = training.max_prompt_length, max(own)
    if too_long := sum(length > limit for length in own):
        finding = f"{too_long} of {len(own)} prompts are longer than {limit} tokens; the longest has {longest}"
        return Check("failed", finding, f"set training.max_prompt_length={longest}, or use shorter questions")
    evaluated = max([*lengths.evaluation, *lengths.others], default=0)
    for key, prompt, new in (
        ("training.max_tokens", longest, training.max_tokens),
        ("evaluation.max_tokens", evaluated, planned.evaluation_tokens if evaluated else 0),
    ):
        if prompt + new > context:
            finding = f"a prompt of {prompt} tokens with {new} new tokens exceeds the model's context of {context}"
            fits = f"{key}={context - prompt}" if prompt < context else "other tasks"
            return Check("failed", finding, f"use {fits}, or a model with a longer context")
    return Check("ok", f"all {len(own)} prompts are within {limit} tokens; the longest in evaluations has {evaluated}")


def decoded(planned: PlannedRun, lengths: PromptLengths | None) -> tuple[int, int]:
    """Return upper bounds for the number of rollouts that the embedded engine decodes at once, in training or in an
    evaluation, and for the number of tokens in their KV cache."""
    if planned.uses_vllm:
        return 0, 0
    training, evaluation = planned.config.training, planned.config.evaluation
    lengths = lengths or PromptLengths([training.max_prompt_length])
    evaluated = [*lengths.evaluation, *lengths.others]
    happens = evaluation.before or evaluation.after or evaluation.every != 0
    answers = len(evaluated) * (evaluation.rollouts_per_example + evaluation.greedy) if happens else 0
    longest = max([*lengths.training, *evaluated]) + max(training.max_tokens, planned.evaluation_tokens)
    sequences = min(max(training.rollouts_per_step, answers), planned.config.engine.max_batch_size)
    return sequences, sequences * longest


def run_estimate(planned: PlannedRun, model: Model, lengths: PromptLengths | None, micro_batch: int) -> MemoryEstimate:
    """Estimate the memory that a training process needs. `lengths` is None if the prompts could not be measured."""
    config, training = planned.config, planned.config.training
    own = [*lengths.training, *lengths.evaluation] if lengths else [training.max_prompt_length]
    sequences, cached_tokens = decoded(planned, lengths)
    gpus = 0 if training.use_cpu else len(visible_gpus())
    return estimate(
        model.shape,
        micro_batch=micro_batch,
        tokens=max(own) + training.max_tokens,
        logit_tokens=training.max_tokens + max(own) - min(own),
        shards=planned.processes if planned.zero3 else 1,
        checkpointing=training.gradient_checkpointing is not False,
        bf16=gpus > 0 if training.bf16 is None else training.bf16,
        reference=training.beta != 0.0,
        adapter_parameters=model.adapters(planned),
        frozen_bytes=2 if config.model.dtype == "bfloat16" else 4,
        cached_tokens=cached_tokens,
        sequences=sequences,
        truncated=not training.sampling.is_plain or config.evaluation.top_p not in (None, 1.0),
        nccl=planned.uses_vllm and gpus != 1,
    )


def check_memory(planned: PlannedRun, model: Model, lengths: PromptLengths | None, free: int, place: str) -> Check:
    """Check that the estimated memory fits in `free`, the number of bytes available to one process. `place` describes
    where this memory is."""
    batch = planned.config.training.micro_batch(planned.processes)
    whole = run_estimate(planned, model, lengths, batch)
    state = whole.state + whole.gathered + whole.casts
    parts = {"state": state, "logits and activations": whole.passes, "generation": whole.generation}
    shown = ", ".join(f"{name} {gigabytes(size)}" for name, size in parts.items() if size)
    text = f"each process needs about {gigabytes(whole.total)} ({shown}); {gigabytes(free)} is free {place}"
    if whole.total <= (room := int(_TIGHT * free)):
        return Check("ok", text)
    fix = "use LoRA, a smaller model, fewer training.max_tokens, or a preset in configs/models"
    if fits := largest_that_fits(room, batch, lambda size: run_estimate(planned, model, lengths, size).total):
        fix = f"set training.per_device_train_batch_size={fits} (the number of rollouts per step stays the same)"
    elif planned.uses_vllm:
        fix += ", or more --processes (ZeRO-3 shards the state)"
    elif whole.resting_state + whole.casts + whole.generation == whole.total:
        fix = f"set a smaller engine.max_batch_size, or {fix}"
    return Check("failed" if whole.total > free else "warning", text, fix)
