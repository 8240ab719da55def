"""`rg-env doctor`: check that a training run can start on this machine. Every problem that would stop the run is
reported with a fix.

    for check in diagnose(PlannedRun(load_train_config("configs/train/tiny.yaml", []))):
        print(check.line())

The doctor does not train. It downloads only a model's configuration and tokenizer, and otherwise writes only to the row
cache. Access tokens are never shown; the doctor only checks that they exist. A "failed" check means that the run would
fail. A missing `train` extra is a failure only if options or a config describe a run, because the environment itself
does not need this extra.

Importing this module is cheap because modules that need torch are imported only after a subprocess has shown that torch
works.
"""

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from rg_env.core.tasks.mixture import Mixture
from rg_env.core.text import user_error
from rg_env.jobs.doctor import machine
from rg_env.jobs.doctor.machine import Check, PlannedRun
from rg_env.tiny import TINY


def diagnose(planned: PlannedRun) -> Iterator[Check]:
    """Run all checks and yield each result as soon as it is available.

    Raises:
        InputError: the run uses a task or option that does not exist.
    """
    if planned.config.data is None:
        Mixture.parse(planned.config.gym)
    yield _run("python", machine.check_python)
    yield _run("packages", machine.check_packages, planned)
    gpus = machine.ask_gpus()
    yield _run("gpus", machine.check_gpus, gpus, planned)
    yield (trainer := _run("trainer", machine.check_trainer, gpus, planned))
    yield _run("vllm", machine.check_vllm, planned)
    yield _run("logins", machine.check_logins, planned)
    yield _run("open files", machine.check_open_files, resource.getrlimit(resource.RLIMIT_NOFILE))
    if (planned.uses_vllm or planned.processes > 1) and os.path.isdir("/dev/shm"):
        yield _run("shared memory", machine.check_shared_memory, shutil.disk_usage("/dev/shm").total)
    if planned.processes > 1:
        yield _run("launch port", machine.check_port, machine.LAUNCH_PORT)
    if trainer.status != "ok":
        for name in ("model", "server", "batch", "prompts", "memory"):
            yield Check("skipped", "the trainer cannot be imported", name=name)
        yield _run("output folder", machine.check_output, planned, None)
        return
    from rg_env.inference.models import DEFAULT_GPU_MODEL
    from rg_env.jobs.doctor import model as models
    from rg_env.jobs.launch import longest_sequence

    is_default = planned.given is not None and "model.name" not in planned.given
    name = planned.config.model.name if not is_default else DEFAULT_GPU_MODEL if gpus.devices else TINY
    check = _run("model", models.check_model, name)
    if is_default and check.status == "failed":  # `load_policy` also falls back to the tiny policy
        finding, name = f"{check.finding}; the tiny policy is used instead", TINY
        check = replace(check, status="warning", finding=finding, value=models.check_model(TINY).value)
    yield check
    model = check.value
    planned = planned if planned.given is None else planned.with_model(name)
    prompts = memory = Check("skipped", "the model is not available")
    if model is not None:
        prompts = _run("prompts", models.check_prompts, planned, model)
        memory = _run("memory", models.check_memory, planned, model, prompts.value, *machine.free_memory(planned, gpus))
    tokens = longest_sequence(planned.config, prompts.value.others if prompts.value else ())
    yield _run("server", machine.check_server, planned, model and model.name, tokens)
    yield _run("batch", models.check_batch, planned)
    yield replace(prompts, name="prompts")
    yield replace(memory, name="memory")
    # A checkpoint contains fp32 weights and Adam moments and, under ZeRO-3, also bf16 weights.
    checkpoint = model and (14 if planned.zero3 else 12) * model.shape.parameters
    yield _run("output folder", machine.check_output, planned, checkpoint)


def _run(name: str, check: Callable[..., Check], *arguments: Any) -> Check:
    """Run a check. Convert an error to a warning so that the remaining checks still run."""
    try:
        found = check(*arguments)
    except Exception as error:
        found = Check("warning", f"could not be checked: {user_error(error)}")
    return replace(found, name=name)
