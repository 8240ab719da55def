"""Child processes: the one way to start, bound, watch and end them.

    run(["nvidia-smi"], deadline_s=10)                                # to its end: exit code and output

    program = ProcessGroup(Command(("vllm", "serve")), log)           # a program that runs on, output in a file
    program.code, program.new_lines()
    program.end(lambda: 15.0)                                         # SIGTERM, after the grace SIGKILL

    child = JsonProcess("my_package.worker:main", bare_environment()) # functions in an interpreter of their own
    child.send({"n": 2}, deadline)
    child.receive(deadline)
    child.kill()

Every child leads a session, so that a terminal's Ctrl-C does not reach it and its whole process group can be ended.
None outlives this process, even where that is killed: a `ProcessGroup` gets SIGTERM (on Linux), a `JsonProcess` reads
the end of its standard input. Environments: `bare_environment` for code that needs nothing of the user's,
`environment_without` for programs. `core.child_process` is the child's side.
"""

import contextlib
import ctypes
import json
import math
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rg_env.core import child_process
from rg_env.errors import InputError

if TYPE_CHECKING:
    import psutil

TICK_S = 0.1
_PR_SET_CHILD_SUBREAPER = 36
_LAUNCHER_PREFIXES = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "ACCELERATE_", "TORCHELASTIC_", "FSDP_")
_BARE = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")


# The processes that train together, by their launcher's variables; without torch


def world_size() -> int:
    """How many there are; 1 without a launcher.

    Raises:
        InputError: a launcher's variable is not a number, which would be a traceback of accelerate's later.
    """
    numbers = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": -1}
    for name, least in numbers.items():
        text = os.environ.get(name, str(least))
        if not re.fullmatch(r"\s*-?\d{1,9}\s*", text) or int(text) < least:
            raise InputError(f"the environment has {name}={text!r}: a whole number from {least} up, or unset it")
        numbers[name] = int(text)
    return numbers["WORLD_SIZE"]


def print_once(line: str) -> None:
    """Print a line that all of them would print, on one of them."""
    if os.environ.get("RANK", "0") == "0":
        print(line, flush=True)


# Environments


def environment_without(*names: str, gpus: bool = True) -> dict[str, str]:
    """This process's environment without the variables `names` (secrets), without what a launcher sets to make it one
    of several processes, and on request without GPUs."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in names and not name.startswith(_LAUNCHER_PREFIXES)
    }
    return kept if gpus else {**kept, "CUDA_VISIBLE_DEVICES": ""}


def bare_environment() -> dict[str, str]:
    """What an interpreter needs and no more, so that no secret is in it: the same results everywhere by a fixed hash
    seed and time zone, and one thread."""
    kept = {name: value for name, value in os.environ.items() if name in _BARE or name.startswith("LC_")}
    if sys.dont_write_bytecode:
        kept["PYTHONDONTWRITEBYTECODE"] = "1"
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **threads, "PYTHONHASHSEED": "0", "TZ": "UTC"}


# A program that is run to its end


@dataclass(frozen=True)
class Finished:
    """How a program ended."""

    code: int | None
    """Exit code; -N after signal N; None if it could not start or did not end in time."""
    output: str = ""
    errors: str = ""
    timed_out: bool = False

    @property
    def reason(self) -> str:
        """The last line that it wrote, where Python names the exception; the signal that ended it."""
        if self.code is not None and self.code < 0:
            return f"ended by {signal_name(-self.code)}"
        lines = [line.strip() for line in f"{self.output}\n{self.errors}".splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"exit code {self.code}"


def run(command: Sequence[str], deadline_s: float, environment: Mapping[str, str] | None = None) -> Finished:
    """Run `command` without input; after `deadline_s` seconds it is killed, with all processes of its group."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Finished(None, errors=error.strerror or str(error))
    try:
        output, errors = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        return Finished(None, errors=f"no answer within {deadline_s:g} s", timed_out=True)
    except BaseException:  # Ctrl-C does not reach another session
        _kill_group(process)
        raise
    return Finished(process.returncode, output, errors)


def run_python(deadline_s: float, *arguments: str) -> Finished:
    """Run this Python; nothing in the working folder shadows what it imports."""
    return run([sys.executable, "-P", *arguments], deadline_s)


