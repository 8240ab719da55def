"""What a step costs, as it is logged."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from transformers import TrainerCallback

from rg_env.training import EvaluationPlan, train
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


def test_a_gpu_that_does_not_tell_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVML's library there is no figure, and no error."""
    asked = []

    def utilization() -> int:
        asked.append(1)
        raise ModuleNotFoundError("pynvml does not seem to be installed or it can't be imported.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1_500_000_000)
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    meter = StepMeter()
    for _ in range(2):
        meter.begin_step()
        meter.end_step()
        found = meter.take()
        assert found["memory/peak_gpu_gb"] == 1.5
        assert "gpu/utilization" not in found
    assert len(asked) == 1
    monkeypatch.setattr(torch.cuda, "utilization", lambda: 87)
    meter = StepMeter()
    meter.begin_step()
    meter.end_step()
    assert meter.take()["gpu/utilization"] == 87.0


def test_macos_counts_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=2_000_000_000))
    meter = StepMeter()
    meter.begin_step()
    meter.end_step()
    assert meter.take()["memory/peak_rss_gb"] == 2.0


class Logged(TrainerCallback):
    """A service: what any callback is handed."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logs.append(dict(logs))


def test_services_and_metrics_file_get_the_same(make_trainer: Any, tmp_path: Path) -> None:
    """Every step's line; tokens a second follow from those counted; evaluations are no part of the step."""
    service = Logged()
    trainer = make_trainer(max_steps=2, callbacks=[service])
    train(trainer, evaluation=EvaluationPlan(every=1))
    with (tmp_path / "run" / "metrics.jsonl").open() as file:
        written = [{k: v for k, v in json.loads(line).items() if k != "step"} for line in file]
    assert written == service.logs
    steps = [line for line in written if "loss" in line]
    assert len(steps) == 2
    before = 0
    for line in steps:
        tokens, before = line["num_tokens"] - before, line["num_tokens"]
        assert line["tokens_per_second"] * line["step_time"] == pytest.approx(tokens, rel=0.02)
        assert line["memory/peak_rss_gb"] > 0.1
    assert not any("step_time" in line for line in written if "loss" not in line)
