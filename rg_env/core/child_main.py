"""Code that runs inside a child process started by `core.processes`. This code uses only the standard library to keep
startup fast.

- `ParentPipe`: the child's end of a `JsonProcess`.
- `python child_main.py PARENT_PID COMMAND ...` replaces itself with the command, which receives SIGTERM when its parent
  dies, even if the parent is killed. On systems other than Linux, the command receives no signal. This launcher is a
  separate program, run by path and without importing this package, because code between fork and exec can deadlock if
  the parent has threads.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

PR_SET_PDEATHSIG = 1


class ParentPipe:
    """Exchanges JSON lines with the parent. Takes over standard input and output, so anything that this process prints
    is discarded."""

    def __init__(self) -> None:
        self._requests, self._replies = os.dup(0), os.dup(1)  # children do not inherit these descriptors
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        self._rest = b""

    def receive(self) -> Any:
        """Return the next value from the parent. The end of the input means that the parent has exited, so kill this
        process group."""
        chunks = [self._rest]
        while b"\n" not in chunks[-1]:
            chunks.append(os.read(self._requests, 1 << 20))
            if not chunks[-1]:
                end_group()
        line, _, self._rest = b"".join(chunks).partition(b"\n")
        return json.loads(line)

    def send(self, value: Any) -> None:
        """Send a value. Raises `TypeError`, `ValueError` or `RecursionError` if JSON cannot represent the value."""
        # The text is ASCII without line breaks, and its escapes preserve lone surrogates.
        data = memoryview(json.dumps(value).encode() + b"\n")
        try:
            while data:
                data = data[os.write(self._replies, data) :]
        except BrokenPipeError:
            end_group()

    def close(self) -> None:
        """Close this end of the pipe."""
        os.close(self._requests)
        os.close(self._replies)


def end_group() -> None:
    """Kill this process and the rest of its process group."""
    os.killpg(0, signal.SIGKILL)


def end_with(parent: int) -> None:
    """Let this process receive SIGTERM when its parent ends (Linux only), and exit if the parent has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent may have died before the prctl call
            sys.exit(1)


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs inherit an ignored SIGINT
    end_with(parent)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
