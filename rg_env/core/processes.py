"""One program with all the processes it starts: begun with its output in a file, interrupted, ended without remainder.

It does not watch over anything: `supervise` does.
"""

import contextlib
import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rg_env.core import die_with_parent

PR_SET_CHILD_SUBREAPER = 36
TICK_S = 0.1


@dataclass(frozen=True)
class Command:
    """What is run: the arguments, and the variables that the environment has besides."""

    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    starts_workers: bool = False
    """Whether its children do the work (`accelerate launch`), and not the program itself."""

    def shell(self) -> str:
        """As it is typed into a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.arguments)])


class ProcessGroup:
    """A running `command`, in a session of its own: the terminal's Ctrl-C does not reach it.

    Its output goes straight to the file `log`, so that it can go on writing when nobody reads.
    """

    def __init__(self, command: Command, log: Path):
        self.command, self.log = command, log
        with log.open("ab") as output:
            self._begin = self._read = output.tell()  # what another program left there is not this one's
            self._root = subprocess.Popen(
                [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()), *command.arguments],
                env={**os.environ, "PYTHONUNBUFFERED": "1", **command.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._process = psutil.Process(self._root.pid)
        self._interrupted: set[psutil.Process] = set()
        self._rest = b""

    @property
    def code(self) -> int | None:
        """The program's exit code, a shell's way: 128 + N for signal N. None: it runs."""
        code = self._root.poll()
        return 128 - code if code is not None and code < 0 else code

    def workers(self) -> list[psutil.Process]:
        """The processes that do the work."""
        if not self.command.starts_workers:
            return [self._process] if alive(self._process) else []
        with contextlib.suppress(psutil.NoSuchProcess):
            return [process for process in self._process.children() if alive(process)]
        return []

    def interrupt(self) -> None:
        """SIGINT to each worker, once, however often this is called.

        Not to a launcher: torch's kills workers 30 seconds after a signal of its own, in the middle of a large save.
        """
        if self.code is not None:
            return
        if not (workers := self.workers()) and not self._interrupted:
            self._interrupted.add(self._process)
            _signal([self._process], signal.SIGTERM)  # a launcher that has not started any
        fresh = [process for process in workers if process not in self._interrupted]
        self._interrupted.update(fresh)
        _signal(fresh, signal.SIGINT)

    def end(self, grace_s: Callable[[], float]) -> None:
        """End it and all processes below it: SIGTERM, and SIGKILL for what is left after `grace_s()` seconds.

        The program first: it ends its own processes in good order, and would report their sudden death as an error.
        """
        family = descendants(self._process)
        end_all(lambda: [self._process], grace_s)
        end_all(lambda: family, grace_s)
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: nothing more can be done
            self._root.wait(timeout=5)

    def new_lines(self) -> list[str]:
        """What has been written since the last call, line by line; each state of a progress bar is a line."""
        fresh = self._log_from(self._read)
        self._read += len(fresh)
        *lines, self._rest = re.split(rb"[\r\n]+", self._rest + fresh)
        if self.code is not None:  # a last line need not end
            lines, self._rest = [*lines, self._rest], b""
        return [text for line in lines if (text := line.decode(errors="replace").rstrip())]

    def last_lines(self, count: int) -> list[str]:
        """The end of what it has written."""
        lines = self._log_from(max(self._begin, self._read - 2**14)).decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-count:]

    def _log_from(self, start: int) -> bytes:
        with contextlib.suppress(OSError), self.log.open("rb") as file:  # removed in mid-run: no reason to end it
            file.seek(start)
            return file.read()
        return b""


def alive(process: psutil.Process) -> bool:
    """Whether it runs: a process that has ended and was not yet waited for does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """All that runs below `process`, in whatever session."""
    try:
        return [child for child in process.children(recursive=True) if alive(child)]
    except psutil.NoSuchProcess:
        return []


def adopt_orphans() -> None:
    """From now on processes below this one whose parent dies become its children, where the system has that (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_all(find: Callable[[], Iterable[psutil.Process]], grace_s: Callable[[], float]) -> None:
    """SIGTERM to all that `find` finds, then SIGKILL for what it still finds after `grace_s()` seconds.

    Both are asked for again and again: there may be new processes, and less patience.
    """
    _signal(find(), signal.SIGTERM)
    start = time.monotonic()
    while any(map(alive, find())):
        if time.monotonic() - start >= grace_s():
            _signal(find(), signal.SIGKILL)
            break
        time.sleep(TICK_S)


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):  # psutil also checks that the number is not another's by now
            process.send_signal(number)
