"""Workers that are killed, by the pool or by others, or that end: what becomes of their calls."""

import contextlib
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from worker_pools import is_running, pids_of, stat_of, until, value_of

from rg_env.core.grading.workers import WorkerPool


@pytest.mark.parametrize("action", [("sleep", 60), ("spin",)])
def test_hanging_calls_are_killed_on_time(pool: WorkerPool, action: tuple[Any, ...]) -> None:
    """Also where the target never releases the GIL."""
    pid = value_of(pool.call("pid"))
    begin = time.monotonic()
    outcome = pool.call(*action)
    assert (outcome.status, outcome.detail) == ("timed_out", "killed after 0.5 s")
    assert 0.5 <= time.monotonic() - begin < 0.9
    assert stat_of(pid) == ""
    assert value_of(pool.call("echo", 1)) == [1]


def test_the_spare_saves_the_import(folder: Path) -> None:
    """After a kill the next call does not wait until another worker has imported the target."""
    (folder / "slow_target.py").write_text("import time\ntime.sleep(0.6)\nsleep = time.sleep\n", encoding="utf-8")
    with WorkerPool("slow_target:sleep", workers=1, wall_s=0.2) as pool:
        time.sleep(0.3)  # the spare starts with the others, and may be ready a little later
        assert pool.call(60).status == "timed_out"
        begin = time.monotonic()
        assert pool.call(0).status == "ok"
        assert time.monotonic() - begin < 0.4


def test_workers_that_end(pool: WorkerPool) -> None:
    """The end of a worker is the outcome of its call, with the exit code; the call is not repeated."""
    outcome = pool.call("end", 7)
    assert (outcome.status, outcome.detail) == ("died", "the worker ended: exit code 7")


def test_workers_killed_in_a_call(pool: WorkerPool) -> None:
    """By someone else: the call is made once more; what ends with a second worker, too, may be the call's own doing."""
    first = [value_of(pool.call("pid"))]
    assert pool.call("die", first).status == "ok"
    everyone = pids_of(pool)
    outcome = pool.call("die", everyone)
    assert outcome.status == "died"
    assert outcome.detail.startswith("the worker ended: signal 9 (Killed")
    assert [stat_of(pid) for pid in first + everyone] == [""] * 3
    assert value_of(pool.call("echo", 1)) == [1]


def test_a_thousand_calls_while_workers_are_killed() -> None:
    """Any of them, also one that is starting, every 50 ms: each call comes to an end, and the pool serves on."""
    over = threading.Event()
    killed: set[int] = set()

    def kill(pool: WorkerPool) -> None:
        while not over.wait(0.05):
            pid = random.choice(pids_of(pool))
            killed.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    with WorkerPool("worker_targets:do", workers=2, wall_s=5) as pool, ThreadPoolExecutor(8) as threads:
        killer = threading.Thread(target=kill, args=(pool,))
        killer.start()
        statuses = [outcome.status for outcome in threads.map(lambda _: pool.call("sleep", 0.002), range(1000))]
        over.set()
        killer.join()
        assert set(statuses) <= {"ok", "died"}
        assert statuses.count("ok") > 900
        assert len(killed) > 3
        assert [value_of(pool.call("echo", i)) for i in range(4)] == [[i] for i in range(4)]
    assert [stat_of(pid) for pid in killed] == [""] * len(killed)


def test_workers_killed_between_calls(pool: WorkerPool) -> None:
    """No call suffers, not even when the spares are gone as well."""
    pool.call("echo", 1)
    for pid in pids_of(pool):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.05)
    assert value_of(pool.call("echo", 1)) == [1]


def test_children_die_with_their_worker(folder: Path) -> None:
    """The whole process group is killed: at the wall limit, and at close."""
    code = "import subprocess, time\nchild = subprocess.Popen(['sleep', '60'])\n"
    code += "def pid(s): time.sleep(s); return child.pid"
    (folder / "parents.py").write_text(code, encoding="utf-8")
    with WorkerPool("parents:pid", workers=1, wall_s=0.3) as pool:
        first = value_of(pool.call(0))
        assert is_running(first)
        assert pool.call(60).status == "timed_out"
        assert until(lambda: not is_running(first))
        second = value_of(pool.call(0))
        assert is_running(second)
    assert until(lambda: not is_running(second))
