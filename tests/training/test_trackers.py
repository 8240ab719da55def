"""What experiment trackers receive from a run, and what happens if they fail."""

import errno
import json
import os
import sys
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from run_metrics import logged

from rg_env.errors import InputError
from rg_env.training import EvaluationPlan, train
from rg_env.training.config.schema import LoggingConfig

pytestmark = pytest.mark.slow
TENSORBOARD = LoggingConfig(report_to=["tensorboard"])


@pytest.fixture(autouse=True)
def environ(here: Path) -> Iterator[MutableMapping[str, str]]:
    """An environment without logins or user settings, and a wandb without state. Everything is restored afterwards."""
    import wandb

    before = dict(os.environ)
    for name in before:
        if name.startswith(("WANDB_", "TRACKIO_")):
            del os.environ[name]
    user = here.parent / f"{here.name}-user"
    user.mkdir()
    folders = {name: str(user / name) for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR")}
    os.environ.update({**folders, "HOME": str(user), "NETRC": str(user / "netrc")})
    wandb.teardown()
    yield os.environ
    wandb.teardown()
    os.environ.clear()
    os.environ.update(before)


class Trackio(ModuleType):
    """A stand-in for the trackio package, which would upload or start a server. It records what accelerate's tracker
    passes to it."""

    def __init__(self) -> None:
        super().__init__("trackio")
        self.options: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.logged: list[dict[str, Any]] = []
        self.full = self.ended = False

    def init(self, **options: Any) -> "Trackio":
        self.options, self.config = options, SimpleNamespace(update=lambda values, **_: vars(self).update(args=values))
        return self

    def log(self, values: dict[str, Any], **kwargs: Any) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.logged.append(values)

    def finish(self) -> None:
        self.ended = True

    def Table(self, dataframe: Any) -> Any:
        return dataframe


@pytest.fixture
def trackio() -> Iterator[Trackio]:
    module, installed = Trackio(), sys.modules.pop("trackio", None)
    sys.modules["trackio"] = module
    yield module
    del sys.modules["trackio"]
    if installed is not None:
        sys.modules["trackio"] = installed


def test_trackio_receives_names_and_metrics(make_trainer: Any, trackio: Trackio) -> None:
    """Project and name come from the config or the folder. Training metrics are logged under train/, and all
    evaluations under their own names."""
    logging = LoggingConfig(report_to=["trackio"], project="legs", examples_every=1)
    train(make_trainer(max_steps=1), evaluation=EvaluationPlan(every=1), logging=logging)
    assert trackio.options == {"project": "legs", "name": "run"}
    assert trackio.args["num_generations"] == 4
    assert trackio.ended
    assert [values["train/global_step"] for values in trackio.logged if "eval/accuracy" in values] == [0, 1]
    [trained] = [values for values in trackio.logged if "train/reward" in values]
    assert {"train/loss", "train/tokens_per_second", "train/rewards/correctness/mean"} <= set(trained)
    [table] = [values["completions"] for values in trackio.logged if "completions" in values]
    assert list(table.columns)[:4] == ["step", "task", "question", "completion"]
    assert [row[:2] for row in table.to_numpy().tolist()] == [[1, "leg_counting"]] * 2


def test_tensorboard_has_what_the_metrics_file_has(make_trainer: Any, tmp_path: Path) -> None:
    """One file in the run's folder has all metrics, including the last evaluation."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    trainer = make_trainer(max_steps=2)
    train(trainer, evaluation=EvaluationPlan(every=1), logging=TENSORBOARD)
    assert len(list((run / "tensorboard").iterdir())) == 1
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("eval/accuracy")] == [0, 1, 2]
    for name in ("reward", "loss", "step_time", "tokens_per_second", "memory/peak_rss_gb", "num_tokens"):
        assert [event.step for event in events.Scalars(f"train/{name}")] == [1, 2]
    assert {(line["step"], line["rollouts"]) for line in logged(run)} == {(0, 0), (1, 16), (2, 32)}


def test_a_service_that_fails_later_is_dropped(
    make_trainer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], trackio: Trackio
) -> None:
    """The failure prints one line on standard error, and the run continues."""
    trackio.full = True
    logging = LoggingConfig(report_to=["trackio"])
    results = train(make_trainer(max_steps=2), evaluation=EvaluationPlan(every=10), logging=logging)
    assert results["steps"] == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "trackio" in line]
    assert line.startswith("trackio failed at step 0 (No space left on device)")
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") >= 4


def test_a_folder_that_cannot_be_written_is_reported_before_training(make_trainer: Any, tmp_path: Path) -> None:
    trainer = make_trainer()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").touch()
    with pytest.raises(InputError, match=r"cannot report to tensorboard: .*remove tensorboard from report_to"):
        train(trainer, logging=TENSORBOARD)
    assert trainer.state.global_step == 0


def test_a_wandb_run_of_the_caller_is_left_open(make_trainer: Any, tmp_path: Path, environ: Any) -> None:
    """The caller's run is used, regardless of its earlier steps, and can still be logged to afterwards."""
    import wandb

    environ["WANDB_MODE"] = "offline"
    with wandb.init(project="callers", dir=str(tmp_path)) as mine:
        mine.log({"before": 1.0}, step=1000)
        train(make_trainer(max_steps=1), evaluation=EvaluationPlan(every=1), logging=LoggingConfig(report_to=["wandb"]))
        assert wandb.run is mine
        assert mine.summary["train/global_step"] == 1
        assert mine.summary.get("eval/accuracy") is not None
        mine.log({"after": 2.0})


def test_wandb_offline_writes_into_the_folder_of_the_run(
    make_trainer: Any, tmp_path: Path, environ: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written to the working directory or standard output, and the user's environment variables override the
    config."""
    import wandb

    environ |= {"WANDB_MODE": "offline", "WANDB_NAME": "name-of-user"}
    run = tmp_path / "run"
    logging = LoggingConfig(report_to=["wandb"], project="project-of-test", run_name="name-of-test", examples_every=1)
    train(make_trainer(max_steps=1), evaluation=EvaluationPlan(every=1), logging=logging)
    assert wandb.run is None
    [kept] = (run / "wandb").glob("offline-run-*/run-*.wandb")
    written = kept.read_bytes()
    names = ("project-of-test", "name-of-user", "train/reward", "train/tokens_per_second", "eval/accuracy")
    assert [name for name in names if name.encode() not in written] == []
    [table] = kept.parent.glob("files/media/table/completions*.json")
    assert [row[:2] for row in json.loads(table.read_text())["data"]] == [[1, "leg_counting"]] * 2
    assert list(tmp_path.iterdir()) == [run]
    assert "wandb:" not in capfd.readouterr().out


NOT_ANSWERING = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_INIT_TIMEOUT": "4"}


@pytest.mark.parametrize(
    ("variables", "words"), [({}, r"not logged in: .*WANDB_MODE=offline"), (NOT_ANSWERING, "")], ids=["login", "server"]
)
def test_wandb_that_cannot_start_is_reported_before_training(
    make_trainer: Any, tmp_path: Path, environ: Any, variables: dict[str, str], words: str
) -> None:
    """wandb itself would prompt or wait. The error is one line and is raised quickly, and the run leaves no files."""
    environ |= variables
    trainer = make_trainer()
    start = time.monotonic()
    with pytest.raises(InputError, match=f"cannot report to wandb: {words}") as caught:
        train(trainer, logging=LoggingConfig(report_to=["wandb"]))
    assert time.monotonic() - start < 60
    assert (caught.value.exit_code, "\n" in str(caught.value)) == (2, False)
    assert not (tmp_path / "run").exists()
