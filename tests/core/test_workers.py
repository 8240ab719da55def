"""Worker pools, with real processes: calls, restrictions on targets, and how workers and pools end."""

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from worker_pools import TARGETS, is_running, pids_of, script, stat_of, until, value_of

from rg_env.core.grading.workers import MAX_REQUEST_BYTES, Outcome, WorkerPool
from rg_env.errors import InputError, RGEnvError


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("targets")
    (folder / "worker_targets.py").write_text(TARGETS, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[WorkerPool]:
    with WorkerPool("worker_targets:do", workers=1, wall_s=20, memory_mb=256, warmup="worker_targets:warm") as pool:
        yield pool


# Calls: arguments, values, errors, many at once


@pytest.mark.parametrize(
    "value", [1, 0.1, None, True, "é\0\ud800\U0001f600", [1, [2]], {"a": {"b": []}}, "", 10**300, "x" * 60_000]
)
def test_values_come_back(pool: WorkerPool, value: Any) -> None:
    """Arguments and values pass unchanged, including null bytes and lone surrogates."""
    assert pool.call("echo", value, 2) == Outcome("ok", [value, 2])


@pytest.mark.parametrize(
    ("action", "detail"),
    [
        (("fail", "no\nsuch \ud800 thing"), "ValueError: no such \ud800 thing"),
        (("fail", "\U0001f600" * 1000), "ValueError: " + "\U0001f600" * 288),
        (("unprintable",), "an error that cannot be printed"),
        (("no_json",), "TypeError: Object of type set is not JSON serializable"),
        (("huge", 65_536), "ValueError: the value has 65546 bytes as JSON, more than 65536"),
    ],
)
def test_targets_that_raise(pool: WorkerPool, action: tuple[Any, ...], detail: str) -> None:
    """An exception of the target, or a value that cannot be sent, becomes one short line in the outcome. The worker
    survives."""
    pid = value_of(pool.call("pid"))
    outcome = pool.call(*action)
    assert (outcome.status, outcome.value, outcome.detail) == ("raised", None, detail)
    assert value_of(pool.call("pid")) == pid


def test_output_is_discarded(pool: WorkerPool, capfd: pytest.CaptureFixture[str]) -> None:
    """Prints are discarded, including those of the warm-up, which runs once; stdin is empty."""
    assert value_of(pool.call("counts"))[1] == 1
    assert value_of(pool.call("talk")) == ""
    assert value_of(pool.call("echo", 1)) == [1]
    assert capfd.readouterr() == ("", "")


def test_arguments_must_be_json_of_limited_size(pool: WorkerPool) -> None:
    """Arguments of 10 MB are accepted. Larger ones, and values that JSON lacks, are the caller's mistake, so the call
    raises an error instead of returning an outcome."""
    assert value_of(pool.call("length", "x" * 10_000_000)) == 10_000_000
    with pytest.raises(InputError, match=r"arguments for worker_targets:do are too large: 16777\d\d\d bytes"):
        pool.call("length", "x" * MAX_REQUEST_BYTES)
    for argument in ({1, 2}, object(), b"bytes", [10**5000]):
        with pytest.raises(InputError, match="arguments for worker_targets:do cannot be encoded as JSON"):
            pool.call("echo", argument)


# Restrictions on targets

ESCAPES = [
    "open('escaped', 'w')",
    "open({path!r}, 'w')",
    "open({path!r}, 'ab')",
    "os.open({path!r}, os.O_CREAT | os.O_RDONLY)",
    "pathlib.Path({path!r}).touch()",
    "os.mkdir({path!r})",
    "os.symlink('/', {path!r})",
    "os.rename({file!r}, {path!r})",
    "os.remove({file!r})",
    "tempfile.NamedTemporaryFile(dir={folder!r})",
    "sqlite3.connect({path!r})",
    "os.fork()",
    "os.system('touch ' + {path!r})",
    "os.posix_spawn('/bin/sh', ['sh', '-c', 'touch ' + {path!r}], {{}})",
    "os.execv('/bin/sh', ['sh', '-c', 'touch ' + {path!r}])",
    "subprocess.run(['touch', {path!r}])",
    "socket.socket()",
    "os.kill(os.getppid(), 9)",
    "__import__('ctypes').CDLL(None).getpid",
]


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no limit on address space")
def test_memory_is_limited(pool: WorkerPool) -> None:
    """A target that uses too much memory gets a MemoryError, and the worker survives."""
    outcome = pool.call("eat")
    assert (outcome.status, outcome.detail) == ("raised", "MemoryError:")
    assert value_of(pool.call("echo", 1)) == [1]


def test_cpu_time_is_limited_by_call(pool: WorkerPool) -> None:
    """The kernel's count of a process's CPU time can be far ahead of the process's own, so a limit on the total could
    end any later call."""
    for _ in range(2):
        assert 20 < value_of(pool.call("cpu_left")) < 22.1
    assert value_of(pool.call("limit", "CPU")) == list(resource.getrlimit(resource.RLIMIT_CPU))


@pytest.mark.parametrize("code", ESCAPES)
def test_targets_cannot_use_files_processes_or_sockets(pool: WorkerPool, tmp_path: Path, code: str) -> None:
    """Writing, moving and deleting files, starting processes, signaling others and opening sockets are refused, even as
    root."""
    file = tmp_path / "file"
    file.write_text("kept", encoding="utf-8")
    outcome = pool.call("attempt", code.format(path=str(tmp_path / "escaped"), file=str(file), folder=str(tmp_path)))
    assert outcome.status == "raised"
    assert "is not allowed in a worker" in outcome.detail
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert os.listdir(pool._folder) == []


def test_writing_past_the_hook(pool: WorkerPool, folder: Path) -> None:
    """Resource limits apply as well: not even a file that was opened before them can be written to."""
    names = {"FSIZE": 0, "CORE": 0, "NOFILE": 64} | ({"NPROC": 0} if os.geteuid() else {})
    assert {name: value_of(pool.call("limit", name)) for name in names} == {name: [n, n] for name, n in names.items()}
    (folder / "opens.py").write_text(
        f"file = open({str(folder / 'log')!r}, 'wb', 0)\nwrite = lambda: file.write(b'x')\n", encoding="utf-8"
    )
    with WorkerPool("opens:write", workers=1) as other:
        assert "File too large" in other.call().detail
    assert (folder / "log").read_bytes() == b""


def test_files_can_be_read_but_not_proc(pool: WorkerPool, folder: Path) -> None:
    """Graders load data files, but /proc contains the parent's environment."""
    assert pool.call("attempt", f"open({str(folder / 'worker_targets.py')!r}).read()").status == "ok"
    if sys.platform == "linux":
        assert "not allowed" in pool.call("attempt", "open(f'/proc/{os.getppid()}/environ')").detail


def test_the_environment_is_scrubbed() -> None:
    """A worker does not inherit its parent's variables. Its home and working directory are an empty folder, which is
    removed at the end."""
    assert "PYTEST_CURRENT_TEST" in os.environ
    with WorkerPool("worker_targets:do", workers=1) as pool:
        environ, cwd, files, files_at_home = value_of(pool.call("environ"))
        assert "PYTEST_CURRENT_TEST" not in environ
        assert environ["PYTHONHASHSEED"] == "0"
        assert {"HOME", "PATH"} <= set(environ)
        assert os.path.realpath(environ["HOME"]) == os.path.realpath(cwd) == os.path.realpath(pool._folder)
        assert files == files_at_home == []
    assert not os.path.exists(pool._folder)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("x" * 70_000, id="too long"),
        pytest.param('["ok",1]\n{}', id="more than one"),
        pytest.param("null\n", id="null"),
        pytest.param('["raised",1]\n', id="no detail"),
        pytest.param("[\n", id="no JSON"),
        pytest.param("\xff\xff\n", id="no UTF-8"),
        pytest.param("\n", id="empty"),
        pytest.param("[" * 60_000 + "\n", id="deep"),
    ],
)
def test_forged_replies(pool: WorkerPool, data: str) -> None:
    """A target that writes to the protocol's pipe can only make its own call fail."""
    outcome = pool.call("meddle", data)
    assert outcome.status == "died"
    assert outcome.detail.startswith("the worker's reply is invalid")
    assert value_of(pool.call("echo", 1)) == [1]


