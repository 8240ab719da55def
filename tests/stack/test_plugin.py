"""What installing rg-env changes in vLLM: nothing, unless asked; then the weight-sync extension of `vf-vllm` alone."""

import json
import subprocess
import sys

import pytest
from stack_server import cpu_environment

from rg_env.inference.vllm_plugin import ENV_VARIABLE

SCRIPT = """
import json
from importlib.metadata import entry_points
import vllm.distributed.parallel_state as state
from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
from vllm.distributed.utils import StatelessProcessGroup
from vllm.v1.worker.worker_base import WorkerBase
from verifiers.inference.vllm_server import WeightSyncWorkerExtension
from vllm.plugins import load_general_plugins

classes = [WeightSyncWorkerExtension, PyNcclCommunicator, StatelessProcessGroup, WorkerBase, state.GroupCoordinator]
before = [dict(vars(each)) for each in classes]
load_general_plugins()
changed = [
    f"{each.__name__}.{name}"
    for each, old in zip(classes, before)
    for name in vars(each)
    if vars(each)[name] is not old.get(name)
]
names = [point.name for point in entry_points(group="vllm.general_plugins")]
print(json.dumps({"changed": changed, "plugins": names}))
"""


@pytest.mark.parametrize("asked", [False, True])
def test_what_the_plugin_changes(asked: bool) -> None:
    environment = cpu_environment(**({ENV_VARIABLE: "1"} if asked else {}))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "rg-env-weight-sync" in found["plugins"]
    methods = ["init_communicator", "update_named_param", "close_communicator"]
    assert found["changed"] == ([f"WeightSyncWorkerExtension.{name}" for name in methods] if asked else [])
