"""Runs that are killed at random moments, as by a full node or the kernel, lose nothing that was saved."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from run_metrics import evaluations_of, logged
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(sys.executable).with_name("rg-env"))
KILLS = 10

pytestmark = [pytest.mark.slow, pytest.mark.full_matrix, pytest.mark.timeout(3600)]


def start(folder: Path) -> "subprocess.Popen[str]":
    """Start the command that a scheduler would repeat."""
    overrides = (
        "training.max_steps=12",
        "splits.num_eval_examples=16",
        "output.save_every=2",
        "evaluation.every=3",
        f"output.dir={folder}",
    )
    command = [PROGRAM, "train", "configs/train/tiny.yaml", *overrides, "--resume", "auto"]
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=unbuffered, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_a_run_killed_ten_times_matches_an_uninterrupted_one(tmp_path: Path) -> None:
    """Each kill comes after a random number of printed lines and a random part of a second. All records and weights
    are byte for byte those of the uninterrupted run."""
    unbroken = start(tmp_path / "unbroken")
    printed, _ = unbroken.communicate()
    assert unbroken.returncode == 0, printed
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    moments = random.Random(seed)
    for _ in range(KILLS):
        process = start(tmp_path / "killed")
        assert process.stdout is not None
        for line, _ in zip(process.stdout, range(moments.randrange(2, 30)), strict=False):
            print(line, end="")
        try:
            process.wait(moments.random())
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        assert process.returncode in (0, -9), "it ended by itself"
    last = start(tmp_path / "killed")
    printed, _ = last.communicate()
    assert last.returncode == 0, printed
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        assert logged(tmp_path / "killed", name) == logged(tmp_path / "unbroken", name)
    assert evaluations_of(tmp_path / "killed") == evaluations_of(tmp_path / "unbroken")
    weights = [load_file(tmp_path / name / "checkpoint-12" / "model.safetensors") for name in ("killed", "unbroken")]
    assert {name: weight.numpy().tobytes() for name, weight in weights[0].items()} == {
        name: weight.numpy().tobytes() for name, weight in weights[1].items()
    }
