"""What a step costs, as it is logged."""

import time

import psutil
import pytest
import torch

from rg_env.training.reporting.metrics import StepMeter


def test_times_and_tokens_are_those_of_the_steps_since_the_last_log() -> None:
    """Time between steps counts for none; where a step's tokens are not known, its time does not count for them."""
    meter = StepMeter()
    for tokens in (None, 300, 100):
        if tokens is not None:
            meter.batch(tokens)
        meter.begin_step()
        time.sleep(0.06)
        meter.end_step()
        time.sleep(0.1)
    found = meter.take()
    assert found["step_time"] == pytest.approx(0.06, abs=0.02)
    assert found["tokens_per_second"] == pytest.approx(400 / 0.12, rel=0.3)
    assert meter.take() == {}


def test_a_step_that_was_interrupted_is_forgotten() -> None:
    """When the next one begins."""
    meter = StepMeter()
    meter.begin_step()
    time.sleep(0.1)
    meter.begin_step()
    meter.end_step()
    assert meter.take()["step_time"] < 0.05


def test_peak_memory_is_that_of_the_process() -> None:
    """In units of 10^9 bytes, and not less than what it has now."""
    meter = StepMeter()
    kept = torch.ones(50_000_000)  # 0.2 GB
    meter.begin_step()
    meter.end_step()
    found = meter.take()
    now = psutil.Process().memory_info().rss / 1e9
    assert len(kept)
    assert now - 0.05 < found["memory/peak_rss_gb"] < max(3 * now, now + 2)
    assert ("memory/peak_gpu_gb" in found) == torch.cuda.is_available()
