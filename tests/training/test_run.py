"""What a run leaves, also when it does not end as planned."""

import contextlib
import errno
import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import verifiers as vf
import yaml
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from rg_env.errors import InputError, OutputFolderError, RewardError, TrainingError
from rg_env.training import load_policy, run_folder, train
from rg_env.training.output import RunFiles, run_name
from rg_env.training.policy import Policy
from rg_env.training.recorder import Recorder
from rg_env.training.summary import print_summary
from rg_env.training.tiny import POLICY_DIR


def results_of(folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((folder / "train_results.json").read_text())
    return results


def plain_env(make_env: Any, reward: Any) -> Any:
    env = make_env()
    return vf.SingleTurnEnv(dataset=env.dataset, eval_dataset=env.eval_dataset, rubric=vf.Rubric(funcs=[reward]))


class At(TrainerCallback):
    """Does something when a step begins, or at another event of that step."""

    def __init__(self, step: int, action: Any, event: str = "on_step_begin") -> None:
        self.step, self.action = step, action
        setattr(self, event, self._act)

    def _act(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.action()


# --- errors


def test_an_error_in_mid_run_loses_nothing(make_trainer: Any, make_env: Any, tmp_path: Path) -> None:
    """The checkpoint, the results and the curve so far are there, and the error is still raised."""
    state = {"fail": False}

    def moody(completion: Any) -> float:
        if state["fail"]:
            raise KeyError("out of mood")
        return float(len(completion[-1]["content"]) % 2)

    trainer = make_trainer(env=plain_env(make_env, moody), max_steps=5)
    trainer.add_callback(At(2, lambda: state.update(fail=True)))
    with pytest.raises(RewardError, match="moody"):
        train(trainer, eval_every=10)
    run = tmp_path / "run"
    results = results_of(run)
    assert results["steps"] == 2
    assert "moody" in results["error"]
    assert (run / "reward_curve.png").exists()
    load_policy(str(run / "checkpoint-2"))


def test_a_reward_that_fails_in_an_evaluation_is_told(make_trainer: Any, make_env: Any, tmp_path: Path) -> None:
    """In any environment; and where nothing was learned yet, nothing is left behind."""

    def failing(completion: Any) -> float:
        return float("inf")

    trainer = make_trainer(env=plain_env(make_env, failing))
    with pytest.raises(RewardError, match="failing"):
        train(trainer)
    assert not (tmp_path / "run").exists()


def no_space() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_any_other_error_in_mid_run_loses_nothing_either(make_trainer: Any, tmp_path: Path) -> None:
    """It is raised as it was, once checkpoint and results are there."""
    trainer = make_trainer(max_steps=5)
    trainer.add_callback(At(1, no_space))
    with pytest.raises(OSError, match="No space left"):
        train(trainer, eval_every=10)
    results = results_of(tmp_path / "run")
    assert (results["steps"], results["interrupted"]) == (1, False)
    assert "No space left" in results["error"]
    assert (tmp_path / "run" / "checkpoint-1" / "model.safetensors").exists()


def test_what_cannot_be_saved_does_not_hide_why_the_run_failed(make_trainer: Any, tmp_path: Path) -> None:
    """It is a note to that error, and the rest is saved."""
    trainer = make_trainer(max_steps=5)
    trainer._save = lambda *args, **kwargs: no_space()
    trainer.add_callback(At(1, lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError) as caught:
        train(trainer, eval_every=10)
    assert "No space left" in caught.value.__notes__[0]
    assert results_of(tmp_path / "run")["steps"] == 1


def test_an_error_before_the_first_step_leaves_nothing(make_trainer: Any, tmp_path: Path) -> None:
    """Whatever kind of error it is."""

    class Early(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            no_space()

    trainer = make_trainer()
    trainer.add_callback(Early())
    with pytest.raises(OSError, match="No space left"):
        train(trainer)
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_step_is_an_error(make_trainer: Any, tmp_path: Path) -> None:
    """Nothing was trained, so it must not end as a success."""
    trainer = make_trainer()
    trainer.train = lambda: None
    with pytest.raises(TrainingError, match="without a single optimizer step"):
        train(trainer)
    assert not (tmp_path / "run").exists()


# --- interrupts


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupted_run_says_what_it_has(make_trainer: Any, tmp_path: Path) -> None:
    """Results name the step of their evaluation; the checkpoint is of the last whole step."""
    trainer = make_trainer(max_steps=9)
    trainer.add_callback(At(3, interrupt))
    results = train(trainer, eval_every=2)
    assert results["interrupted"]
    assert results["steps"] == 3
    assert (results["eval_before"]["step"], results["eval_after"]["step"]) == (0, 2)
    assert (tmp_path / "run" / "checkpoint-3" / "trainer_state.json").exists()


@pytest.mark.parametrize("place", ["before the optimizer is made", "before the evaluation", "in the evaluation"])
def test_an_interrupt_before_there_is_anything_to_save(make_trainer: Any, tmp_path: Path, place: str) -> None:
    """It goes on up, and the run leaves no files."""
    trainer = make_trainer()
    generate = trainer.engine.generate

    def interrupted_generate(batch: Any) -> Any:  # in the engine's thread: signals go to the main one
        os.kill(os.getpid(), signal.SIGINT)
        return generate(batch)

    if place == "before the optimizer is made":
        trainer.create_optimizer_and_scheduler = lambda *args, **kwargs: interrupt()
    elif place == "before the evaluation":
        trainer.callback_handler.callbacks.insert(0, At(0, interrupt, "on_train_begin"))
    else:
        trainer.engine.generate = interrupted_generate
    with pytest.raises(KeyboardInterrupt):
        train(trainer)
    assert not (tmp_path / "run").exists()


def test_an_interrupt_that_a_library_hides_is_one(make_trainer: Any) -> None:
    """Errors raised while it cleans up end the run as Ctrl-C would."""

    def clean_up() -> None:
        try:
            interrupt()
        finally:
            raise TimeoutError

    trainer = make_trainer(max_steps=5)
    trainer.add_callback(At(1, clean_up))
    results = train(trainer, eval_every=10)
    assert (results["interrupted"], results["error"]) == (True, None)


def test_training_goes_on_after_an_interrupt(make_trainer: Any) -> None:
    """In the same process, with the same trainer: nothing of the broken batch is left."""
    trainer = make_trainer(max_steps=3)
    once = At(1, lambda: trainer.engine.cancel())
    trainer.add_callback(once)
    with pytest.raises(Exception, match="cancelled"):
        trainer.train()
    once.step = -1
    trainer.train()
    assert trainer.state.global_step == 3


def test_a_checkpoint_broken_off_is_not_taken_for_one(make_trainer: Any, tmp_path: Path) -> None:
    """Interrupted while it is written: no half folder under the final name, and the run's end writes a whole one."""
    trainer = make_trainer(max_steps=4, save_strategy="steps", save_steps=2)
    save, calls = trainer._save, []

    def broken(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        save(*args, **kwargs)

    trainer._save = broken
    results = train(trainer, eval_every=10)
    assert results["interrupted"]
    checkpoints = sorted(path.name for path in (tmp_path / "run").glob("checkpoint*"))
    assert checkpoints == ["checkpoint-2"]
    load_policy(str(tmp_path / "run" / "checkpoint-2"))


def test_old_checkpoints_are_rotated(make_trainer: Any, tmp_path: Path) -> None:
    """`save_total_limit` counts those in the run's folder."""
    make_trainer(max_steps=4, save_strategy="steps", save_steps=1, save_total_limit=2).train()
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint*")) == ["checkpoint-3", "checkpoint-4"]


# --- files


def test_the_config_tells_what_was_run(make_trainer: Any, tmp_path: Path) -> None:
    """Model, prompt, tasks, rewards with weights and every training argument; no secret."""
    train(make_trainer(max_steps=1, hub_token="secret"), settings={"note": "x"})
    text = (tmp_path / "run" / "config.yaml").read_text()
    config = yaml.safe_load(text)
    assert (config["note"], config["model"]) == ("x", "tiny")
    assert config["environment"]["rewards"]["correctness"] == 1.0
    assert config["environment"]["gym"][0]["name"] == "leg_counting"
    assert config["environment"]["first_prompt"][0]["role"] == "system"
    assert config["training"]["learning_rate"] == 1e-4
    assert "secret" not in text


def test_evaluations_are_spread_over_the_run(make_trainer: Any, tmp_path: Path) -> None:
    """By default a fifth of the steps apart, also where the steps follow from the epochs."""
    trainer = make_trainer(max_steps=-1, num_train_epochs=2)
    train(trainer)
    steps = sorted(int(path.stem.split("_")[-1]) for path in (tmp_path / "run" / "eval_results").iterdir())
    total = trainer.state.global_step
    assert total > 5
    assert steps[0] == 0
    assert steps[-1] == total
    assert len(steps) <= 7


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh ones get names of their own; a given one must be empty; nothing is made by asking."""
    monkeypatch.chdir(tmp_path)
    first = run_folder(None, "run")
    assert first.parent.name == "outputs"
    first.mkdir(parents=True)
    assert run_folder(None, "run") != first
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(OutputFolderError, match="not empty"):
        run_folder("full", "run")
    assert run_folder("new/deep", "run") == Path("new/deep")
    assert not (tmp_path / "new").exists()


def test_run_names_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tasks by name, the others by number; always short enough for a folder."""
    monkeypatch.chdir(tmp_path)
    assert run_name(["a", "b"], "tiny") == "a+b-tiny"
    assert run_name([f"t{i}" for i in range(20)], "tiny") == "t0+t1+t2-and-17-more-tiny"
    long = run_name(["ü" * 300] * 20, "tiny")
    assert len(long.encode()) <= 80
    assert long.endswith("-and-17-more-tiny")
    assert len(run_folder(None, "x" * 300).name) < 110


def test_any_text_can_be_written(tmp_path: Path) -> None:
    """Lone surrogates, separators and control characters of model output; NaN becomes null."""
    files = RunFiles(tmp_path / "run")
    record = {"text": "a\u2028b\ud800\x00", "value": float("nan")}
    files.append("rollouts.jsonl", [record, record])
    with (tmp_path / "run" / "rollouts.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) == 2
    assert rows[0]["value"] is None
    assert rows[0]["text"].startswith("a\u2028b")


def test_progress_renews_one_line_on_a_terminal(make_trainer: Any, tmp_path: Path) -> None:
    """Elsewhere it prints a line a step."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, newlines in ((io.StringIO(), 5), (Terminal(), 3)):
        trainer = make_trainer(max_steps=2)
        trainer.add_callback(Recorder(trainer, RunFiles(tmp_path / "run"), eval_every=1, stream=stream))
        trainer.train()
        assert stream.getvalue().count("\n") == newlines
        assert "step   2/2  reward" in stream.getvalue()


def test_model_text_reaches_the_terminal_as_data(make_trainer: Any, tmp_path: Path) -> None:
    """No markup, no escape sequences; a blank question breaks nothing."""
    trainer = make_trainer(max_steps=1)
    train(trainer)
    evaluation = next(
        callback.evaluations[0] for callback in trainer.callback_handler.callbacks if isinstance(callback, Recorder)
    )
    evaluation.rollouts[0].update(question=" ", completion="[bold]x[/bold]\x1b]0;title\x07\x1b[2J")
    out = io.StringIO()
    results = {"interrupted": False, "steps": 1, "seconds": 1.0, "model": "m", "engine": "embedded"}
    print_summary(
        tmp_path / "run", results, evaluation, evaluation, Console(file=out, force_terminal=True, highlight=False)
    )
    assert "[bold]x[/bold]" in out.getvalue()
    assert "\x1b]0" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()


# --- policies


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_damaged_model_files_are_one_line(tmp_path: Path, file: str) -> None:
    """Whatever their parser raises."""
    for source in POLICY_DIR.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes() if source.name != file else b"\x00garbage")
    part = {"model.safetensors": "weights", "tokenizer.json": "tokenizer files"}.get(file, file)
    with pytest.raises(InputError, match=f"cannot load the model '{tmp_path}': {part}: .") as caught:
        load_policy(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the tiny policy's folder."""
    for source in POLICY_DIR.iterdir():
        if source.is_file():
            (tmp_path / source.name).write_bytes(source.read_bytes())
    return tmp_path


def test_weights_that_are_missing_are_named(copied: Path) -> None:
    """Their layers would be random; weights tied to others need not be there."""
    tensors = load_file(copied / "model.safetensors")
    name = next(key for key in tensors if key.endswith("q_proj.weight"))
    save_file({key: t for key, t in tensors.items() if key != name}, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=f"weights: it lacks {name}"):
        load_policy(str(copied))


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_need_not_be_there(copied: Path, tied: bool) -> None:
    """Where the config says that they are tied."""
    tensors = {key: t for key, t in load_file(copied / "model.safetensors").items() if key != "lm_head.weight"}
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    with contextlib.nullcontext() if tied else pytest.raises(InputError, match="lacks lm_head"):
        load_policy(str(copied))


def test_weights_of_another_shape_are_one_line(copied: Path) -> None:
    """All that the library says of them, with the folder."""
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"intermediate_size": 2 * config["intermediate_size"]}))
    with pytest.raises(InputError, match=f"cannot load the model '{copied}': weights: .*size mismatch") as caught:
        load_policy(str(copied))
    assert "\n" not in str(caught.value)


def test_the_default_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line; also where the hub cannot be reached."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load_policy().is_tiny
    assert capsys.readouterr().out == "No GPU here: taking the tiny policy (--model NAME_OR_FOLDER takes another).\n"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("rg_env.training.policy._hub_answers", lambda: False)
    policy = load_policy()
    assert isinstance(policy, Policy)
    assert policy.is_tiny
    assert "the model hub cannot be reached" in capsys.readouterr().out
