"""The accuracy that a run recorded: asked again of what was exported, on the same problems."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rg_env.core import environment
from rg_env.core.config import yaml12
from rg_env.errors import ExportError
from rg_env.training import EvaluationPlan, load_train_config, run_config, train

Export = Callable[..., tuple[Path, list[str]]]
CONFIG = Path(__file__).parents[3] / "configs" / "train" / "tiny.yaml"
SMALL = ["training.max_steps=1", "training.per_device_train_batch_size=8", "splits.num_eval_examples=24"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(params=["config", "script"])
def run(request: pytest.FixtureRequest, saved: Path, make_trainer: Any, tmp_path: Path) -> Path:
    """A run of one step, from a config or by a script, to be spoilt."""
    kind = request.param
    if not (saved / kind).exists():
        if kind == "config":
            run_config(load_train_config(CONFIG, [*SMALL, f"output.dir={saved / kind}"]))
        else:
            trainer = make_trainer(output_dir=str(saved / kind), max_steps=1, max_tokens=90)
            train(trainer, evaluation=EvaluationPlan(every=1))
    shutil.copytree(saved / kind, tmp_path / "run")
    return tmp_path / "run"


def answered(run: Path) -> tuple[int, int]:
    """Greedy answers to the first problems that were recorded as right, of how many."""
    records = greedy(json.loads((run / "eval_results" / "eval_step_1.json").read_text()))[:20]
    return sum(record["correct"] for record in records), len(records)


def greedy(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in evaluation["rollouts"] if each["draw"] == "greedy"]


def test_the_recorded_accuracy_is_found_again(run: Path, exported: Export) -> None:
    """In float32 on the CPU exactly; a checkpoint whose record says otherwise is not exported."""
    right, n = answered(run)
    out, lines = exported(run)
    assert f"verified: {right} of {n} frozen problems right, answered greedily; the run recorded {right}" in lines
    shutil.rmtree(out)
    file = run / "eval_results" / "eval_step_1.json"
    record = json.loads(file.read_text())
    greedy(record)[0]["correct"] ^= True
    file.write_text(json.dumps(record))
    with pytest.raises(
        ExportError, match=f"of {n} frozen problems the export solves {right}, but the run recorded"
    ) as e:
        exported(run)
    assert "differ by rounding" not in str(e.value)
    assert not out.exists()
    assert not list(run.glob(".*.part"))


@pytest.mark.parametrize("run", ["script"], indirect=True)
def test_a_scripts_answers_are_graded_as_they_were(
    run: Path, exported: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the library's formulas, which forgive some that ours do not: else a good export would be refused."""
    built, make = [], environment.ReasoningGym
    monkeypatch.setattr(environment, "ReasoningGym", lambda **given: built.append(make(**given)) or built[-1])
    for grading in ("hardened", "upstream"):
        config = yaml12.load((run / "config.yaml").read_text())
        config["environment"]["grading"] = grading
        (run / "config.yaml").write_text(yaml12.to_yaml(config))
        assert exported(run, out=run / grading)[1][-1].startswith("verified: ")
        assert built[-1].grading == grading


@pytest.mark.parametrize("run", ["config"], indirect=True)
def test_other_weights_are_found(run: Path, exported: Export) -> None:
    """Each tensor is the checkpoint's, and the checkpoint is not what was evaluated."""
    file = run / "checkpoint-1" / "model.safetensors"
    state = load_file(file)
    state["model.norm.weight"].mul_(-1)
    save_file(state, file, metadata={"format": "pt"})
    right, n = answered(run)
    assert right > 0
    with pytest.raises(ExportError, match=f"of {n} frozen problems the export solves 0, but the run recorded {right}"):
        exported(run)


def edit(run: Path, **changes: Any) -> None:
    file = run / "eval_results" / "eval_step_1.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def no_greedy(run: Path) -> None:
    record = json.loads((run / "eval_results" / "eval_step_1.json").read_text())
    edit(run, rollouts=[each for each in record["rollouts"] if each["draw"] == "sampled"])


def other_rows(run: Path) -> None:
    record = json.loads((run / "eval_results" / "eval_step_1.json").read_text())
    edit(run, environments=[{**record["environments"][0], "prompts_sha256": "0" * 64}])


@pytest.mark.parametrize("run", ["config"], indirect=True)
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda run: (run / "eval_results" / "eval_step_1.json").unlink(), "the run has no evaluation of step 1"),
        (lambda run: shutil.rmtree(run / "eval_results"), "the run has no evaluation of step 1"),
        (
            lambda run: (run / "config.yaml").unlink(),
            "its problems cannot be built again: .*config.yaml cannot be read",
        ),
        (no_greedy, "the run recorded no greedy answers at step 1"),
        (other_rows, "its problems cannot be built again: those of today have another hash"),
    ],
)
def test_where_nothing_can_be_compared_it_is_told(run: Path, exported: Export, spoil: Any, words: str) -> None:
    """And the rest is verified."""
    spoil(run)
    assert re.match(f"not compared with the run's accuracy: {words}", exported(run)[1][-1])


@pytest.mark.parametrize("run", ["script"], indirect=True)
@pytest.mark.parametrize("content", [None, "{", "[" * 10**5], ids=["missing", "damaged", "without end"])
def test_a_script_without_its_manifest_is_told(run: Path, exported: Export, content: str | None) -> None:
    """It says from which seed the problems are."""
    file = run / "manifest.json"
    file.unlink() if content is None else file.write_text(content)
    _, lines = exported(run)
    assert any(line.startswith("not compared with the run's accuracy: its problems cannot be") for line in lines)


@pytest.mark.parametrize("run", ["config"], indirect=True)
def test_code_that_a_run_names_is_not_run(run: Path, exported: Export, tmp_path: Path) -> None:
    """A run's folder may come from anywhere."""
    (run / "mine.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    config = yaml12.load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml12.to_yaml({**config, "imports": ["mine.py"]}))
    _, lines = exported(run)
    assert "not compared with the run's accuracy: its problems need code of its own (imports), which is" in lines[-1]
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("run", ["config"], indirect=True)
def test_rounded_weights_may_differ_by_little(run: Path, exported: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the error says what rounds nothing."""
    monkeypatch.setattr("rg_env.publish.export.recorded.SLACK", 20)
    _, lines = exported(run, dtype="bf16")
    assert lines[-1].startswith("verified: ")
    found = int(lines[-1].split()[1])
    record = json.loads((run / "eval_results" / "eval_step_1.json").read_text())
    for index, rollout in enumerate(greedy(record)):
        rollout["correct"] = index < found + 3
    edit(run, rollouts=record["rollouts"])
    monkeypatch.undo()
    with pytest.raises(ExportError, match=r"up to 2 may differ by rounding: --dtype fp32 rounds nothing"):
        exported(run, dtype="bf16", out=run / "other")
    for index, rollout in enumerate(greedy(record)):
        rollout["correct"] = index < found + 2
    edit(run, rollouts=record["rollouts"])
    exported(run, dtype="bf16", out=run / "other")
    assert torch.is_tensor(load_file(run / "other" / "model.safetensors")["model.norm.weight"])
