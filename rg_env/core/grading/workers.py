"""Run functions that are unsafe to call on untrusted text, in worker processes that the parent can kill.

    with WorkerPool("my_package.graders:grade", wall_s=1.0) as pool:
        outcome = pool.call("42", {"answer": "41"})
        if outcome.status == "ok": ...                         # else "raised", "timed_out" or "died"

The function is imported in fresh interpreters and called with JSON values over pipes. Starting workers requires neither
a fork nor a `__main__` guard. Pickle is never used, so a compromised worker may return a wrong value but cannot run
code in the parent. Arguments and values are converted to JSON and back, so tuples become lists, keys become strings,
and NaN is preserved. If a call takes longer than `wall_s` seconds, its worker and the worker's whole process group are
killed, and a warm spare replaces the worker. If a worker is killed externally, for example by the kernel when memory
runs out, the worker's call is retried once. The overhead of a call is 0.1 to 0.2 ms.

Workers are confined: they have a minimal environment without API keys, and produce no output except their values.
Memory, CPU time, file size (0), open files, processes and core dumps are limited. An empty, read-only folder serves as
the home and working directory. An audit hook forbids starting processes, signaling other processes, using sockets,
reading /proc, and writing, moving or deleting files.

Confinement protects against accidents and model output. It is **not a sandbox** and does not protect against a
determined attacker. Python code can deliberately bypass the hook and then corrupt later calls in that worker.
Confinement has further limitations:

- On macOS, the kernel does not support the memory limit, so only the wall-time limit bounds memory use.
- For root (the usual user in containers), the process limit and the folder's read-only mode do not apply, but the audit
  hook still does.
- For other users, the process limit is 0. On Linux, threads count as processes, so a target cannot start threads.
- On all systems, files can be read, and a child process that was started in spite of the hook and left the process
  group outlives its worker.

If the parent is killed, idle workers exit immediately (when their input ends), and busy workers exit at most a second
after their time limit. The workers' empty folder then remains in the temporary directory.
"""

import atexit
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NoReturn, Self

from rg_env.core.child_main import ParentPipe
from rg_env.core.processes import JsonProcess, ProcessEndedError, bare_environment
from rg_env.errors import InputError, RGEnvError

MAX_REPLY_BYTES = 65_536
"""Maximum size of a value as JSON, in bytes. A call that returns a larger value has the status "raised". The limit is
low because reading a reply holds the GIL."""
MAX_REQUEST_BYTES = 16 * 2**20
"""Maximum size of a call's arguments as JSON, in bytes. Encoding more than about 1 MB holds the GIL for over 5 ms."""
DETAIL_CHARS = 300
"""Maximum length of an outcome's detail in characters."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A call's result."""

    status: Literal["ok", "raised", "timed_out", "died"]
    """ok: the target returned. raised: the target raised an exception, or its value is not JSON or is too large.
    timed_out: the worker was killed at its time limit. died: the worker ended or violated the protocol during the
    call (twice, if it was killed externally), or no worker could be started."""
    value: Any = None
    """The target's value after a round trip through JSON, or None if `status` is not ok. The value is untrusted, so
    check its type."""
    detail: str = ""
    """The reason for a status other than ok, on one line of at most a few hundred characters; empty if `status` is
    ok."""


class Worker:
    """The parent's side of one worker. Only the thread that has taken the worker from the pool may use it, except to
    call `process.signal_kill`."""

    def __init__(self, target: str, settings: bytes, environment: dict[str, str], start_s: float) -> None:
        self._target = target
        self._ready_by = time.monotonic() + start_s
        self._is_ready = False
        self.called = set[bytes]()
        """The `first` calls that returned (see `WorkerPool.call`)."""
        self.process = JsonProcess("rg_env.core.grading.workers:serve", environment, folder=environment["HOME"])
        with contextlib.suppress(ProcessEndedError):  # `wait_ready` reports this error
            self.process.send_line(settings, self._ready_by)

    def wait_ready(self) -> None:
        """Wait until the worker has started. Raises `InputError` or `RGEnvError`, after which the worker is
        unusable."""
        if self._is_ready:
            return
        try:
            started = self.exchange(b"", max(self._ready_by, time.monotonic() + 0.01))
        except TimeoutError:
            raise RGEnvError(f"a worker for {self._target} was not ready in time: increase start_s") from None
        except ProcessEndedError as error:
            raise RGEnvError(f"a worker for {self._target} ended during start-up: {error}") from None
        if started.status != "ok":
            raise InputError(f"workers for {self._target} cannot start: {started.detail}")
        self._is_ready = True

    def exchange(self, request: bytes, deadline: float) -> Outcome:
        """Send `request`, if any, and wait for the reply. Raises `TimeoutError` or `ProcessEndedError`."""
        if request:
            self.process.send_line(request, deadline)
        try:
            reply = self.process.receive(deadline, MAX_REPLY_BYTES + 12 * DETAIL_CHARS)
            match [reply, self.process.unread]:
                case [["ok", value], False]:
                    return Outcome("ok", value)
                case [["raised", str(detail)], False]:
                    return Outcome("raised", None, detail[:DETAIL_CHARS])
            raise ValueError("malformed, or more than one reply")
        except (ValueError, RecursionError) as error:
            return Outcome("died", None, f"the worker's reply is invalid: {error}"[:DETAIL_CHARS])


