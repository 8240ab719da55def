"""Functions that worker pools call in tests, and helpers that inspect processes."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rg_env.core.child_main import ParentPipe
from rg_env.core.grading.workers import Outcome, WorkerPool

TARGETS = '''
import os, pathlib, re, resource, signal, socket, sqlite3, subprocess, sys, tempfile, time

calls = warmed = 0

def do(action, *args):
    """One target for most tests, so that they can share a pool."""
    return globals()[action](*args)

def echo(*args):
    global calls
    calls += 1
    return list(args)

def warm():
    global warmed
    warmed += 1
    print("noise during warm-up", flush=True)

def counts(): return [calls, warmed]
def pid(): return os.getpid()
def length(text): return len(text)
def sleep(seconds): time.sleep(seconds)
def fail(text): raise ValueError(text)
def end(code): os._exit(code)
def die(pids): os.getpid() in pids and os.killpg(0, 9)
def no_json(): return {1, 2}
def huge(size): return "x" * size
def environ(): return [dict(os.environ), os.getcwd(), os.listdir(), os.listdir(os.environ["HOME"])]
def cpu_left(): return signal.getitimer(signal.ITIMER_PROF)[0]
def limit(name): return resource.getrlimit(getattr(resource, "RLIMIT_" + name))
def spin(): re.match("(a+)+$", "a" * 60 + "b")  # never releases the GIL

def eat():
    eaten = []
    while True:
        eaten.append(bytes(10_000_000))  # takes address space only

def unprintable():
    class Odd(Exception):
        def __str__(self):
            raise OSError
    raise Odd

def talk():
    print("on stdout", flush=True)
    print("on stderr", file=sys.stderr, flush=True)
    os.write(1, b"x" * 100_000)
    return sys.stdin.read()

def meddle(data):
    for fd in range(3, 64):
        try:
            os.write(fd, data.encode("latin-1"))
        except OSError:
            pass

def attempt(code):
    exec(code, globals())
'''


def stat_of(pid: int) -> str:
    """Return the state of a process as `ps` reports it; empty if the process does not exist."""
    return subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()


def is_running(pid: int) -> bool:
    return stat_of(pid)[:1] not in ("", "Z")  # in a container, there may be no process that reaps orphans


def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    end = time.monotonic() + timeout_s
    while not (held := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return held


def pids_of(pool: WorkerPool) -> list[int]:
    return [worker.process.pid for worker in list(pool._all)]


def value_of(outcome: Outcome) -> Any:
    assert outcome.status == "ok", outcome
    return outcome.value


@contextlib.contextmanager
def script(folder: Path, code: str, wall_s: float = 0.5) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a program that creates a pool, runs `code`, prints process ids, and then waits."""
    head = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {str(folder)!r})
from rg_env.core.child_main import ParentPipe
from rg_env.core.grading.workers import WorkerPool
from rg_env.errors import RGEnvError
pool = WorkerPool("worker_targets:do", workers=2, wall_s={wall_s})
pids = [worker.process.pid for worker in pool._all]
"""
    command = [sys.executable, "-W", "ignore", "-c", head + code]
    environment = {**os.environ, "TMPDIR": str(folder)}  # because a killed parent does not remove the pool's folder
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, [int(pid) for pid in process.stdout.readline().split()]
        finally:
            process.kill()


def json_child() -> None:
    """Run as the main function of a `JsonProcess`: send back each value with what the process can see."""
    parent = ParentPipe()
    print("goes nowhere")
    while True:
        match parent.receive():
            case "sleep":
                time.sleep(60)
            case "end":
                sys.exit("the reason")
            case value:
                parent.send([value, sys.stdin.read(), os.environ.get("PYTEST_CURRENT_TEST"), os.getcwd()])
