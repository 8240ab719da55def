"""`rg-env train --sweep` and `rg-env compare`, as they are typed; and a real sweep of the tiny policy."""

import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("psutil", reason="extras 'train' and 'eval' have it")

from rg_env.core.config import yaml12
from rg_env.core.processes import entered
from rg_env.core.text import counted
from rg_env.jobs.sweep import load_sweep
from rg_env.training import load_train_config, run_config

Run = Callable[..., tuple[int, str, str]]
CONFIG = """
model: {name: tiny}
tasks: {leg_counting: {}}
splits: {num_train_examples: 32, num_eval_examples: 8}
training:
  {max_steps: 2, learning_rate: 1e-3, lr_scheduler_type: constant, per_device_train_batch_size: 16,
   rollouts_per_step: 16, num_generations: 4, max_prompt_length: 160, max_tokens: 30,
   gradient_checkpointing: false}
evaluation: {every: 1, greedy: false}
output: {save_every: 0}
"""


@pytest.fixture(autouse=True)
def config(folder: Path) -> None:
    """A small config in the working directory."""
    (folder / "run.yaml").write_text(CONFIG)


def test_a_dry_run_prints_the_grid(rg_env: Run, folder: Path) -> None:
    """With the steps of each run. A key with one value is a setting of all runs, wherever it is. Nothing is written."""
    words = ["--sweep", "training.max_steps=2,4", "seed=0,1"]
    expected = (
        "4 runs, one after another, in rates/\n"
        "   1  max_steps=2_seed=0  2 steps\n"
        "   2  max_steps=2_seed=1  2 steps\n"
        "   3  max_steps=4_seed=0  4 steps\n"
        "   4  max_steps=4_seed=1  4 steps\n"
    )
    fixed = ["grading=partial", "training.beta=0.1", "output.dir=rates"]
    for given in ([*fixed, *words, "--dry-run"], [*words, *fixed, "--dry-run"], [*words, "--dry-run", *fixed]):
        assert rg_env("train", "run.yaml", *given) == (0, expected, "")
    printed = rg_env("train", "run.yaml", "--sweep", "seed=0,1", "--dry-run")[1]
    assert printed.startswith("2 runs, one after another, in outputs/run-sweep-")
    assert [path.name for path in folder.iterdir()] == ["run.yaml"]


def test_a_dry_run_tells_what_has_no_effect(rg_env: Run, folder: Path) -> None:
    """Runs that differ in such a key alone are the same run. Steps are updates, also where the config counts rollouts:
    a batch has 16."""
    words = ["--dry-run", "training.rollouts_as_steps=true", "training.max_steps=40", "output.dir=x"]
    code, printed, _ = rg_env("train", "run.yaml", *words, "--sweep", "training.epsilon=0.1,0.3")
    assert code == 0
    assert printed == (
        "2 runs, one after another, in x/\n"
        "   1  epsilon=0.1  3 steps\n"
        "   2  epsilon=0.3  3 steps\n"
        "every point: without effect: training.epsilon (training.num_iterations: 1)\n"
    )
    sweep = ["--sweep", "training.num_iterations=1,2", "training.epsilon=0.1,0.3"]
    *_, last = rg_env("train", "run.yaml", "--dry-run", *sweep)[1].splitlines()
    without = "without effect: training.epsilon (training.num_iterations: 1)"
    assert last == f"num_iterations=1_epsilon=0.1 and 1 more: {without}"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--sweep"], "expected at least one argument"),
        (["--sweep", "training.max_stepz=1,2"], "unknown key 'max_stepz': did you mean 'max_steps'"),
        (["--sweep", "seed=0,1", "--eval-only"], "--sweep is for training"),
        (["--sweep", "seed=0,1", "--resume", "outputs/x/checkpoint-1"], "use --resume auto for a sweep"),
        (["--sweep", "seed=0,1", "--resume", "auto"], "--resume auto needs the output folder"),
        (["--sweep", "seed=0,1", "output.dir=x,y"], "in output.dir: set output.dir to a single value"),
        (["training.beta=0.1", "--sweep", "seed=0,1", "training.beta=0.2"], "training.beta is given both inside and"),
        (["--sweep", "seed=0,1", "training.beta=0.2", "--dry-run", "training.beta=0.1"], "beta is given both in"),
        (["--sweep", "seed=0"], "--sweep 'seed=0': no key has several values, such as seed=0,1,2"),
        (["output.dir=.", "--sweep", "seed=0,1"], ". is not empty"),
        (["output.dir=.", "--sweep", "seed=0,1", "--resume", "auto"], ". does not contain a sweep"),
    ],
)
def test_mistakes_exit_with_code_2(rg_env: Run, folder: Path, arguments: list[str], told: str) -> None:
    """With one line of output; nothing is written."""
    code, _, errors = rg_env("train", "run.yaml", *arguments)
    assert code == 2
    assert told in errors
    assert [path.name for path in folder.iterdir()] == ["run.yaml"]