def signal_name(number: int) -> str:
    """Such as "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kill_group(process: subprocess.Popen[Any]) -> None:
    _signal_group(process)
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that waits for a broken driver is left behind
        process.communicate(timeout=2)


def _signal_group(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a zombie
        os.killpg(process.pid, signal.SIGKILL)


# A program that runs on, with all processes that it starts


@dataclass(frozen=True)
class Command:
    """A program's arguments, and variables in addition to its environment."""

    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    starts_workers: bool = False
    """Whether its children do the work (`accelerate launch`), and not the program itself."""

    def shell(self) -> str:
        """The command as it is typed into a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.arguments)])


class ProcessGroup:
    """A running `command` whose output goes straight to the file `log`, so that it never waits for a reader.

    Args:
        environment: what the command's own variables are added to; default: this process's environment.
        pass_fds: file descriptors that the program inherits.

    Create it in a thread that lives at least as long as the program: the kernel counts the death of the thread.
    """

    def __init__(
        self,
        command: Command,
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ):
        import psutil

        self.command, self.log = command, log
        with log.open("ab") as output:
            self._begin = self._read = output.tell()  # earlier output is another program's
            self._root = subprocess.Popen(
                [sys.executable, "-I", "-S", child_process.__file__, str(os.getpid()), *command.arguments],
                env={
                    **(os.environ if environment is None else environment),
                    "PYTHONUNBUFFERED": "1",
                    **command.environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        self._process = psutil.Process(self._root.pid)
        self._interrupted: set[psutil.Process] = set()
        self._rest = b""

    @property
    def code(self) -> int | None:
        """The program's exit code as a shell gives it: 128 + N after signal N. None while it runs."""
        code = self._root.poll()
        return 128 - code if code is not None and code < 0 else code

    def wait(self, timeout_s: float) -> int | None:
        """The exit code once it has ended; None if it still runs after `timeout_s` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._root.wait(timeout_s)
        return self.code

    def workers(self) -> "list[psutil.Process]":
        """The processes that do the work."""
        if not self.command.starts_workers:
            return [self._process] if alive(self._process) else []
        return descendants(self._process, recursive=False)

    def interrupt(self) -> None:
        """Send SIGINT to each worker, once, however often this is called.

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
        """End it and all processes below it: SIGTERM, then SIGKILL for those that are left after `grace_s()` seconds.

        The program first: it ends its own processes properly, and would report their sudden death as an error.
        """
        family = descendants(self._process)
        end_all(lambda: [self._process], grace_s)
        end_all(lambda: family, grace_s)
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: nothing more can be done
            self._root.wait(timeout=5)

    def new_lines(self) -> list[str]:
        """The lines written since the last call; each state of a progress bar is a line."""
        fresh = self._log_from(self._read)
        self._read += len(fresh)
        *lines, self._rest = re.split(rb"[\r\n]+", self._rest + fresh)
        if self.code is not None:  # a last line need not end
            lines, self._rest = [*lines, self._rest], b""
        return [text for line in lines if (text := line.decode(errors="replace").rstrip())]

    def last_lines(self, count: int) -> list[str]:
        """The end of its output."""
        lines = self._log_from(max(self._begin, self._read - 2**14)).decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-count:]

    def _log_from(self, start: int) -> bytes:
        with contextlib.suppress(OSError), self.log.open("rb") as file:  # a removed log must not end the run
            file.seek(start)
            return file.read()
        return b""


def alive(process: "psutil.Process") -> bool:
    """Whether it runs; a process that has ended and was not yet waited for does not."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants(process: "psutil.Process | None" = None, *, recursive: bool = True) -> "list[psutil.Process]":
    """All running processes below `process` (default: this one), in whatever session."""
    import psutil

    try:
        return [child for child in (process or psutil.Process()).children(recursive=recursive) if alive(child)]
    except psutil.NoSuchProcess:
        return []


def end_all(find: "Callable[[], Iterable[psutil.Process]]", grace_s: Callable[[], float]) -> None:
    """Send SIGTERM to the processes that `find` returns, then SIGKILL to those it returns after `grace_s()` seconds.

    Both are called again and again: there may be new processes, and less patience.
    """
    _signal(find(), signal.SIGTERM)
    start = time.monotonic()
    while any(map(alive, find())):
        if time.monotonic() - start >= grace_s():
            _signal(find(), signal.SIGKILL)
            break
        time.sleep(TICK_S)


def adopt_orphans() -> None:
    """From now on, processes below this one whose parent dies become its children, where the system can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def ending_orphans(grace_s: Callable[[], float]) -> Iterator[None]:
    """At the end of the block, end all processes below this one that were not there before it, also those whose parent
    has died (Linux)."""
    before = set(descendants())
    adopt_orphans()
    try:
        yield
    finally:
        end_all(lambda: set(descendants()) - before, grace_s)


def _signal(processes: "Iterable[psutil.Process]", number: signal.Signals) -> None:
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):  # psutil also checks that the process id was not reused
            process.send_signal(number)


# A function in an interpreter of its own


