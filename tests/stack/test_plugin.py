"""Installing rg-env adds a weight-transfer backend to vLLM and changes nothing else."""

import json
import subprocess
import sys

from stack_server import cpu_environment

SCRIPT = """
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
print(json.dumps({
    "plugins": [point.name for point in entry_points(group="vllm.general_plugins")],
    "new": sorted(after.keys() - before.keys()),
    "same": same,
    "ours": sorted(name for name in set(sys.modules) - modules if name.startswith("rg_env.")),
    "engine": after["rg_env_shm"]().__name__,
}))
"""


def test_the_plugin_only_adds_a_backend() -> None:
    """Until the backend is used, vLLM imports only the plugin's module from rg_env and the packages around it."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=cpu_environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "rg-env-weight-transfer" in found["plugins"]
    assert (found["new"], found["same"], found["engine"]) == (["rg_env_shm"], True, "SharedMemoryEngine")
    packages = ["rg_env.errors", "rg_env.inference", "rg_env.inference.vllm"]
    assert found["ours"] == [*packages, "rg_env.inference.vllm.plugin"]
