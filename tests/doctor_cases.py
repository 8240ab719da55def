"""What tests of the doctor share: recorded forms of findings, and how a check is compared."""

from typing import Any

from rg_env.jobs.doctor import AskedRun, Check, gpus
from rg_env.jobs.doctor.aside import Outcome

VLLM = AskedRun(engine="vllm")
GIB = 2**30

# What nvidia-smi prints for the fields that the doctor asks for, without header and units.
TWO_GPUS = (
    "0, NVIDIA A100-SXM4-80GB, 81920, 3, 550.54.15, Disabled\n"
    "1, NVIDIA A100-SXM4-80GB, 81920, 74211, 550.54.15, Disabled\n"
)
CONSUMER = "0, NVIDIA GeForce RTX 4090, 24564, 412, 560.35.03, [N/A]\n"
MIG = "0, NVIDIA H100 80GB HBM3, 81559, [Insufficient Permissions], 535.161.08, Enabled\n"
BROKEN = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n\n"
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.127\n"


def smi(output: str, code: int | None = 0) -> gpus.Smi:
    return gpus.parse_smi(Outcome(code, output))


def probe(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What `torch_probe` prints on a machine with `devices`."""
    whole = {"index": 0, "name": "GPU", "capability": [8, 0], "free": 80 * GIB, "total": 80 * GIB, "problem": ""}
    found = [{**whole, "index": index, **device} for index, device in enumerate(devices)]
    architectures = ["sm_75", "sm_80", "sm_86", "sm_90", "compute_90"] if devices else []
    basics = {"version": "2.8.0", "cuda": "12.8", "mps": False, "problem": "", "architectures": architectures}
    return {**basics, "devices": found, "apart": [], **changes}


def is_like(check: Check, status: str, words: str, fix: str = "") -> None:
    assert check.status == status, check.line()
    assert words in check.finding
    assert fix in check.fix