# Workers that are killed, by the pool or by others, or that end


def test_first_calls(pool: WorkerPool) -> None:
    """Each worker makes a first call once. If it fails, its outcome is the call's."""
    calls, _ = value_of(pool.call("counts", first=("echo", "first")))
    assert value_of(pool.call("counts", first=("echo", "first")))[0] == calls
    assert value_of(pool.call("counts", first=("echo", "other")))[0] == calls + 1
    assert pool.call("counts", first=("fail", "first")) == Outcome("raised", None, "ValueError: first")


@pytest.mark.parametrize("action", [("sleep", 60), ("spin",)])
def test_hanging_calls_are_killed_on_time(action: tuple[Any, ...]) -> None:
    """This includes a target that never releases the GIL. The next call gets the spare, which started before the kill
    and has imported the target, instead of a new worker."""
    with WorkerPool("worker_targets:do", workers=1, wall_s=1) as pool:
        pid, known = value_of(pool.call("pid")), pids_of(pool)
        begin = time.monotonic()
        assert pool.call(*action) == Outcome("timed_out", None, "killed after 1 s")
        assert 1 <= time.monotonic() - begin < 30
        assert stat_of(pid) == ""
        assert value_of(pool.call("pid")) in known


def test_workers_that_end(pool: WorkerPool) -> None:
    """If a worker ends, the outcome of its call has the exit code."""
    outcome = pool.call("end", 7)
    assert (outcome.status, outcome.detail) == ("died", "the worker ended: exit code 7")


