"""Tests of sweeps with a small Python program in place of `rg-env train`. Each sweep is a separate process whose
output, exit code, files and child processes are checked."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rg_env.core.fork_server import ForkServer
from rg_env.core.processes import ProcessGroup, python_module
from rg_env.errors import InputError, OutputFolderError
from rg_env.jobs.sweep import _SHARED_MODULES, load_sweep, refuse_sweep, status_of, sweep_folder

Started = Callable[..., Any]
pytestmark = pytest.mark.slow  # starts some 20 processes that wait for each other

CONFIG = "model: {name: tiny}\ntasks: leg_counting\ntraining: {max_steps: 20}\n"
WORDS = ["seed=0,1,2"]
SWEEP = """
import sys
from pathlib import Path
from rg_env.commands import run_command
from rg_env.core.processes import Command, python_module
from rg_env.jobs import supervisor, sweep as sweeps
from rg_env.core.fork_server import ForkServer
from rg_env.core.processes import ProcessGroup, python_module
from rg_env.jobs.sweep import _SHARED_MODULES, load_sweep

supervisor.GRACE_S, supervisor.HURRY_S = 1.0, 0.2
sweeps._SHARED_MODULES = ("imports",)  # the stand-in needs no other
def command(point, folder, goes_on):
    arguments = [str(folder), str(point.values["seed"]), str(goes_on)]
    return python_module("trainer", *arguments) if is_forked else Command((sys.executable, "trainer.py", *arguments))
is_forked = sys.argv.pop(1) == "forked"
sweep = load_sweep("run.yaml", ["output.dir=sweep"], sys.argv[1:])
folder = sweeps.sweep_folder(sweep, "run", resume=True)
run_command(lambda: sweeps.run_sweep(sweep, folder, again="the same again", command=command))
"""
# Stand-in for a run, with the files that a sweep reads; a file `does-SEED` selects what it does.
TRAINER = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
folder, seed, goes_on = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "True"
does = Path(f"does-{seed}").read_text() if Path(f"does-{seed}").exists() else "trains"
Path(f"pid-{os.getpid()}").touch()
def leave(interrupted=False, error=None, stopped_by=None):
    results = {"steps": 20, "interrupted": interrupted, "error": error, "stopped_by": stopped_by}
    (folder / "train_results.json").write_text(json.dumps(results))
def save(*_):
    leave(interrupted=True)
    print("saved", flush=True)
    sys.exit(130)
print(f"seed {seed}" + " goes on" * goes_on, flush=True)
folder.mkdir(exist_ok=True)
(folder / "config.yaml").touch()
if does == "fails":
    child = "import os, time; open(f'pid-{os.getpid()}', 'w').close(); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
    while len(list(Path().glob("pid-*"))) < 3: time.sleep(0.01)
    sys.exit("error: no \\x1b[31m model")
if does == "is stopped":
    leave(stopped_by="kl_spike")
    sys.exit(1)
if does != "trains":
    signal.signal(signal.SIGINT, save)
    print("waiting", flush=True)
    time.sleep(600)
leave()
print("  an answer\\nTrained for 20 steps\\nFiles in sweep", flush=True)
"""


@pytest.fixture(autouse=True)
def config(folder: Path) -> None:
    """Write a config and the stand-in for a run to the working directory."""
    for name, text in (("run.yaml", CONFIG), ("trainer.py", TRAINER), ("imports.py", "")):
        (folder / name).write_text(text)


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux are runs forked")
FORKED = pytest.param("forked", marks=ON_LINUX)


