"""What targets are kept from, with real processes."""

import os
import sys
from pathlib import Path

import pytest
from worker_pools import value_of

from rg_env.core.grading.workers import WorkerPool

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
    """A target that eats memory gets a MemoryError, and the worker lives on."""
    outcome = pool.call("eat")
    assert (outcome.status, outcome.detail) == ("raised", "MemoryError:")
    assert value_of(pool.call("echo", 1)) == [1]


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
    assert {name: value_of(pool.call("limit", name)) for name in names} == {name: [n, n] for name, n in names.items()}
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


def test_the_environment_is_scrubbed() -> None:
    """Nothing of the parent's, an empty home, an empty working directory."""
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
    """A target that writes to the protocol's pipe is killed; nothing it wrote is more than a failed call."""
    outcome = pool.call("meddle", data)
    assert outcome.status == "died"
    assert outcome.detail.startswith("the worker sent no valid reply")
    assert value_of(pool.call("echo", 1)) == [1]
