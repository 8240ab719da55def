"""Seconds by phase."""

import time

import pytest

from rg_env.training.reporting.metrics import Phases


def test_a_phase_counts_without_those_within_it() -> None:
    phases = Phases()
    with phases("outer"):
        time.sleep(0.02)
        with phases("inner"):
            time.sleep(0.05)
        time.sleep(0.02)
    with phases("inner"):
        time.sleep(0.05)
    found = phases.take()
    assert found["time/outer"] == pytest.approx(0.04, abs=0.02)
    assert found["time/inner"] == pytest.approx(0.1, abs=0.03)
    assert phases.take() == {}
