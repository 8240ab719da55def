"""Tests of a round trip to the Hub: the download is the same model and resumes training exactly."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_runs import train
from hub_server import CANARY, HubServer
from huggingface_hub import snapshot_download
from run_metrics import evaluation_of, logged

pytestmark = pytest.mark.slow
Pushed = Callable[..., tuple[str, list[str]]]
Download = Callable[..., Path]


@pytest.fixture
def downloaded(hub: HubServer, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that downloads me/legs from the Hub."""

    def call(**options: Any) -> Path:
        folder = tmp_path / "legs"
        return Path(snapshot_download("me/legs", endpoint=hub.url, token=CANARY, local_dir=folder, **options))

    return call


def test_a_download_resumes(
    hub: HubServer, trained: Path, tmp_path: Path, pushed: Pushed, downloaded: Download
) -> None:
    """The downloaded config reproduces the recorded accuracy of every task, and two more steps give the weights,
    metrics and evaluations of the uninterrupted run."""
    pushed(trained / "checkpoint-2", optimizer_state="full")
    folder = downloaded()
    config = folder / "run/config.yaml"

    from rg_env.training import evaluate_config, load_train_config

    found = evaluate_config(load_train_config(config, [f"output.dir={tmp_path / 'again'}"]), str(folder)).summary()
    recorded = evaluation_of(trained, 2)
    for part in ("accuracy", "greedy_accuracy", "tasks", "held_out", "labelled", "questions"):
        assert found[part] == recorded[part], part

    run = folder / "run"
    train(f"output.dir={run}", config=config, resume="auto")
    for name in ("model.safetensors", "tokenizer.json", "resume.json"):
        assert (run / "checkpoint-4" / name).read_bytes() == (trained / "checkpoint-4" / name).read_bytes()
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        assert logged(run, name) == logged(trained, name)
    for step in (2, 4):
        assert evaluation_of(run, step) == evaluation_of(trained, step)
    pushed(run, optimizer_state="full")
    assert json.loads(hub.repos["me/legs"].files()["rg_env.json"])["step"] == 4, "it is the same run"
    card = hub.repos["me/legs"].files()["README.md"].decode()
    assert "| time since resuming | " in card, "not all of its time"
    assert "| resumed from | `checkpoint-2` |" in card
