"""The README's main job: the real example, trainer, engine and policy, run as separate processes.

The only training run in the quick tier.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from report_samples import page_data
from run_metrics import evaluation_of, keep, results_of

from rg_env.evaluation.report import write_report
from rg_env.evaluation.results import read_results

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.timeout(1000)  # a busy machine may take ten times as long


@pytest.fixture(scope="module")
def main_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the example, and return its folder, which is new in `outputs/`, and its output."""
    folder = tmp_path_factory.mktemp("main-job")
    command = [sys.executable, str(EXAMPLES / "train_ultra_minimal.py")]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr
    (run,) = (folder / "outputs").iterdir()
    keep(run, "main_job")
    return run, result.stdout


def read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open() as lines:  # not splitlines(), which splits at characters that model text may contain
        return [json.loads(line) for line in lines]


def test_the_policy_learns_to_reason(main_job: tuple[Path, str]) -> None:
    """Sampled accuracy on the frozen questions rises by at least 0.35, and greedy accuracy and completion length rise
    as well."""
    results = results_of(main_job[0])
    before, after = results["eval_before"], results["eval_after"]
    assert before["n"] == after["n"] >= 200
    assert after["accuracy"] - before["accuracy"] >= 0.35
    assert after["accuracy"] > 0.8
    assert after["greedy_accuracy"] > before["greedy_accuracy"]
    assert after["mean_completion_tokens"] > before["mean_completion_tokens"]
    assert 0 < before["errors"]["accuracy"] < 0.05
    assert (results["model"], results["engine"], results["interrupted"]) == ("tiny", "embedded", False)
    assert results["steps"] > 0
    assert results["monitors"] == [], "nothing is wrong with this run"
    assert after["tasks"]["leg_counting"]["accuracy"] == after["accuracy"]


def test_before_and_after_are_compared(main_job: tuple[Path, str]) -> None:
    """The trained model is significantly better on three tasks, one of which it was trained on, and all documented
    files exist."""
    run, _ = main_job
    (checkpoint,) = run.glob("checkpoint-*")
    before = set((run.parent).iterdir())
    command = [sys.executable, str(EXAMPLES / "evaluate.py"), "--models", "tiny", str(checkpoint)]
    result = subprocess.run(command, cwd=run.parents[1], capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr
    (folder,) = set(run.parent.iterdir()) - before
    (file,) = folder.glob("results_all_tasks_*.json")
    results = read_results(file)
    assert set(results.tasks) == {"leg_counting", "chain_sum", "simple_equations"}
    for compared in [results.comparisons, *(task.comparisons for task in results.tasks.values())]:
        (pair,) = compared
        assert (pair.a, pair.b) == (f"{run.name}/{checkpoint.name}", "tiny")
        assert pair.interval[0] > 0
        assert pair.p_value < 0.01
    trained = results.tasks["leg_counting"].models[f"{run.name}/{checkpoint.name}"]
    assert (trained.kind, trained.engine) == ("folder", "embedded")
    assert (trained.scores.left_out, trained.scores.failed) == (0, 0)
    own = results_of(run)["eval_after"]["accuracy"]
    low, high = trained.scores.measured[1]
    assert low - 0.05 < own < high + 0.05
    names = {path.name.rsplit("_", 1)[0] for path in folder.iterdir() if path.suffix in (".json", ".png")}
    assert names == {f"{kind}_{task}" for kind in ("results", "comparison") for task in results.tasks} | {
        "results_all_tasks", "summary_all_tasks"}  # fmt: skip
    data = page_data(write_report(folder).file)
    assert len(data["rollouts"]["records"]) == len(read_lines(folder / "rollouts.jsonl")) == 2 * 3 * 50
    assert "macro average" in (folder / "summary.md").read_text()


def test_all_documented_files_exist(main_job: tuple[Path, str]) -> None:
    """The run's folder contains the files that the README lists, with all steps and evaluations."""
    run, _ = main_job
    results = results_of(run)
    steps = results["steps"]
    metrics = read_lines(run / "metrics.jsonl")
    assert [row["step"] for row in metrics if "reward" in row] == list(range(1, steps + 1))
    evaluated = [row["step"] for row in metrics if "eval/accuracy" in row]
    assert (evaluated[0], evaluated[-1]) == (0, steps)
    trained = next(row for row in metrics if "reward" in row)
    assert {"loss", "accuracy", "frac_reward_zero_std", "rewards/correctness/mean", "step_time"} <= set(trained)
    first = evaluation_of(run, 0)
    assert first["accuracy"] == results["eval_before"]["accuracy"]
    assert len(first["rollouts"]) == 2 * first["n"]  # one sampled and one greedy answer per question
    assert {row["step"] for row in read_lines(run / "rollouts.jsonl")} == set(range(1, steps + 1))
    assert (run / "reward_curve.png").read_bytes().startswith(b"\x89PNG")
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["training"]["seed"] == 0
    assert config["training"]["max_steps"] == steps
    assert not list(run.rglob("*.part"))


def test_training_and_evaluation_questions_are_disjoint(main_job: tuple[Path, str]) -> None:
    """The manifest's hashes of the two splits are disjoint, and so are the questions in the rollouts."""
    run, _ = main_job
    rows = json.loads((run / "manifest.json").read_text())["rows"]
    train, frozen_rows = (rows["splits"][split]["question_hashes"] for split in ("train", "eval"))
    assert len(train) == len(set(train)) == 2000
    assert not set(train) & set(frozen_rows)
    trained = {row["question"] for row in read_lines(run / "rollouts.jsonl")}
    frozen = {
        row["question"] for row in json.loads((run / "eval_results" / "eval_step_0.json").read_text())["rollouts"]
    }
    assert not trained & frozen


def test_the_console_output_is_complete(main_job: tuple[Path, str]) -> None:
    """The output has a line per step, the results before and after, three samples and the location of the files."""
    run, printed = main_job
    assert "step   1/" in printed
    assert "greedy accuracy" in printed
    assert printed.count("\n    before: ") == printed.count("\n    after: ") == 3
    assert f"Files in {run.relative_to(run.parents[1])}" in printed.replace("\n", " ")
    assert "WARNING" not in printed
