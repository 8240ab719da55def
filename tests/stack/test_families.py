"""Weight sync to a real vLLM for each model family, whose layers vLLM fuses, splits and names differently."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from model_families import SERVED
from stack_server import REPOSITORY, cpu_environment

PROGRAM = Path(__file__).with_name("family_sync.py")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Return the results of `family_sync.py` by family, from one process because importing vLLM takes longest."""
    paths = f"{REPOSITORY}:{REPOSITORY / 'tests' / 'helpers'}"
    environment = cpu_environment(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING", PYTHONPATH=paths)
    command = [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("families"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.removeprefix("RECORD ") for line in done.stdout.splitlines() if line.startswith("RECORD ")]
    return {record["name"]: record for record in map(json.loads, lines)}


@pytest.mark.parametrize("family", SERVED)
def test_all_weights_of_a_family_arrive(records: dict[str, dict[str, float]], family: str) -> None:
    """After the sync, vLLM computes the new model's log-probabilities up to rounding."""
    record = records[family]
    assert record["loaded"] < 1e-3
    assert record["other"] > 1.0
    assert record["synced"] < 1e-3
