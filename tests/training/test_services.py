"""What services get of a run, and what happens where they fail."""

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_metrics import logged

from rg_env.errors import InputError
from rg_env.training import EvaluationPlan, services, train
from rg_env.training.config_sections import LoggingConfig
from rg_env.training.services import service_settings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No login, no settings of the machine's user, and a wandb that has read nothing yet."""
    import wandb

    for name in list(os.environ):
        if name.startswith(("WANDB_", "TRACKIO_")):
            monkeypatch.delenv(name)
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "user" / name))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("NETRC", str(tmp_path / "user" / "netrc"))
    (tmp_path / "user").mkdir()
    monkeypatch.setattr(services, "_set_here", {})
    wandb.teardown()
    before = dict(os.environ)
    yield
    wandb.teardown()
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


def test_settings_of_a_run() -> None:
    """Names from the config or the folder; nothing is uploaded that was not asked for."""
    settings = service_settings(LoggingConfig(), Path("outputs/one"))
    assert settings["report_to"] == []
    assert (settings["run_name"], settings["logging_dir"]) == ("one", "outputs/one/tensorboard")
    assert settings["trackio_space_id"] is None
    assert not any(name in os.environ for name in ("WANDB_PROJECT", "WANDB_DIR", "WANDB_CONSOLE"))
    named = service_settings(LoggingConfig(run_name="mine", project="legs", report_to=["wandb"]), Path("outputs/one"))
    assert (named["run_name"], named["project"], named["report_to"]) == ("mine", "legs", ["wandb"])
    assert (os.environ["WANDB_PROJECT"], os.environ["WANDB_DIR"]) == ("legs", "outputs/one")


def test_variables_of_the_user_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that an earlier run in the same process has set do not."""
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    for name in ("one", "two"):
        service_settings(LoggingConfig(report_to=["wandb"]), Path("outputs") / name)
        assert os.environ["WANDB_PROJECT"] == "mine"
        assert os.environ["WANDB_DIR"] == f"outputs/{name}"


def test_tensorboard_has_what_the_metrics_file_has(make_trainer: Any, tmp_path: Path) -> None:
    """In one file in the run's folder, under the field's names, the last evaluation included."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    train(
        make_trainer(max_steps=2, **service_settings(LoggingConfig(report_to=["tensorboard"]), run)),
        evaluation=EvaluationPlan(every=1),
    )
    assert len(list((run / "tensorboard").iterdir())) == 1
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("eval/accuracy")] == [0, 1, 2]
    for name in ("reward", "loss", "step_time", "tokens_per_second", "memory/peak_rss_gb", "num_tokens"):
        assert [event.step for event in events.Scalars(f"train/{name}")] == [1, 2]


def test_services_plot_over_rollouts_if_asked(make_trainer: Any, tmp_path: Path) -> None:
    """Sixteen of which make an update here; metrics.jsonl has both counts either way."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    settings = service_settings(LoggingConfig(report_to=["tensorboard"]), run)
    train(make_trainer(max_steps=2, rollouts_as_steps=True, **settings), evaluation=EvaluationPlan(every=1))
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("eval/accuracy")] == [0, 16, 32]
    assert [event.step for event in events.Scalars("train/reward")] == [16, 32]
    assert {(line["step"], line["rollouts"]) for line in logged(run)} == {(0, 0), (1, 16), (2, 32)}


def test_a_service_that_fails_later_is_left_behind(
    make_trainer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one line on standard error; the run goes on to its end."""

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = tmp_path / "run"
    trainer = make_trainer(max_steps=2, **service_settings(LoggingConfig(report_to=["tensorboard"]), run))
    services.start(trainer)
    service = services._running(trainer)[0]
    service.tb_writer.add_scalar = full
    service.begin = lambda trainer: None  # started already
    assert train(trainer, evaluation=EvaluationPlan(every=10))["steps"] == 2
    said = capsys.readouterr().err
    assert said.count("tensorboard failed at step 0") == 1
    assert said.count("tensorboard") == 1
    assert (run / "metrics.jsonl").read_text().count("\n") >= 4


def test_a_folder_that_cannot_be_written_is_told_before_training(make_trainer: Any, tmp_path: Path) -> None:
    """As bad input, and nothing is left of the run."""
    (tmp_path / "file").touch()
    settings = service_settings(LoggingConfig(report_to=["tensorboard"]), tmp_path / "run")
    trainer = make_trainer(**{**settings, "logging_dir": str(tmp_path / "file" / "x")})
    with pytest.raises(InputError, match=r"cannot report to tensorboard: .*leave it out of report_to"):
        train(trainer)
    assert not (tmp_path / "run").exists()


def test_wandb_offline_writes_into_the_folder_of_the_run(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing into the working folder or on standard output; project and name are the config's."""
    import wandb

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    logging = LoggingConfig(report_to=["wandb"], project="project-of-test", run_name="name-of-test")
    train(make_trainer(max_steps=1, **service_settings(logging, run)), evaluation=EvaluationPlan(every=1))
    assert wandb.run is None
    [kept] = (run / "wandb").glob("offline-run-*/run-*.wandb")
    written = kept.read_bytes()
    names = ("project-of-test", "name-of-test", "train/reward", "train/tokens_per_second", "eval/accuracy")
    assert [name for name in names if name.encode() not in written] == []
    assert b"<answer>" not in written.replace(b"<answer>...</answer>", b"")
    assert list((tmp_path / "here").iterdir()) == []
    assert "wandb:" not in capfd.readouterr().out


def test_wandb_without_a_login_is_told_before_training(make_trainer: Any, tmp_path: Path) -> None:
    """It would ask, or raise in its own words; nothing is left of the run."""
    trainer = make_trainer(**service_settings(LoggingConfig(report_to=["wandb"]), tmp_path / "run"))
    with pytest.raises(InputError, match=r"cannot report to wandb: there is no login: .*WANDB_MODE=offline") as caught:
        train(trainer)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_wandb_that_does_not_answer_is_told_before_training(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line and in time; nothing is left of the run."""
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "4")
    trainer = make_trainer(**service_settings(LoggingConfig(report_to=["wandb"]), tmp_path / "run"))
    start = time.monotonic()
    with pytest.raises(InputError, match="cannot report to wandb: ") as caught:
        train(trainer)
    assert time.monotonic() - start < 60
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
