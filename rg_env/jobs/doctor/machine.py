"""The doctor's basic types, and the checks of this machine: Python, packages, GPUs, server, limits, memory, disk and
logins.

Drivers and compiled packages can hang or crash, so they are probed in subprocesses with timeouts.
"""

import contextlib
import importlib.util
import json
import os
import platform
import resource
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rg_env.core.config.files import Document, overridden
from rg_env.core.config.parsing import parse_config
from rg_env.core.hub import LOGIN
from rg_env.core.processes import run, run_python
from rg_env.core.run_folder import OUTPUTS, RunFolder
from rg_env.core.text import counted, gigabytes
from rg_env.errors import InputError, OutputFolderError, ServerError, how_to_install, installed_version
from rg_env.inference.machine import port_problem, transformers_misfit
from rg_env.inference.vllm.client import NOT_LISTENING, VllmServer
from rg_env.inference.vllm.command import start_hint
from rg_env.training import preflight
from rg_env.training.config.grpo import default_fields
from rg_env.training.config.schema import TrainConfig

LAUNCH_PORT = 29500
"""Default rendezvous port of `accelerate launch` (`--main_process_port`)."""
_SERVER_NEEDS_SHM = 10**9
_OPEN_FILES = 512
"""Number of open files that a process needs for libraries, data, logs and a few connections."""
SMI_S, IMPORT_S = 10.0, 90.0
"""Timeouts for nvidia-smi and for imports in a subprocess, in seconds."""
_PYTHON = "Programming Language :: Python :: "
_FIELDS = "index,name,memory.total,memory.used,driver_version,mig.mode.current"


@dataclass(frozen=True)
class PlannedRun:
    """A training run planned for this machine."""

    config: TrainConfig
    processes: int = 1
    """Number of training processes, one per GPU."""
    given: frozenset[str] | None = None
    """Config keys set by command-line options. None if the run has a config file."""

    @classmethod
    def of_options(cls, given: Mapping[str, Any], processes: int = 1) -> "PlannedRun":
        """Create a planned run from a mapping of config keys to values. Raises `InputError` if a key or value is
        invalid."""
        document = Document({"model": {"name": "tiny"}, "tasks": ["leg_counting"]}, Path("the options"))
        overrides = [f"{key}={json.dumps(value)}" for key, value in given.items()]
        return cls(parse_config(overridden(document, overrides), TrainConfig), processes, frozenset(given))

    def with_model(self, name: str) -> "PlannedRun":
        """Return a copy of this run that uses the model `name`. The model's training defaults apply to fields that no
        option sets."""
        model = self.config.model.model_copy(update={"name": name})
        defaults = default_fields(name == "tiny") | self.config.training.model_dump(exclude_unset=True)
        training = self.config.training.model_copy(update=defaults)
        return replace(self, config=self.config.model_copy(update={"model": model, "training": training}))

    @property
    def requested(self) -> bool:
        """Whether options or a config describe a run, which makes a missing `train` extra a failure."""
        return self.given is None or bool(self.given) or self.processes > 1

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


def closing_line(checks: Sequence[Check]) -> str:
    """Return one line with the numbers of "ok", "warning" and "failed" checks."""
    count = {status: sum(check.status == status for check in checks) for status in ("ok", "warning", "failed")}
    return f"{count['ok']} ok, {counted(count['warning'], 'warning')}, {count['failed']} failed"


def as_json(checks: Iterable[Check]) -> str:
    keys = ("name", "status", "finding", "fix")
    return json.dumps([{key: getattr(check, key) for key in keys} for check in checks], indent=1, ensure_ascii=False)


# Checks


def check_python(version: str = platform.python_version()) -> Check:
    """Check a Python version against the supported and tested versions in rg-env's metadata."""
    own = metadata.metadata("rg-env")
    tested = [text.removeprefix(_PYTHON) for text in own.get_all("Classifier") or [] if text.startswith(_PYTHON)]
    fix = f"use Python {' or '.join(tested)}; ./setup.sh installs a supported version"
    if not SpecifierSet(own["Requires-Python"]).contains(version, prereleases=True):
        return Check("failed", f"{version}, but rg-env requires {own['Requires-Python']}", fix)
    if ".".join(version.split(".")[:2]) not in tested:
        return Check("warning", f"{version} is not a tested version (tested: {', '.join(tested)})", fix)
    return Check("ok", version)


