"""Training with the real TRL, in a separate process, because TRL prints and changes process-wide settings."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results printed by `train_trl.py`."""
    script = Path(__file__).with_name("train_trl.py")
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path_factory.mktemp("trl"))]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def test_the_example_learns(found: dict[str, Any]) -> None:
    """In six steps, accuracy rises from a third of the sampled answers to most of them."""
    assert found["trl"].startswith("1.")
    example = found["example"]
    assert example["before"] < 0.45
    assert example["after"] > 0.7
    assert len(example["rewards"]) == 6
    assert sum(example["rewards"][-2:]) / 2 > sum(example["rewards"][:2]) / 2 + 0.2


def test_trl_logs_rewards_and_metrics(found: dict[str, Any]) -> None:
    """Training and evaluation log weighted rewards, the accuracy of each task, and statuses."""
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


def test_a_reward_that_raises_ends_the_run(found: dict[str, Any]) -> None:
    """The run ends with our error; the reward does not count as 0."""
    assert found["error"].startswith("RewardError: reward 'bad' raised KeyError: 'x' (")
