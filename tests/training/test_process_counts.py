"""A config means the same experiment on one, two and three processes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from run_metrics import logged

ROLLOUTS, STEPS = 48, 4
OVERRIDES = (
    "tasks=leg_counting",
    f"training.rollouts_per_step={ROLLOUTS}",
    "training.per_device_train_batch_size=8",
    "training.num_generations=8",
    f"training.max_steps={STEPS}",
    "training.loss_type=dapo",  # a token weighs the same in whatever micro-batch it is
    "splits.num_train_examples=64",
    "evaluation={every: 0, before: false, after: false}",
)


def curve(folder: Path, processes: int) -> list[dict[str, Any]]:
    """The logged steps of the run."""
    config = Path(__file__).parents[2] / "configs" / "train" / "tiny.yaml"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), "-m", "rg_env.cli.main", "train", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*command, *OVERRIDES, f"output.dir={folder}"],
        env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in logged(folder) if "loss" in line]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_two_and_three_processes_train_the_same(tmp_path: Path) -> None:
    """As many rollouts and steps, the same first update, and a curve within its interval."""
    one, two, three = (curve(tmp_path / str(n), n) for n in (1, 2, 3))
    for other in (two, three):
        assert [line["rollouts"] for line in other] == [line["rollouts"] for line in one]
        assert [line["rollouts"] for line in other] == [ROLLOUTS * step for step in range(1, STEPS + 1)]
        assert other[0]["reward"] == one[0]["reward"]  # the same rollouts
        assert other[0]["loss"] == pytest.approx(one[0]["loss"], abs=1e-5)
        assert other[0]["grad_norm"] == pytest.approx(one[0]["grad_norm"], rel=1e-3)
        for mine, theirs in zip(one, other, strict=True):
            share = (mine["accuracy"] + theirs["accuracy"]) / 2
            interval = 3 * (2 * max(share * (1 - share), 0.05) / ROLLOUTS) ** 0.5
            assert abs(mine["accuracy"] - theirs["accuracy"]) < interval
