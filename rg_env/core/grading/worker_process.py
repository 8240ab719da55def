"""The main program of a grading worker (`core.grading.workers`). It imports little, to keep startup fast."""

import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

from rg_env.core.child_process import ParentPipe

DETAIL_CHARS = 300
"""Maximum length of an outcome's detail in characters."""
_ALARM_MARGIN_S = 1.0
_OPEN_FILES = 64
_OS_ALLOWED = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.putenv", "os.unsetenv"}
_REFUSED = ("os.", "subprocess.", "socket.", "shutil.", "pty.", "sqlite3.", "ctypes.dl")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def serve() -> NoReturn:
    """The main function of a worker: it receives settings, replies "ready", and then answers each request."""
    parent = ParentPipe()
    target, warmup, warmup_args, wall_s, memory_mb, start_s, max_reply_bytes = parent.receive()
    signal.setitimer(signal.ITIMER_REAL, start_s + _ALARM_MARGIN_S)
    try:
        function = _imported(target)
        if warmup:
            _imported(warmup)(*warmup_args)
    except BaseException as error:
        parent.send(["raised", _line(error)])
        os._exit(1)
    _confine(memory_mb)
    os.dup2(0, 2)  # discarded, like 0 and 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    parent.send(["ok", None])
    cpu_limit_s = 0
    while True:
        request = parent.receive_line()
        # The parent kills at wall_s; this limit applies if it is gone. The signal works even if the GIL is held.
        signal.setitimer(signal.ITIMER_REAL, wall_s + _ALARM_MARGIN_S)
        cpu_s = math.ceil(time.process_time() + wall_s) + 2  # the limit counts from the start of the process
        if cpu_s != cpu_limit_s:
            _limit(resource.RLIMIT_CPU, cpu_s, is_final=False)
            cpu_limit_s = cpu_s
        try:
            reply = json.dumps(["ok", function(*json.loads(request))]).encode()
            if len(reply) > max_reply_bytes:
                raise ValueError(f"the value has {len(reply)} bytes as JSON, more than {max_reply_bytes}")
        except BaseException as error:
            reply = json.dumps(["raised", _line(error)]).encode()
        signal.setitimer(signal.ITIMER_REAL, 0)
        parent.send_line(reply)


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found = getattr(import_module(module), function)
    if not callable(found):
        raise TypeError(f"{name} is not callable")
    return found


def _confine(memory_mb: int) -> None:
    """Apply the limits, after all imports, which need more files and memory than calls do, and write bytecode."""
    import ctypes  # noqa: F401  (its import opens a library, which the hook refuses from here on)

    sys.dont_write_bytecode = True
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, _OPEN_FILES)]
    if os.geteuid() != 0:  # the limit does not apply to root
        limits.append((resource.RLIMIT_NPROC, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        limits.append((resource.RLIMIT_AS, used + memory_mb * 2**20))
    for limit, value in limits:
        _limit(limit, value)
    sys.addaudithook(_refuse)


def _limit(which: int, value: int, *, is_final: bool = True) -> None:
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value if is_final else hard))


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    """The audit hook: raises PermissionError for operations a pure function does not need."""
    if event == "open":
        path, _, flags = args
        if isinstance(path, int) or path is None:
            return
        where = os.path.realpath(os.fsdecode(path))
        if not flags & _WRITES and not where.startswith("/proc/"):  # /proc exposes the parent's environment
            return
    elif event in _OS_ALLOWED or not event.startswith(_REFUSED) or (event, args[:1]) == ("os.killpg", (0,)):
        return  # `ParentPipe` ends its own group
    raise PermissionError(f"{event} is refused in a worker")


def _line(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = "an error that cannot be printed"
    return " ".join(text[:DETAIL_CHARS].split())
