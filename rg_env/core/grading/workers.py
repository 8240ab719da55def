"""Worker processes for functions that are unsafe with untrusted text. The parent can kill them.

    with WorkerPool("my_package.graders:grade", wall_s=1.0) as pool:
        outcome = pool.call("42", {"answer": "41"})
        if outcome.status == "ok": ...                         # else "raised", "timed_out" or "died"

The function is imported in fresh interpreters (no fork, no `__main__` guard) and called with JSON values over pipes.
Pickle is never used: a compromised worker may return a wrong value, but cannot run code in the parent. Arguments and
values go through JSON: tuples become lists, keys become strings, and NaN is preserved. After `wall_s` seconds, a call's
worker and its whole process group are killed, and a warm spare replaces it. If something else kills a worker, such as
the kernel when memory runs out, its call is retried once. A call's overhead is 0.1 to 0.2 ms.

Workers are confined: they have a minimal environment without API keys; no output except their value; limits on memory,
CPU time, file size (0), open files, processes and core dumps; and a read-only empty folder as home and working
directory. An audit hook forbids writing, moving or deleting files, reading /proc, starting processes, signaling other
processes, and using sockets.

This protects against accidents and against model output, not against an expert: it is **not a sandbox**. Python code
that deliberately bypasses the hook will succeed, and may then corrupt later calls in that worker. Limitations:
- macOS: no memory limit, because the kernel does not support it; only the wall limit bounds memory use.
- root (in most containers): the process limit and the folder's mode do not apply; the audit hook still does.
- other users: the process limit is 0, and on Linux it counts threads, so a target cannot start threads.
- everywhere: files can be read; a child that bypassed the hook and left the process group outlives its worker.
If the parent is killed, idle workers end immediately (end of file), and busy ones at most a second after their
`wall_s`. An empty folder remains in the temporary directory.
"""

import atexit
import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from rg_env.core.grading.worker_process import DETAIL_CHARS
from rg_env.core.processes import JsonProcess, bare_environment
from rg_env.errors import InputError, RGEnvError

