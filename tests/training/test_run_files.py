"""The files and the output of a run."""

import io
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from rg_env.core.run_folder import RunFolder
from rg_env.evaluation.results import read_results
from rg_env.training import GRPOConfig, train
from rg_env.training.config.sections import EngineConfig, LoggingConfig
from rg_env.training.evaluation import EvaluationPlan, FixedEvaluation
from rg_env.training.reporting.console import print_summary
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


def test_progress_is_a_line_a_step(make_trainer: Any, tmp_path: Path) -> None:
    """With questions and answers as often as configured (on a terminal: `test_console`)."""
    stream, trainer = io.StringIO(), make_trainer(max_steps=2)
    logging = LoggingConfig(examples_every=2, num_examples=1, rollouts_kept=3)
    evaluation = FixedEvaluation(trainer, EvaluationPlan(every=1))
    folder = RunFolder.create(tmp_path / "other")
    trainer.add_callback(Recorder(trainer, folder, evaluation, stream=stream, logging=logging))
    trainer.train()
    shown = stream.getvalue()
    assert shown.count("\n") == 11
    for text in ("step   2/2  reward", "answers after step 2:", "evaluating: 16 answers ...\n", "gold answer:"):
        assert shown.count(text) == 1
    assert len(folder.rollouts_file.read_text().splitlines()) == 6


def test_model_text_reaches_the_terminal_as_data(make_trainer: Any, tmp_path: Path) -> None:
    """No markup, no escape sequences; a blank question breaks nothing."""
    trainer = make_trainer(max_steps=1)
    train(trainer)
    evaluation = read_results(RunFolder(tmp_path / "run").evaluation_file(0))
    evaluation.rollouts[0].update(question=" ", completion="[bold]x[/bold]\x1b]0;title\x07\x1b[2J")
    out = io.StringIO()
    results = {"interrupted": False, "steps": 1, "seconds": 1.0, "model": "m", "engine": "embedded"}
    print_summary(
        tmp_path / "run", results, evaluation, evaluation, Console(file=out, force_terminal=True, highlight=False)
    )
    assert "[bold]x[/bold]" in out.getvalue()
    assert "\x1b]0" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()
