"""Evaluating without training: a checkpoint's figures are those of the run itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from rg_env.errors import InputError, OutputFolderError
from rg_env.training import EvaluationPlan, evaluate_only, load_policy, train
from rg_env.training.evaluation.checkpoint_eval import step_of_model


@pytest.mark.slow
@pytest.mark.usefixtures("new_precision")
@pytest.mark.parametrize("bf16", [False, True])
def test_a_checkpoint_gives_the_figures_of_its_run(
    make_trainer: Any, make_env: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], bf16: bool
) -> None:
    """Greedy and sampled answers, to the letter, also in mixed precision; no optimizer state, no training file."""
    plan = EvaluationPlan(every=0, rollouts_per_example=2)
    train(make_trainer(bf16=bf16), evaluation=plan)
    policy = load_policy(str(tmp_path / "run" / "checkpoint-2"))
    trainer = make_trainer(model=policy.model, bf16=bf16, output_dir=str(tmp_path / "other"))
    capsys.readouterr()
    alone = evaluate_only(trainer, tmp_path / "alone", plan)
    left = [str(path.relative_to(tmp_path / "alone")) for path in (tmp_path / "alone").rglob("*.*")]
    assert left == ["eval_results/eval_step_2.json"]
    found = json.loads((tmp_path / "alone" / left[0]).read_text())
    assert found == json.loads((tmp_path / "run" / left[0]).read_text()) == alone.as_json()
    before = json.loads((tmp_path / "run" / "eval_results" / "eval_step_0.json").read_text())
    assert before["rollouts"] != found["rollouts"]
    assert not trainer.optimizer.state
    printed = capsys.readouterr().out
    assert "step 2" in printed
    assert "greedy accuracy" in printed
    assert "eval_step_2.json" in printed
    with pytest.raises(OutputFolderError, match=r"eval_step_2.json is there already"):
        evaluate_only(trainer, tmp_path / "alone", plan)


def test_there_must_be_something_to_ask(make_trainer: Any, make_env: Any, tmp_path: Path) -> None:
    """Told before a folder is made."""
    trainer = make_trainer(env=make_env(num_eval_examples=0))
    with pytest.raises(InputError, match="nothing to evaluate"):
        evaluate_only(trainer, tmp_path / "alone")
    assert not (tmp_path / "alone").exists()


def test_the_step_of_a_model() -> None:
    """Follows from the name of a checkpoint's folder alone."""
    assert step_of_model("outputs/run/checkpoint-25") == step_of_model("outputs/run/checkpoint-25/") == 25
    for other in ("tiny", "Qwen/Qwen2.5-1.5B-Instruct", "checkpoint-25/merged", "checkpoint-x", "my-checkpoint-3"):
        assert step_of_model(other) == 0
