"""Start, limit, watch and end child processes. This module starts every child process of rg_env, except the forks of
`core.fork_server`.

    run(["nvidia-smi"], deadline_s=10)                                # wait for its exit code and output

    program = ProcessGroup(Command(("vllm", "serve")), log)           # a background program with output in a file
    program.code, program.new_lines()
    program.end(lambda: 15.0)                                         # SIGTERM, then SIGKILL after 15 seconds

    child = JsonProcess("my_package.worker:main", bare_environment()) # a function in a separate interpreter
    child.send({"n": 2}, deadline)
    child.receive(deadline)                                           # or TimeoutError, or ProcessEndedError
    child.kill()

Every child runs in its own session, so Ctrl-C in the terminal does not reach it, and its entire process group can be
ended. Background children also end if this process is killed: a `ProcessGroup` receives SIGTERM (on Linux), and a
`JsonProcess` sees the end of its standard input. Use `bare_environment` for code that needs nothing from the user's
environment, and `environment_without` for programs. `core.child_main` contains the code that runs in the child.
"""

import contextlib
import ctypes
import json
import math
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rg_env.core import child_main
from rg_env.core.files import opened_to_append
from rg_env.core.text import wrapped
from rg_env.errors import InputError

if TYPE_CHECKING:
    import psutil

TICK_S = 0.1
TOGETHER_S = 1.0
"""Seconds within which different signals count as a single request to stop, because a closing terminal or a scheduler
may send two."""
PYTHON_M = (sys.executable, "-P", "-m")
_PR_SET_CHILD_SUBREAPER = 36
_LAUNCHER_PREFIXES = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "ACCELERATE_", "TORCHELASTIC_", "FSDP_")
_BARE = ("PATH", "HOME", "TMPDIR", "LANG")
_BARE_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")
"""Variables without which some interpreters do not start. Their relative parts are removed, because the working
directory may have been downloaded."""


# Distributed training, as described by the launcher's environment variables (torch is not imported)


def world_size() -> int:
    """Return the number of training processes, which is 1 without a launcher.

    Raises:
        InputError: an environment variable set by the launcher is not a valid number.
    """
    for name, least in {"RANK": 0, "LOCAL_RANK": -1, "WORLD_SIZE": 1}.items():
        text = os.environ.get(name, str(least))
        if not re.fullmatch(r"\s*-?\d{1,9}\s*", text) or int(text) < least:
            raise InputError(
                f"environment variable {name}={text!r}: must be a whole number of at least {least}, or unset"
            )
    return int(os.environ.get("WORLD_SIZE", "1"))


def print_once(line: str) -> None:
    """Print a line on the main process only."""
    if os.environ.get("RANK", "0") == "0":
        print(wrapped(line), flush=True)


# Environments


def entered(program: str) -> str:
    """Return the command for one of this installation's programs ("python", "rg-env"): its name if it is on PATH,
    otherwise its path."""
    path = Path(sys.executable).with_name(program)
    return program if str(path) == shutil.which(program) else str(path)


def resume_words(folder: Path) -> str:
    """Return the command that resumes the evaluation in `folder`. If this program is not `rg-env`, return only the
    options."""
    own = []
    if Path(sys.argv[0]).name == "rg-env":
        own = [entered("rg-env"), *(word for word in sys.argv[1:] if word != "--resume")]
    output = [] if str(folder) in own else ["--output-dir", str(folder)]
    return shlex.join([*own, *output, "--resume"])


def environment_without(*names: str, gpus: bool = True) -> dict[str, str]:
    """Return this process's environment without the variables in `names` (secrets) and the launcher's variables.

    `gpus=False` also hides all GPUs.
    """
    kept = {name: os.environ[name] for name in os.environ.keys() - names if not name.startswith(_LAUNCHER_PREFIXES)}
    return kept if gpus else {**kept, "CUDA_VISIBLE_DEVICES": ""}


def bare_environment() -> dict[str, str]:
    """Return a minimal environment for a Python interpreter, without secrets.

    A fixed hash seed, a fixed time zone and a single thread make results reproducible.
    """
    kept = {name: value for name, value in os.environ.items() if name in _BARE or name.startswith("LC_")}
    for name in _BARE_PATHS:
        parts = [part for part in os.environ.get(name, "").split(os.pathsep) if os.path.isabs(part)]
        kept |= {name: os.pathsep.join(parts)} if parts else {}
    if sys.dont_write_bytecode:
        kept["PYTHONDONTWRITEBYTECODE"] = "1"
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **threads, "PYTHONHASHSEED": "0", "TZ": "UTC"}


