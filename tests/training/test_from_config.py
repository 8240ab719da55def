"""Runs from configs: their output files suffice to repeat them and to evaluate their checkpoints."""

import json
from pathlib import Path

import pytest
from run_metrics import evaluation_of, logged

from rg_env.cli.main import run as run_cli
from rg_env.core.run_folder import RunFolder
from rg_env.errors import InputError, OutputFolderError
from rg_env.training.config.load import load_train_config
from rg_env.training.from_config import evaluate_config, run_config

pytestmark = pytest.mark.slow
CONFIG = """
model: {name: tiny}
tasks: {leg_counting: {}}
splits: {num_train_examples: 32, num_eval_examples: 8}
training:
  {max_steps: 2, learning_rate: 1e-3, lr_scheduler_type: constant, per_device_train_batch_size: 16,
   rollouts_per_step: 16, num_generations: 4, max_prompt_length: 160, max_tokens: 30,
   gradient_checkpointing: false}
evaluation:
  tasks: {chain_sum: {}, legs_1: {task: leg_counting, config: {max_animals: 1}, num_examples: 3}}
  num_held_out_examples: 4
  every: 0
  rollouts_per_example: 2
output: {save_every: 0}
"""


@pytest.fixture(autouse=True)
def config(here: Path) -> Path:
    """A config for a small run, in the working directory."""
    (here / "run.yaml").write_text(CONFIG)
    return Path("run.yaml")


def test_a_run_is_repeated_from_its_own_config(config: Path) -> None:
    """Results match to the last digit, and the folder of the first run is not overwritten."""
    first = run_config(load_train_config(config, ["output.dir=one"]))
    again = run_config(load_train_config("one/config.yaml", ["output.dir=two"]))
    assert logged(Path("one")) == logged(Path("two"))
    assert sum("loss" in line for line in logged(Path("one"))) == 2
    assert first["eval_after"]["tasks"] == again["eval_after"]["tasks"]
    assert {task: each["n"] for task, each in first["eval_after"]["held_out"]["tasks"].items()} == {"chain_sum": 4}
    assert {label: each["n"] for label, each in first["eval_after"]["labelled"].items()} == {"legs_1": 3}
    assert first["eval_after"]["labelled"] == again["eval_after"]["labelled"]
    with pytest.raises(OutputFolderError, match="one is not empty"):
        run_config(load_train_config("one/config.yaml"))
    RunFolder(Path("two")).evaluation_file(0).write_text('{"format": "cut')
    with pytest.raises(InputError, match=r"eval_step_0\.json is damaged: .*; restore it from a copy, or remove it"):
        run_config(load_train_config("two/config.yaml", ["training.max_steps=3"]), resume="auto")


@pytest.mark.parametrize("overrides", [[], ["lora.r=4", "training.learning_rate=1e-2"]], ids=["whole", "adapters"])
def test_eval_only_reproduces_the_evaluation_of_a_run(config: Path, overrides: list[str]) -> None:
    """The greedy results equal those of the run, for whole weights and for adapters."""
    run_config(load_train_config(config, [*overrides, "output.dir=run"]))
    before, own = (evaluation_of(Path("run"), step) for step in (0, 2))
    options = ["--eval-only", "--checkpoint", "run/checkpoint-2", "output.dir=alone"]
    assert run_cli(["train", str(config), *overrides, *options]) == 0
    alone = evaluation_of(Path("alone"), 2)
    greedy = [
        [each["completion"] for each in saved["rollouts"] if each["draw"] == "greedy"] for saved in (own, alone, before)
    ]
    assert greedy[0] == greedy[1]
    assert greedy[0] != greedy[2]
    assert alone["greedy_accuracy"] == own["greedy_accuracy"]
    assert alone["questions"] == own["questions"]
    assert alone["labelled"]["legs_1"]["greedy_accuracy"] == own["labelled"]["legs_1"]["greedy_accuracy"]
    manifests = [json.loads(Path(folder, "manifest.json").read_text()) for folder in ("run", "alone")]
    assert manifests[0]["evaluation_rows"] == manifests[1]["evaluation_rows"]
    assert [rows.get("label") for rows in manifests[1]["evaluation_rows"]] == [None, "legs_1"]


def test_the_plan_of_an_evaluation_has_no_training(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["train", str(config), "--eval-only", "--dry-run"]) == 0
    topics = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("#   ")]
    assert topics == ["model", "tasks", "tokens", "rewards", "evaluation", "held", "labels", "output", "note"]


def test_invalid_arguments_are_refused(config: Path) -> None:
    for arguments, words in (
        (["--checkpoint", "x"], "--checkpoint requires --eval-only"),
        (["--eval-only", "--resume", "auto"], "--resume cannot be combined with --eval-only"),
        (["--resume", "auto"], "needs the output folder of the run"),
    ):
        with pytest.raises(InputError, match=words):
            run_cli(["train", str(config), *arguments])
    with pytest.raises(InputError, match="nothing to evaluate"):
        evaluate_config(load_train_config(config, ["splits.num_eval_examples=0", "evaluation.tasks=null"]))
    Path("adapters").mkdir()
    Path("adapters/adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot load the adapters in adapters into tiny"):
        evaluate_config(load_train_config(config), "adapters")
    with pytest.raises(InputError, match="cannot load the model 'nowhere'"):
        evaluate_config(load_train_config(config), "nowhere")
