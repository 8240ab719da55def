"""The environment for TRL under the real TRL 1.16, in an environment of its own (needs uv and the registry)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from release_environments import uv

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `train_trl.py` printed, in the environment of the lock file's group `trl`."""
    folder = tmp_path_factory.mktemp("trl")
    sync = ("sync", "-q", "--frozen", "--no-default-groups", "--group", "trl", "--python", sys.executable)
    uv(*sync, UV_PROJECT_ENVIRONMENT=str(folder / "venv"))
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [str(folder / "venv" / "bin" / "python"), "-W", "ignore", str(ROOT / "tests" / "matrix" / "train_trl.py")]
    done = subprocess.run([*command, str(folder)], check=False, capture_output=True, text=True, env=variables)
    shutil.rmtree(folder / "venv")  # gigabytes, where links to uv's cache are not possible
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


@pytest.mark.network
@pytest.mark.timeout(900)
def test_the_example_learns(found: dict[str, Any]) -> None:
    """In six steps: from a third of the sampled answers right to most of them."""
    assert found["trl"].startswith("1.16.")
    example = found["example"]
    assert example["before"] < 0.45
    assert example["after"] > 0.7
    assert len(example["rewards"]) == 6
    assert sum(example["rewards"][-2:]) / 2 > sum(example["rewards"][:2]) / 2 + 0.2


@pytest.mark.network
@pytest.mark.timeout(900)
def test_trl_logs_rewards_and_metrics(found: dict[str, Any]) -> None:
    """Weighted as asked, with the accuracy of each task and the statuses, in training and evaluation."""
    logged = found["logged"]
    means = {name: logged[f"rewards/{name}/mean"] for name in ("correctness", "format", "length")}
    assert means["length"] > 0.5
    assert logged["reward"] == pytest.approx(means["correctness"] + 0.1 * means["format"], abs=1e-5)
    assert logged["accuracy"] == pytest.approx(means["correctness"], abs=1e-5)
    statuses = sum(value for name, value in logged.items() if name.startswith("status/"))
    assert statuses + logged["accuracy"] == pytest.approx(1.0, abs=1e-5)
    both = [logged[f"accuracy/{task}"] for task in ("leg_counting", "chain_sum")]
    assert min(both) <= logged["accuracy"] <= max(both)
    evaluated = found["evaluated"]
    halves = [evaluated[f"eval_accuracy/{task}"] for task in ("leg_counting", "chain_sum")]
    assert evaluated["eval_accuracy"] == pytest.approx(sum(halves) / 2, abs=1e-6)
    assert found["columns"] == ["status"]


@pytest.mark.network
@pytest.mark.timeout(900)
def test_a_reward_that_raises_ends_the_run(found: dict[str, Any]) -> None:
    """With our error, not a 0."""
    assert found["error"].startswith("RewardError: reward 'bad' raised KeyError: 'x'; task ")
