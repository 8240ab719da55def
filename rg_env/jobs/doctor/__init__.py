"""`rg-env doctor`: would a training run start on this machine? Every finding that says no says what to do.

    for check in diagnose(AskedRun(model="Qwen/Qwen2.5-7B-Instruct", engine="vllm", processes=3)):
        print(check.line())

Nothing is trained. What is downloaded is a model's configuration and tokenizer; what is written, the cache of rows.
What can hang or crash (drivers, torch, vLLM, flash-attn) runs in processes of its own with deadlines. Tokens are looked
for and never shown. "failed" is what would stop the run; without the `train` extra nothing fails unless training was
asked for (`AskedRun.asked`), because the environment alone needs none of it.

Importing this costs nothing: what needs torch is imported once another process has shown that torch can be imported.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import InputError, RGEnvError
from rg_env.jobs.doctor import accounts, gpus, machine, versions
from rg_env.jobs.doctor.asked_run import AskedRun, Check, as_json, closing_line
from rg_env.jobs.doctor.tokens import PromptLengths, sequence_tokens

if TYPE_CHECKING:
    from rg_env.jobs.doctor.model import Model

__all__ = ["AskedRun", "Check", "as_json", "closing_line", "diagnose"]

_NO_MODEL = "there is no model to measure with"
_CONNECTIONS = 1024
"""Rollouts in flight at most: `GRPOConfig.max_concurrent`."""


def diagnose(run: AskedRun) -> Iterator[Check]:
    """Look at everything, each finding as soon as it is there.

    Raises:
        InputError: `run` names tasks, options or a port that do not exist.
    """
    for check in _checks(run):
        yield replace(check, fix=run.worded(check.fix))


def _checks(run: AskedRun) -> Iterator[Check]:
    Mixture.parse(run.gym)
    if not 0 < run.vllm_port < 65536:
        raise InputError(f"port {run.vllm_port} does not exist: choose one from 1 to 65535")
    yield from versions.check_versions(run)
    smi = gpus.ask_driver()
    yield gpus.check_driver(smi, run.engine)
    probe, reason = gpus.ask_torch()
    yield gpus.check_torch(probe, reason, smi, run)
    yield _guarded("vllm", lambda: gpus.check_vllm(run))
    yield _guarded("flash-attn", gpus.check_flash_attn)
    yield _guarded("hugging face", lambda: accounts.check_hub(run.uploads))
    yield _guarded("shared memory", lambda: machine.check_shared_memory(machine.shared_memory_size(), run))
    yield _guarded("ports", lambda: machine.check_ports(run))

    trainer = check_trainer(run, torch_works=probe is not None)
    yield trainer
    if probe is None or trainer.status != "ok":
        for name in ("model", "batch", "prompts", "memory"):
            yield Check(name, "skipped", "the trainer cannot be imported")
        yield _guarded("output folder", lambda: machine.check_output(run, None, 1))
        return
    yield from _of_the_run(run, smi, probe)


def check_trainer(run: AskedRun, *, torch_works: bool) -> Check:
    """Whether what trains can be imported: torch, transformers, accelerate and all that they need."""
    if not torch_works:
        return Check("trainer", "skipped", "torch does not work")
    try:
        import_module("rg_env.training.trainer")
    except Exception as error:  # broken packages raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        finding = f"needs {missing}, which is not installed" if missing else f"{type(error).__name__}: {error}"
        return Check("trainer", "failed" if run.asked else "warning", finding, versions.INSTALL)
    return Check("trainer", "ok", "can be imported")


def _of_the_run(run: AskedRun, smi: gpus.Smi, probe: dict[str, Any]) -> Iterator[Check]:
    """What depends on model and settings; imports torch."""
    from rg_env.inference.models import TINY
    from rg_env.jobs.doctor import batches
    from rg_env.jobs.doctor import model as models

    name = models.chosen_name(run, cuda=bool(probe["devices"]))
    try:
        found, model = models.check_model(name)
        if run.model is None and found.status == "failed":  # as load_policy does
            yield replace(found, status="warning", finding=f"{found.finding}: the tiny policy takes its place")
            name = TINY
            found, model = models.check_model(name)
    except Exception as error:  # a configuration that no model can be made of
        found, model = _unexpected("model", error), None
    yield found
    settings = batches.resolved(run, is_tiny=name == TINY)
    prompts, lengths = _prompts(run, settings, model)
    tokens = sequence_tokens(run, settings, lengths)
    server, server_runs = machine.check_server(run, model.name if model else None, tokens)
    yield server
    yield gpus.check_count(probe, smi, run, server_runs=server_runs)
    yield gpus.check_peers(probe, run)
    batch = _guarded("batch", lambda: batches.check_batch(run, settings))
    yield batch
    yield prompts
    if model:
        room, place = _room(run, probe)
        yield _guarded("memory", lambda: models.check_memory(run, settings, model, lengths, room, place))
    else:
        yield Check("memory", "skipped", _NO_MODEL)
    rollouts = settings["rollouts_per_step"]
    if limits := machine.open_file_limits():
        yield machine.check_open_files(*limits, min(rollouts, _CONNECTIONS) if run.engine == "vllm" else 0)
    yield _guarded("wandb", lambda: accounts.check_wandb(settings))
    checkpoint = models.checkpoint_bytes(run, model) if model else None
    count = models.checkpoint_count(settings)
    yield _guarded("output folder", lambda: machine.check_output(run, checkpoint, count))


def _prompts(run: AskedRun, settings: Mapping[str, Any], model: "Model | None") -> tuple[Check, PromptLengths | None]:
    from rg_env.jobs.doctor import batches

    if model is None:
        return Check("prompts", "skipped", _NO_MODEL), None
    try:
        return batches.check_prompts(run, settings, model)
    except Exception as error:
        return _unexpected("prompts", error), None


def _room(run: AskedRun, probe: dict[str, Any]) -> tuple[int | None, str]:
    """Free bytes for one training process, and where: on the GPU that has least of those it would take."""
    devices = [device for device in probe["devices"][: run.processes] if device.get("free")]
    if devices:
        fullest = min(devices, key=lambda device: device["free"])
        return fullest["free"], f"on GPU {fullest['index']}"
    free = machine.memory_free()
    share = f" for each of {run.processes}" if run.processes > 1 else ""
    return None if free is None else free // run.processes, f"in this machine's memory{share}"


def _guarded(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except Exception as error:  # one thing that cannot be looked at must not hide the others
        return _unexpected(name, error)


def _unexpected(name: str, error: Exception) -> Check:
    text = str(error) if isinstance(error, RGEnvError) else f"{type(error).__name__}: {error}"
    return Check(name, "warning", f"could not be looked at: {text[:300]}")
