"""Programs that are forked from a process which has imported their modules."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from worker_pools import is_running, until

from rg_env.core import fork_server
from rg_env.core.fork_server import ForkServer
from rg_env.core.processes import Command, ProcessGroup, python_module

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux are orphans adopted by an ancestor")
LIBRARY = "open('imported', 'a').write('once\\n')\n"
PROGRAM = """
import atexit, json, os, sys, time, warnings
import library
atexit.register(print, "at exit")
what, *arguments = sys.argv[1:]
if what == "describe":
    open_files = [os.readlink(f"/proc/self/fd/{each}") for each in sorted(os.listdir("/proc/self/fd"), key=int)[3:-1]]
    found = [__name__, __file__, sys.argv, os.getcwd(), sys.stdin.read(), os.getsid(0) == os.getpgrp() == os.getpid()]
    print(json.dumps([*found, os.environ["KEY"], os.getppid(), open_files]))
if what == "exits":
    sys.exit(int(arguments[0]))
if what == "raises":
    raise ValueError(arguments[0])
if what == "waits":
    print(os.getpid())
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: Callable[..., None]) -> Path:
    """A folder with a library, which notes its imports, and a program. It is on the path of all programs, but not the
    working directory."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "library.py").write_text(LIBRARY)
    (folder / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    environ(KEY="secret", PYTHONPATH=str(folder), PYTHONWARNINGS=None)
    return folder


@pytest.fixture
def server(modules: Path) -> Iterator[ForkServer]:
    server = ForkServer(["library"])
    yield server
    server.kill()


def test_forks_share_imports_but_are_programs_of_their_own(server: ForkServer, modules: Path, tmp_path: Path) -> None:
    """Each runs as `python -m` would: with its arguments, environment and an empty input, in its own session, as a
    child of this process. It does not inherit the server's pipes. Exit codes, exceptions and exit handlers work."""
    log = tmp_path / "log"
    log.write_text("earlier\n")
    found = []
    for arguments in (["describe", "é", "", "a b"], ["exits", "3"], ["raises", "why"], ["exits", "0"]):
        program = ProcessGroup(python_module("program", *arguments), log, fork=server.start)
        found.append((program.wait(30), program.code, program.new_lines()))
    codes, again, lines = zip(*found, strict=True)
    assert codes == again == (0, 3, 1, 0)
    name, file, argv, folder, stdin, leads, key, parent, open_files = json.loads(lines[0][0])
    assert (name, file) == ("__main__", str(modules / "program.py"))
    assert argv == [file, "describe", "é", "", "a b"]
    assert (folder, stdin, leads, key, parent) == (str(tmp_path), "", True, "secret", os.getpid())
    assert open_files == []
    assert lines[2][-2:] == ["ValueError: why", "at exit"]
    assert lines[1] == lines[3] == lines[0][1:] == ["at exit"]
    assert log.read_text().startswith("earlier\n")
    assert (tmp_path / "imported").read_text() == "once\n"


def test_signals(server: ForkServer, tmp_path: Path) -> None:
    """A program can be interrupted, and its end by a signal is reported. Killing the server does not end it."""
    first = ProcessGroup(python_module("program", "waits"), tmp_path / "first", fork=server.start)
    second = ProcessGroup(python_module("program", "waits"), tmp_path / "second", fork=server.start)
    assert until(lambda: all((tmp_path / name).read_text() for name in ("first", "second")))
    server.kill()
    assert (first.wait(0.2), second.code) == (None, None)
    first.interrupt()
    assert first.wait(30) == 130
    second.end(lambda: 5.0)
    assert second.code == 128 + signal.SIGTERM


