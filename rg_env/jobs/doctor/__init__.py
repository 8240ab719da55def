"""`rg-env doctor`: check that a training run can start on this machine. Every problem is reported with a fix.

    for check in diagnose(PlannedRun(load_train_config("configs/train/tiny.yaml", []))):
        print(check.line())

The doctor does not train, downloads only a model's configuration and tokenizer, and writes only the row cache. It
checks that access tokens exist, but never shows them. "failed" means that the run would not start. A missing `train`
extra is a failure only if options or a config describe a run, because the environment itself does not need it.

Importing this module is cheap: modules that need torch are imported only after a subprocess has shown that torch works.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import RGEnvError
from rg_env.jobs.doctor import machine
from rg_env.jobs.doctor.machine import Check, PlannedRun, as_json, closing_line
from rg_env.tiny import TINY

__all__ = ["Check", "PlannedRun", "as_json", "closing_line", "diagnose"]


def diagnose(planned: PlannedRun) -> Iterator[Check]:
    """Run all checks and yield each result as soon as it is available.

    Raises:
        InputError: a task or option of the run does not exist.
    """
    if planned.config.data is None:
        Mixture.parse(planned.config.gym)
    yield _named("python", machine.check_python)
    yield _named("packages", machine.check_packages, planned)
    gpus = machine.ask_gpus()
    yield _named("gpus", machine.check_gpus, gpus, planned)
    yield (trainer := _named("trainer", machine.check_trainer, gpus, planned))
    yield _named("vllm", machine.check_vllm, planned)
    yield _named("logins", machine.check_logins, planned)
    yield _named("limits", machine.check_limits, planned)
    if trainer.status != "ok":
        for name in ("model", "server", "batch", "prompts", "memory"):
            yield Check("skipped", "the trainer cannot be imported", name=name)
        yield _named("output folder", machine.check_output, planned, None)
        return
    from rg_env.inference.models import DEFAULT_GPU_MODEL
    from rg_env.jobs.doctor import model as models
    from rg_env.jobs.launch import longest_sequence

    is_default = planned.given is not None and "model.name" not in planned.given
    name = planned.config.model.name if not is_default else DEFAULT_GPU_MODEL if gpus.devices else TINY
    check, model = _unless_broken(models.check_model, name)
    if is_default and check.status == "failed":  # as load_policy does
        check = replace(check, status="warning", finding=f"{check.finding}: the tiny policy is used instead")
        name, (_, model) = TINY, models.check_model(TINY)
    yield replace(check, name="model")
    planned = planned if planned.given is None else planned.with_model(name)
    prompts, lengths = Check("skipped", "the model is not available"), None
    if model is not None:
        prompts, lengths = _unless_broken(models.check_prompts, planned, model)
    tokens = longest_sequence(planned.config, lengths.others if lengths else ())
    yield _named("server", machine.check_server, planned, model.name if model else None, tokens)
    yield _named("batch", models.check_batch, planned)
    yield replace(prompts, name="prompts")
    checkpoint = None
    if model is None:
        yield replace(prompts, name="memory")
    else:
        yield _named("memory", models.check_memory, planned, model, lengths, *machine.free_memory(planned, gpus))
        # A checkpoint has fp32 weights and Adam moments, and under ZeRO-3 also bf16 weights.
        checkpoint = (14 if planned.zero3 else 12) * model.shape.parameters
    yield _named("output folder", machine.check_output, planned, checkpoint)


def _named(name: str, check: Callable[..., Check], *arguments: Any) -> Check:
    return replace(_unless_broken(lambda: (check(*arguments), None))[0], name=name)


def _unless_broken(check: Callable[..., tuple[Check, Any]], *arguments: Any) -> tuple[Check, Any]:
    """A check's result, and its findings about the run. An error becomes a warning, so that it does not hide the other
    checks."""
    try:
        return check(*arguments)
    except Exception as error:
        text = str(error) if isinstance(error, RGEnvError) else f"{type(error).__name__}: {error}"
        return Check("warning", f"could not be checked: {text[:300]}"), None