class WorkerPool:
    """A pool of worker processes that call `target` ("module:function"), with one spare to replace a killed worker.

    Args:
        workers: maximum number of concurrent calls. The default is the number of CPUs, but at most 4.
        wall_s: time limit per call in seconds, not counting the wait for a free worker.
        memory_mb: MiB of address space available to calls, in addition to the space used by the imported target (Linux
            only).
        warmup: "module:function", called with `warmup_args` in each new worker before the limits apply.
        start_s: time limit for importing the target and warming up, and for each `first` call, in seconds.

    The constructor waits until the first worker is ready.

    Raises:
        InputError: the target or warmup cannot be imported, or the warmup raises an exception.
        RGEnvError: a worker cannot be started, or the first worker is not ready within `start_s`.
    """

    def __init__(
        self,
        target: str,
        *,
        workers: int | None = None,
        wall_s: float = 1.0,
        memory_mb: int = 1024,
        warmup: str | None = None,
        warmup_args: Sequence[Any] = (),
        start_s: float = 30.0,
    ) -> None:
        workers = min(4, os.cpu_count() or 1) if workers is None else workers
        self.target, self.workers = target, workers
        self._wall_s, self._start_s = wall_s, start_s
        settings = [target, warmup, list(warmup_args), memory_mb, start_s]
        self._settings = json.dumps(settings).encode()
        self._pid = os.getpid()
        self._closed = False
        self._slots = threading.Semaphore(workers)
        self._idle: deque[Worker] = deque()
        """Idle workers. The most recently used worker is taken first, and new workers are added at the other end."""
        self._all: set[Worker] = set()
        self._folder = tempfile.mkdtemp(prefix="rg-env-worker-")
        os.chmod(self._folder, 0o500)
        atexit.register(self.close)
        try:
            for _ in range(workers + 1):
                self._idle.appendleft(self._start())
            self._idle[-1].wait_ready()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise RGEnvError(f"workers for {target} cannot be started: {error}") from error
            raise

    def call(self, *args: Any, first: Sequence[Any] = ()) -> Outcome:
        """Call `target(*args)` in a worker, and block until the call ends. This method is thread-safe.

        Each worker calls `target(*first)` once, before the first call that needs it, with `start_s` as time limit. If
        this call fails, its outcome is returned.

        Raises:
            InputError: `args` cannot be encoded as JSON, or are larger than `MAX_REQUEST_BYTES`.
            RGEnvError: the pool is closed, or was created before this process was forked.
        """
        try:
            # The JSON is pure ASCII, so lone surrogates and null bytes survive.
            request = json.dumps([self._wall_s, args]).encode()
            preparation = json.dumps([self._start_s, first]).encode() if first else b""
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"arguments for {self.target} cannot be encoded as JSON: {error}") from error
        if len(request) > MAX_REQUEST_BYTES:
            size = f"{len(request)} bytes, more than {MAX_REQUEST_BYTES}"
            raise InputError(f"arguments for {self.target} are too large: {size}")
        if os.getpid() != self._pid:
            raise RGEnvError(
                f"the worker pool for {self.target} belongs to the parent process; create one after the fork"
            )
        with self._slots:
            outcome, was_killed = self._called(request, preparation)
            if was_killed:
                outcome, _ = self._called(request, preparation)
            if outcome.status == "died" and self._closed:
                raise self._closed_error()
            return outcome

    def close(self) -> None:
        """Kill and reap all workers. Waiting and running calls raise `RGEnvError`. This method is idempotent."""
        if self._closed or os.getpid() != self._pid:  # in a forked child, calls may hold slots forever
            return
        self._closed = True
        for worker in list(self._all):
            worker.process.signal_kill()
        for _ in range(self.workers):  # each running call ends its worker and then releases its slot
            self._slots.acquire()
        for worker in list(self._all):
            self._end(worker)
        self._slots.release(self.workers)
        os.chmod(self._folder, 0o700)
        shutil.rmtree(self._folder, ignore_errors=True)
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _closed_error(self) -> RGEnvError:
        return RGEnvError(f"the worker pool for {self.target} is closed")

    def _called(self, request: bytes, preparation: bytes) -> tuple[Outcome, bool]:
        """Return a request's outcome, and whether to retry the request because its worker was killed externally or
        could not be started."""
        try:
            worker = self._taken()
        except (RGEnvError, OSError) as error:
            return Outcome("died", None, f"no worker could be started: {error}"[:DETAIL_CHARS]), not self._closed
        outcome, was_killed, limit_s = Outcome("died"), False, self._start_s
        try:
            if preparation and preparation not in worker.called:
                outcome = worker.exchange(preparation, time.monotonic() + limit_s)
                if outcome.status != "ok":
                    return outcome, False
                worker.called.add(preparation)
            limit_s = self._wall_s
            outcome = worker.exchange(request, time.monotonic() + limit_s)
        except TimeoutError:
            outcome = Outcome("timed_out", None, f"killed after {limit_s:g} s")
        except ProcessEndedError as error:
            outcome = Outcome("died", None, f"the worker ended: {error.end}")
            was_killed = error.code in (-signal.SIGKILL, -signal.SIGTERM)
        finally:
            if outcome.status in ("ok", "raised"):
                self._idle.append(worker)
            else:  # the worker is also ended after Ctrl-C because its reply is still pending
                self._replace(worker)
        return outcome, was_killed and not self._closed

    def _taken(self) -> Worker:
        """Return a ready worker, after replacing any idle or starting workers that were killed externally."""
        failed = RGEnvError("every worker was killed")
        for _ in range(self.workers + 2):
            if self._closed:
                raise self._closed_error()
            try:
                worker = self._idle.pop()
            except IndexError:  # earlier replacements could not be started
                worker = self._start()
            try:
                worker.wait_ready()
                if worker.process.is_silent():
                    return worker
            except RGEnvError as error:
                failed = error
            self._replace(worker)
        raise failed

    def _replace(self, worker: Worker) -> None:
        self._end(worker)
        if not self._closed:
            with contextlib.suppress(OSError):  # the next call tries again to start a replacement
                self._idle.appendleft(self._start())

    def _start(self) -> Worker:
        environment = {**bare_environment(), "HOME": self._folder, "TMPDIR": self._folder}
        worker = Worker(self.target, self._settings, environment, self._start_s)
        self._all.add(worker)
        return worker

    def _end(self, worker: Worker) -> None:
        worker.process.kill()
        self._all.discard(worker)


