"""Weight sync to a real vLLM for each model family, whose layers vLLM fuses, splits and names differently."""

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
