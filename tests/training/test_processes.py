"""Two training processes on one machine (DDP over gloo), with rows without advantage on either."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from rg_env.commands import prepare_process, run_command

prepare_process()
import torch
from rg_env import load_environment
from rg_env.training import GRPOTrainer, default_config, load_policy, run_folder, train

def main():
    torch.set_num_threads(1)
    policy = load_policy("tiny")
    env = load_environment(policy.mixture("leg_counting"), num_train_examples=64, num_eval_examples=8)
    folder = run_folder("run", "two")
    args = default_config(policy, folder, max_steps=500, per_device_train_batch_size=8, gradient_accumulation_steps=2,
                          num_generations=4, max_tokens=32)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, engine="embedded")
    return 130 if train(trainer).get("interrupted") else 0

run_command(main)
"""


@pytest.mark.slow
def test_two_processes_train_and_end_together(tmp_path: Path) -> None:
    """Steps go by, and an interrupt of both saves one checkpoint and the results; nobody waits for the other."""
    (tmp_path / "two.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "two.py"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
    )
    try:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("step   3/"):
                break
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=40)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()
    results = json.loads((tmp_path / "run" / "train_results.json").read_text())
    assert results["interrupted"], (tmp_path / "log").read_text()
    assert results["steps"] >= 3
    assert (tmp_path / "run" / f"checkpoint-{results['steps']}" / "trainer_state.json").exists()


OTHER_ROWS = SCRIPT.replace('"leg_counting"), num', '"leg_counting"), seed=int(os.environ["RANK"]), num').replace(
    "import torch\n", "import os\nimport torch\n"
)


@pytest.mark.slow
def test_processes_with_other_rows_do_not_start(tmp_path: Path) -> None:
    """All end, by one line, before anything is written."""
    (tmp_path / "two.py").write_text(OTHER_ROWS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "two.py"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(told) == 1, done.stderr
    assert "do not train on the same rows" in told[0]
    assert "exitcode  : 2" in done.stderr
    assert not (tmp_path / "run").exists()
