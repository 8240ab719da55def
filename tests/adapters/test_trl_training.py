"""Training with the real TRL, in a separate process, because TRL prints and changes process-wide settings."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from forked_python import PYTHON

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, forks: None) -> dict[str, Any]:
    """Return the results printed by `train_trl.py`."""
    script = Path(__file__).with_name("train_trl.py")
    command = [*PYTHON, "-W", "ignore", str(script), str(tmp_path_factory.mktemp("trl"))]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def test_the_example_learns(results: dict[str, Any]) -> None:
    """Four steps raise the accuracy from below 45% to above 60%, and raise the rewards of sampled answers."""
    assert results["trl"].startswith("1.")
    example = results["example"]
    assert example["before"] < 0.45
    assert example["after"] > 0.6
    assert len(example["rewards"]) == 4
    assert sum(example["rewards"][-2:]) / 2 > sum(example["rewards"][:2]) / 2 + 0.2


def test_trl_logs_rewards_and_metrics(results: dict[str, Any]) -> None:
    """Training and evaluation log weighted rewards, the accuracy of each task, and statuses."""
    logged = results["logged"]
    means = {name: logged[f"rewards/{name}/mean"] for name in ("correctness", "format", "length")}
    assert means["length"] > 0.5
    assert logged["reward"] == pytest.approx(means["correctness"] + 0.1 * means["format"], abs=1e-5)
    assert logged["accuracy"] == pytest.approx(means["correctness"], abs=1e-5)
    statuses = sum(value for name, value in logged.items() if name.startswith("status/"))
    assert statuses + logged["accuracy"] == pytest.approx(1.0, abs=1e-5)
    both = [logged[f"accuracy/{task}"] for task in ("leg_counting", "chain_sum")]
    assert min(both) <= logged["accuracy"] <= max(both)
    evaluated = results["evaluated"]
    halves = [evaluated[f"eval_accuracy/{task}"] for task in ("leg_counting", "chain_sum")]
    assert evaluated["eval_accuracy"] == pytest.approx(sum(halves) / 2, abs=1e-6)
    assert results["columns"] == ["status"]


def test_a_reward_that_raises_ends_the_run(results: dict[str, Any]) -> None:
    """The run ends with a `RewardError`; the reward does not count as 0."""
    assert results["error"].startswith("RewardError: reward 'bad' raised KeyError: 'x' (")
