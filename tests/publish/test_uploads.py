"""Tests of the config section `hub`: uploads during and after training, which never end a run."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub_runs import CONFIG, SMALL, train
from hub_server import CANARY, HubServer
from process_scripts import torchrun

from rg_env.core.processes import entered
from rg_env.errors import InputError
from rg_env.jobs.doctor import PlannedRun, check_logins
from rg_env.training import hub_uploads
from rg_env.training.config.load import load_train_config
from rg_env.training.config.schema import HubConfig
from rg_env.training.hub_uploads import Uploads

HUB = ["hub.enabled=true", "hub.repo_id=me/legs"]


@pytest.fixture
def uploads(run: Path) -> Any:
    """Return a function that makes the uploads of a run in progress, with their output in `lines`."""
    lines: list[str] = []

    def make(**config: Any) -> Uploads:
        made = Uploads(HubConfig(enabled=True, repo_id="me/legs", **config), run, main=True, say=lines.append)
        made.lines = lines  # type: ignore[attr-defined]
        return made

    return make


def step(uploads: Uploads, number: int, of: int = 6) -> None:
    """Call the methods that the trainer calls when it saves a checkpoint and starts the next step."""
    state = SimpleNamespace(global_step=number, max_steps=of)
    uploads.on_save(None, state, None)
    uploads.on_step_begin(None, state, None)


def wait(uploads: Any) -> None:
    deadline = time.monotonic() + 60
    while uploads._process is not None and uploads._process.code is None and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(900)  # starts two processes, and two uploads in separate processes
@pytest.mark.usefixtures("forks")
def test_a_run_publishes_itself(hub: HubServer, tmp_path: Path) -> None:
    """Of two processes, the main one uploads during training and at the end. No files are left next to the run's
    folder, and none contains the token."""
    command = [*torchrun(2), "-m", "rg_env.cli.main", "train", str(CONFIG), *SMALL, f"output.dir={tmp_path / 'run'}"]
    command += [*HUB, "hub.every=2", "hub.optimizer_state=full", "hub.private=true"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, env=environment)
    output = f"{done.stdout}{done.stderr}"
    assert done.returncode == 0, output
    assert f"\nhub: run uploaded to {hub.url}/me/legs\n" in output
    assert f"\nhub: checkpoint-2 uploaded to {hub.url}/me/legs\n" in output
    assert hub.repos["me/legs"].private
    _, first, last = hub.repos["me/legs"].branches["main"]
    assert "run/checkpoint-2/optimizer.pt" in first.files
    assert "run/eval_results/eval_step_2.json" in first.files, "the evaluation of that step is there"
    assert last.files["model.safetensors"] == (tmp_path / "run/checkpoint-4/model.safetensors").read_bytes()
    assert not [path for path in last.files if path.startswith("run/checkpoint-2")]
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("hf", "no-token")] == ["run"]
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [each for each in [*written, output.encode()] if CANARY.encode() in each]


@pytest.mark.slow
def test_a_failed_upload_is_reported_on_one_line(hub: HubServer, tmp_path: Path, capsys: Any, rg_env: Any) -> None:
    """The run's result is unaffected, and the command in the line completes the upload."""
    hub.tokens[CANARY] = ("me", False)
    results = train(f"output.dir={tmp_path / 'run'}", *HUB, "training.max_steps=1", "evaluation.every=0")
    assert results["error"] is None
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("hub: run was not uploaded (the Hub refused access to me/legs (403: ")
    command = f"{entered('rg-env')} push {tmp_path / 'run'} --repo-id me/legs"
    assert line.endswith(f"; upload the run with: {command}")
    assert CANARY not in line
    hub.tokens[CANARY] = ("me", True)
    assert rg_env(*command.split()[1:])[0] == 0
    assert "model.safetensors" in hub.repos["me/legs"].files()


@pytest.mark.slow
def test_the_command_after_a_failed_upload_pushes_the_run(hub: HubServer, uploads: Any, run: Path) -> None:
    """The printed command uploads the run, because a checkpoint would replace the last step with an earlier one."""
    made = uploads(every=2)
    hub.fail("GET", "/api/models/me/legs", 500)
    step(made, 2)
    wait(made)
    made.finish(complete=True)
    assert made.lines == [
        "hub: checkpoint-2 was not uploaded (the Hub responded with an error (500)); upload the run with: "
        f"{entered('rg-env')} push {run} --repo-id me/legs",
        "hub: uploading the run to me/legs; this can take a while",
        f"hub: {run.name} uploaded to {hub.url}/me/legs",
    ]


