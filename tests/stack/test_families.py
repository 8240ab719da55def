"""Sync into a real vLLM, family by family: its layers are fused, split and named otherwise than the trainer's."""

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
    """What `family_sync` found, by family: one process for all, since importing vLLM takes longer than any of them."""
    paths = f"{REPOSITORY}:{REPOSITORY / 'tests' / 'helpers'}"
    environment = cpu_environment(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING", PYTHONPATH=paths)
    command = [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("families"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.removeprefix("RECORD ") for line in done.stdout.splitlines() if line.startswith("RECORD ")]
    return {record["name"]: record for record in map(json.loads, lines)}


@pytest.mark.parametrize("family", SERVED)
def test_all_weights_of_a_family_arrive(records: dict[str, dict[str, float]], family: str) -> None:
    """vLLM computes what the new model computes, to rounding."""
    record = records[family]
    assert record["at_first"] < 1e-3
    assert record["apart"] > 1.0
    assert record["synced"] < 1e-3
