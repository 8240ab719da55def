"""`rg-env launch CONFIG` with a real vLLM server and two training processes under ZeRO-3."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from stack_server import REPOSITORY, cpu_environment

from rg_env.core.processes import adopt_orphans, descendants


@pytest.mark.full_matrix
def test_one_command_serves_trains_and_leaves_no_process(tmp_path: Path) -> None:
    """The command exits with code 0, writes results and both logs, and leaves neither a process nor an open port.

    The config includes options that copy the sharded weights (`kl_reference`) and request more samples
    (`filter_groups`).
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        str(Path(sys.executable).with_name("rg-env")), "launch", "configs/train/tiny.yaml", "--processes", "2",
        "--port", str(port), "--log-dir", str(tmp_path / "logs"), f"output.dir={tmp_path / 'run'}",
        "training.max_steps=2", "training.per_device_train_batch_size=16", "training.rollouts_per_step=32",
        "splits.num_eval_examples=4", "splits.num_train_examples=64", "evaluation.before=false",
        "training.loss_type=dapo", "training.beta=0.04", "training.kl_reference=previous",
        "training.filter_groups=true",
    ]  # fmt: skip
    before = set(descendants(psutil.Process()))
    adopt_orphans()  # processes that outlive their parent become children of this one
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=cpu_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output = process.communicate(timeout=1000)[0]
    finally:
        left = [each for each in descendants(psutil.Process()) if each not in before]
        for each in left:
            each.kill()
        process.wait()
    assert process.returncode == 0, output[-3000:]
    assert left == []
    results = json.loads((tmp_path / "run" / "train_results.json").read_text())
    assert (results["engine"], results["steps"]) == ("vllm", 2)
    assert results["eval_after"]["greedy_accuracy"] is not None
    first, second = (line for line in _metrics(tmp_path / "run") if "loss" in line)
    assert (first["kl"], second["kl"] > 0) == (0.0, True)  # the first update has no previous policy
    # 2 processes x 16 rollouts, in groups of 8
    assert min(first["filter_groups/asked"], second["filter_groups/asked"]) >= 4
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"vllm.log", "train.log"}
    with socket.create_server(("127.0.0.1", port)):
        pass


def _metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