# Programs that this process waits for


@dataclass(frozen=True)
class Finished:
    """A program's result."""

    code: int | None
    """Exit code (-N after signal N), or None if the program could not start or did not end in time."""
    output: str = ""
    errors: str = ""
    timed_out: bool = False

    @property
    def reason(self) -> str:
        """The signal that ended the program, its last line of output (where Python names the exception), or its exit
        code."""
        if self.code is not None and self.code < 0:
            return f"ended by {_end(self.code)}"
        lines = [line.strip() for line in f"{self.output}\n{self.errors}".splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"exit code {self.code}"


def run(command: Sequence[str], deadline_s: float) -> Finished:
    """Run `command` without input. After `deadline_s` seconds, kill the command's entire process group."""
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
        return Finished(None, errors=error.strerror or str(error))
    try:
        output, errors = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        return Finished(None, errors=f"no answer within {deadline_s:g} s", timed_out=True)
    finally:
        if process.returncode is None:  # also after Ctrl-C, which does not reach the child's own session
            _signal_group(process)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process stuck in a broken driver is left behind
                process.communicate(timeout=2)
    return Finished(process.returncode, output, errors)


def run_python(deadline_s: float, *arguments: str) -> Finished:
    """Run this Python interpreter. Files in the working directory cannot shadow the modules that the interpreter
    imports."""
    return run([sys.executable, "-P", *arguments], deadline_s)


def _end(code: int) -> str:
    """Describe how a process with this exit code ended: "exit code 3", or "signal 9 (Killed)" for -9."""
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"


def _signal_group(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises EPERM for a zombie
        os.killpg(process.pid, signal.SIGKILL)


# Programs in the background, with all processes that they start


@dataclass(frozen=True)
class Command:
    """A program's arguments and additional environment variables."""

    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    starts_workers: bool = False
    """Whether the program only launches the processes that do the work, as `accelerate launch` does."""

    def shell(self) -> str:
        """Return the command as you would enter it in a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.arguments)])


def python_module(module: str, *arguments: str) -> Command:
    """Return the command that runs a module with this interpreter. `-P` prevents imports from the working directory."""
    return Command((*PYTHON_M, module, *arguments))


class ProcessGroup:
    """A running `command` that writes its output directly to the file `log`, so the command never blocks on a reader.

    Args:
        environment: base environment, to which the command's own variables are added. Default: this process's
            environment.
        fork: function that starts the command by forking a process (`ForkServer.start`), or returns None if it cannot
            do so. It cannot be combined with `environment`.

    Create a `ProcessGroup` in a thread that outlives the program, because the kernel signals the program when that
    thread ends.
    """

    def __init__(
        self,
        command: Command,
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        fork: "Callable[[Command, Path], psutil.Process | None] | None" = None,
    ):
        import psutil

        assert environment is None or fork is None, "a fork has the environment of the forked process"
        self.command, self.log = command, log
        with opened_to_append(log) as output:
            self._begin = self._read = output.seek(0, os.SEEK_END)  # earlier output in the file is from another program
            base = os.environ if environment is None else environment
            forked = fork(command, log) if fork else None
            self._process: psutil.Process = forked or psutil.Popen(
                [sys.executable, "-I", "-S", child_main.__file__, str(os.getpid()), *command.arguments],
                env={**base, "PYTHONUNBUFFERED": "1", **command.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._interrupted: set[psutil.Process] = set()
        self._rest = b""

    @property
    def code(self) -> int | None:
        """The program's exit code, following the shell convention: 128 + N after signal N. None while the program is
        running."""
        return self.wait(0)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the program and return its exit code, or None if it is still running after `timeout_s` seconds."""
        import psutil

        with contextlib.suppress(psutil.TimeoutExpired):
            code = int(self._process.wait(timeout_s) or 0)  # None if this process ignores SIGCHLD
            return 128 - code if code < 0 else code
        return None

    def interrupt(self) -> None:
        """Send SIGINT to the program or, if it is a launcher, to each of its workers. No process receives the signal
        twice, even if this method is called repeatedly.

        A launcher with running workers does not receive a signal, because torch's launcher would kill the workers 30
        seconds later, possibly during a large save.
        """
        if self.code is not None:
            return
        workers = descendants(self._process, recursive=False) if self.command.starts_workers else [self._process]
        if not workers and not self._interrupted:
            self._interrupted.add(self._process)
            _signal([self._process], signal.SIGTERM)  # the launcher has not started any workers yet
        fresh = [process for process in workers if process not in self._interrupted]
        self._interrupted.update(fresh)
        _signal(fresh, signal.SIGINT)

    def end(self, grace_s: Callable[[], float]) -> None:
        """End the program and its descendants: SIGTERM, then SIGKILL after `grace_s()` seconds.

        The program is signaled first so that it can shut down its own processes cleanly. If those processes died first,
        the program would report an error.
        """
        family = descendants(self._process)
        end_all(lambda: [self._process], grace_s)
        end_all(lambda: family, grace_s)
        self.wait(timeout_s=5)  # takes longer only if the process is stuck in the kernel

    def new_lines(self) -> list[str]:
        """Return the non-blank lines of output completed since the last call. Each update of a progress bar counts as a
        line."""
        fresh = self._log_from(self._read)
        self._read += len(fresh)
        *lines, self._rest = re.split(rb"[\r\n]+", self._rest + fresh)
        if self.code is not None:  # the last line may lack a line break
            lines, self._rest = [*lines, self._rest], b""
        return [text for line in lines if (text := line.decode(errors="replace").rstrip())]

    def last_lines(self, count: int) -> list[str]:
        """Return up to `count` non-blank lines from the end of the output."""
        lines = self._log_from(max(self._begin, self._read - 2**14)).decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-count:]

    def _log_from(self, start: int) -> bytes:
        with contextlib.suppress(OSError), self.log.open("rb") as file:  # the run continues even if the log was removed
            file.seek(start)
            return file.read()
        return b""


def alive(process: "psutil.Process") -> bool:
    """Whether `process` is running. A zombie does not count as running."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants(process: "psutil.Process | None" = None, *, recursive: bool = True) -> "list[psutil.Process]":
    """Return all running descendants (or, unless `recursive`, all running children) of `process` (default: this
    process), in any session."""
    import psutil

    try:
        return [child for child in (process or psutil.Process()).children(recursive=recursive) if alive(child)]
    except psutil.NoSuchProcess:
        return []


def end_all(find: "Callable[[], Iterable[psutil.Process]]", grace_s: Callable[[], float]) -> None:
    """Send SIGTERM to the processes that `find` returns. After `grace_s()` seconds, send SIGKILL to those that remain.

    `find` and `grace_s` are called repeatedly because new processes may appear and the grace period may shrink.
    """
    _signal(find(), signal.SIGTERM)
    start = time.monotonic()
    while any(map(alive, find())):
        if time.monotonic() - start >= grace_s():
            _signal(find(), signal.SIGKILL)
            break
        time.sleep(TICK_S)


@contextlib.contextmanager
def stop_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Within the block, let `handler` handle the signals that request a stop: SIGINT (Ctrl-C), SIGTERM and SIGHUP."""
    # Closing a terminal sends SIGHUP. Under nohup, the signal is ignored and must remain ignored.
    kinds = [signal.SIGINT, signal.SIGTERM]
    kinds += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    before = {kind: signal.signal(kind, handler) for kind in kinds}
    try:
        yield
    finally:
        for kind, earlier in before.items():
            signal.signal(kind, earlier)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process from now on (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def ending_orphans(grace_s: Callable[[], float]) -> Iterator[None]:
    """At the end of the block, end all descendants started within it, including orphans (on Linux)."""
    before = set(descendants())
    adopt_orphans()
    try:
        yield
    finally:
        end_all(lambda: set(descendants()) - before, grace_s)


def _signal(processes: "Iterable[psutil.Process]", number: signal.Signals) -> None:
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):  # psutil also checks that the process id has not been reused
            process.send_signal(number)


# Functions in a separate interpreter


class ProcessEndedError(EOFError):
    """A `JsonProcess` has ended and been reaped, and its process group has been killed."""

    def __init__(self, code: int, last_error: str) -> None:
        self.code = code
        """The exit code, or -N after signal N."""
        self.end = _end(code)
        """How the process ended: "exit code 3" or "signal 9 (Killed)"."""
        self.last_error = last_error
        """Last line on standard error."""
        super().__init__(f"{self.end}: {last_error}")


class JsonProcess:
    """A fresh interpreter that runs `main` ("module:function") and exchanges JSON lines with this process.

    This process, which may have threads and use a GPU, is not forked, and its script does not need the guard `if
    __name__ == "__main__"`. Pickle is never used, so a child's message may be wrong but cannot run code in this
    process. `main` uses `core.child_main.ParentPipe`. The child can import the same modules as this process, but files
    in the working directory cannot shadow other modules. Only one thread at a time may use a `JsonProcess`, except that
    any thread may call `signal_kill`.

    Args:
        environment: environment variables, such as `bare_environment()`.
        folder: the working directory.
        as_program: whether the interpreter has only the import path of a new program, and shows warnings.

    Deadlines are values of `time.monotonic()`. Raises `OSError` if the process cannot be started.
    """

    def __init__(
        self, main: str, environment: Mapping[str, str], *, folder: str | None = None, as_program: bool = False
    ) -> None:
        module, _, function = main.partition(":")
        path = json.dumps([] if as_program else [os.path.abspath(each) for each in sys.path])
        options = ["-P"] if as_program else ["-P", "-W", "ignore"]
        program = (
            "import json, sys; sys.path += [each for each in json.loads(sys.argv.pop()) if each not in sys.path]; "
            f"from {module} import {function}; {function}()"
        )
        self._lock = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._last_error = ""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `kill`)
        self._process = subprocess.Popen(
            [sys.executable, *options, "-c", program, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=folder,
            env=environment,
            bufsize=0,
            start_new_session=True,
        )
        _json_processes.add(self)
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._requests, False)

    @property
    def code(self) -> int | None:
        """The exit code (-N after signal N), or None before `kill`."""
        return self._process.returncode

    def send(self, value: Any, deadline: float = math.inf) -> None:
        """Send a value. Raises `TimeoutError` at the deadline, and `ProcessEndedError` if the process is dead."""
        self.send_line(json.dumps(value).encode(), deadline)

    def send_line(self, line: bytes, deadline: float = math.inf) -> None:
        """Send JSON that is already encoded. Raises the same errors as `send`."""
        data = memoryview(line + b"\n")
        while data:
            try:
                data = data[os.write(self._requests, data) :]
            except BlockingIOError:
                _wait(self._requests, select.POLLOUT, deadline)
            except BrokenPipeError:
                raise self._ended() from None

    def receive(self, deadline: float = math.inf, max_bytes: int = 2**30) -> Any:
        """Return the next reply.

        Raises:
            TimeoutError: the deadline has passed.
            ProcessEndedError: the process is dead.
            ValueError, RecursionError: the reply is not JSON, or is larger than `max_bytes`.
        """
        while not self._lines:
            if len(self._rest) > max_bytes:
                raise ValueError(f"the reply has more than {max_bytes} bytes")
            _wait(self._replies, select.POLLIN, deadline)
            if not (chunk := os.read(self._replies, 1 << 20)):
                raise self._ended()
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self._lines.extend(lines)
        return json.loads(self._lines.popleft())

    @property
    def unread(self) -> bool:
        """Whether `receive` has read bytes that it has not yet returned."""
        return bool(self._lines or self._rest)

    def is_silent(self) -> bool:
        """Whether there is nothing to read: neither a reply nor the end of the file."""
        if self.unread:
            return False
        with contextlib.suppress(TimeoutError):
            _wait(self._replies, select.POLLIN, 0)
            return False
        return True

    def signal_kill(self) -> None:
        """Send SIGKILL to the process and its group, without waiting for them to end."""
        with self._lock:
            if self._process.returncode is None:  # the id cannot be reused until the process is reaped
                _signal_group(self._process)

    def kill(self) -> None:
        """Kill the process and its group, wait for the process to end, and close the pipes. This method is
        idempotent."""
        self.signal_kill()
        with self._lock:
            self._process.wait()
        if not self._log.closed:
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").strip().splitlines()
            self._last_error = lines[-1][:300] if lines else "no error message"
            self._log.close()
        self._close_pipes()

    def _ended(self) -> ProcessEndedError:
        self.kill()
        return ProcessEndedError(self._process.returncode, self._last_error)

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _abandon(self) -> None:
        """Release the process in a forked child. Only the child's parent may kill the process, and the process must see
        the end of its input when that parent ends."""
        self._close_pipes()
        self._process.returncode = 0  # otherwise, Popen would warn that the process is still running


def _wait(descriptor: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(None if deadline == math.inf else max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


_json_processes: "weakref.WeakSet[JsonProcess]" = weakref.WeakSet()


def _forked() -> None:
    for process in _json_processes:
        process._abandon()


os.register_at_fork(after_in_child=_forked)
