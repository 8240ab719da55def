"""`rg-env doctor`: check that a training run can start on this machine. Every problem is reported with a fix.

    for check in diagnose(PlannedRun(load_train_config("configs/train/tiny.yaml", []))):
        print(check.line())

The doctor does not train, downloads only a model's configuration and tokenizer, and writes only the row cache. It
checks that access tokens exist, but never shows them. "failed" means that the run would not start. A missing `train`
extra is a failure only if options or a config describe a run, because the environment itself does not need it.

Importing this module is cheap: modules that need torch are imported only after a subprocess has shown that torch works.
"""

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import RGEnvError
from rg_env.jobs.doctor import machine
from rg_env.jobs.doctor.checks import Check, PlannedRun, as_json, closing_line

if TYPE_CHECKING:
    from rg_env.jobs.doctor.model import Model

__all__ = ["Check", "PlannedRun", "as_json", "closing_line", "diagnose"]

_NO_MODEL = "the model is not available"
_CONNECTIONS = 1024
"""Maximum number of concurrent rollouts."""


def diagnose(planned: PlannedRun) -> Iterator[Check]:
    """Run all checks and yield each result as soon as it is available.

    Raises:
        InputError: a task or option of the run does not exist.
    """
    if planned.config.data is None:
        Mixture.parse(planned.config.gym)
    yield _named("system", lambda: machine.check_system(platform.system(), platform.release(), Path.cwd()))
    yield _named("python", machine.python_here)
    yield _named("packages", lambda: machine.packages_here(planned))
    smi = machine.ask_driver()
    yield _named("gpus", lambda: machine.check_driver(smi, planned))
    probe, reason = machine.ask_torch()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    yield _named("torch", lambda: machine.check_torch(probe, reason, smi, planned, visible))
    yield _named("vllm", lambda: machine.check_vllm(planned))
    yield _named("flash-attn", machine.check_flash_attn)
    yield _named("hugging face", lambda: machine.check_hub(planned))
    yield _named("shared memory", lambda: machine.check_shared_memory(planned, machine.shared_memory_size()))
    yield _named("ports", lambda: machine.check_ports(planned))
    why = "torch is not installed" if machine.NO_TORCH in reason else "torch does not work"
    trainer = machine.check_trainer(planned) if probe else Check("skipped", why)
    yield _named("trainer", lambda: trainer)
    if probe is None or trainer.status != "ok":
        for name in ("model", "batch", "prompts", "memory"):
            yield Check("skipped", "the trainer cannot be imported", name=name)
        yield _named("output folder", lambda: machine.check_output(planned, None))
        return
    from rg_env.jobs.doctor import model as models
    from rg_env.jobs.launch import longest_sequence

    check, run, model = _model(planned, bool(probe["devices"]))
    yield _named("model", lambda: check)
    prompts, lengths, checkpoint = Check("skipped", _NO_MODEL), None, None
    if model is not None:
        try:
            prompts, lengths = models.check_prompts(run, model)
        except Exception as error:
            prompts = _unexpected(error)
    tokens = longest_sequence(run.config, lengths.others if lengths else ())
    server = machine.check_server(run, model.name if model else None, tokens)
    yield _named("server", lambda: server)
    yield _named("gpu count", lambda: machine.check_count(probe, smi, run, server_runs=server.status == "ok"))
    yield _named("peer access", lambda: machine.check_peers(probe, os.environ.get("NCCL_P2P_DISABLE") == "1"))
    yield _named("batch", lambda: models.check_batch(run))
    yield _named("prompts", lambda: prompts)
    if model is None:
        yield Check("skipped", _NO_MODEL, name="memory")
    else:
        yield _named("memory", lambda: models.check_memory(run, model, lengths, *_free_memory(run, probe)))
        # A checkpoint has fp32 weights and Adam moments, and under ZeRO-3 also bf16 weights.
        checkpoint = (14 if run.zero3 else 12) * model.shape.parameters
    connections = min(run.config.training.rollouts_per_step, _CONNECTIONS) if run.uses_vllm else 0
    yield _named("open files", lambda: machine.check_open_files(connections))
    yield _named("wandb", lambda: machine.check_wandb(run))
    yield _named("output folder", lambda: machine.check_output(run, checkpoint))


def _model(planned: PlannedRun, has_gpu: bool) -> "tuple[Check, PlannedRun, Model | None]":
    """Check the model. Also return `planned`, with the default model filled in if none was given, and the model's
    properties if known."""
    from rg_env.inference.models import DEFAULT_GPU_MODEL
    from rg_env.jobs.doctor.model import check_model
    from rg_env.tiny import TINY

    default = planned.given is not None and "model.name" not in planned.given
    name = planned.config.model.name if not default else DEFAULT_GPU_MODEL if has_gpu else TINY
    try:
        check, model = check_model(name)
        if default and check.status == "failed":  # as load_policy does
            finding, name = f"{check.finding}: the tiny policy is used instead", TINY
            check, model = replace(check, status="warning", finding=finding), check_model(TINY)[1]
    except Exception as error:  # no model can be built from the configuration
        check, model = _unexpected(error), None
    return check, planned if planned.given is None else planned.with_model(name), model


def _free_memory(planned: PlannedRun, probe: dict[str, Any]) -> tuple[int, str]:
    """Free memory per training process, in bytes, and its location: the run's GPU with the least free memory, or
    RAM."""
    devices = [device for device in probe["devices"][: planned.processes] if device.get("free")]
    if devices:
        fullest = min(devices, key=lambda device: device["free"])
        return fullest["free"], f"on GPU {fullest['index']}"
    share = f" per process ({planned.processes} processes)" if planned.processes > 1 else ""
    return machine.memory_free() // planned.processes, f"in this machine's memory{share}"


def _named(name: str, check: Callable[[], Check]) -> Check:
    try:
        return replace(check(), name=name)
    except Exception as error:  # a broken check must not hide the others
        return replace(_unexpected(error), name=name)


def _unexpected(error: Exception) -> Check:
    text = str(error) if isinstance(error, RGEnvError) else f"{type(error).__name__}: {error}"
    return Check("warning", f"could not be checked: {text[:300]}")
