"""How runs end after an error or an interrupt, and which files they leave."""

import errno
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from interrupts import At, ctrl_c
from run_metrics import results_of

from rg_env.core.environment import Environment
from rg_env.errors import RewardError, TrainingError
from rg_env.training import EvaluationPlan, GRPOConfig, load_policy, train
from rg_env.training.config.schema import EngineConfig, LoggingConfig


def test_an_error_in_mid_run_loses_nothing(make_trainer: Any, make_env: Any, tmp_path: Path) -> None:
    """The checkpoint, the results and the curve so far are saved, and the error is still raised."""
    state = {"fail": False}

    def moody(completion: str) -> float:
        if state["fail"]:
            raise KeyError("out of mood")
        return float(len(completion) % 2)

    rows = make_env()
    trainer = make_trainer(env=Environment(rows.train_rows, rows.eval_rows, rewards=[moody]), max_steps=5)
    trainer.add_callback(At(2, lambda: state.update(fail=True)))
    with pytest.raises(RewardError, match="moody") as caught:
        train(trainer, evaluation=EvaluationPlan(every=10))
    assert caught.value.exit_code == 1
    run = tmp_path / "run"
    results = results_of(run)
    assert results["steps"] == 2
    assert "moody" in results["error"]
    assert (run / "reward_curve.png").exists()
    load_policy(str(run / "checkpoint-2"))


