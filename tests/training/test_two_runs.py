"""Runs whose folder is already used, disappears, or is left by a second Ctrl-C while they save."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rg_env.core.run_folder import RunFolder, locked
from rg_env.errors import OutputFolderError, RGEnvError
from rg_env.training import EvaluationPlan, train
from rg_env.training import run as run_module

Make = Callable[..., Any]
NONE = EvaluationPlan(every=0, before=False, after=False)


def test_a_second_run_needs_another_folder(make_trainer: Make, tmp_path: Path) -> None:
    """Its checkpoints, rows and metrics would be mixed with those of the first run."""
    options = {"output_dir": str(tmp_path / "run"), "max_tokens": 4, "save_steps": 1}
    train(make_trainer(**options, max_steps=2), evaluation=NONE)
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    for resume in (None, tmp_path / "other/checkpoint-1"):
        with pytest.raises(OutputFolderError, match="run is not empty and may contain another run; choose another"):
            train(make_trainer(**options, max_steps=1, seed=1), evaluation=NONE, resume=resume)
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before


def test_only_one_process_trains_in_a_folder(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run waits for a while, because a requeued job may start while its predecessor is still saving."""
    monkeypatch.setattr(run_module, "_REQUEUED_S", 0.3)
    trainer = make_trainer(output_dir=str(tmp_path / "run"), max_steps=1, max_tokens=4)
    (tmp_path / "run").mkdir()
    for resume in (None, "auto"):
        with locked(tmp_path / "run"), pytest.raises(OutputFolderError, match=f"^process {os.getpid()} is writing to"):
            train(trainer, evaluation=NONE, resume=resume)
        assert ("waiting for process" in capsys.readouterr().out) == (resume == "auto")
        assert not [*(tmp_path / "run").iterdir()]
    assert train(trainer, evaluation=NONE)["steps"] == 1
    with locked(tmp_path / "run"):
        pass


def test_a_removed_folder_is_one_line(make_trainer: Make, tmp_path: Path) -> None:
    """The folder is removed during the run."""
    trainer = make_trainer(output_dir=str(tmp_path / "run"), max_steps=3, max_tokens=4, save_steps=1)
    save = trainer.save_checkpoint
    trainer.save_checkpoint = lambda: (save(), shutil.rmtree(tmp_path / "run"))[0]
    with pytest.raises(RGEnvError, match=r"the folder \S+/run does not exist or was removed$"):
        train(trainer, evaluation=NONE)


@pytest.mark.parametrize("saved_before", [True, False])
def test_a_second_ctrl_c_while_saving_keeps_the_last_checkpoint(
    saved_before: bool, make_trainer: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run prints which checkpoint is left and how to resume from it."""
    options = {"output_dir": str(tmp_path / "run"), "max_steps": 9, "max_tokens": 4}
    trainer = make_trainer(**options, save_steps=2 if saved_before else 0)
    end_step = trainer._end_step

    def interrupt(result: Any, began: float) -> None:
        end_step(result, began)
        if trainer.state.global_step == 3:
            trainer.checkpoints._write_state = lambda part: os.kill(os.getpid(), signal.SIGINT)
            raise KeyboardInterrupt

    trainer._end_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        train(trainer, evaluation=NONE)
    run, printed = RunFolder(tmp_path / "run"), capsys.readouterr().out.splitlines()[-1]
    assert not (run.path / "checkpoint.part").exists()
    kept = "there is no earlier checkpoint"
    if saved_before:
        assert run.last_checkpoint() == run.checkpoint(2)
        call = f"train(trainer, resume='auto'), with output_dir={str(run.path)!r}"
        kept = f"the last checkpoint is checkpoint-2. Resume with: {call}"
    assert printed == f"interrupted before step 3 was saved; {kept}"
