"""Shared helpers for tests with a real server: starting one, and changing a model's weights."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from rg_env.inference.vllm.client import VllmServer
from rg_env.inference.vllm.command import serve_command
from rg_env.tiny import POLICY_DIR

REPOSITORY = Path(__file__).parents[2]
START_S = 600


def cpu_environment(**more: str) -> dict[str, str]:
    """Return an environment for a program that runs on the CPU, shares two cores and must not access the hub."""
    fixed = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **fixed, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1", **more}


class RunningServer(VllmServer):
    """A vLLM server started by this test session.

    Attributes:
        may_end: whether a test may end the server.
    """

    may_end = False

    def __init__(self, log: Path, model: Path = POLICY_DIR):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        super().__init__("127.0.0.1", port)
        command = serve_command(str(model), port=port, max_model_len=512)
        command[0] = str(Path(sys.executable).with_name(command[0]))
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, env=cpu_environment(), stdout=file, stderr=file, start_new_session=True
            )
        try:
            self.wait(START_S, still_wanted=lambda: self.process.poll() is None)
        except Exception as error:
            self.end()
            raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}") from error

    def end(self, kind: signal.Signals = signal.SIGTERM) -> None:
        """Terminate the server and all its processes."""
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


def perturb(model: Any, only: str = "") -> None:
    """Add noise with a standard deviation of 0.05 to the weights whose names contain `only`."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only in name:
                parameter.add_(0.05 * torch.randn_like(parameter))
