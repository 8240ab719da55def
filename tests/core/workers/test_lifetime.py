"""How pools begin and end, and what must not be left behind."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from worker_pools import is_running, pids_of, script, stat_of, until

from rg_env.core.grading.workers import WorkerPool
from rg_env.errors import InputError, RGEnvError


def test_closing_ends_everything() -> None:
    """Calls that run or wait raise, no process is left, not even a zombie, and the pool cannot be used again."""
    pool = WorkerPool("worker_targets:do", workers=2, wall_s=60)
    errors: list[BaseException] = []

    def call() -> None:
        try:
            pool.call("sleep", 60)
        except RGEnvError as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    pids = pids_of(pool)
    assert len(pids) == 3
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 1
    for thread in threads:
        thread.join()
    assert {str(error) for error in errors} == {"the worker pool for worker_targets:do is closed"}
    assert len(errors) == 5
    assert [stat_of(pid) for pid in pids] == ["", "", ""]
    assert not os.path.exists(pool._folder)
    pool.close()
    with pytest.raises(RGEnvError, match="is closed"):
        pool.call("echo", 1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target": "no_such_module:f"}, InputError, "cannot start: ModuleNotFoundError: No module named"),
        ({"target": "json:no_such"}, InputError, "cannot start: AttributeError: module 'json' has no"),
        ({"target": "json:__name__"}, InputError, "cannot start: TypeError: json:__name__ is not callable"),
        ({"target": "json:dumps", "warmup": "json:loads"}, InputError, "cannot start: TypeError: loads"),
        ({"target": "hangs:f", "start_s": 0.3}, RGEnvError, "a worker for hangs:f was not ready in time"),
        ({"target": "ends:f"}, RGEnvError, "ended during start-up: exit code 3: .*the reason"),
    ],
    ids=str,
)
def test_pools_that_cannot_start(folder: Path, options: dict[str, Any], error: type[Exception], message: str) -> None:
    """The error is one line with the reason, and nothing is left running."""
    (folder / "hangs.py").write_text("import time\ntime.sleep(60)\n", encoding="utf-8")
    (folder / "ends.py").write_text(
        "import os, sys\nprint('the reason', file=sys.stderr, flush=True)\nos._exit(3)\n", encoding="utf-8"
    )
    children = ["ps", "-o", "ppid=", "-A"]
    mine = str(os.getpid())
    before = subprocess.run(children, capture_output=True, text=True).stdout.split().count(mine)
    with pytest.raises(error, match=message) as caught:
        WorkerPool(**options)
    assert "\n" not in str(caught.value)
    assert subprocess.run(children, capture_output=True, text=True).stdout.split().count(mine) == before


def test_nothing_outlives_a_killed_parent(folder: Path) -> None:
    """Idle workers and spares end at once, a hanging one within a second of its limit, also if a forked child lives."""
    code = """
threading.Thread(target=pool.call, args=("spin",), daemon=True).start()
time.sleep(0.1)
child = os.fork()
if not child:
    os.closerange(0, 3)
    time.sleep(60)
    os._exit(0)
print(child, *pids, flush=True)
time.sleep(60)
"""
    with script(folder, code) as (process, (child, *pids)):
        assert len(pids) == 3
        process.kill()
        assert until(lambda: sum(map(is_running, pids)) <= 1, 1.0)
        assert until(lambda: not any(map(is_running, pids)), 3.0)
        assert is_running(child)
        os.kill(child, signal.SIGKILL)


def test_ctrl_c(folder: Path) -> None:
    """The program ends with its own traceback only, and takes the workers along."""
    code = """
print(*pids, flush=True)
pool.call("sleep", 60)
"""
    # An interrupt while a call times out has a second traceback: that of the timeout.
    with script(folder, code, wall_s=60) as (process, pids):
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=10)
        assert stderr.count("Traceback") == stderr.count("KeyboardInterrupt") == 1
        assert [stat_of(pid) for pid in pids] == [""] * 3


def test_forked_children_have_no_pool(folder: Path) -> None:
    """They get an error instead of the parent's workers, and leave these alone when they end."""
    code = """
child = os.fork()
if not child:
    try:
        pool.call("echo", 1)
    except RGEnvError as error:
        pool.close()
        sys.exit(0 if "make one after the fork" in str(error) else 1)
    os._exit(2)
_, status = os.waitpid(child, 0)
print(status, int(pool.call("echo", 1).status == "ok"), flush=True)
"""
    with script(folder, code) as (process, printed):
        _, stderr = process.communicate(timeout=10)
        assert (printed, stderr) == ([0, 1], "")
