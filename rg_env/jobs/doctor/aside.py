"""Running something in a process of its own, which may hang or crash without taking the doctor along."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How the process ended. `code` is None where it could not start or did not end in time."""

    code: int | None
    output: str = ""
    errors: str = ""
    late: bool = False

    @property
    def reason(self) -> str:
        """The last line it said, which is where Python names the exception."""
        lines = [line.strip() for line in f"{self.output}\n{self.errors}".splitlines() if line.strip()]
        if self.code is not None and self.code < 0:
            return f"ended by {_signal_name(-self.code)}"
        return lines[-1][:300] if lines else f"exit code {self.code}"


def run_aside(command: Sequence[str], deadline_s: float) -> Outcome:
    """Run `command`; it is killed, with all it started, after `deadline_s` seconds."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Outcome(None, errors=error.strerror or str(error))
    try:
        output, errors = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        return Outcome(None, errors=f"no answer within {deadline_s:g} s", late=True)
    except BaseException:  # Ctrl-C does not reach another session
        _kill(process)
        raise
    return Outcome(process.returncode, output, errors)


def run_python(deadline_s: float, *arguments: str) -> Outcome:
    """Run this Python; nothing in the working folder shadows what it imports."""
    return run_aside([sys.executable, "-P", *arguments], deadline_s)


def _kill(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    # A process in the kernel's hands, as one that waits for a broken driver, does not die: it is left behind.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=2)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