def test_workers_killed_in_a_call(pool: WorkerPool) -> None:
    """If something else kills a worker, its call is repeated once. If the second worker is killed as well, the call
    itself may be the cause."""
    first = [value_of(pool.call("pid"))]
    assert pool.call("die", first).status == "ok"
    everyone = pids_of(pool)
    outcome = pool.call("die", everyone)
    assert outcome.status == "died"
    assert outcome.detail.startswith("the worker ended: signal 9 (Killed")
    assert [stat_of(pid) for pid in first + everyone] == [""] * 3
    assert value_of(pool.call("echo", 1)) == [1]


@pytest.mark.slow
def test_a_thousand_calls_while_workers_are_killed() -> None:
    """At every fortieth call, a worker is killed, possibly one that is starting. Every call returns, and the pool keeps
    working."""
    before, killed = len(os.listdir("/dev/fd")), set[int]()
    with WorkerPool("worker_targets:do", workers=2, wall_s=30) as pool, ThreadPoolExecutor(8) as threads:

        def call(number: int) -> str:
            if number % 40 == 0:
                killed.add(pid := random.choice(pids_of(pool)))
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            return pool.call("sleep", 0.002).status

        statuses = list(threads.map(call, range(1000)))
        assert set(statuses) <= {"ok", "died"}
        assert statuses.count("ok") > 900
        assert len(killed) > 3
        assert [value_of(pool.call("echo", i)) for i in range(4)] == [[i] for i in range(4)]
    assert [stat_of(pid) for pid in killed] == [""] * len(killed)
    assert len(os.listdir("/dev/fd")) <= before


def test_children_die_with_their_worker(folder: Path) -> None:
    """The entire process group is killed, both at the wall limit and on close."""
    code = "import subprocess, time\nchild = subprocess.Popen(['sleep', '60'])\n"
    code += "def pid(s): time.sleep(s); return child.pid"
    (folder / "parents.py").write_text(code, encoding="utf-8")
    with WorkerPool("parents:pid", workers=1, wall_s=1) as pool:
        first = value_of(pool.call(0))
        assert is_running(first)
        assert pool.call(60).status == "timed_out"
        assert until(lambda: not is_running(first), 120)
        second = value_of(pool.call(0))
        assert is_running(second)
    assert until(lambda: not is_running(second), 120)


# How pools start and end, and what must not be left behind


def test_closing_ends_everything() -> None:
    """Running and waiting calls raise an error, no process remains, not even as a zombie, and the pool cannot be used
    again."""
    pool = WorkerPool("worker_targets:do", workers=2, wall_s=60)
    with ThreadPoolExecutor(5) as threads:
        calls = [threads.submit(pool.call, "sleep", 60) for _ in range(5)]
        assert until(lambda: len(pool._idle) == 1, 30)  # two calls run, and only the spare is left
        pids = pids_of(pool)
        begin = time.monotonic()
        pool.close()
        assert time.monotonic() - begin < 30
        errors = [call.exception() for call in calls]
    assert all(isinstance(error, RGEnvError) for error in errors)
    assert {str(error) for error in errors} == {"the worker pool for worker_targets:do is closed"}
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
    """The error is one line with the reason, and no process keeps running."""
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
    """Idle workers and spares end, and so does a hanging one after its limit, even if a forked child of the parent
    lives on."""
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
        assert until(lambda: not any(map(is_running, pids)), 120)
        assert is_running(child)
        os.kill(child, signal.SIGKILL)


def test_ctrl_c_ends_the_program_and_its_workers(folder: Path) -> None:
    """The program shows only its own traceback."""
    code = """
print(*pids, flush=True)
pool.call("sleep", 60)
"""
    # The limit is long because an interrupt during a timeout shows a second traceback, that of the timeout.
    with script(folder, code, wall_s=60) as (process, pids):
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert stderr.count("Traceback") == stderr.count("KeyboardInterrupt") == 1
        assert [stat_of(pid) for pid in pids] == [""] * 3


def test_forked_children_have_no_pool(folder: Path) -> None:
    """A forked child gets an error instead of the parent's workers, and does not affect them when it ends."""
    code = """
child = os.fork()
if not child:
    try:
        pool.call("echo", 1)
    except RGEnvError as error:
        pool.close()
        sys.exit(0 if "create one after the fork" in str(error) else 1)
    os._exit(2)
_, status = os.waitpid(child, 0)
print(status, int(pool.call("echo", 1).status == "ok"), flush=True)
"""
    with script(folder, code) as (process, printed):
        _, stderr = process.communicate(timeout=60)
        assert (printed, stderr) == ([0, 1], "")