def check_packages(
    planned: PlannedRun,
    requirements: Sequence[str] | None = None,
    installed: Callable[[str], str] = installed_version,
) -> Check:
    """Check the installed versions of the packages that the run requires. By default, `requirements` are those in
    rg-env's metadata.

    The result is at worst a warning, because `check_trainer` shows whether the trainer works with these packages.
    """
    extras = ["", "train", *(["vllm"] if planned.uses_vllm else [])]
    problems: dict[str, str] = {}
    count = 0
    for need in map(Requirement, requirements or metadata.requires("rg-env") or []):
        if need.marker and not any(need.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        count += 1
        version = installed(need.name)
        if not version or not need.specifier.contains(version, prereleases=True):
            problems[need.name] = f"{need.name} {version or 'is not installed'} ({need.specifier})"
    if not problems:
        return Check("ok", f"all {count} packages are within the tested ranges")
    fixes = [how_to_install("train")] if set(problems) - {"vllm"} else []
    fixes += [how_to_install("vllm")] if "vllm" in problems else []
    return Check("warning", f"missing or outside the tested range: {', '.join(problems.values())}", " and ".join(fixes))


@dataclass(frozen=True)
class Gpus:
    """The GPUs, as reported by `nvidia-smi` and by torch."""

    listed: Sequence[str] = ()
    """One line of nvidia-smi output per GPU: index, name, total memory, used memory, driver version and MIG mode. Empty
    if there is no NVIDIA driver or GPU."""
    driver_problem: str = ""
    torch: dict[str, Any] = field(default_factory=dict)
    """Result of `probe_torch`. Empty if torch cannot be imported."""
    torch_problem: str = ""

    @property
    def devices(self) -> list[dict[str, Any]]:
        """CUDA devices that torch sees."""
        return self.torch.get("devices", [])


def ask_gpus() -> Gpus:
    """Query the GPUs by running `nvidia-smi`, and then `probe_torch` in a subprocess."""
    smi = run(["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader"], SMI_S)
    lines = [line.strip() for line in smi.output.splitlines() if line.strip()]
    listed = [line for line in lines if line.count(", ") >= 5 and line[0].isdigit()]
    messages = [line for line in lines if line not in listed]
    problem = ""
    if smi.timed_out or (smi.code and "no devices were found" not in smi.output.lower()):
        problem = f"nvidia-smi: {messages[0][:300] if messages else smi.reason}"  # the lines after the first are advice
    program = f"import json; from {__name__} import probe_torch; print(json.dumps(probe_torch()))"
    probe = run_python(IMPORT_S, "-c", program)
    if probe.code != 0:
        return Gpus(listed, problem, torch_problem=probe.reason)
    return Gpus(listed, problem, json.loads(probe.output.splitlines()[-1]))


def probe_torch() -> dict[str, Any]:
    """Return the versions of torch and CUDA and, for each CUDA device, its capability, free memory and any problem."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    devices = []
    for index in range(torch.cuda.device_count() if available else 0):
        device: dict[str, Any] = {"index": index, "problem": ""}
        try:
            device["capability"] = list(torch.cuda.get_device_capability(index))
            device["free"], _ = torch.cuda.mem_get_info(index)
            # Fails if torch does not have kernels for the device.
            (torch.ones(2, device=f"cuda:{index}") + 1).sum().item()
        except Exception as error:  # CUDA can raise any exception
            device["problem"] = (str(error).strip().splitlines() or [type(error).__name__])[0]
        devices.append(device)
    problem = str(caught[-1].message).strip() if caught and not available else ""
    return {"version": torch.__version__, "cuda": torch.version.cuda, "devices": devices, "problem": problem}


def check_gpus(gpus: Gpus, planned: PlannedRun) -> Check:
    """Check that torch can use the GPUs that the driver reports, and that there are enough GPUs: one per training
    process, plus one if a server must still be started on this machine. A machine without GPUs passes because training
    also works on a CPU."""
    if gpus.driver_problem:
        fix = "reinstall the NVIDIA driver or restart the machine; then check that `nvidia-smi` lists the GPUs"
        status, rest = ("failed", "") if planned.uses_vllm else ("warning", ", so training would use the CPU")
        return Check(status, f"{gpus.driver_problem}{rest}", fix)
    if not gpus.listed and not gpus.devices:
        return Check("ok", "no NVIDIA GPU, so training uses the CPU")
    if not gpus.torch:
        return Check("skipped", "torch does not work")
    text, processes = "; ".join(gpus.listed), planned.processes
    if not gpus.devices:
        reason = gpus.torch["problem"] or "no reason given"
        fix = f"update the NVIDIA driver to a version that supports CUDA {gpus.torch['cuda']}"
        if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
            reason, fix = "CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES"
        elif gpus.torch["cuda"] is None:
            reason, fix = "the installed torch is a CPU build", "run ./setup.sh --gpu"
        status = "failed" if planned.uses_vllm or processes > 1 else "warning"
        return Check(status, f"{text}; torch does not see the GPU: {reason}", fix)
    if broken := next((device for device in gpus.devices if device["problem"]), None):
        fix = "stop other programs on that GPU, or exclude it with CUDA_VISIBLE_DEVICES"
        if "kernel image" in broken["problem"]:
            fix = "install a torch build with kernels for this GPU: https://pytorch.org"
        return Check("failed", f"GPU {broken['index']} does not work: {broken['problem']}", fix)
    seen = counted(len(gpus.devices), "GPU")
    if processes > len(gpus.devices):
        fix = f"use --processes {len(gpus.devices)}, or list more GPUs in CUDA_VISIBLE_DEVICES"
        return Check("failed", f"{processes} processes, but torch sees {seen}", fix)
    server = VllmServer(planned.config.engine.host, planned.config.engine.port)
    needs_another = planned.uses_vllm and planned.server_is_local and len(gpus.listed) <= processes
    if needs_another and server.health_problem(timeout_s=5.0):
        finding = (
            f"not enough GPUs: the run needs {processes} for training plus one for vLLM, but the machine has "
            f"{len(gpus.listed)}"
        )
        return Check("failed", finding, "reduce --processes, use engine.kind=embedded, or run vLLM on another machine")
    if any(gpu.endswith("Enabled") for gpu in gpus.listed):
        return Check("warning", f"{text}; MIG is on", "disable MIG to use several processes: NCCL does not support MIG")
    if old := [device["index"] for device in gpus.devices if device["capability"][0] < 8]:
        fix = "set training.bf16=false and, in the accelerate config, mixed_precision: fp16"
        return Check("warning", f"{text}; GPU {old[0]} has no native bf16 (it is older than Ampere)", fix)
    return Check("ok", f"{text}; torch {gpus.torch['version']} works on {seen}")


def check_trainer(gpus: Gpus, planned: PlannedRun) -> Check:
    """Check that the trainer can be imported, along with torch, transformers, accelerate and their dependencies."""
    install = how_to_install("train")
    if not gpus.torch and "No module named 'torch'" not in gpus.torch_problem:
        return Check("failed", f"torch cannot be imported: {gpus.torch_problem}", f"reinstall it: {install}")
    try:
        import_module("rg_env.training.trainer")
    except Exception as error:  # broken packages can raise any exception
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        finding = f"requires {missing}, which is not installed" if missing else f"{type(error).__name__}: {error}"
        return Check("failed" if planned.requested else "warning", finding, install)
    return Check("ok", f"can be imported; torch {gpus.torch['version']}")


def check_vllm(planned: PlannedRun) -> Check:
    """Check that vLLM and, if installed, flash-attn can be imported. A broken flash-attn breaks transformers. vLLM is
    imported only if the run needs it, because importing it takes many seconds."""
    if importlib.util.find_spec("flash_attn") is not None:
        fix = "remove this optional package: run `./setup.sh` in a clone, or `pip uninstall flash-attn`"
        if (check := check_import("flash_attn", fix)).status == "failed":
            return check
    if not planned.uses_vllm:
        return Check("skipped", "required only for engine.kind=vllm")
    fix = f"{how_to_install('vllm')} (Linux only), or use engine.kind=embedded"
    if importlib.util.find_spec("vllm") is None:
        return Check("failed", "not installed; the trainer uses vLLM's client code to talk to the server", fix)
    if problem := transformers_misfit():
        return Check("failed", *problem.split(": ", 1))
    return check_import("vllm", f"reinstall vLLM for the installed torch: {fix}")


def check_import(module: str, fix: str) -> Check:
    """Check that a subprocess can import `module`."""
    finished, version = run_python(IMPORT_S, "-c", f"import {module}"), installed_version(module.replace("_", "-"))
    if finished.code == 0:
        return Check("ok", version or "imports")
    return Check("failed", f"{module} {version} cannot be imported: {finished.reason}", fix)


def check_server(planned: PlannedRun, model: str | None, tokens: int) -> Check:
    """Check the vLLM server that the run would use.

    Args:
        model: name of the model that the server must serve, or None if unknown.
        tokens: number of tokens (prompt plus completion) that the server must accept.
    """
    if not planned.uses_vllm:
        return Check("skipped", "the embedded engine does not need a server")
    engine = planned.config.engine
    server = VllmServer(engine.host, engine.port)
    start = f"`{start_hint(model or 'MODEL', engine.port)}`"
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
    if model is not None and info.name != model:
        return Check("failed", f"{server} serves {info.name!r}, not {model!r}", f"restart it: {start}")
    if info.max_model_len < tokens:
        finding = f"{server} accepts {info.max_model_len} tokens, but a prompt plus its completion can have {tokens}"
        return Check("failed", finding, f"restart it with --max-model-len {tokens}, or reduce training.max_tokens")
    text = (
        f"vLLM at {server} serves {info.name!r} with up to {info.max_model_len} tokens on "
        f"{counted(info.workers, 'worker')}"
    )
    return Check("ok", text)


def check_open_files(limits: tuple[int, int]) -> Check:
    """Check the soft and hard limits on open files."""
    soft, hard = (2**63 if limit == resource.RLIM_INFINITY else limit for limit in limits)
    if soft >= _OPEN_FILES:
        return Check("ok", f"at least {_OPEN_FILES} open files are allowed")
    fix = f"run `ulimit -n {min(65536, hard)}` before starting vLLM and the trainer"
    if hard < _OPEN_FILES:
        fix = f"ask an administrator to raise the hard limit ({hard}) to {_OPEN_FILES}"
    return Check("failed", f"the limit is {soft} open files, but a run needs {_OPEN_FILES}", fix)


def check_shared_memory(size: int) -> Check:
    """Check that /dev/shm, with `size` bytes, is large enough. NCCL and vLLM's workers communicate through this file
    system."""
    if size >= _SERVER_NEEDS_SHM:
        return Check("ok", f"/dev/shm has {gigabytes(size)}")
    fix = "start the container with `--shm-size=8g` or `--ipc=host`"
    return Check("warning", f"/dev/shm has {gigabytes(size)}, but several processes may need 1 GB", fix)


def check_port(port: int) -> Check:
    """Check that the rendezvous port for the training processes is free."""
    if taken := port_problem(port):
        fix = "pass --main_process_port 0 (any free port) on one node, or choose another port on several nodes"
        return Check("warning", f"port {port}: {taken}", fix)
    return Check("ok", f"port {port} is free")


def free_memory(planned: PlannedRun, gpus: Gpus) -> tuple[int, str]:
    """Return the free memory per training process, in bytes, and its location: the run's GPU with the least free
    memory, or RAM (within the container's limit)."""
    devices = [device for device in gpus.devices[: planned.processes] if device.get("free")]
    if devices:
        fullest = min(devices, key=lambda device: device["free"])
        return fullest["free"], f"on GPU {fullest['index']}"
    import psutil

    free: int = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # a limit of "max" causes a ValueError
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, limit - used + int(stat.get("inactive_file", 0)))  # the file cache can be reclaimed
    share = f" per process ({planned.processes} processes)" if planned.processes > 1 else ""
    return free // planned.processes, f"in this machine's memory{share}"


def nearest_folder(path: Path) -> Path:
    """Return `path` if it is an existing folder, or else its nearest existing parent."""
    path = path.expanduser().absolute()
    return next(parent for parent in (path, *path.parents) if parent.is_dir())


def check_output(planned: PlannedRun, checkpoint: int | None) -> Check:
    """Check that the output folder is writable and has room for checkpoints of `checkpoint` bytes each (None if
    unknown)."""
    output = planned.config.output
    try:
        folder = RunFolder.choose(output.dir, "check")
    except OutputFolderError as error:
        return Check("failed", str(error).partition("; choose")[0], "choose another output folder")
    free = shutil.disk_usage(nearest_folder(folder)).free
    text = f"{folder if output.dir else OUTPUTS}: {gigabytes(free)} free"
    if checkpoint is None:
        return Check("ok", text)
    count = max(1, -(-planned.config.training.max_steps // output.save_every)) if output.save_every else 1
    count = min(count, output.save_total_limit or count)
    needed = f"for {counted(count, 'checkpoint')} of {gigabytes(checkpoint)}"
    if free >= checkpoint * count:
        return Check("ok", f"{text}, {needed}")
    fix = "free some space, choose another output folder, or set output.save_total_limit=1"
    return Check("failed" if free < checkpoint else "warning", f"{text}: not enough {needed}", fix)


def check_logins(planned: PlannedRun) -> Check:
    """Check the logins that the run needs: Hugging Face for uploads, and Weights & Biases for logging. Gated models
    also need a Hugging Face token. No part of a token is ever shown."""
    try:
        from huggingface_hub import get_token

        preflight.check_hub(planned.config.hub)
        preflight.check_logins(planned.config.logging)
    except ImportError as error:
        return Check("skipped", f"{error.name} is not installed")
    except InputError as error:
        return Check("failed", str(error))
    if get_token():
        return Check("ok", "Hugging Face token found")
    return Check(
        "ok", f"no Hugging Face token, so only public models can be used and nothing can be uploaded ({LOGIN})"
    )
