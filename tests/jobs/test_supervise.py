"""Tests of running a server and a trainer together, with small Python programs in place of vLLM and the trainer. Each
run is a separate process whose output, exit code, logs and child processes are checked."""

import json
import signal
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psutil", reason="needs the train or eval extra")
from worker_pools import until

pytestmark = pytest.mark.slow  # starts some 20 processes that wait for each other
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: parents' death signals, adoption of orphans")

RUN = """
import json, signal, sys
from pathlib import Path
from rg_env.commands import run_command
from rg_env.jobs import launch, supervisor
from rg_env.core.processes import Command

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests under nohup inherit it ignored
supervisor.GRACE_S, supervisor.HURRY_S, launch.HEALTH_EVERY_S = 1.0, 0.2, 0.1
given = json.loads(sys.argv[1])
folder = Path(given["folder"])
commands = [
    Command((*given[name + "_by"], f"{folder}/{name}.py"), {"NAME": name}, starts_workers=given["launcher"] == name)
    for name in ("server", "trainer")
]
options = launch.LaunchOptions("train.py", **given["options"])
run_command(lambda: launch.supervise(launch.Commands(*commands, ""), options, folder, (folder / "healthy").exists))
"""

# Both programs begin with this code: each process records its id.
HEAD = """
import os, signal, subprocess, sys, time
from pathlib import Path
here = Path(__file__).parent
def note(): (here / f"pid-{os.getpid()}").touch()
def stay():
    while True: time.sleep(0.05)
note()
"""
SERVER = """
print("loading", flush=True)
time.sleep(0.3)
(here / "healthy").touch()
print("serving", flush=True)
"""
CHILD = "import os, pathlib, time; pathlib.Path({folder!r}, f'pid-{{os.getpid()}}').touch(); time.sleep(600)"
IGNORING = "for kind in (signal.SIGTERM, signal.SIGINT): signal.signal(kind, signal.SIG_IGN)\n"
SAVING = """
def save(number, _):
    sys.stdout.write(f"saving after {signal.Signals(number).name}\\n")  # one write: others write to the same log
    time.sleep(0.3)
    (here / "checkpoint").touch()
    sys.stdout.write("saved\\n")
    sys.exit(130)
signal.signal(signal.SIGINT, save)
"""


Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path, start_program: Start) -> Start:
    """Return a function that starts a run of these two programs."""

    def call(server: str, trainer: str, launcher: str = "", trainer_by: Any = (sys.executable,), **options: Any) -> Any:
        for name, text in {"server": server, "trainer": trainer}.items():
            (tmp_path / f"{name}.py").write_text(HEAD + text)
        given = {"folder": str(tmp_path), "server_by": [sys.executable], "trainer_by": trainer_by, "launcher": launcher}
        return start_program(RUN, json.dumps({**given, "options": options}))

    return call


def test_the_trainer_runs_once_the_server_is_healthy_and_both_end(start: Start, tmp_path: Path) -> None:
    """The trainer's output is shown; the server's is only in its log, or shown with `verbose`."""
    trainer = "print('healthy', (here / 'healthy').exists())\nprint('half', end='\\r')\n"
    trainer += "print('step 1', file=sys.stderr)\nprint('no new line', end='')"
    code, printed, errors = start(SERVER + "stay()", trainer).end()
    assert (code, errors) == (0, "")
    assert "[train] healthy True\n[train] half\n[train] step 1\n[train] no new line\n" in printed
    assert "vLLM is ready after" in printed
    assert "serving" not in printed
    assert (tmp_path / "vllm.log").read_text() == "loading\nserving\n"
    assert (tmp_path / "train.log").read_bytes() == b"healthy True\nhalf\rstep 1\nno new line"
    (tmp_path / "healthy").unlink()
    _, printed, _ = start(SERVER + "stay()", trainer, verbose=True).end()
    assert "[vllm] loading\n" in printed


def test_a_server_that_dies_at_its_start_is_reported_with_its_last_lines(start: Start, tmp_path: Path) -> None:
    """The last 20 lines of the server's log are shown, and no trainer is started."""
    server = "print(*(f'line {n}' for n in range(50)), sep='\\n', flush=True)\nsys.exit(3)"
    code, printed, errors = start(server, "pass").end()
    assert code == 1
    assert errors == f"error: vLLM exited with code 3 before it was ready: see the log above, and {tmp_path}/vllm.log\n"
    shown = [line for line in printed.splitlines() if line.startswith("[vllm]")]
    assert shown == [f"[vllm] line {n}" for n in range(30, 50)]
    assert not (tmp_path / "train.log").exists()


def test_a_server_that_does_not_get_ready_is_stopped(start: Start) -> None:
    code, _, errors = start("print('loading', flush=True)\nstay()", "pass", server_timeout=1).end()
    assert code == 1
    assert errors.startswith("error: vLLM is not ready after 1 s: ")