Status = Literal["ok", "raised", "timed_out", "died"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A call's result."""

    status: Status
    """ok: the target returned. raised: it raised, or its value is not JSON or too large. timed_out: killed at the wall
    limit. died: the worker ended or violated the protocol during the call (twice, if it was killed externally), or
    no worker could be started."""
    value: Any
    """The target's value after a round trip through JSON; None unless ok. Untrusted: check its type."""
    detail: str
    """The reason in one line of at most a few hundred characters; empty if ok."""
    seconds: float
    """Duration of the call in a worker in seconds, including the transfer of arguments and value."""


class Worker:
    """The parent's side of one worker. Only the thread that holds it may use it, except for `process.signal_kill`.

    was_killed: whether a call ended because something else killed the process.
    """

    was_killed = False

    def __init__(self, target: str, settings: bytes, environment: dict[str, str], start_s: float) -> None:
        self._target = target
        self._ready_by = time.monotonic() + start_s
        self._is_ready = False
        self.process = JsonProcess("rg_env.core.grading.worker_process:serve", environment, folder=environment["HOME"])
        with contextlib.suppress(OSError):  # already dead; `wait_ready` reports it
            self.process.send_line(settings, self._ready_by)

    def wait_ready(self) -> None:
        """Wait until the worker has started. Raises `InputError` or `RGEnvError`; the worker is then unusable."""
        if self._is_ready:
            return
        try:
            status, _, detail = self._reply(max(self._ready_by, time.monotonic() + 0.01))
        except TimeoutError:
            raise RGEnvError(f"a worker for {self._target} was not ready in time: raise start_s") from None
        except (OSError, EOFError, ValueError, RecursionError):
            self.process.kill()
            end, message = self.process.end, self.process.last_error
            raise RGEnvError(f"a worker for {self._target} ended during start-up: {end}: {message}") from None
        if status != "ok":
            raise InputError(f"workers for {self._target} cannot start: {detail}")
        self._is_ready = True

    def call(self, request: bytes, wall_s: float) -> Outcome:
        """Make a call. After any outcome except ok and raised, the process has been killed and reaped."""
        begin = time.monotonic()
        status: Status = "timed_out"
        detail = f"killed after {wall_s:g} s"
        try:
            self.process.send_line(request, begin + wall_s)
            status, value, detail = self._reply(begin + wall_s)
            return Outcome(status, value, detail, time.monotonic() - begin)
        except TimeoutError:
            self.process.kill()
        except (OSError, EOFError):
            self.process.kill()
            status, detail = "died", f"the worker ended: {self.process.end}"
            self.was_killed = self.process.code in (-signal.SIGKILL, -signal.SIGTERM)
        except (ValueError, RecursionError) as error:
            self.process.kill()
            status, detail = "died", f"the worker sent no valid reply: {error}"[:DETAIL_CHARS]
        return Outcome(status, None, detail, time.monotonic() - begin)

    def _reply(self, deadline: float) -> tuple[Literal["ok", "raised"], Any, str]:
        """Status, value and detail of a reply. Raises as `JsonProcess.receive`."""
        reply = self.process.receive(deadline, MAX_REPLY_BYTES + 12 * DETAIL_CHARS)
        if self.process.unread:
            raise ValueError("there is more than one")
        match reply:
            case ["ok", value]:
                return "ok", value, ""
            case ["raised", str(detail)]:
                return "raised", None, detail[:DETAIL_CHARS]
        raise ValueError("it has the wrong form")


MAX_REPLY_BYTES = 65_536
"""Maximum size of a value as JSON; a larger one counts as raised. Reading a reply holds the GIL, so it is small."""
MAX_REQUEST_BYTES = 16 * 2**20
"""Maximum size of a call's arguments as JSON. From about 1 MB on, encoding them holds the GIL for over 5 ms."""


class WorkerPool:
    """A pool of worker processes that call `target` ("module:function"), with one spare to replace a killed worker.

    Args:
        workers: maximum number of concurrent calls; default: the number of CPUs, at most 4.
        wall_s: time limit per call in seconds, without waiting for a free worker.
        memory_mb: MiB of address space for calls in addition to the imported target (Linux only).
        warmup: "module:function", called with `warmup_args` in each new worker before the limits apply.
        start_s: time limit for importing the target and warming up, in seconds.

    The constructor waits until the first worker is ready.

    Raises:
        InputError: the target or warmup cannot be imported or raises.
        RGEnvError: workers do not start within `start_s`.
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
        settings = [target, warmup, list(warmup_args), wall_s, memory_mb, start_s, MAX_REPLY_BYTES]
        self._settings = json.dumps(settings).encode()
        self._pid = os.getpid()
        self._closed = False
        self._slots = threading.Semaphore(workers)
        self._idle: deque[Worker] = deque()
        """Idle workers. The most recently used one is taken first; new ones are added at the other end."""
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

    def call(self, *args: Any) -> Outcome:
        """Call `target(*args)` in a worker, and block until it is done. Thread-safe.

        Raises:
            InputError: `args` are not JSON, or larger than `MAX_REQUEST_BYTES`.
            RGEnvError: the pool is closed, or was created before this process was forked.
        """
        try:
            request = json.dumps(args).encode()  # pure ASCII, so lone surrogates and null bytes survive
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"arguments for {self.target} are not JSON: {error}") from error
        if len(request) > MAX_REQUEST_BYTES:
            size = f"{len(request)} bytes, more than {MAX_REQUEST_BYTES}"
            raise InputError(f"arguments for {self.target} are too large: {size}")
        if os.getpid() != self._pid:
            raise RGEnvError(f"the worker pool for {self.target} is the parent process's: make one after the fork")
        with self._slots:
            if self._closed:
                raise self._closed_error()
            outcome, again = self._called(request)
            if again:
                outcome, _ = self._called(request)
            if outcome.status == "died" and self._closed:
                raise self._closed_error()
            return outcome

    def close(self) -> None:
        """Kill and reap all workers. Waiting and running calls raise `RGEnvError`. Idempotent."""
        if self._closed or os.getpid() != self._pid:  # a forked child, where calls may hold slots forever
            return
        self._closed = True
        for worker in list(self._all):
            worker.process.signal_kill()
        for _ in range(self.workers):  # each call ends the worker it has
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

    def _called(self, request: bytes) -> tuple[Outcome, bool]:
        """A request's outcome, and whether to retry it because something else killed its worker."""
        try:
            worker = self._taken()
        except (RGEnvError, OSError, IndexError) as error:
            return Outcome("died", None, f"no worker could be started: {error}"[:DETAIL_CHARS], 0.0), not self._closed
        lives = False
        try:
            outcome = worker.call(request, self._wall_s)
            lives = outcome.status in ("ok", "raised")
            return outcome, worker.was_killed and not self._closed
        finally:
            if lives:
                self._idle.append(worker)
            else:  # after Ctrl-C too, because a reply is still pending
                self._replace(worker)

    def _taken(self) -> Worker:
        """A ready worker. Idle and starting ones may have been killed externally."""
        failed: RGEnvError | None = None
        for _ in range(self.workers + 2):
            if self._closed:
                raise self._closed_error()
            worker = self._idle.pop() if self._idle else self._start()
            try:
                worker.wait_ready()
                if worker.process.is_silent():
                    return worker
            except RGEnvError as error:
                failed = error
            self._replace(worker)
        raise failed or RGEnvError("each was killed")

    def _replace(self, worker: Worker) -> None:
        self._end(worker)
        if not self._closed:
            with contextlib.suppress(OSError):  # the next call tries again
                self._idle.appendleft(self._start())

    def _start(self) -> Worker:
        environment = {**bare_environment(), "HOME": self._folder, "TMPDIR": self._folder}
        worker = Worker(self.target, self._settings, environment, self._start_s)
        self._all.add(worker)
        return worker

    def _end(self, worker: Worker) -> None:
        worker.process.kill()
        self._all.discard(worker)
