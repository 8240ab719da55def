"""One worker process, from its parent's side: see `core.workers`."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, Any, Literal

from rg_env.core.worker_process import DETAIL_CHARS, framed
from rg_env.errors import InputError, RGEnvError

Status = Literal["ok", "raised", "timed_out", "died"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one call."""

    status: Status
    """ok: the target returned; raised: it raised, or its value is no JSON or too large; timed_out: it was killed at
    the wall limit; died: the worker ended or broke the protocol during the call (twice, if it was killed from outside),
    or none could be started for it."""
    value: Any
    """What the target returned, as JSON gives it back; None unless ok. Untrusted: check its type."""
    detail: str
    """Why, in one line of at most a few hundred characters; empty if ok."""
    seconds: float
    """From when a worker was given the call until its end, transfer of arguments and value included."""


class Worker:
    """The parent's side of one process. Only the thread that has it may use it, except `signal`.

    was_killed: a call ended because someone else killed the process.
    """

    was_killed = False

    def __init__(
        self,
        target: str,
        environment: dict[str, str],
        *,
        folder: str,
        log: IO[bytes],
        start_s: float,
        max_reply_bytes: int,
    ) -> None:
        self._target = target
        self._log = log
        self._max_reply_bytes = max_reply_bytes
        self._ready_by = time.monotonic() + start_s
        self._lock = threading.Lock()
        self._is_ready = False
        self._reaped = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from rg_env.core.worker_process import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=folder,
            env=environment,
            bufsize=0,
            start_new_session=True,  # killed as a group; Ctrl-C in the terminal does not reach it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin.fileno()
        self._replies = self._process.stdout.fileno()
        self._writable, self._readable = select.poll(), select.poll()
        self._writable.register(self._requests, select.POLLOUT)
        self._readable.register(self._replies, select.POLLIN)
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)

    def send_settings(self, settings: bytes) -> None:
        with contextlib.suppress(OSError):  # dead already: `wait_ready` says so
            self._send(settings, self._ready_by)

    def wait_ready(self) -> None:
        """Wait for the end of the start-up. Raises `InputError` or `RGEnvError`; the worker is of no use then."""
        if self._is_ready:
            return
        try:
            status, _, detail = _parsed(self._receive(max(self._ready_by, time.monotonic() + 0.01)))
        except TimeoutError:
            raise RGEnvError(f"a worker for {self._target} was not ready in time: raise start_s") from None
        except (OSError, EOFError, ValueError, RecursionError):
            self.kill()
            said = " ".join(os.pread(self._log.fileno(), 2**20, 0).decode(errors="replace").split())
            said = said[-DETAIL_CHARS:] or "it said nothing"
            raise RGEnvError(f"a worker for {self._target} ended during start-up: {self._end()}: {said}") from None
        if status != "ok":
            raise InputError(f"workers for {self._target} cannot start: {detail}")
        self._is_ready = True

    def call(self, request: bytes, wall_s: float) -> Outcome:
        """After any outcome but ok and raised the process has been killed and reaped."""
        begin = time.monotonic()
        status: Status = "timed_out"
        detail = f"killed after {wall_s:g} s"
        try:
            self._send(request, begin + wall_s)
            status, value, detail = _parsed(self._receive(begin + wall_s))
            return Outcome(status, value, detail, time.monotonic() - begin)
        except TimeoutError:
            self.kill()
        except (OSError, EOFError):
            self.kill()
            status, detail = "died", f"the worker ended: {self._end()}"
            self.was_killed = self._process.returncode in (-signal.SIGKILL, -signal.SIGTERM)
        except (ValueError, RecursionError) as error:
            self.kill()
            status, detail = "died", f"the worker sent no valid reply: {error}"[:DETAIL_CHARS]
        return Outcome(status, None, detail, time.monotonic() - begin)

    def is_idle(self) -> bool:
        """Between calls there is nothing to read; anything else is end of file, or bytes nobody asked for."""
        return not self._readable.poll(0)

    def signal(self) -> None:
        """Kill the process and all of its group, without waiting for it."""
        with self._lock:
            if not self._reaped:  # until then its id cannot be another's
                with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a zombie
                    os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the whole group, reap the process, close the pipes."""
        self.signal()
        with self._lock:
            self._process.wait()
            self._reaped = True
        self.close_pipes()

    def close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def abandon(self) -> None:
        """In a forked child: it is not ours to kill, but must see the end of file when its parent ends."""
        self.close_pipes()
        self._process.returncode = 0  # or Popen warns that it still runs

    def _end(self) -> str:
        code = self._process.returncode
        return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"

    def _send(self, payload: bytes, deadline: float) -> None:
        data = memoryview(framed(payload))
        while data:
            try:
                data = data[os.write(self._requests, data) :]
            except BlockingIOError:
                _wait(self._writable, deadline)

    def _receive(self, deadline: float) -> bytes:
        """The payload of exactly one message. Raises TimeoutError, EOFError, OSError, or ValueError for bad bytes."""
        data = bytearray()
        size = 4
        while len(data) < size:
            _wait(self._readable, deadline)
            chunk = os.read(self._replies, 65_536)
            if not chunk:
                raise EOFError
            data += chunk
            if len(data) >= 4:
                size = 4 + int.from_bytes(data[:4], "big")
                if size > 4 + self._max_reply_bytes + 12 * DETAIL_CHARS or len(data) > size:
                    raise ValueError("it is too long")
        return bytes(data[4:])


def _wait(poll: "select.poll", deadline: float) -> None:
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


def _parsed(payload: bytes) -> tuple[Literal["ok", "raised"], Any, str]:
    """Status, value and detail of a reply. Raises ValueError or RecursionError if it is anything else."""
    match json.loads(payload):
        case ["ok", value]:
            return "ok", value, ""
        case ["raised", str(detail)]:
            return "raised", None, detail[:DETAIL_CHARS]
    raise ValueError("it has the wrong form")