def test_a_server_that_dies_during_training_leaves_the_trainer_time_to_save(start: Start, tmp_path: Path) -> None:
    """The trainer notices the failure and saves, and the run fails with a one-line error."""
    server = SERVER + "time.sleep(1)\nprint('out of memory', flush=True)\nsys.exit(5)"
    trainer = "time.sleep(2)\n(here / 'checkpoint').touch()\nprint('saved', flush=True)\nsys.exit(1)"
    code, printed, errors = start(server, trainer).end()
    assert code == 1
    assert errors == f"error: vLLM exited with code 5 during training (out of memory): see {tmp_path}/vllm.log\n"
    assert "vLLM exited with code 5: the trainer has 300 s to save and exit" in printed
    assert "[train] saved\n" in printed


def test_a_trainer_that_does_not_notice_is_stopped(start: Start) -> None:
    """The trainer is stopped once its time to save is over, by SIGKILL if necessary."""
    code, printed, _ = start(SERVER + "time.sleep(0.5)", IGNORING + "note()\nstay()", save_timeout=1).end()
    assert code == 1
    assert "did not exit within 1 s" in printed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_trainer_save_first(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    """The trainer gets SIGINT, and the server runs until the trainer has ended."""
    ending = "signal.signal(signal.SIGTERM, lambda *_: print((here / 'checkpoint').exists()) or sys.exit())\nstay()"
    run = start(SERVER + ending, SAVING + "(here / 'training').touch()\nstay()").until("training").signal(number)
    code, printed, _ = run.end()
    assert code == 128 + number
    assert "[train] saving after SIGINT\n[train] saved\n" in printed
    assert (tmp_path / "vllm.log").read_text().endswith("serving\nTrue\n")


def test_a_second_ctrl_c_ends_at_once(start: Start, tmp_path: Path) -> None:
    """Both programs end, even if they ignore signals."""
    stubborn = IGNORING + "(here / f'stubborn-{os.environ[\"NAME\"]}').touch()\nstay()"
    run = start(SERVER + stubborn, stubborn, save_timeout=600).until("stubborn-trainer").signal(signal.SIGINT)
    time.sleep(0.5)
    code, _, _ = run.signal(signal.SIGINT).end()
    assert code == 130


def test_two_different_signals_at_once_are_one_request(start: Start) -> None:
    """A closed terminal or a scheduler may send two signals; the trainer still saves."""
    run = start(SERVER + "stay()", SAVING + "(here / 'training').touch()\nstay()").until("training")
    code, printed, _ = run.signal(signal.SIGHUP).signal(signal.SIGTERM).end()
    assert code in (128 + signal.SIGHUP, 128 + signal.SIGTERM)
    assert "[train] saved\n" in printed


def test_ctrl_c_while_the_server_loads(start: Start, tmp_path: Path) -> None:
    code, _, _ = start("(here / 'loading').touch()\nstay()", "pass").until("loading").signal(signal.SIGINT).end()
    assert code == 130
    assert not (tmp_path / "train.log").exists()


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed: the train extra on Linux")
def test_the_workers_of_accelerate_save(start: Start) -> None:
    """Each worker gets one SIGINT and the launcher none, because the launcher would kill its workers."""
    config = Path(__file__).parents[2] / "configs" / "zero3_cpu.yaml"
    accelerate = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--config-file", str(config)]
    run = start(
        SERVER + "stay()",
        SAVING + "(here / f'training-{os.environ[\"RANK\"]}').touch()\nstay()",
        launcher="trainer",
        trainer_by=(*accelerate, "--num-processes", "2", "--main-process-port", "0"),
    )
    code, printed, _ = run.until("training-0").until("training-1").signal(signal.SIGINT).end()
    assert code == 130
    assert printed.count("[train] saving after SIGINT\n") == 2
    assert printed.count("[train] saved\n") == 2


@LINUX
def test_child_processes_of_a_crashed_program_are_ended(start: Start, tmp_path: Path) -> None:
    """Child processes of both programs are ended, even those in their own sessions, as torch's workers are. The exit
    code is the trainer's."""
    code = CHILD.format(folder=str(tmp_path))
    child = f"subprocess.Popen([sys.executable, '-c', {code!r}], start_new_session=True)\n"
    crash = child + "time.sleep(0.5)\nprint('bye', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    code, printed, _ = start(SERVER + child + "stay()", crash).end()
    assert (code, "[train] bye\n" in printed) == (137, True)
    assert len(list(tmp_path.glob("pid-*"))) == 4


@LINUX
def test_neither_program_outlives_a_killed_run(start: Start) -> None:
    """The kernel sends SIGTERM to both programs."""
    run = start(SERVER + "stay()", "(here / 'training').touch()\nstay()").until("training").signal(signal.SIGKILL)
    run.process.wait(timeout=60)
    assert until(lambda: run.left() == [], 60)


def test_a_closed_stdout_does_not_end_the_run(start: Start, tmp_path: Path) -> None:
    """`rg-env launch ... | head` keeps running and writes its logs."""
    run = start(SERVER + "stay()", "print('one', flush=True)\ntime.sleep(1)\nprint('two', flush=True)\ntime.sleep(1)")
    run.until("train.log")
    assert run.process.stdout
    run.process.stdout.close()
    run.process.stdout = None
    code, _, errors = run.end()
    assert (code, errors) == (0, "")
    assert (tmp_path / "train.log").read_text() == "one\ntwo\n"