def no_space() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_failure_to_save_does_not_hide_the_original_error(make_trainer: Any, tmp_path: Path) -> None:
    """The second error becomes a note on the first, and the results are still saved."""
    trainer = make_trainer(max_steps=5)
    trainer.strategy.save = lambda *args, **kwargs: no_space()
    trainer.add_callback(At(1, lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError) as caught:
        train(trainer, evaluation=EvaluationPlan(every=10))
    assert "No space left" in caught.value.__notes__[0]
    assert results_of(tmp_path / "run")["steps"] == 1


def test_a_full_disk_at_the_end(
    make_trainer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run prints a warning before training and the command that resumes it at the end, and the error is one line
    without torch's message."""

    def fails(part: Path) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/0")

    trainer = make_trainer(max_steps=3, save_steps=2)
    trainer.add_callback(At(2, lambda: setattr(trainer.strategy, "save", fails)))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2_000_000))
    with pytest.raises(TrainingError) as caught:
        train(trainer, evaluation=EvaluationPlan(every=10, after=False))
    assert str(caught.value) == (
        f"cannot save checkpoint-3 in {tmp_path / 'run'}: the disk is full, or a quota or file size limit was "
        "reached; earlier checkpoints are unchanged"
    )
    output = capsys.readouterr().out
    assert re.search(r"^warning: a checkpoint needs about \d+ MB, but .*run has 2 MB free: free some space", output)
    assert "Resume with: " in output.splitlines()[-1]
    assert results_of(tmp_path / "run")["error"] == str(caught.value)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupted_run_saves_its_results(
    make_trainer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each evaluation in the results has its step, the checkpoint is from the last complete step, and the resume
    command is printed."""
    trainer = make_trainer(max_steps=9)
    trainer.add_callback(At(3, interrupt))
    results = train(trainer, evaluation=EvaluationPlan(every=2))
    assert results["interrupted"]
    assert results["steps"] == 3
    assert (results["eval_before"]["step"], results["eval_after"]["step"]) == (0, 2)
    assert (tmp_path / "run" / "checkpoint-3" / "trainer_state.json").exists()
    assert f"Resume with: train(trainer, resume='auto'), with output_dir='{tmp_path}/run'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("act", "error"),
    [(no_space, OSError), (interrupt, KeyboardInterrupt), (ctrl_c, KeyboardInterrupt), (None, TrainingError)],
)
def test_a_run_without_a_step_leaves_nothing(make_trainer: Any, tmp_path: Path, act: Any, error: type) -> None:
    """An error or an interrupt before the first step or during the first evaluation is raised, because nothing was
    trained."""
    trainer = make_trainer()
    if act is None:
        trainer.train = lambda **kwargs: None
    elif act is ctrl_c:
        generate = trainer.engine.generate
        trainer.engine.generate = lambda *args: (ctrl_c(), generate(*args))
    else:
        trainer.callbacks = [At(0, act, "on_train_begin"), *trainer.callbacks]
    with pytest.raises(error):
        train(trainer)
    assert not (tmp_path / "run").exists()


def test_an_interrupt_that_a_library_hides_is_recognized(make_trainer: Any) -> None:
    """An error raised while a library handles Ctrl-C ends the run like Ctrl-C itself."""

    def clean_up() -> None:
        try:
            interrupt()
        finally:
            raise TimeoutError

    trainer = make_trainer(max_steps=5)
    trainer.add_callback(At(1, clean_up))
    results = train(trainer, evaluation=EvaluationPlan(every=10))
    assert (results["interrupted"], results["error"]) == (True, None)


def test_a_trainer_can_train_again_after_an_interrupt(make_trainer: Any) -> None:
    trainer = make_trainer(max_steps=3)
    once = At(1, lambda: trainer.engine.cancel())
    trainer.add_callback(once)
    with pytest.raises(Exception, match="cancelled"):
        trainer.train()
    once.step = -1
    trainer.train()
    assert trainer.state.global_step == 3


def test_an_interrupt_leaves_no_incomplete_checkpoint(make_trainer: Any, tmp_path: Path) -> None:
    """If the interrupt comes while a checkpoint is written, the end of the run writes a complete one."""
    trainer = make_trainer(max_steps=4, save_steps=2)
    save, calls = trainer.strategy.save, []

    def broken(folder: Path) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        save(folder)

    trainer.strategy.save = broken
    results = train(trainer, evaluation=EvaluationPlan(every=10))
    assert results["interrupted"]
    checkpoints = sorted(path.name for path in (tmp_path / "run").glob("checkpoint*"))
    assert checkpoints == ["checkpoint-2"]
    load_policy(str(tmp_path / "run" / "checkpoint-2"))


def test_old_checkpoints_are_rotated(make_trainer: Any, tmp_path: Path) -> None:
    """`save_total_limit` is the number of checkpoints that the run's folder keeps."""
    make_trainer(max_steps=4, save_steps=1, save_total_limit=2).train()
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint*")) == ["checkpoint-3", "checkpoint-4"]


@pytest.mark.parametrize(("event", "saved"), [("on_optimizer_step", False), ("on_log", True)])
def test_a_second_ctrl_c_ends_a_run_at_once(make_trainer: Any, tmp_path: Path, event: str, saved: bool) -> None:
    """In the middle of an update, nothing is saved, because the weights belong to no step. The previous checkpoint is
    kept."""

    def twice() -> None:
        ctrl_c()
        ctrl_c()

    trainer = make_trainer(max_steps=5, save_steps=1)
    trainer.callbacks = [At(2 if saved else 1, twice, event), *trainer.callbacks]
    none = EvaluationPlan(before=False, after=False, every=0)
    if saved:
        assert train(trainer, evaluation=none)["interrupted"]
    else:
        with pytest.raises(KeyboardInterrupt):
            train(trainer, evaluation=none)
    checkpoints = sorted(path.name for path in (tmp_path / "run").glob("checkpoint*"))
    assert checkpoints == (["checkpoint-1", "checkpoint-2"] if saved else ["checkpoint-1"])


def test_an_error_in_the_middle_of_an_update_saves_nothing(make_trainer: Any, tmp_path: Path) -> None:
    """The weights may be half updated, so only the results so far are saved."""
    trainer = make_trainer(max_steps=5)
    trainer.add_callback(At(1, no_space, "on_optimizer_step"))
    with pytest.raises(OSError, match="No space left"):
        train(trainer, evaluation=EvaluationPlan(every=10))
    assert results_of(tmp_path / "run")["steps"] == 1
    assert not list((tmp_path / "run").glob("checkpoint*"))


# --- the files and the output of a run


def test_the_config_and_the_output_of_a_run(
    make_trainer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """config.yaml contains the model, prompt, tasks and rewards, and training and engine settings that can be loaded
    again. Progress is one line per step, and examples are printed as often as configured. test_console.py covers
    terminals."""
    logging = LoggingConfig(examples_every=2, num_examples=1, rollouts_kept=3)
    trainer = make_trainer(max_steps=2)
    train(trainer, evaluation=EvaluationPlan(every=1), logging=logging, settings={"note": "x"})
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["note"], config["model"]) == ("x", "tiny")
    assert config["environment"]["rewards"]["correctness"] == 1.0
    assert config["environment"]["gym"][0]["name"] == "leg_counting"
    assert config["environment"]["grading"] == "hardened"
    assert config["environment"]["first_prompt"][0]["role"] == "system"
    assert config["training"]["learning_rate"] == 1e-4
    assert GRPOConfig(**config["training"]) == trainer.args
    assert EngineConfig(**config["engine"]) == trainer.engine_config
    shown = capsys.readouterr().out
    for text in ("step   2/2  loss", "answers after step 2:", "evaluating: 16 answers ...\n"):
        assert shown.count(text) == 1
    assert len((tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()) == 6