# The worker's side

_ALARM_MARGIN_S = 1.0
_OPEN_FILES = 64
_OS_ALLOWED = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.putenv", "os.unsetenv"}
_REFUSED = ("os.", "subprocess.", "socket.", "shutil.", "pty.", "sqlite3.", "ctypes.dl")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def serve() -> NoReturn:
    """Run a worker: receive the settings, report that the worker is ready, and then answer each request."""
    parent = ParentPipe()
    target, warmup, warmup_args, memory_mb, start_s = parent.receive()
    signal.setitimer(signal.ITIMER_REAL, start_s + _ALARM_MARGIN_S)
    try:
        function = _imported(target)
        if warmup:
            _imported(warmup)(*warmup_args)
    except BaseException as error:
        parent.send(["raised", _line(error)])
        os._exit(1)
    _confine(memory_mb)
    os.dup2(0, 2)  # stderr is discarded from now on, like stdout
    signal.setitimer(signal.ITIMER_REAL, 0)
    parent.send(["ok", None])
    while True:
        limit_s, args = parent.receive()
        # The parent kills the worker after `limit_s`. If the parent is gone, this alarm ends the worker, even if the
        # GIL is held.
        signal.setitimer(signal.ITIMER_REAL, limit_s + _ALARM_MARGIN_S)
        signal.setitimer(signal.ITIMER_PROF, limit_s + 2)  # CPU time; see `core.data.items.limit_cpu`
        try:
            reply = ["ok", function(*args)]
            if (size := len(json.dumps(reply))) > MAX_REPLY_BYTES:
                raise ValueError(f"the value has {size} bytes as JSON, more than {MAX_REPLY_BYTES}")
        except BaseException as error:
            reply = ["raised", _line(error)]
        signal.setitimer(signal.ITIMER_REAL, 0)
        parent.send(reply)


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found = getattr(import_module(module), function)
    if not callable(found):
        raise TypeError(f"{name} is not callable")
    return found


def _confine(memory_mb: int) -> None:
    """Apply the limits. Call this function after all imports, which write bytecode and need more files and memory than
    calls do."""
    sys.dont_write_bytecode = True
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, _OPEN_FILES)]
    if os.geteuid() != 0:  # the process limit does not apply to root
        limits.append((resource.RLIMIT_NPROC, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        limits.append((resource.RLIMIT_AS, used + memory_mb * 2**20))
    for limit, value in limits:
        _limit(limit, value)
    sys.addaudithook(_refuse)


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    """Act as the audit hook: raise PermissionError for operations that a pure function does not need."""
    if event == "open":
        path, _, flags = args
        if isinstance(path, int) or path is None:
            return
        where = os.path.realpath(os.fsdecode(path))
        if not flags & _WRITES and not where.startswith("/proc/"):  # /proc exposes the parent's environment
            return
    elif event in _OS_ALLOWED or not event.startswith(_REFUSED) or (event, args[:1]) == ("os.killpg", (0,)):
        return  # `ParentPipe` uses `os.killpg` to kill its own process group
    raise PermissionError(f"{event} is not allowed in a worker")


def _line(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = "an error that cannot be printed"
    return " ".join(text[:DETAIL_CHARS].split())