@pytest.mark.slow
def test_a_checkpoint_is_kept_during_its_upload(hub: HubServer, uploads: Any, run: Path) -> None:
    """An upload that is due while another one is running is skipped with a message."""
    made = uploads(every=2)
    with hub.lock:  # no responses for a while
        step(made, 2)
        step(made, 4)
        assert made.is_uploading(run / "checkpoint-2")
        assert not made.is_uploading(run / "checkpoint-4")
    wait(made)
    made.on_step_begin(None, SimpleNamespace(global_step=5, max_steps=6), None)
    assert not made.is_uploading(run / "checkpoint-2")
    assert made.lines == [
        "hub: step 4 was not uploaded because an earlier upload is still running",
        f"hub: checkpoint-2 uploaded to {hub.url}/me/legs",
    ]
    assert hub.repos["me/legs"].files()["model.safetensors"] == (run / "checkpoint-2/model.safetensors").read_bytes()
    assert not (run / ".hub-upload.log").exists()


@pytest.mark.slow
def test_a_run_does_not_wait_forever_for_its_upload(
    hub: HubServer, uploads: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C or the time limit ends the last upload, and the command that completes it is printed."""
    command = f"upload the run with: {entered('rg-env')} push {run} --repo-id me/legs"
    made = uploads(private=True)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with hub.lock, pytest.raises(KeyboardInterrupt):
        made.finish(complete=True)
    assert made.lines[1] == f"hub: {run.name} was not uploaded (interrupted); {command} --private"
    monkeypatch.setattr(hub_uploads, "FINISH_TIMEOUT_S", 0.5)
    late = uploads()
    with hub.lock:
        late.finish(complete=True)
    assert late.lines[-1] == f"hub: {run.name} was not uploaded (the upload took more than 0.5 s); {command}"
    assert (made._process, late._process) == (None, None)


@pytest.mark.slow
def test_an_unfinished_run_is_not_published(hub: HubServer, uploads: Any, run: Path) -> None:
    """A running upload is stopped, and the command that uploads the run is printed."""
    made = uploads(every=2, optimizer_state="full")
    with hub.lock:
        step(made, 2)
        process = made._process
        made.finish(complete=False)
    assert process.code is not None
    assert made.lines == [
        f"hub: {run.name} was not uploaded (training did not finish); upload the run with: "
        f"{entered('rg-env')} push {run} --repo-id me/legs --optimizer-state full"
    ]
    assert not (run / ".hub-upload.log").exists()
    assert not hub.repos


@pytest.mark.slow
def test_only_the_main_process_uploads_and_only_if_enabled(hub: HubServer, run: Path) -> None:
    for config, main in ((HubConfig(enabled=True, repo_id="me/legs", every=2), False), (HubConfig(every=2), True)):
        made = Uploads(config, run, main=main, say=pytest.fail)
        step(made, 2)
        made.finish(complete=True)
    assert hub.requests == []


def test_a_run_does_not_start_without_a_token(hub: HubServer, tmp_path: Path, environ: Callable[..., None]) -> None:
    """The one-line error is raised before the model is loaded, and the doctor reports the same problem."""
    environ(HF_TOKEN=None)
    with pytest.raises(InputError, match=r"^hub.enabled: .*no Hugging Face token.* set HF_TOKEN in .env"):
        train(f"output.dir={tmp_path / 'run'}", *HUB, "model.name=nobody/nothing")
    assert not (tmp_path / "run").exists()
    uploaded, not_uploaded = (PlannedRun(load_train_config(CONFIG, overrides)) for overrides in (HUB, ()))
    found = check_logins(uploaded)
    assert found.status == "failed"
    assert "hub.enabled=false" in found.finding
    assert check_logins(not_uploaded).status == "ok"
    environ(HF_TOKEN=CANARY)
    assert check_logins(uploaded).status == "ok"
    assert CANARY not in str(check_logins(uploaded))
