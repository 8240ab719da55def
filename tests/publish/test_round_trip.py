"""Tests of a round trip to the Hub: the download is the same model and resumes training exactly."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import weights as weights_of
from checkpoint_files import write_dtensors
from hub_runs import train
from hub_server import CANARY, HubServer
from huggingface_hub import snapshot_download
from run_metrics import evaluation_of, logged
from transformers import AutoModelForCausalLM, AutoTokenizer

from rg_env.core.hub import PushRequest
from rg_env.errors import InputError
from rg_env.publish.push import preview
from rg_env.tiny import POLICY_DIR

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


def test_a_checkpoint_of_verl(hub: HubServer, downloaded: Download, rg_env: Any, tmp_path: Path) -> None:
    """The configuration and the tokenizer come from the base model, and the optimizer state is sent unchanged."""
    model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
    actor = write_dtensors(tmp_path / "verl/global_step_5/actor", weights_of(model), processes=2)
    (tmp_path / "verl/latest_checkpointed_iteration.txt").write_text("5")
    state = {f"{kind}_world_size_2_rank_{rank}.pt" for kind in ("optim", "extra_state") for rank in range(2)}
    for name in state:
        (actor / name).write_bytes(name.encode())
    hub.add("org/base", {path.name: path.read_bytes() for path in POLICY_DIR.iterdir() if path.is_file()})
    command = ("push", str(tmp_path / "verl"), "--repo-id", "me/legs", "--optimizer-state", "full")

    code, _, error = rg_env(*command, "--dry-run")
    assert code == 2
    assert "global_step_5 has no config.json, which describes the model: pass the base model as --base" in error
    shown = rg_env(*command, "--dry-run", "--base", "org/base")[1]
    assert (
        "(the preview does not download the config and tokenizer of org/base, so the export was not checked)" in shown
    )
    assert rg_env(*command, "--dry-run", "--base", str(POLICY_DIR))[0] == 0
    assert hub.requests == []

    assert rg_env(*command, "--base", "org/base")[0] == 0
    files = hub.repos["me/legs"].files()
    shards = {f"checkpoint-5/actor/{path.name}" for path in actor.iterdir() if path.suffix == ".pt"}
    assert {path for path in files if "/" in path} == shards
    assert b"base_model: org/base" in files["README.md"]
    assert b"is in `checkpoint-5`" in files["README.md"]
    assert len([*(tmp_path / "verl").iterdir()]) == 2, "nothing is left of the export"
    loaded = AutoModelForCausalLM.from_pretrained(downloaded(), dtype=torch.float32)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert AutoTokenizer.from_pretrained(tmp_path / "legs").chat_template

    (actor / "model_world_size_2_rank_1.pt").unlink()
    code, _, error = rg_env(*command, "--dry-run", "--base", str(POLICY_DIR))
    assert code == 2
    assert "must contain all 2 model_world_size_2_rank_R.pt files of a single run (1 found)" in error


def test_the_state_of_transformers_trainer_is_sent_too(hub: HubServer, pushed: Pushed, tmp_path: Path) -> None:
    """A checkpoint of TRL is sent without its pickled arguments, which contain local paths."""
    folder = Path(shutil.copytree(POLICY_DIR, tmp_path / "out/checkpoint-3"))
    (folder / "trainer_state.json").write_text('{"global_step": 3}')
    state = {"optimizer.pt", "scheduler.pt", "rng_state.pth"}
    for name in (*state, "training_args.bin"):
        (folder / name).write_bytes(name.encode())
    pushed(folder, optimizer_state="full", base="org/base")
    files = hub.repos["me/legs"].files()
    published = {path.removeprefix("checkpoint-3/") for path in files if path.startswith("checkpoint-3/")}
    assert published >= {*state, "trainer_state.json"}
    assert "training_args.bin" not in published
    assert b"base_model: org/base" in files["README.md"]


def test_a_refusal_comes_before_an_export(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """Afterwards, the export of a run's checkpoint is checked against the run and gets the run's card."""
    hub.add("me/legs", {"model.bin": b"theirs"})
    model = AutoModelForCausalLM.from_pretrained(run / "checkpoint-4", dtype=torch.float32)
    (run / "checkpoint-4/model.safetensors").unlink()
    torch.save(weights_of(model), run / "checkpoint-4/pytorch_model.bin")
    before = sorted(run.rglob("*"))
    shown = preview(PushRequest(run, "me/legs"))
    assert f"{run}/checkpoint-4 will be exported first (rg-env export))" in shown
    assert "model.safetensors" not in shown.partition("\n\n")[0]
    with pytest.raises(InputError, match="contains other files"):
        pushed(run)
    lines = "\n".join(pushed(run, repo_id="me/other", optimizer_state="full")[1])
    assert "exporting" in lines
    assert "frozen questions" in lines, "the export is checked against the run"
    assert sorted(run.rglob("*")) == before, "nothing is left of the export"
    files = hub.repos["me/other"].files()
    assert b"after 4 steps" in files["README.md"]
    assert {"model.safetensors", "run/checkpoint-4/optimizer.pt", "run/checkpoint-4/pytorch_model.bin"} <= set(files)
