"""The backend that rg-env adds to a real vLLM, and weight sync for each model family, whose layers vLLM fuses, splits
and names differently. All of this runs in one process (`in_one_process`), so these tests share a file."""

from typing import Any

import pytest
from model_families import EXPERTS, SERVED, random_model

from rg_env.training.weight_sync import sources


@pytest.mark.parametrize("family", [*SERVED, *EXPERTS])
def test_all_weights_of_a_family_arrive(families: dict[str, dict[str, Any]], family: str) -> None:
    """After the sync, vLLM computes the new model's log-probabilities up to rounding. Every tensor can be read back,
    however vLLM fuses and packs it: all differ before the sync, and none differs after it. The only exceptions are
    experts, whose elements vLLM rearranges."""
    record = families[family]
    assert record["loaded"] < 1e-3
    assert record["other"] > 1.0
    assert record["synced"] < 1e-3
    config = {**SERVED, **EXPERTS}[family]
    names = {source.name for source in sources(random_model(config))}
    assert set(record["differed"]) == names
    assert record["missing"] == []
    assert set(record["unproven"]) == {name for name in names if ".experts." in name}
    assert bool(record["unproven"]) is (family in EXPERTS)


def test_the_plugin_only_adds_a_backend(plugin: dict[str, Any]) -> None:
    """Until the backend is used, vLLM imports only the plugin's module from rg_env and the packages around it."""
    assert "rg-env-weight-transfer" in plugin["plugins"]
    assert (plugin["new"], plugin["same"], plugin["engine"]) == (["rg_env_shm"], True, "SharedMemoryEngine")
    packages = ["rg_env.errors", "rg_env.inference", "rg_env.inference.vllm"]
    assert plugin["ours"] == [*packages, "rg_env.inference.vllm.plugin"]
