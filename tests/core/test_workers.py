"""The worker pool, with real processes: what targets may do to it, and what must not be left behind."""

import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rg_env.core.worker_handle import Worker
from rg_env.core.workers import MAX_REQUEST_BYTES, Outcome, WorkerPool
from rg_env.errors import InputError, RGEnvError

TARGETS = '''
import os, pathlib, re, resource, socket, sqlite3, subprocess, sys, tempfile, time

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
def leave(): raise SystemExit(0)
def end(code): os._exit(code)
def no_json(): return {1, 2}
def huge(size): return "x" * size
def environ(): return [dict(os.environ), os.getcwd(), os.listdir(), os.listdir(os.environ["HOME"])]
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


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("targets")
    (folder / "worker_targets.py").write_text(TARGETS, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[WorkerPool]:
    with WorkerPool("worker_targets:do", workers=1, wall_s=0.5, memory_mb=256, warmup="worker_targets:warm") as pool:
        yield pool


def _stat(pid: int) -> str:
    """The state of a process as `ps` gives it; empty if there is none."""
    return subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()


def _is_running(pid: int) -> bool:
    return _stat(pid)[:1] not in ("", "Z")  # nobody may reap orphans in a container


def _until(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    end = time.monotonic() + timeout_s
    while not (held := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return held


def _pids(pool: WorkerPool) -> list[int]:
    return [worker._process.pid for worker in pool._all]


def _value(outcome: Outcome) -> Any:
    assert outcome.status == "ok", outcome
    return outcome.value


@contextlib.contextmanager
def _script(folder: Path, code: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A program that makes a pool, runs `code` and prints ids of processes; then it waits."""
    head = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {str(folder)!r})
from rg_env.core.workers import WorkerPool
from rg_env.errors import RGEnvError
pool = WorkerPool("worker_targets:do", workers=2, wall_s=0.5)
pids = [worker._process.pid for worker in pool._all]
"""
    command = [sys.executable, "-W", "ignore", "-c", head + code]
    environment = {**os.environ, "TMPDIR": str(folder)}  # a parent that is killed leaves the pool's folder
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, [int(pid) for pid in process.stdout.readline().split()]
        finally:
            process.kill()


@pytest.mark.parametrize(
    "value", [1, 0.1, None, True, "é\0\ud800\U0001f600", [1, [2]], {"a": {"b": []}}, "", 10**300, "x" * 60_000]
)
def test_values_come_back(pool: WorkerPool, value: Any) -> None:
    """Arguments and values pass as they are, also null bytes and lone surrogates."""
    outcome = pool.call("echo", value, 2)
    assert outcome == Outcome("ok", [value, 2], "", outcome.seconds)
    assert 0 < outcome.seconds < 0.5


@pytest.mark.parametrize(
    ("action", "detail"),
    [
        (("fail", "no\nsuch \ud800 thing"), "ValueError: no such \ud800 thing"),
        (("fail", "x" * 1000), "ValueError: " + "x" * 288),
        (("fail", "\U0001f600" * 1000), "ValueError: " + "\U0001f600" * 288),
        (("leave",), "SystemExit: 0"),
        (("unprintable",), "an error that cannot be printed"),
        (("no_json",), "TypeError: Object of type set is not JSON serializable"),
        (("huge", 65_536), "ValueError: the value has 65546 bytes as JSON, more than 65536"),
        (("huge", 20_000_000), "ValueError: the value has 20000010 bytes as JSON, more than 65536"),
    ],
)
def test_targets_that_raise(pool: WorkerPool, action: tuple[Any, ...], detail: str) -> None:
    """What a target raises, and a value that cannot be sent, is told in one short line; the worker lives on."""
    pid = _value(pool.call("pid"))
    outcome = pool.call(*action)
    assert (outcome.status, outcome.value, outcome.detail) == ("raised", None, detail)
    assert _value(pool.call("pid")) == pid


@pytest.mark.parametrize("action", [("sleep", 60), ("spin",)])
def test_hanging_calls_are_killed_on_time(pool: WorkerPool, action: tuple[Any, ...]) -> None:
    """Also where the target never releases the GIL."""
    pid = _value(pool.call("pid"))
    outcome = pool.call(*action)
    assert (outcome.status, outcome.detail) == ("timed_out", "killed after 0.5 s")
    assert 0.5 <= outcome.seconds < 0.9
    assert _stat(pid) == ""
    assert _value(pool.call("echo", 1)) == [1]


def test_the_spare_saves_the_import(folder: Path) -> None:
    """After a kill the next call does not wait until another worker has imported the target."""
    (folder / "slow_target.py").write_text("import time\ntime.sleep(0.6)\nsleep = time.sleep\n", encoding="utf-8")
    with WorkerPool("slow_target:sleep", workers=1, wall_s=0.2) as pool:
        time.sleep(0.3)  # the spare starts with the others, and may be ready a little later
        assert pool.call(60).status == "timed_out"
        begin = time.monotonic()
        assert pool.call(0).status == "ok"
        assert time.monotonic() - begin < 0.4


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no limit on address space")
def test_memory_is_limited(pool: WorkerPool) -> None:
    """A target that eats memory gets a MemoryError, and the worker goes on."""
    outcome = pool.call("eat")
    assert (outcome.status, outcome.detail) == ("raised", "MemoryError:")
    assert _value(pool.call("echo", 1)) == [1]


@pytest.mark.parametrize("code", ESCAPES)
def test_no_files_processes_sockets(pool: WorkerPool, tmp_path: Path, code: str) -> None:
    """Writing, moving, deleting, starting processes, signals to others, sockets: refused, also to root."""
    file = tmp_path / "file"
    file.write_text("kept", encoding="utf-8")
    outcome = pool.call("attempt", code.format(path=str(tmp_path / "escaped"), file=str(file), folder=str(tmp_path)))
    assert outcome.status == "raised"
    assert "is refused in a worker" in outcome.detail
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert os.listdir(pool._folder) == []


def test_writing_past_the_hook(pool: WorkerPool, folder: Path) -> None:
    """The limits hold as well: a file that was open before them takes no byte."""
    names = {"FSIZE": 0, "CORE": 0, "NOFILE": 64} | ({"NPROC": 0} if os.geteuid() else {})
    assert {name: _value(pool.call("limit", name)) for name in names} == {name: [n, n] for name, n in names.items()}
    (folder / "opens.py").write_text(
        f"file = open({str(folder / 'log')!r}, 'wb', 0)\nwrite = lambda: file.write(b'x')\n", encoding="utf-8"
    )
    with WorkerPool("opens:write", workers=1) as other:
        assert "File too large" in other.call().detail
    assert (folder / "log").read_bytes() == b""


def test_files_can_be_read_but_not_proc(pool: WorkerPool, folder: Path) -> None:
    """Graders load data files; the environment of the parent is in /proc."""
    assert pool.call("attempt", f"open({str(folder / 'worker_targets.py')!r}).read()").status == "ok"
    if sys.platform == "linux":
        assert "refused" in pool.call("attempt", "open(f'/proc/{os.getppid()}/environ')").detail


def test_the_environment_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys, an empty home, an empty working directory."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("LC_TIME", "C")
    with WorkerPool("worker_targets:do", workers=1) as pool:
        environ, cwd, files, files_at_home = _value(pool.call("environ"))
        assert "sk-secret" not in str(environ)
        assert environ["LC_TIME"] == "C"
        assert environ["PYTHONHASHSEED"] == "0"
        assert {"HOME", "PATH"} <= set(environ)
        assert os.path.realpath(environ["HOME"]) == os.path.realpath(cwd) == os.path.realpath(pool._folder)
        assert files == files_at_home == []
    assert not os.path.exists(pool._folder)


def test_output_does_not_disturb(pool: WorkerPool, capfd: pytest.CaptureFixture[str]) -> None:
    """Prints go nowhere, stdin is empty."""
    assert _value(pool.call("talk")) == ""
    assert _value(pool.call("echo", 1)) == [1]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("\xff" * 10, id="too long"),
        pytest.param("\0\0\0\2{}{}", id="more than one"),
        pytest.param("\0\0\0\4null", id="null"),
        pytest.param('\0\0\0\x0c["raised",1]', id="no detail"),
        pytest.param("\0\0\0\1[", id="no JSON"),
        pytest.param("\0\0\0\2\xff\xff", id="no UTF-8"),
        pytest.param("\0" * 4, id="empty"),
        pytest.param("\0\0\xea\x60" + "[" * 60_000, id="deep"),
    ],
)
def test_forged_replies(pool: WorkerPool, data: str) -> None:
    """A target that writes to the protocol's pipe is killed; nothing it wrote is more than a failed call."""
    outcome = pool.call("meddle", data)
    assert outcome.status == "died"
    assert outcome.detail.startswith("the worker sent no valid reply")
    assert _value(pool.call("echo", 1)) == [1]


def test_workers_that_end(pool: WorkerPool) -> None:
    """The end of a worker is the outcome of the call that it was in, and tells the exit code; it is not made again."""
    outcome = pool.call("end", 7)
    assert (outcome.status, outcome.detail) == ("died", "the worker ended: exit code 7")


@pytest.mark.parametrize(("kills", "status"), [(1, "ok"), (2, "died")])
def test_workers_killed_in_a_call(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, kills: int, status: str) -> None:
    """By someone else: the call is made once more; what ends with a second worker, too, may be the call's own doing."""
    killed = []
    call = Worker.call

    def killed_call(worker: Worker, *args: Any) -> Outcome:
        if len(killed) < kills:
            killed.append(worker._process.pid)
            threading.Timer(0.1, worker.signal).start()
        return call(worker, *args)

    monkeypatch.setattr(Worker, "call", killed_call)
    outcome = pool.call("sleep", 0.3)
    assert outcome.status == status
    if status == "died":
        assert outcome.detail.startswith("the worker ended: signal 9 (Killed")
    assert len(set(killed)) == kills
    assert [_stat(pid) for pid in killed] == [""] * kills
    assert _value(pool.call("echo", 1)) == [1]


def test_a_thousand_calls_while_workers_are_killed() -> None:
    """Any of them, also one that is starting, every 50 ms: each call comes to an end, and the pool serves on."""
    over = threading.Event()
    killed: set[int] = set()

    def kill(pool: WorkerPool) -> None:
        while not over.wait(0.05):
            worker = random.choice(list(pool._all))
            killed.add(worker._process.pid)
            worker.signal()

    async def main(pool: WorkerPool) -> list[Outcome]:
        return await asyncio.gather(*(pool.acall("sleep", 0.002) for _ in range(1000)))

    with WorkerPool("worker_targets:do", workers=2, wall_s=5) as pool:
        killer = threading.Thread(target=kill, args=(pool,))
        killer.start()
        outcomes = asyncio.run(main(pool))
        over.set()
        killer.join()
        statuses = [outcome.status for outcome in outcomes]
        assert set(statuses) <= {"ok", "died"}
        assert statuses.count("ok") > 900
        assert len(killed) > 3
        assert [_value(pool.call("echo", i)) for i in range(4)] == [[i] for i in range(4)]
    assert [_stat(pid) for pid in killed] == [""] * len(killed)


def test_workers_killed_between_calls(pool: WorkerPool) -> None:
    """No call suffers, not even when the spares are gone as well."""
    pool.call("echo", 1)
    for pid in _pids(pool):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.05)
    assert _value(pool.call("echo", 1)) == [1]


def test_children_die_with_their_worker(folder: Path) -> None:
    """The whole process group is killed: at the wall limit, and at close."""
    code = "import subprocess, time\nchild = subprocess.Popen(['sleep', '60'])\n"
    code += "def pid(s): time.sleep(s); return child.pid"
    (folder / "parents.py").write_text(code, encoding="utf-8")
    with WorkerPool("parents:pid", workers=1, wall_s=0.3) as pool:
        first = _value(pool.call(0))
        assert _is_running(first)
        assert pool.call(60).status == "timed_out"
        assert _until(lambda: not _is_running(first))
        second = _value(pool.call(0))
        assert _is_running(second)
    assert _until(lambda: not _is_running(second))


def test_warm_up_runs_once_in_each_worker(pool: WorkerPool) -> None:
    """What a warm-up did is there for all calls."""
    assert _value(pool.call("counts"))[1] == 1


def test_a_thousand_calls_at_once() -> None:
    """From one event loop, with no more files open than the workers have."""
    fd_folder = "/dev/fd"

    async def main(pool: WorkerPool) -> list[Outcome]:
        tasks = [asyncio.create_task(pool.acall("echo", i)) for i in range(1000)]
        await asyncio.sleep(0)
        assert len(os.listdir(fd_folder)) <= before + 10  # those of the event loop, too
        return await asyncio.gather(*tasks)

    before = len(os.listdir(fd_folder))
    with WorkerPool("worker_targets:do", workers=2, wall_s=5) as pool:
        before += 1 + 2 * 3  # the log, two pipes for each process
        assert [_value(outcome) for outcome in asyncio.run(main(pool))] == [[i] for i in range(1000)]
    assert len(os.listdir(fd_folder)) <= before - 7


def test_many_threads(pool: WorkerPool) -> None:
    """`call` may come from any thread."""
    values: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda i=i: values.update({i: pool.call("echo", i).value})) for i in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {i: [i] for i in range(50)}


def test_the_event_loop_runs_on(pool: WorkerPool) -> None:
    """While a call hangs, is killed and its worker replaced."""

    async def main() -> list[float]:
        gaps = []
        call = asyncio.create_task(pool.acall("sleep", 60))
        while not call.done():
            begin = time.monotonic()
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - begin)
        assert (await call).status == "timed_out"
        return gaps

    gaps = asyncio.run(main())
    assert statistics.median(gaps) < 0.005
    assert max(gaps) < 0.2  # a machine under load has pauses of its own


def test_cancelled_calls(pool: WorkerPool) -> None:
    """One that waits is never made; one that runs ends unseen; the others come to their end."""

    async def main() -> None:
        count = _value(await pool.acall("counts"))[0]
        running = asyncio.create_task(pool.acall("sleep", 0.2))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(pool.acall("echo", i)) for i in range(10)]
        await asyncio.sleep(0.05)
        running.cancel()
        for task in waiting[1:]:
            task.cancel()
        assert _value(await waiting[0]) == [0]
        assert _value(await pool.acall("counts"))[0] == count + 1
        results = await asyncio.gather(running, *waiting, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError, Outcome] + [asyncio.CancelledError] * 9

    asyncio.run(main())


def test_large_arguments() -> None:
    """10 MB pass; more than `MAX_REQUEST_BYTES` is refused before anything is sent."""
    with WorkerPool("worker_targets:do", workers=1, wall_s=10) as pool:
        assert _value(pool.call("length", "x" * 10_000_000)) == 10_000_000
        with pytest.raises(InputError, match=r"arguments for worker_targets:do are too large: 16777\d\d\d bytes"):
            pool.call("length", "x" * MAX_REQUEST_BYTES)


@pytest.mark.parametrize("argument", [{1, 2}, object(), b"bytes", [10**5000]])
def test_arguments_that_are_no_json(pool: WorkerPool, argument: Any) -> None:
    """An error of the caller, so no outcome."""
    with pytest.raises(InputError, match="arguments for worker_targets:do are no JSON"):
        pool.call("echo", argument)


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
    pids = _pids(pool)
    assert len(pids) == 3
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 1
    for thread in threads:
        thread.join()
    assert {str(error) for error in errors} == {"the worker pool for worker_targets:do is closed"}
    assert len(errors) == 5
    assert [_stat(pid) for pid in pids] == ["", "", ""]
    assert not os.path.exists(pool._folder)
    pool.close()
    with pytest.raises(RGEnvError, match="is closed"):
        pool.call("echo", 1)
    with pytest.raises(RGEnvError, match="is closed"):
        asyncio.run(pool.acall("echo", 1))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target": "json"}, InputError, "not of the form 'module:function'"),
        ({"target": "no_such_module:f"}, InputError, "cannot start: ModuleNotFoundError: No module named"),
        ({"target": "json:no_such"}, InputError, "cannot start: AttributeError: module 'json' has no"),
        ({"target": "json:__name__"}, InputError, "cannot start: TypeError: json:__name__ is not callable"),
        ({"target": "json:dumps", "warmup": "json:loads"}, InputError, "cannot start: TypeError: loads"),
        ({"target": "json:dumps", "workers": 0}, InputError, "workers = 0 of a worker pool: must be positive"),
        ({"target": "json:dumps", "wall_s": float("inf")}, InputError, "wall_s = inf of a worker pool: must be"),
        ({"target": "hangs:f", "start_s": 0.3}, RGEnvError, "a worker for hangs:f was not ready in time"),
        ({"target": "ends:f"}, RGEnvError, "ended during start-up: exit code 3: .*the reason"),
    ],
    ids=str,
)
def test_pools_that_cannot_start(folder: Path, options: dict[str, Any], error: type[Exception], message: str) -> None:
    """One line that says why; nothing is left."""
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
    with _script(folder, code) as (process, (child, *pids)):
        assert len(pids) == 3
        process.kill()
        assert _until(lambda: sum(map(_is_running, pids)) <= 1, 1.0)
        assert _until(lambda: not any(map(_is_running, pids)), 3.0)
        assert _is_running(child)
        os.kill(child, signal.SIGKILL)


def test_ctrl_c(folder: Path) -> None:
    """The program ends with its own traceback only, and takes the workers along."""
    code = """
print(*pids, flush=True)
pool.call("sleep", 0.4)
while True:
    pool.call("sleep", 0.4)
"""
    with _script(folder, code) as (process, pids):
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=10)
        assert stderr.count("Traceback") == stderr.count("KeyboardInterrupt") == 1
        assert [_stat(pid) for pid in pids] == [""] * 3


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
    with _script(folder, code) as (process, printed):
        _, stderr = process.communicate(timeout=10)
        assert (printed, stderr) == ([0, 1], "")
