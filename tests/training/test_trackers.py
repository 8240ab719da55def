"""What services get of a run, and what happens where they fail."""

import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_metrics import logged

from rg_env.errors import InputError
from rg_env.training import EvaluationPlan, train
from rg_env.training.config.sections import LoggingConfig
from rg_env.training.reporting import trackers

TENSORBOARD = LoggingConfig(report_to=["tensorboard"])


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
    wandb.teardown()
    before = dict(os.environ)
    yield
    wandb.teardown()
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


class Recorded:
    """In place of one of accelerate's trackers: what it was made with, and what it was given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.made = (args, kwargs)
        self.logged: list[dict[str, Any]] = []
        self.tracker = self

    def start(self) -> None: ...

    def define_metric(self, *args: Any, **kwargs: Any) -> None: ...

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.stored = values

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        self.logged.append(values)

    def finish(self, **kwargs: Any) -> None:
        self.ended = kwargs


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Recorded]:
    """The stand-ins for wandb and Trackio, by name, once a run has started them."""
    found: dict[str, Recorded] = {}

    def make(name: str) -> Any:
        return lambda *args, **kwargs: found.setdefault(name, Recorded(*args, **kwargs))

    monkeypatch.setattr(trackers, "WandBTracker", make("wandb"))
    monkeypatch.setattr(trackers, "TrackioTracker", make("trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(Table=lambda dataframe: dataframe))  # not installed
    return found


def test_names_and_metrics_that_services_get(make_trainer: Any, tmp_path: Path, made: dict[str, Recorded]) -> None:
    """Project and name from the config or the folder; training under train/, evaluations by their names; the last
    evaluation too."""
    logging = LoggingConfig(report_to=["wandb", "trackio"], project="legs", examples_every=1)
    train(make_trainer(max_steps=1), evaluation=EvaluationPlan(every=1), logging=logging)
    for name, tracker in made.items():
        (project, *_), options = tracker.made
        assert (project, options["name"]) == ("legs", "run")
        assert tracker.stored["num_generations"] == 4
        steps = [values["train/global_step"] for values in tracker.logged if "eval/accuracy" in values]
        assert steps == [0, 1]
        [trained] = [values for values in tracker.logged if "train/reward" in values]
        assert {"train/loss", "train/tokens_per_second", "train/rewards/correctness/mean"} <= set(trained)
        [table] = [values["completions"] for values in tracker.logged if "completions" in values]
        rows = table.data if name == "wandb" else table.to_numpy().tolist()
        assert list(table.columns)[:4] == ["step", "task", "question", "completion"]
        assert [row[:2] for row in rows] == [[1, "leg_counting"]] * 2
        assert tracker.ended == ({"exit_code": 0} if name == "wandb" else {})
    assert made["wandb"].made[1]["dir"] == str(tmp_path / "run")
    assert "space_id" not in made["trackio"].made[1], "nothing is uploaded that was not asked for"


def test_tensorboard_has_what_the_metrics_file_has(make_trainer: Any, tmp_path: Path) -> None:
    """In one file in the run's folder, under the field's names, the last evaluation included."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    train(make_trainer(max_steps=2), evaluation=EvaluationPlan(every=1), logging=TENSORBOARD)
    assert len(list((run / "tensorboard").iterdir())) == 1
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("eval/accuracy")] == [0, 1, 2]
    for name in ("reward", "loss", "step_time", "tokens_per_second", "memory/peak_rss_gb", "num_tokens"):
        assert [event.step for event in events.Scalars(f"train/{name}")] == [1, 2]


def test_services_plot_over_rollouts_if_asked(make_trainer: Any, tmp_path: Path) -> None:
    """Sixteen of which make an update here; metrics.jsonl has both counts either way."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    train(make_trainer(max_steps=2, rollouts_as_steps=True), evaluation=EvaluationPlan(every=1), logging=TENSORBOARD)
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("eval/accuracy")] == [0, 16, 32]
    assert [event.step for event in events.Scalars("train/reward")] == [16, 32]
    assert {(line["step"], line["rollouts"]) for line in logged(run)} == {(0, 0), (1, 16), (2, 32)}


def test_a_service_that_fails_later_is_left_behind(
    make_trainer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one line on standard error; the run continues to its end."""

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trackers.TensorBoardTracker, "log", full)
    results = train(make_trainer(max_steps=2), evaluation=EvaluationPlan(every=10), logging=TENSORBOARD)
    assert results["steps"] == 2
    said = capsys.readouterr().err
    assert said.count("tensorboard failed at step 0 (No space left on device)") == 1
    assert said.count("tensorboard") == 1
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") >= 4


def test_a_folder_that_cannot_be_written_is_told_before_training(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bad input, and nothing is left of the run."""
    (tmp_path / "file").touch()
    tracker = trackers.TensorBoardTracker
    monkeypatch.setattr(trackers, "TensorBoardTracker", lambda name, folder: tracker(name, tmp_path / "file" / "x"))
    with pytest.raises(InputError, match=r"cannot report to tensorboard: .*leave it out of report_to"):
        train(make_trainer(), logging=TENSORBOARD)
    assert not (tmp_path / "run").exists()


def test_a_run_of_the_callers_own_is_left_open(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is used, whatever steps it has logged before, and may be logged to afterwards."""
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    with wandb.init(project="callers", dir=str(tmp_path)) as mine:
        mine.log({"before": 1.0}, step=1000)
        train(make_trainer(max_steps=1), evaluation=EvaluationPlan(every=1), logging=LoggingConfig(report_to=["wandb"]))
        assert wandb.run is mine
        assert mine.summary["train/global_step"] == 1
        assert mine.summary.get("eval/accuracy") is not None
        mine.log({"after": 2.0})


def test_wandb_offline_writes_into_the_folder_of_the_run(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing into the working folder or on standard output; variables that the user has set win over the config."""
    import wandb

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_NAME", "name-of-user")
    run = tmp_path / "run"
    logging = LoggingConfig(report_to=["wandb"], project="project-of-test", run_name="name-of-test")
    train(make_trainer(max_steps=1), evaluation=EvaluationPlan(every=1), logging=logging)
    assert wandb.run is None
    [kept] = (run / "wandb").glob("offline-run-*/run-*.wandb")
    written = kept.read_bytes()
    names = ("project-of-test", "name-of-user", "train/reward", "train/tokens_per_second", "eval/accuracy")
    assert [name for name in names if name.encode() not in written] == []
    assert b"<answer>" not in written.replace(b"<answer>...</answer>", b"")
    assert list((tmp_path / "here").iterdir()) == []
    assert "wandb:" not in capfd.readouterr().out


def test_wandb_without_a_login_is_told_before_training(make_trainer: Any, tmp_path: Path) -> None:
    """It would ask, or raise in its own words; nothing is left of the run."""
    trainer = make_trainer()
    with pytest.raises(InputError, match=r"cannot report to wandb: not logged in: .*WANDB_MODE=offline") as caught:
        train(trainer, logging=LoggingConfig(report_to=["wandb"]))
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
    trainer = make_trainer()
    start = time.monotonic()
    with pytest.raises(InputError, match="cannot report to wandb: ") as caught:
        train(trainer, logging=LoggingConfig(report_to=["wandb"]))
    assert time.monotonic() - start < 60
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
