"""What runs inside a child process that `core.processes` started. Standard library only: every child pays for imports.

- `ParentPipe`: the child's end of a `JsonProcess`.
- `python child_process.py PARENT_PID COMMAND ...` becomes the command, which gets SIGTERM when its parent dies. This
  holds on Linux, even for a parent that is killed; elsewhere the command merely runs. It is a program of its own, run
  by its path and without this package, because code between fork and exec can hang in a parent that has threads.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

PR_SET_PDEATHSIG = 1


class ParentPipe:
    """JSON values from and to the parent, one a line. Takes over standard input and output: prints go nowhere."""

    def __init__(self) -> None:
        self._requests, self._replies = os.dup(0), os.dup(1)  # not inherited by children
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        self._rest = b""

    def receive(self) -> Any:
        """The next value. At the end of input, which means that the parent is gone, this process ends, with all of its
        group."""
        return json.loads(self.receive_line())

    def receive_line(self) -> bytes:
        """`receive`, before it is parsed."""
        chunks = [self._rest]
        while b"\n" not in chunks[-1]:
            chunks.append(os.read(self._requests, 1 << 20))
            if not chunks[-1]:
                end_group()
        line, _, self._rest = b"".join(chunks).partition(b"\n")
        return line

    def send(self, value: Any) -> None:
        """Raises `TypeError`, `ValueError` or `RecursionError` for a value that JSON cannot hold."""
        self.send_line(json.dumps(value).encode())  # ASCII without line ends; lone surrogates pass

    def send_line(self, line: bytes) -> None:
        data = memoryview(line + b"\n")
        try:
            while data:
                data = data[os.write(self._replies, data) :]
        except BrokenPipeError:
            end_group()


def end_group() -> None:
    """Kill this process and the others of its group."""
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it, and so would the command
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the line above
            sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
