"""The files and the output of a run."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from rg_env.errors import OutputFolderError
from rg_env.training import GRPOConfig, run_folder, train
from rg_env.training.config.schema import EngineConfig, LoggingConfig
from rg_env.training.evaluation.plan import EvaluationPlan
from rg_env.training.evaluation.runner import FixedEvaluation
from rg_env.training.reporting.run_files import RunFiles, run_name
from rg_env.training.reporting.summary import print_summary
from rg_env.training.run import Recorder


def test_the_config_tells_what_was_run(make_trainer: Any, tmp_path: Path) -> None:
    """Model, prompt, tasks, rewards with weights; and training and engine, as settings that are accepted again."""
    trainer = make_trainer(max_steps=1)
    train(trainer, settings={"note": "x"})
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["note"], config["model"]) == ("x", "tiny")
    assert config["environment"]["rewards"]["correctness"] == 1.0
    assert config["environment"]["gym"][0]["name"] == "leg_counting"
    assert config["environment"]["grading"] == "hardened"
    assert config["environment"]["first_prompt"][0]["role"] == "system"
    assert config["training"]["learning_rate"] == 1e-4
    assert GRPOConfig(**config["training"]) == trainer.args
    assert EngineConfig(**config["engine"]) == trainer.engine_config


def test_evaluations_are_spread_over_the_run(make_trainer: Any, tmp_path: Path) -> None:
    """By default a fifth of the steps apart."""
    trainer = make_trainer(max_steps=16)
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


def test_progress_renews_one_line_on_a_terminal(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere it prints a line a step. Questions and answers are shown as often as asked for."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    logging = LoggingConfig(examples_every=2, num_examples=1, rollouts_kept=3)
    for stream, newlines in ((io.StringIO(), 10), (Terminal(), 8)):
        folder = tmp_path / type(stream).__name__
        trainer = make_trainer(max_steps=2)
        evaluation = FixedEvaluation(trainer, EvaluationPlan(every=1))
        recorder = Recorder(trainer, RunFiles(folder), evaluation, stream=stream, logging=logging)
        trainer.add_callback(recorder)
        trainer.train()
        assert stream.getvalue().count("\n") == newlines
        assert ("step   2/2  reward" in stream.getvalue()) == (type(stream) is io.StringIO)
        assert stream.getvalue().count("answers after step") == 1
        assert "answers after step 2:" in stream.getvalue()
        assert "gold answer:" in stream.getvalue()
        recorder.console.close()
        assert len((folder / "rollouts.jsonl").read_text().splitlines()) == 6


def test_model_text_reaches_the_terminal_as_data(make_trainer: Any, tmp_path: Path) -> None:
    """No markup, no escape sequences; a blank question breaks nothing."""
    trainer = make_trainer(max_steps=1)
    train(trainer)
    evaluation = next(callback.evaluations[0] for callback in trainer.callbacks if isinstance(callback, Recorder))
    evaluation.rollouts[0].update(question=" ", completion="[bold]x[/bold]\x1b]0;title\x07\x1b[2J")
    out = io.StringIO()
    results = {"interrupted": False, "steps": 1, "seconds": 1.0, "model": "m", "engine": "embedded"}
    print_summary(
        tmp_path / "run", results, evaluation, evaluation, Console(file=out, force_terminal=True, highlight=False)
    )
    assert "[bold]x[/bold]" in out.getvalue()
    assert "\x1b]0" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()