def test_where_no_sweep_can_be(rg_env: Run, folder: Path, environ: Callable[..., None]) -> None:
    """In each process of several, in `rg-env launch`, and a single run in the folder of a sweep."""
    code, _, errors = rg_env("launch", "run.yaml", "--", "--sweep", "seed=0,1")
    assert (code, "launch starts a single run" in errors) == (2, True)
    (folder / "sweep.yaml").write_text("points: {a: {seed: 0}}\n")
    code, _, errors = rg_env("train", "run.yaml", "output.dir=.", "--resume", "auto", "--dry-run")
    assert (code, errors) == (
        2,
        "error: . contains a sweep: add its --sweep ..., or pass one of its run folders\n",
    )
    assert rg_env("compare", "nowhere")[0] == 2
    environ(WORLD_SIZE="2")
    code, _, errors = rg_env("train", "run.yaml", "--sweep", "seed=0,1")
    assert (code, "starts a single process per run" in errors) == (2, True)


@pytest.mark.slow
def test_a_sweep_is_interrupted_and_goes_on(rg_env: Run, folder: Path) -> None:
    """By the command that it prints itself: with the run under way, without that which has finished, to one comparison.

    The first run is one that a job of Slurm has made: it leaves the same, and this process has its libraries loaded.
    """
    long = CONFIG.replace("max_steps: 2", "max_steps: 30").replace("every: 1", "every: 0")
    (folder / "run.yaml").write_text(long)  # so long that no run is over before the interrupt reaches it
    run_config(load_train_config("run.yaml", ["seed=0", "output.dir='my sweep #1/seed=0'"]))
    described = load_sweep("run.yaml", [], ["seed=0,1"]).described()
    (folder / "my sweep #1" / "sweep.yaml").write_text(yaml12.to_yaml(described))
    words = ["train", "run.yaml", "output.dir='my sweep #1'", "--sweep", "seed=0,1", "--resume", "auto"]
    command, environment = [sys.executable, "-m", "rg_env.cli.main", *words], {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, text=True, **pipes)
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    deadline = time.monotonic() + 600
    while "[2/2] step   1/30" not in lines[-1]:
        assert time.monotonic() < deadline
        assert lines[-1], "".join(lines)
        lines.append(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (130, "")
    last = printed.splitlines()[-1]
    again = f"{entered('rg-env')} train run.yaml 'output.dir=\"my sweep #1\"' --sweep seed=0,1 --resume auto"
    assert last == f"the sweep was interrupted; resume it with: {again}"
    assert lines[1] == "[1/2] seed=0: already finished\n"
    (checkpoint,) = (folder / "my sweep #1" / "seed=1").glob("checkpoint-*")
    step = int(checkpoint.name.removeprefix("checkpoint-"))
    assert 1 <= step < 30
    code, printed, _ = rg_env("compare", "my sweep #1")
    assert code == 0
    assert "1 of 2" in printed
    assert f"not in the table: 2 seed=1: not finished (interrupted after {counted(step, 'step')})" in printed

    command = [sys.executable, "-m", "rg_env.cli.main", *shlex.split(again)[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[2/2] seed=1 resumes\n" in done.stdout
    assert f"[2/2] resuming after step {step}\n" in done.stdout
    assert "2 of 2" in done.stdout
    for seed in (0, 1):
        results = json.loads((folder / "my sweep #1" / f"seed={seed}" / "train_results.json").read_text())
        assert (results["steps"], results["interrupted"]) == (30, False)
        assert (results["resumed_from"] is None) == (seed == 0)
    (group,) = json.loads((folder / "my sweep #1" / "comparison.json").read_text())["groups"]
    for figure, key, step in (("accuracy_before", "correct", 0), ("reward_after", "reward", 30)):
        means = []
        for seed in (0, 1):
            file = folder / "my sweep #1" / f"seed={seed}" / "eval_results" / f"eval_step_{step}.json"
            means.append(statistics.fmean(float(each[key]) for each in json.loads(file.read_text())["rollouts"]))
        assert group["figures"][figure]["mean"] == pytest.approx(statistics.fmean(means))
    assert (folder / "my sweep #1" / "comparison.png").read_bytes().startswith(b"\x89PNG")

    code, printed, _ = rg_env(*shlex.split(again)[1:])  # nothing is left to run
    assert code == 0
    assert "[1/2] seed=0: already finished\n[2/2] seed=1: already finished\nSweep my sweep #1\n" in printed
