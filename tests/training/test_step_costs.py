"""What a step costs, as it is logged: time by phase, tokens a second, memory."""

import time

import psutil
import pytest
import torch

from rg_env.training.reporting.metrics import Phases, StepMeter


def test_a_step_is_measured_from_its_begin_to_its_end() -> None:
    """Whatever an interrupted one before it took; memory in units of 10^9 bytes, and not less than it is now."""
    meter, kept = StepMeter(), torch.ones(50_000_000)  # 0.2 GB
    meter.begin_step()
    time.sleep(0.3)
    meter.begin_step()
    meter.batch(300)
    time.sleep(0.06)
    costs = meter.end_step()
    assert costs["step_time"] == pytest.approx(0.06, abs=0.05)
    assert costs["tokens_per_second"] == pytest.approx(300 / costs["step_time"], rel=0.05)
    now = psutil.Process().memory_info().rss / 1e9
    assert len(kept)
    assert now - 0.05 < costs["memory/peak_rss_gb"] < max(3 * now, now + 2)
    assert ("memory/peak_gpu_gb" in costs) == torch.cuda.is_available()


def test_a_phase_counts_without_those_within_it() -> None:
    """And no time between phases."""
    phases = Phases()
    with phases("outer"):
        time.sleep(0.02)
        with phases("inner"):
            time.sleep(0.05)
        time.sleep(0.02)
    time.sleep(0.1)
    with phases("inner"):
        time.sleep(0.05)
    seconds = phases.take()
    assert seconds["time/outer"] == pytest.approx(0.04, abs=0.03)
    assert seconds["time/inner"] == pytest.approx(0.1, abs=0.04)
    assert phases.take() == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine whose GPU nothing reports on")
def test_a_gpu_that_does_not_report_its_utilization_is_not_an_error() -> None:
    """As without NVML, or with MIG: the metric is left out, and not tried again."""
    meter = StepMeter()
    meter._has_nvml = True
    meter.begin_step()
    assert "gpu/utilization" not in meter.end_step()
    assert meter._has_nvml is False
