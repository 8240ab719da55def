"""Child processes: limited in time, terminated with their whole group, and never outliving their parent."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_code import run_code
from worker_pools import is_running, until

import rg_env
from rg_env.core.processes import (
    Command,
    JsonProcess,
    ProcessEndedError,
    ProcessGroup,
    bare_environment,
    ending_orphans,
    run,
    run_python,
)

SPAWNS = "import subprocess, sys, time; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True)\n"


@pytest.fixture
def child(tmp_path: Path) -> Iterator[JsonProcess]:
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    child = JsonProcess("worker_pools:json_child", bare_environment(), folder=str(tmp_path))
    yield child
    child.kill()


def test_values_of_a_json_process(child: JsonProcess, tmp_path: Path) -> None:
    """JSON values pass both ways. The child sees no secrets and no input, and neither its prints nor local files do any
    harm."""
    for value in ({"a": [1, None]}, "\ud800\0\n", "x" * 200_000):
        child.send(value, time.monotonic() + 30)
        assert child.receive(time.monotonic() + 30) == [value, "", None, str(tmp_path)]
    assert child.is_silent()
    child.kill()  # the fixture does so again


def test_a_json_process_that_hangs_or_ends(child: JsonProcess) -> None:
    """A missed deadline raises TimeoutError; a process that ends raises an error with the reason."""
    child.send("end")
    with pytest.raises(ProcessEndedError) as caught:
        child.receive(time.monotonic() + 30)
    assert (caught.value.code, str(caught.value)) == (1, "exit code 1: the reason")
    hanging = JsonProcess("worker_pools:json_child", bare_environment())
    hanging.send("sleep")
    with pytest.raises(TimeoutError):
        hanging.receive(time.monotonic() + 0.1)
    hanging.kill()
    assert hanging.code == -signal.SIGKILL


def test_a_reply_has_a_limit(child: JsonProcess) -> None:
    """A child cannot fill its parent's memory."""
    child.send("x" * 200_000)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        child.receive(time.monotonic() + 30, max_bytes=1000)


def test_programs_that_end() -> None:
    """The result has the exit code, the output and a reason: the last line of stderr, the signal, or why the program
    did not start."""
    finished = run_python(30, "-c", "import sys; print('out'); sys.exit('the reason')")
    assert (finished.code, finished.output, finished.reason) == (1, "out\n", "the reason")
    assert run(["sh", "-c", "kill -9 $$"], 30).reason == "ended by signal 9 (Killed)"
    assert run(["no-such-program"], 30).reason == "No such file or directory"


def test_programs_that_do_not_end(tmp_path: Path) -> None:
    """A program is killed at the deadline, together with its child processes."""
    code = SPAWNS + f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); time.sleep(60)"
    finished = run([sys.executable, "-c", code], 3)
    assert (finished.code, finished.timed_out, finished.reason) == (None, True, "no answer within 3 s")
    assert not is_running(int((tmp_path / "pid").read_text()))


ENVIRONMENTS = """
import json
from rg_env.core.processes import bare_environment, environment_without
print(json.dumps([environment_without("MY_KEY", gpus=False), bare_environment()]))
"""


def test_environments() -> None:
    """`environment_without` removes launcher variables, named secrets and GPUs; `bare_environment` removes nearly
    everything."""
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "ACCELERATE_USE_FSDP", "MY_KEY", "LC_TIME")
    own = {**dict.fromkeys(launcher, "hidden"), "OTHER": "kept", "PYTHONHASHSEED": "12"}
    environment, bare = json.loads(run_code(ENVIRONMENTS, **own).stdout)
    assert [name for name, value in environment.items() if value == "hidden"] == ["LC_TIME"]
    assert (environment["OTHER"], environment["CUDA_VISIBLE_DEVICES"]) == ("kept", "")
    assert "OTHER" not in bare
    assert (bare["PYTHONHASHSEED"], bare["LC_TIME"], bare["PATH"]) == ("0", "hidden", os.environ["PATH"])


def test_a_program_ends_with_its_parent(tmp_path: Path) -> None:
    """This holds even if the parent is killed."""
    if sys.platform != "linux":
        pytest.skip("tests a service of the Linux kernel")
    code = f"""
import sys, time
from pathlib import Path
from rg_env.core.processes import Command, ProcessGroup
print(ProcessGroup(Command(("sleep", "60")), Path({str(tmp_path / "log")!r}))._process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    assert until(lambda: not is_running(pid))


def test_exit_codes_if_the_caller_ignored_its_children(tmp_path: Path) -> None:
    """A command inherits an ignored SIGCHLD, with which the system does not keep exit codes. Code that ignores it
    gets 0, as from `subprocess`."""
    code = """
import signal, sys
from pathlib import Path
from rg_env.commands import prepare_process
from rg_env.core.processes import Command, ProcessGroup
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for prepare in (lambda: None, prepare_process):
    prepare()
    print(ProcessGroup(Command(("sh", "-c", "exit 3")), Path(sys.argv[1])).wait(30))
"""
    assert run_code(code, tmp_path / "log").stdout == "0\n3\n"


def test_orphans_are_ended(tmp_path: Path) -> None:
    """If a program ends and leaves a child in another session behind, the child is ended; earlier processes are not."""
    if sys.platform != "linux":
        pytest.skip("only on Linux are orphans adopted by an ancestor")
    with subprocess.Popen(["sleep", "60"]) as earlier:
        with ending_orphans(lambda: 5.0):
            spawns = SPAWNS.replace("['sleep', '60']", "['setsid', 'sleep', '60']")
            program = ProcessGroup(Command((sys.executable, "-c", spawns)), tmp_path / "log")
            assert program.wait(30) == 0
            (orphan,) = map(int, program.new_lines())
            assert is_running(orphan)
        assert not is_running(orphan)
        assert earlier.poll() is None
        earlier.send_signal(signal.SIGKILL)


def test_no_other_module_starts_processes() -> None:
    """Only core/processes.py imports `subprocess` and similar modules, and only core/fork_server.py forks."""
    package = Path(rg_env.__file__).parent
    found: dict[str, set[str]] = {"starts": set(), "forks": set()}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            started = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            modules = {name.partition(".")[0] for name in names}
            if started in ("os.posix_spawn", "os.system", "os.popen") or {"subprocess", "multiprocessing"} & modules:
                found["starts"].add(str(path.relative_to(package)))
            if started in ("os.fork", "os.forkpty") or "pty" in modules:
                found["forks"].add(str(path.relative_to(package)))
    assert found == {"starts": {"core/processes.py"}, "forks": {"core/fork_server.py"}}


def test_workers_load_nothing_from_the_working_directory(environ: Callable[..., None], tmp_path: Path) -> None:
    """Of the variables with which an interpreter finds code, only absolute paths to libraries are passed on."""
    environ(PYTHONPATH=str(tmp_path), PYTHONSTARTUP="x", LD_PRELOAD="x.so", LD_AUDIT="x.so", PYTHONHOME="home")
    environ(LD_LIBRARY_PATH=f":lib:{tmp_path}:.", DYLD_LIBRARY_PATH="lib", OPENAI_API_KEY="secret", BASH_ENV="x")
    found = bare_environment()
    assert found["LD_LIBRARY_PATH"] == str(tmp_path)
    names = {name for name in found if not name.startswith("LC_")} - {"PYTHONDONTWRITEBYTECODE", "TMPDIR", "LANG"}
    threads = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}
    assert names == {"PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "TZ", *threads}
