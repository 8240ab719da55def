"""Start Python programs quickly by forking a process that has already imported what they need (Linux only).

    server = ForkServer(["torch"])
    program = ProcessGroup(python_module("my_package.train", "--seed", "1"), log, fork=server.start)
    server.kill()

The imported modules may only start threads that can be forked, such as OpenBLAS's. A process that has looked for GPUs
cannot be forked to use them, so nothing is forked if there is a GPU.
"""

import contextlib
import gc
import os
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rg_env.core.child_main import ParentPipe, end_with
from rg_env.core.processes import PYTHON_M, TICK_S, Command, JsonProcess, ProcessEndedError, adopt_orphans

if TYPE_CHECKING:
    import psutil


_READY = "ready to fork"
_REPLY_S = 10.0
"""Maximum time in seconds for a reply about a fork, which takes milliseconds. Stop signals are handled after it."""


class ForkServer:
    """A process that imports `modules` once, and is then forked for each program. The programs have the environment and
    the working directory that this process had when it created the server."""

    def __init__(self, modules: Sequence[str]) -> None:
        adopt_orphans()
        self._process: JsonProcess | None = None
        self._state: Literal["importing", "ready", "ended"] = "ended"
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with contextlib.suppress(OSError, ProcessEndedError):  # there may be no room for temporary files
            self._process = JsonProcess("rg_env.core.fork_server:serve", environment, as_program=True)
            self._process.send(modules)
            self._state = "importing"

    def is_importing(self) -> bool:
        """Whether the imports are still running."""
        if self._state == "importing" and self._process and not self._process.is_silent():
            if self._reply() == _READY:
                self._state = "ready"
            else:  # an import failed, or a program in sitecustomize.py has printed something
                self.kill()
        return self._state == "importing"

    def start(self, command: Command, log: Path) -> "psutil.Process | None":
        """Start a `python_module` as a child of this process, with output to the end of `log`. This method waits until
        the imports are finished.

        Returns:
            The process, or None if nothing can be forked: because `command` is another program or sets variables,
            because an import failed, because there is a GPU, or because the server has ended.
        """
        import psutil

        while self.is_importing():
            time.sleep(TICK_S)
        if self._state == "ended" or command.arguments[: len(PYTHON_M)] != PYTHON_M or command.environment:
            return None
        pid = self._reply([*command.arguments[len(PYTHON_M) :], os.path.abspath(log)])
        with contextlib.suppress(psutil.Error, TypeError, ValueError):
            if (process := psutil.Process(pid)).ppid() == os.getpid():
                return process
        self.kill()  # a fork that is late cannot reply, and ends
        return None

    def kill(self) -> None:
        """End the server. The programs continue."""
        self._state = "ended"
        if self._process:
            self._process.kill()

    def _reply(self, request: Any = None) -> Any:
        """Send a request, if any, and return the next reply, or None if that fails."""
        assert self._process
        deadline = time.monotonic() + _REPLY_S
        with contextlib.suppress(ProcessEndedError, TimeoutError, ValueError):
            if request is not None:
                self._process.send(request, deadline)
            return self._process.receive(deadline)
        return None


def serve() -> None:
    """Run a `ForkServer`'s process: import the modules in the first message, then fork for each further message.

    A fork runs `python -m MODULE ARGUMENT ...` in its own session. Its reply is its id.
    """
    pipe, parent = ParentPipe(), os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it was ignored, exit codes would be lost
    gc.disable()  # none of the imported objects is garbage
    for module in pipe.receive():
        import_module(module)
    torch: Any = sys.modules.get("torch")
    if torch and torch.accelerator.is_available():
        sys.exit("there is a GPU")
    pipe.send(_READY)
    while True:
        module, *arguments, log = pipe.receive()
        intermediate = os.fork()
        if intermediate == 0:
            intermediate = os.getpid()
            if os.fork() == 0:
                break
            os._exit(0)  # the second fork becomes an orphan, and so a child of `parent`
        if os.waitpid(intermediate, 0)[1]:
            sys.exit("cannot fork")
    os.setsid()
    while os.getppid() == intermediate:
        time.sleep(0.001)
    end_with(parent)
    gc.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    pipe.send(os.getpid())
    pipe.close()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