@pytest.fixture(params=[FORKED, "new program"])
def started(
    start_program: Callable[..., Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Started:
    """Return a function that starts a sweep. Its runs are forked, or started as they are if there is a GPU."""
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    return lambda *words: start_program(SWEEP, request.param, *(words or WORDS))


@ON_LINUX
def test_the_modules_that_runs_share_can_be_forked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are imported once, and not with the command line's own modules, which are a run's `__main__`. A fork has one
    thread, computes, and finds no GPU."""
    program = """
import os, sys, torch
names = ("rg_env.training.trainer", "matplotlib", "rg_env.cli.main")
print([name in sys.modules for name in names], len(os.listdir("/proc/self/task")), torch.accelerator.is_available())
x = torch.ones(300, 300, requires_grad=True)
(x @ x).sum().backward()
print(float(x.grad.sum()))
"""
    (folder / "program.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    server = ForkServer(_SHARED_MODULES)
    run = ProcessGroup(python_module("program"), Path("log"), fork=server.start)
    assert run.wait(60) == 0
    server.kill()
    assert run.new_lines() == ["[True, True, False] 1 False", f"{2.0 * 300**3}"]


def ended(sweep: Any) -> tuple[int, list[str], str]:
    """Wait for a sweep and return its exit code, the lines of stdout without durations, and stderr."""
    code, printed, errors = sweep.end()
    lines = [line.rpartition(" after ")[0] if line.endswith(" s") else line for line in printed.splitlines()]
    return code, lines, errors


def test_a_run_that_fails_or_is_stopped_does_not_end_the_sweep(folder: Path, started: Started) -> None:
    """A failed run is reported with its last line, its processes are ended, and the next attempt repeats only this run.
    A run that a monitor stopped is not repeated, but does not count as finished."""
    (folder / "does-0").write_text("is stopped")
    (folder / "does-1").write_text("fails")
    code, lines, errors = ended(started())
    assert (code, errors) == (1, "")
    assert lines == [
        "[1/3] seed=0",
        "[1/3] seed 0",
        "[1/3] seed=0 was stopped by monitor kl_spike after 20 steps; the sweep continues",
        "[2/3] seed=1",
        "[2/3] seed 1",
        "[2/3] error: no \x1b[31m model",
        "[2/3] seed=1 failed with exit code 1: error: no [31m model (see sweep/logs/seed=1.log); the sweep continues",
        "[3/3] seed=2",
        "[3/3] seed 2",
        "[3/3] Trained for 20 steps",
        "[3/3] seed=2 finished",
    ]
    assert [status_of(Path("sweep"), f"seed={seed}") for seed in range(3)] == [
        ("stopped", "by monitor kl_spike after 20 steps"),
        ("failed", "exit code 1: error: no [31m model"),
        ("finished", ""),
    ]
    assert Path("sweep/logs/seed=2.log").read_text() == "seed 2\n  an answer\nTrained for 20 steps\nFiles in sweep\n"
    assert Path("sweep/logs/seed=1.log").read_text() == "seed 1\nerror: no \x1b[31m model\n"

    (folder / "does-1").unlink()
    code, lines, _ = ended(started())
    assert code == 1
    assert lines == [
        "[1/3] seed=0: already stopped by monitor kl_spike after 20 steps",
        "[2/3] seed=1 resumes",
        "[2/3] seed 1 goes on",
        "[2/3] Trained for 20 steps",
        "[2/3] seed=1 finished",
        "[3/3] seed=2: already finished",
    ]
    there = ["config.yaml", "logs", "seed=0", "seed=1", "seed=2", "sweep.yaml"]
    assert sorted(path.name for path in Path("sweep").iterdir()) == there
    assert sorted(path.name for path in Path("sweep/logs").iterdir()) == [f"seed={seed}.log" for seed in range(3)]


def test_a_signal_lets_the_run_save_and_ends_the_sweep(folder: Path, started: Started) -> None:
    """The last line shows how to resume. While a sweep runs, no other process can run it."""
    (folder / "does-1").write_text("waits")
    sweep = started().until("sweep/logs/seed=1.log", "waiting")
    other = started().process
    busy = " is writing to sweep: wait for it, stop it, or choose another output folder\n"
    printed, error = other.communicate(timeout=60)
    assert (printed, other.returncode) == ("", 2)
    assert error.startswith(f"error: process {sweep.process.pid} is writing")
    assert error.endswith(busy)
    code, lines, errors = ended(sweep.signal(signal.SIGTERM))
    assert (code, errors) == (128 + signal.SIGTERM, "")
    assert lines[-3:] == [
        "interrupted: the run has 300 s to save and exit (press Ctrl-C to stop it now)",
        "[2/3] saved",
        "the sweep was interrupted; resume it with: the same again",
    ]
    assert status_of(Path("sweep"), "seed=1") == ("not finished", "interrupted after 20 steps")
    assert status_of(Path("sweep"), "seed=2") == ("not started", "")


@pytest.mark.parametrize("started", [FORKED], indirect=True)
def test_a_signal_during_the_imports_ends_the_sweep(folder: Path, started: Started) -> None:
    """No run is started, and the sweep does not wait for the imports."""
    imports = "import os, time\nopen(f'pid-{os.getpid()}', 'w').close()\ntime.sleep(60)\n"
    (folder / "imports.py").write_text(imports)
    code, lines, errors = ended(started().until("pid-*").signal(signal.SIGINT))
    assert (code, errors) == (128 + signal.SIGINT, "")
    assert lines == ["[1/3] seed=0", "the sweep was interrupted; resume it with: the same again"]
    assert not Path("sweep/seed=0").exists()


def test_a_folder_of_another_sweep_is_refused(folder: Path) -> None:
    """The error names the first difference. A folder with files but no sweep is also refused."""

    def checked(*overrides: str, words: list[str] = WORDS, resume: bool = True) -> Path:
        return sweep_folder(load_sweep("run.yaml", ["output.dir=sweep", *overrides], words), "run", resume)

    sweep = load_sweep("run.yaml", [], WORDS)
    Path("sweep").mkdir()
    Path("sweep/sweep.yaml").write_text(json.dumps(sweep.described()))
    Path("sweep/config.yaml").write_text(json.dumps(sweep.base()))
    assert checked("logging.project=other") == Path("sweep")
    with_beta = ["training.beta=0.1,0.2", "training.epsilon=0.1", *WORDS]
    described = json.dumps(load_sweep("run.yaml", [], with_beta).described())
    for content, refused, message in (
        (None, lambda: checked(resume=False), "sweep is not empty and may contain another run"),
        (None, lambda: checked(words=["seed=0,1"]), "its swept keys or values differ; use the same"),
        (None, lambda: checked("training.max_steps=30"), "another sweep: training.max_steps was 20 before and is 30"),
        (None, lambda: refuse_sweep("sweep"), "sweep contains a sweep: add its --sweep"),
        (described, lambda: checked(words=[*reversed(with_beta[:2]), *WORDS]), "its swept keys or values differ"),
        ("a: [", checked, r"sweep.yaml is damaged: .*; restore it"),
    ):
        if content:
            Path("sweep/sweep.yaml").write_text(content)
        with pytest.raises(InputError, match=message):
            refused()
    Path("sweep/sweep.yaml").unlink()
    with pytest.raises(OutputFolderError, match=r"cannot be used for a sweep .* no sweep\.yaml"):
        checked()
    refuse_sweep("sweep")
    refuse_sweep(None)
    assert sweep_folder(sweep, "run", False).match("outputs/run-sweep-*")
