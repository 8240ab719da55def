"""What a step costs, as it is logged: time by phase, tokens a second, memory."""

import time

import psutil
import pytest
import torch

from rg_env.training.reporting.metrics import StepMetrics, step_costs


def test_memory_is_the_peak_of_this_process() -> None:
    """In units of 10^9 bytes, and not less than it is now."""
    kept = torch.ones(50_000_000)  # 0.2 GB
    costs = step_costs(0.5, 300)
    assert (costs["step_time"], costs["tokens_per_second"]) == (0.5, 600)
    now = psutil.Process().memory_info().rss / 1e9
    assert len(kept)
    assert now - 0.05 < costs["memory/peak_rss_gb"] < max(3 * now, now + 2)
    assert ("memory/peak_gpu_gb" in costs) == torch.cuda.is_available()


def test_a_phase_counts_without_those_within_it() -> None:
    """And no time between phases."""
    metrics = StepMetrics()
    with metrics.phase("outer"):
        time.sleep(0.02)
        with metrics.phase("inner"):
            time.sleep(0.05)
        time.sleep(0.02)
    time.sleep(0.1)
    with metrics.phase("inner"):
        time.sleep(0.05)
    seconds = metrics.take()
    assert seconds["time/outer"] == pytest.approx(0.04, abs=0.03)
    assert seconds["time/inner"] == pytest.approx(0.1, abs=0.04)
    assert metrics.take() == {}