def test_programs_end_with_the_process_that_asked(modules: Path, tmp_path: Path) -> None:
    """This holds even if that process is killed. The server ends, too. A program can be interrupted even if that
    process ignores SIGINT, as a shell's background jobs do."""
    program = """
import os, signal, sys, time
from pathlib import Path
from rg_env.core import fork_server
from rg_env.core.fork_server import ForkServer
from rg_env.core.processes import ProcessGroup, python_module
signal.signal(signal.SIGINT, signal.SIG_IGN)
server = ForkServer(["library"])
first, second = [ProcessGroup(python_module("program", "waits"), Path(name), fork=server.start) for name in "ab"]
while not Path("a").read_text(): time.sleep(0.01)
first.interrupt()
print(first.wait(30), server._process.pid, second._process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        code, *pids = [int(each) for each in parent.stdout.readline().split()]
        assert code == 130
        assert all(map(is_running, pids))
        parent.kill()
    assert until(lambda: not any(map(is_running, pids)))


def test_what_cannot_be_forked_is_a_new_program(server: ForkServer, modules: Path, tmp_path: Path) -> None:
    """That is another program, a program with variables of its own, or any program if an import fails or there is a
    GPU."""

    def lines(command: Command, fork: ForkServer) -> list[str]:
        program = ProcessGroup(command, tmp_path / "log", fork=fork.start)
        assert program.wait(30) == 0
        return program.new_lines()

    assert lines(Command((sys.executable, "-c", "import sys; print('library' in sys.modules)")), server) == ["False"]
    prints = "import os, sys; print('json.tool' in sys.modules, os.environ.get('MORE'))"
    (modules / "prints.py").write_text(prints)
    module = python_module("prints")
    for name, text in (("torch", "class accelerator: is_available = staticmethod(lambda: True)"), ("broken", "1 / 0")):
        (modules / f"{name}.py").write_text(text)
        failed = ForkServer(["json.tool", name])
        assert lines(module, failed) == lines(module, failed) == ["False None"]
        failed.kill()
    (modules / "torch.py").write_text("class accelerator: is_available = staticmethod(lambda: False)")
    without_gpu = ForkServer(["json.tool", "torch"])
    assert lines(module, without_gpu) == ["True None"]
    assert lines(Command(module.arguments, {"MORE": "1"}), without_gpu) == ["False 1"]
    without_gpu.kill()
    assert lines(module, without_gpu) == ["False None"]


CANNOT_FORK = "import os; os.fork = lambda: 1 / 0"
CANNOT_FORK_TWICE = """
import os
fork = os.fork
def first():
    os.fork = lambda: 1 / 0
    return fork()
os.fork = first
"""
NAMES_ANOTHER = "import os; print('READY'); print(os.getppid())".replace("READY", json.dumps(fork_server._READY))


@pytest.mark.parametrize(
    "first",
    [CANNOT_FORK, CANNOT_FORK_TWICE, "print('hello')", "print(1)", NAMES_ANOTHER],
    ids=["cannot fork", "cannot fork twice", "prints", "prints JSON", "names another process"],
)
def test_a_server_that_fails_is_replaced_by_new_programs(modules: Path, first: str) -> None:
    """It may be unable to fork. A program that runs first in every interpreter may print what looks like a reply."""
    (modules / "sitecustomize.py").write_text(first)
    broken = ForkServer(["library"])
    for _ in range(2):
        program = ProcessGroup(python_module("program", "exits", "7"), Path("log"), fork=broken.start)
        assert program._process.ppid() == os.getpid()
        assert program.wait(30) == 7
    assert not broken.is_importing()
    broken.kill()


def test_a_server_that_does_not_answer(server: ForkServer, modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been killed or stopped, or there was no room to start it."""
    command = python_module("program", "exits", "0")
    assert ProcessGroup(command, Path("log"), fork=server.start).wait(30) == 0
    os.kill(server._process.pid, signal.SIGKILL)  # type: ignore[union-attr]
    assert server.start(command, Path("log")) is None
    monkeypatch.setattr(fork_server, "_REPLY_S", 0.2)
    silent = ForkServer(["library"])
    assert until(lambda: not silent.is_importing())
    os.kill(silent._process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
    assert silent.start(command, Path("log")) is None

    def full() -> None:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    none = ForkServer(["library"])
    assert none.start(command, Path("log")) is None
    none.kill()


@pytest.mark.parametrize("warnings", [None, "default", "error"])
def test_a_fork_finds_and_shows_what_a_new_program_does(
    modules: Path, environ: Callable[..., None], warnings: str | None
) -> None:
    """The import path, in which the working directory is missing, and the filters of warnings are the same."""
    Path("only_here.py").touch()
    environ(PYTHONWARNINGS=warnings)
    text = "import gc, json, sys, warnings; from importlib.util import find_spec; warnings.warn('careful')\n"
    text += "print(json.dumps([sys.path, sys.warnoptions, find_spec('only_here') is None, gc.isenabled()]))"
    (modules / "shows.py").write_text(text)
    server = ForkServer(["library"])
    found = []
    for fork in (server.start, None):
        program = ProcessGroup(python_module("shows"), Path("log"), fork=fork)
        code, shown = program.wait(30), program.new_lines()
        found.append((code, "careful" in "\n".join(shown), shown[-1]))
    server.kill()
    assert found[0] == found[1]
    assert found[0][:2] == (int(warnings == "error"), True)
    assert warnings == "error" or json.loads(found[0][2])[2:] == [True, True]


def test_waiting_for_slow_imports(modules: Path) -> None:
    """`is_importing` returns at once, so that a signal can be handled while the modules are imported."""
    (modules / "slow.py").write_text("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n")
    server = ForkServer(["slow"])
    try:
        assert server.is_importing()
        Path("go").touch()
        assert until(lambda: not server.is_importing())
    finally:
        server.kill()
