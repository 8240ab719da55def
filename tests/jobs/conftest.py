"""Fixtures of the tests of jobs: small environments and trainers, an empty working directory, and child processes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loopback import serve  # noqa: F401  fixture
from training_fixtures import *  # noqa: F403  fixtures
from worker_pools import until

with contextlib.suppress(ImportError):  # a dependency of the extras 'train' and 'eval'
    import psutil


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, environ: Callable[..., None]) -> Iterator[Path]:
    """Run each test in an empty working directory, without environment variables for a launcher, GPUs or caches."""
    environ(CUDA_VISIBLE_DEVICES="", WORLD_SIZE=None, VLLM_CPU_KVCACHE_SPACE=None, HF_HOME=None)
    with contextlib.chdir(tmp_path):
        yield tmp_path


class Started:
    """A Python program that runs in the working directory; it and its child processes create files `pid-N` there."""

    def __init__(self, code: str, *arguments: str):
        self.folder, pipe = Path.cwd(), subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=pipe, stderr=pipe, text=True)

    def until(self, path: str, text: str = "") -> "Started":
        """Wait until a file that matches `path` contains `text`."""
        found = until(lambda: any(text in file.read_text() for file in self.folder.glob(path)), 90)
        assert found, f"no {path} with {text!r}"
        return self

    def signal(self, number: signal.Signals) -> "Started":
        self.process.send_signal(number)
        return self

    def end(self) -> tuple[int, str, str]:
        """Wait for the program and return its exit code, stdout and stderr. Checks that no child process is left."""
        printed, errors = self.process.communicate(timeout=200)
        assert self.left() == []
        return self.process.returncode, printed, errors

    def left(self) -> list[int]:
        """Return the ids of the program's processes that are still running."""
        return [pid for path in self.folder.glob("pid-*") if self._runs(pid := int(path.name.removeprefix("pid-")))]

    def _runs(self, pid: int) -> bool:
        try:
            process = psutil.Process(pid)
            return process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(self.folder)
        except psutil.NoSuchProcess:
            return False


@pytest.fixture
def start_program(folder: Path) -> Iterator[Callable[..., Started]]:
    """Return a function that starts a program; processes that a failed test leaves behind are killed."""
    programs: list[Started] = []

    def call(code: str, *arguments: str) -> Started:
        programs.append(Started(code, *arguments))
        return programs[-1]

    yield call
    for program in programs:
        program.process.kill()
        program.process.communicate()
        for pid in program.left():
            os.kill(pid, signal.SIGKILL)
