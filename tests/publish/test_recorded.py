"""Tests of measuring the accuracy that a run recorded again with the export, on the same problems."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file

from rg_env.errors import ExportError, InputError
from rg_env.publish import export as export_module
from rg_env.training import EvaluationPlan, load_train_config, run_config, train

Export = Callable[..., tuple[Path, list[str]]]
CONFIG = Path(__file__).parents[2] / "configs" / "train" / "tiny.yaml"
SMALL = ["training.max_steps=1", "training.per_device_train_batch_size=8", "splits.num_eval_examples=24"]
EVALUATION = "eval_results/eval_step_1.json"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def config_run(kept: Path, tmp_path: Path) -> Path:
    """Return a run of one step that a test may change."""
    if not (kept / "config").exists():
        run_config(load_train_config(CONFIG, [*SMALL, f"output.dir={kept / 'config'}"]))
    return Path(shutil.copytree(kept / "config", tmp_path / "run"))


@pytest.fixture
def script_run(kept: Path, make_env: Any, make_trainer: Any, tmp_path: Path) -> Path:
    """Return a script's run with the library's own grading, which a test may change."""
    if not (kept / "script").exists():
        env = make_env(grading="upstream")
        trainer = make_trainer(env=env, output_dir=str(kept / "script"), max_steps=1, max_tokens=90)
        train(trainer, evaluation=EvaluationPlan(every=1))
    return Path(shutil.copytree(kept / "script", tmp_path / "run"))


def greedy(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in evaluation["rollouts"] if each["draw"] == "greedy"]


def edited(run: Path, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Change the evaluation after step 1 and return the new contents."""
    values: dict[str, Any] = json.loads((run / EVALUATION).read_text())
    change(values)
    (run / EVALUATION).write_text(json.dumps(values))
    return values


@pytest.mark.parametrize("kind", ["config_run", "script_run"])
def test_the_recorded_accuracy_is_reproduced(kind: str, request: pytest.FixtureRequest, exported: Export) -> None:
    """In float32 on a CPU, the accuracy is reproduced exactly; a checkpoint with another recorded accuracy is not
    exported."""
    run: Path = request.getfixturevalue(kind)
    records = greedy(json.loads((run / EVALUATION).read_text()))[:20]
    right, n = sum(each["correct"] for each in records), len(records)
    out, lines = exported(run)
    assert f"verified: {right} of {n} greedy answers to frozen questions are correct; the run recorded {right}" in lines
    shutil.rmtree(out)

    def flip(values: dict[str, Any]) -> None:
        greedy(values)[0]["correct"] ^= True

    edited(run, flip)
    with pytest.raises(ExportError, match=f"the export solves {right} of {n} frozen questions, but the run") as found:
        exported(run)
    assert "differ by rounding" not in str(found.value)
    assert not out.exists()
    assert not list(run.glob(".*.part"))


def test_weights_that_were_not_evaluated_are_detected(config_run: Path, exported: Export) -> None:
    """The tensors equal the checkpoint's, but they are not the weights that the run evaluated."""
    file = config_run / "checkpoint-1" / "model.safetensors"
    state = load_file(file)
    state["model.norm.weight"].mul_(-1)
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(ExportError, match=r"the export solves 0 of \d+ frozen questions, but the run recorded [1-9]"):
        exported(config_run)


def no_greedy(values: dict[str, Any]) -> None:
    values["rollouts"] = [each for each in values["rollouts"] if each["draw"] == "sampled"]


def other_rows(values: dict[str, Any]) -> None:
    values["environments"][0]["prompts_sha256"] = "0" * 64


def own_code(run: Path) -> None:
    """Make the config import code, which must not run, because a run's folder may come from anywhere."""
    (run / "mine.py").write_text(f"open({str(run.parent / 'executed')!r}, 'w')")
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "imports": ["mine.py"]}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda run: shutil.rmtree(run / "eval_results"), "no known run evaluated these weights"),
        (lambda run: (run / "manifest.json").unlink(), "the run's problems are not from rg_env, or no manifest"),
        (lambda run: edited(run, no_greedy), "the run recorded no greedy answers at step 1"),
        (lambda run: edited(run, other_rows), "the run's problems cannot be rebuilt, because their hash differs"),
        (own_code, "the run's problems need custom code .imports., which is not executed here"),
    ],
)
def test_missing_or_unusable_records_are_reported(config_run: Path, exported: Export, spoil: Any, words: str) -> None:
    """The other checks still run, and the last line gives the reason."""
    spoil(config_run)
    assert re.match(f"not compared with the run's accuracy: {words}", exported(config_run)[1][-1])
    assert not (config_run.parent / "executed").exists()


@pytest.mark.parametrize("name", [EVALUATION, "config.yaml", "manifest.json"])
def test_a_damaged_record_is_named(name: str, config_run: Path, exported: Export) -> None:
    (config_run / name).write_text("{")
    words = f"{name} is (damaged: .*; restore it from a copy, or remove it|not a results file)"
    with pytest.raises(InputError, match=words):
        exported(config_run)


def test_rounded_weights_differ_by_little(config_run: Path, exported: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger differences are an error that names the dtype that avoids rounding."""
    with monkeypatch.context() as patched:
        patched.setattr(export_module, "SLACK", 20)
        _, lines = exported(config_run, dtype="bf16")
    found = int(lines[-1].removeprefix("verified: ").split()[0])

    def recorded(more: int) -> None:
        def change(values: dict[str, Any]) -> None:
            for index, rollout in enumerate(greedy(values)):
                rollout["correct"] = index < found + more

        edited(config_run, change)

    recorded(3)
    with pytest.raises(ExportError, match=r"rounding may change up to 2 answers; use --dtype fp32 to avoid rounding"):
        exported(config_run, dtype="bf16", out=config_run / "other")
    recorded(2)
    exported(config_run, dtype="bf16", out=config_run / "other")
