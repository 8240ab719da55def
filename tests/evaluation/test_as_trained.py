"""A checkpoint is asked as it was trained, unless the config says otherwise: on a real run of one step."""

import json
from pathlib import Path
from typing import Any

import pytest

from rg_env.evaluation.config import EvalConfig, eval_config_of
from rg_env.evaluation.evaluate import run_evaluation
from rg_env.evaluation.questions import as_trained
from rg_env.evaluation.results import read_results
from rg_env.training.build import run_config
from rg_env.training.config.load import load_train_config

TINY = Path(__file__).parents[2] / "configs" / "train" / "tiny.yaml"
PROMPT = "Answer as <answer>N</answer>."
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs") / "run"
    own = ["training.max_steps=1", "training.per_device_train_batch_size=8", "training.max_tokens=33",
           "grading=partial", "splits.num_train_examples=64",
           f"prompt={{system_prompt: {json.dumps(PROMPT)}, placement: user}}", "splits.num_eval_examples=4",
           "tasks={leg_counting: {config: {min_animals: 1, max_animals: 2}}}", f"output.dir={folder}"]  # fmt: skip
    run_config(load_train_config(TINY, own))
    return folder


def _config(folder: Path, models: dict[str, Any], *overrides: str) -> EvalConfig:
    return eval_config_of([f"models={json.dumps(models)}", "tasks=leg_counting", "num_examples=5",
                           f"output.dir={folder}", *overrides])  # fmt: skip


def test_what_is_left_open_is_as_in_the_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prompt, grading, token limit and task options, for the model it is compared with too; the files say so. A run's
    folder stands for its last checkpoint."""
    results, folder = run_evaluation(_config(tmp_path / "e", {"base": "tiny", "ours": str(run)}))
    task = results.tasks["leg_counting"]
    assert (task.system_prompt, task.grading, task.sampling.max_tokens) == (PROMPT, "partial", 33)
    assert task.spec
    assert task.spec["config"].items() >= {"min_animals": 1, "max_animals": 2}.items()
    assert [model.source for model in task.models.values()] == ["tiny", str(run / "checkpoint-1")]
    (note,) = results.notes
    assert note.startswith(f"ours: asked as it was trained: prompt.system_prompt='{PROMPT}', prompt.placement='user'")
    assert note in capsys.readouterr().out
    assert note in (folder / "summary.md").read_text()
    assert read_results(max(folder.glob("results_all_tasks_*.json"))).notes == [note]
    again, _ = run_evaluation(_config(tmp_path / "e", {"base": "tiny", "ours": str(run)}), resume=True)
    assert again.tasks == results.tasks


def test_the_config_has_the_last_word(run: Path, tmp_path: Path) -> None:
    """What it says itself stays, and the difference is noted; models without a run change nothing."""
    own = ["grading=hardened", "sampling.max_tokens=90", "prompt.system_prompt=Think."]
    config, (first, second) = as_trained(_config(tmp_path, {"ours": str(run / "checkpoint-1")}, *own))
    assert (config.grading, config.sampling.max_tokens, config.prompt.system_prompt) == ("hardened", 90, "Think.")
    assert config.prompt.placement == "user"
    assert "prompt.placement='user'" in first
    told = f"prompt.system_prompt='{PROMPT}', grading='partial', sampling.max_tokens=33"
    assert second == f"ours: asked otherwise than it was trained, which was with {told}"
    plain = _config(tmp_path, {"base": "tiny", "far": "m@http://127.0.0.1:9/v1"})
    assert as_trained(plain) == (plain, [])
