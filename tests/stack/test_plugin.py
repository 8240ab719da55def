"""Installing rg-env adds a weight-transfer backend to vLLM and changes nothing else."""

from typing import Any


def test_the_plugin_only_adds_a_backend(plugin: dict[str, Any]) -> None:
    """Until the backend is used, vLLM imports only the plugin's module from rg_env and the packages around it."""
    assert "rg-env-weight-transfer" in plugin["plugins"]
    assert (plugin["new"], plugin["same"], plugin["engine"]) == (["rg_env_shm"], True, "SharedMemoryEngine")
    packages = ["rg_env.errors", "rg_env.inference", "rg_env.inference.vllm"]
    assert plugin["ours"] == [*packages, "rg_env.inference.vllm.plugin"]