class JsonProcess:
    """A fresh interpreter that runs `main` ("module:function") and exchanges JSON values with it, one a line.

    No fork of a process that may hold threads and a GPU, no `if __name__ == "__main__"`, and never pickle: what a child
    sends may be wrong, but cannot run code here. `main` uses `core.child_process.ParentPipe`. Modules are found as in
    this process, but nothing in the working folder shadows others. `environment`: see the functions above; `folder`:
    the working directory. One thread may use it at a time; `signal_kill` may be called by any.

    Deadlines are values of `time.monotonic()`. Raises `OSError` if the process cannot be started.
    """

    def __init__(self, main: str, environment: Mapping[str, str], *, folder: str | None = None) -> None:
        module, _, function = main.partition(":")
        path = json.dumps([os.path.abspath(each) for each in sys.path])
        program = (
            "import json, sys; sys.path += [each for each in json.loads(sys.argv.pop()) if each not in sys.path]; "
            f"from {module} import {function}; {function}()"
        )
        self.last_error = ""
        """After `kill`: the last line that it wrote on standard error."""
        self._lock = threading.Lock()
        self._reaped = False
        self.unread = b""
        """What has arrived and was not yet received."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `kill`)
        with _fork_lock:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-c", program, path],
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
        self._writable, self._readable = select.poll(), select.poll()
        self._writable.register(self._requests, select.POLLOUT)
        self._readable.register(self._replies, select.POLLIN)
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)

    @property
    def code(self) -> int | None:
        """Its exit code, or -N after signal N; None before `kill`."""
        return self._process.returncode

    def fileno(self) -> int:
        """What a selector watches: readable when replies have arrived, or the process has ended."""
        return self._replies

    def send(self, value: Any, deadline: float = math.inf) -> None:
        """Raises `TimeoutError`, and `OSError` if the process is dead."""
        self.send_line(json.dumps(value).encode(), deadline)

    def send_line(self, line: bytes, deadline: float = math.inf) -> None:
        """`send` a value that is JSON already."""
        data = memoryview(line + b"\n")
        while data:
            try:
                data = data[os.write(self._requests, data) :]
            except BlockingIOError:
                _wait(self._writable, deadline)

    def receive(self, deadline: float = math.inf, max_bytes: int = 2**30) -> Any:
        """The next reply. Raises `TimeoutError`, `EOFError` or `OSError` if the process is dead, and `ValueError` or
        `RecursionError` if what it wrote is not JSON or has more than `max_bytes`."""
        while b"\n" not in self.unread:
            if len(self.unread) > max_bytes:
                raise ValueError(f"more than {max_bytes} bytes")
            _wait(self._readable, deadline)
            self.unread += self._chunk()
        line, _, self.unread = self.unread.partition(b"\n")
        return json.loads(line)

    def arrived(self) -> list[Any]:
        """All replies that have arrived; waits for nothing where a selector has called it readable. Raises as
        `receive`."""
        _wait(self._readable, math.inf)
        *lines, self.unread = (self.unread + self._chunk()).split(b"\n")
        return [json.loads(line) for line in lines]

    def is_silent(self) -> bool:
        """Whether there is nothing to read: no reply, and no end of file."""
        return not self.unread and not self._readable.poll(0)

    def _chunk(self) -> bytes:
        chunk = os.read(self._replies, 1 << 20)
        if not chunk:
            raise EOFError
        return chunk

    def signal_kill(self) -> None:
        """Send SIGKILL to the process and its group, without waiting for the end."""
        with self._lock:
            if not self._reaped:  # until then its id cannot be another's
                _signal_group(self._process)

    def kill(self) -> None:
        """Kill the process and its group, wait for the end and close the pipes. May be called again."""
        self.signal_kill()
        with self._lock:
            self._process.wait()
            self._reaped = True
        if not self._log.closed:
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").strip().splitlines()
            self.last_error = lines[-1][:300] if lines else "it wrote no message"
            self._log.close()
        self._close_pipes()

    @property
    def end(self) -> str:
        """How it ended, after `kill`: "exit code 3", "signal 9 (Killed)"."""
        code = self._process.returncode
        return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _abandon(self) -> None:
        """In a forked child: it is the parent's to kill, and must see the end of file when the parent ends."""
        self._close_pipes()
        self._process.returncode = 0  # or Popen warns that it still runs


def _wait(poll: "select.poll", deadline: float) -> None:
    timeout = None if deadline == math.inf else max(0.0, deadline - time.monotonic()) * 1000
    if not poll.poll(timeout):
        raise TimeoutError


_json_processes: "weakref.WeakSet[JsonProcess]" = weakref.WeakSet()
_fork_lock = threading.Lock()
"""Held while a process is started, so that a forked child inherits no pipe that `_forked` does not know."""


def _forked() -> None:
    _fork_lock.release()
    for process in _json_processes:
        process._abandon()


os.register_at_fork(before=_fork_lock.acquire, after_in_parent=_fork_lock.release, after_in_child=_forked)
