"""Tests of `rg-env train --sweep` and `rg-env compare`, including a real sweep with the tiny policy."""

import json
import os
import shlex
import signal
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_python import PYTHON
from run_code import without_progress

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
    """Write a small config to the working directory."""
    (folder / "run.yaml").write_text(CONFIG)


def test_a_dry_run_prints_the_grid(rg_env: Run, folder: Path) -> None:
    """The grid has each run's number of steps. Keys with one value apply to all runs, whether before or after --sweep,
    and no files are written."""
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sweep"], "--sweep needs a value: --sweep key=a,b"),
        (["--sweep", "seed=0,1", "--eval-only"], "--sweep cannot be combined with --eval-only"),
        (["--sweep", "seed=0,1", "--resume", "outputs/x/checkpoint-1"], "use --resume auto for a sweep"),
        (["--sweep", "seed=0,1", "--resume", "auto"], "--resume auto needs the output folder"),
        (["training.beta=0.1", "--sweep", "seed=0,1", "training.beta=0.2"], "training.beta is given both inside and"),
        (["output.dir=.", "--sweep", "seed=0,1"], ". is not empty"),
    ],
)
def test_mistakes_exit_with_code_2(error_of: Any, folder: Path, arguments: list[str], message: str) -> None:
    """Mistakes do not write files."""
    assert message in error_of("train", "run.yaml", *arguments)
    assert [path.name for path in folder.iterdir()] == ["run.yaml"]


def test_commands_that_cannot_be_combined_with_a_sweep(error_of: Any, folder: Path, environ: Any) -> None:
    """A sweep cannot run in one of several processes or with `rg-env launch`, and a single run cannot use a sweep's
    folder."""
    (folder / "sweep.yaml").write_text("points: {a: {seed: 0}}\n")
    environ(WORLD_SIZE="2")
    for words, message in (
        ("launch run.yaml -- --sweep seed=0,1", "launch starts a single run"),
        ("train run.yaml output.dir=. --resume auto --dry-run", ". contains a sweep: add its --sweep"),
        ("train run.yaml --sweep seed=0,1", "starts a single process per run"),
    ):
        assert message in error_of(*words.split())


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_an_interrupted_sweep_can_be_resumed(rg_env: Run, folder: Path) -> None:
    """The printed command resumes the interrupted run, skips the finished one, and compares both.

    The first run is made in this process, as a Slurm job would make it, because the libraries are already loaded.
    """
    long = CONFIG.replace("max_steps: 2", "max_steps: 12").replace("every: 1", "every: 0")
    (folder / "run.yaml").write_text(long)  # long enough that the run is not over before the interrupt
    run_config(load_train_config("run.yaml", ["seed=0", "output.dir='my sweep #1/seed=0'"]))
    sweep = folder / "my sweep #1"
    (sweep / "sweep.yaml").write_text(yaml12.to_yaml(load_sweep("run.yaml", [], ["seed=0,1"]).described()))
    words = ["train", "run.yaml", "output.dir='my sweep #1'", "--sweep", "seed=0,1", "--resume", "auto"]
    command, environment = [*PYTHON, "-m", "rg_env.cli.main"], {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*command, *words], env=environment, text=True, **pipes)
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while "[2/2] step   1/12" not in lines[-1]:
        assert lines[-1], "".join(lines)
        lines.append(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=300)
    assert (process.returncode, without_progress(errors)) == (130, "")
    again = f"{entered('rg-env')} train run.yaml 'output.dir=\"my sweep #1\"' --sweep seed=0,1 --resume auto"
    assert printed.splitlines()[-1] == f"the sweep was interrupted; resume it with: {again}"
    assert lines[1] == "[1/2] seed=0: already finished\n"
    (checkpoint,) = (sweep / "seed=1").glob("checkpoint-*")
    step = int(checkpoint.name.removeprefix("checkpoint-"))
    printed = rg_env("compare", "my sweep #1")[1]
    assert "1 of 2" in printed
    assert f"not in the table: 2 seed=1: not finished (interrupted after {counted(step, 'step')})" in printed

    done = subprocess.run([*command, *shlex.split(again)[1:]], capture_output=True, text=True, timeout=600)
    assert (done.returncode, without_progress(done.stderr)) == (0, "")
    assert "[2/2] seed=1 resumes\n" in done.stdout
    assert f"[2/2] resuming after step {step}\n" in done.stdout
    assert "2 of 2" in done.stdout
    (group,) = json.loads((sweep / "comparison.json").read_text())["groups"]
    for figure, key, number in (("accuracy_before", "correct", 0), ("reward_after", "reward", 12)):
        files = [sweep / f"seed={seed}" / "eval_results" / f"eval_step_{number}.json" for seed in (0, 1)]
        rollouts = [json.loads(file.read_text())["rollouts"] for file in files]
        means = [statistics.fmean(float(each[key]) for each in of_run) for of_run in rollouts]
        assert group["figures"][figure]["mean"] == pytest.approx(statistics.fmean(means))
    assert (sweep / "comparison.png").read_bytes().startswith(b"\x89PNG")
    code, printed, _ = rg_env(*shlex.split(again)[1:])  # both runs are finished
    assert code == 0
    assert "[1/2] seed=0: already finished\n[2/2] seed=1: already finished\nSweep my sweep #1\n" in printed
