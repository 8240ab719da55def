"""`rg-env report`: what a page says about runs and evaluations."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import (
    evaluated,
    evaluation_record,
    evaluation_records,
    page_data,
    results_of_records,
    table,
    training_record,
    write_evaluation,
    write_lines,
    write_run,
)

from rg_env.core.statistics import mean_and_error, t_critical
from rg_env.evaluation.report import rollouts as report_rollouts
from rg_env.evaluation.report import write_report
from rg_env.evaluation.report.page import Estimate, figure
from rg_env.evaluation.report.run import POINTS


def test_a_runs_page_has_its_figures(tmp_path: Path, report: Callable[..., tuple[int, str, str]]) -> None:
    """Facts, curves, each task before and after with the paired difference, and every rollout."""
    run = write_run(tmp_path / "run")
    assert report(run) == (0, f"{run / 'report.html'}\n", "")
    assert not list(run.rglob("*.part"))
    data = page_data(run / "report.html")
    assert (data["title"], data["kind"], data["notes"]) == ("run", "training run", [])
    assert ["model", "tiny"] in data["facts"]
    assert ["state", "finished"] in data["facts"]
    curve = {series["name"]: series["points"] for series in data["charts"][0]["series"]}
    assert [(step, e["value"]) for step, e in curve["sampled"]] == [(0, pytest.approx(1 / 6)), (4, 0.5)]
    assert [(step, e["value"]) for step, e in curve["held-out tasks"]] == [(0, 0.0), (4, 0.5)]
    assert [(step, e["value"]) for step, e in curve["greedy"]] == [(0, 0.0), (4, 0.0)]
    batches = {series["name"]: series["points"] for series in data["charts"][1]["series"]}
    assert [(step, e["value"]) for step, e in batches["reward"]] == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert data["metrics"]["values"] == {
        "accuracy": [[1, 2, 3, 4], [0.125, 0.25, 0.375, 0.5]],
        "reward": [[1, 2, 3, 4], [0.25, 0.5, 0.75, 1.0]],
    }
    tasks = {(row["task"], row["step"]): row for row in table(data, "Tasks")}
    assert tasks["chain_sum", "step 4"]["accuracy"].startswith("0.50 [")
    assert tasks["maze (held out)", "step 0"]["accuracy"].startswith("0.00 [")
    changes = {row["task"]: row["difference in accuracy"] for row in table(data, "Steps compared, by task")}
    assert changes["chain_sum"].startswith("+0.33 [")
    assert changes["maze (held out)"].startswith("+0.50 [")
    groups = {
        group["name"]: [(bar["name"], bar["estimate"]["value"]) for bar in group["bars"]] for group in data["bars"]
    }
    assert groups["chain_sum"] == [("step 0", pytest.approx(1 / 6)), ("step 4", 0.5)]
    assert [row["step"] for row in table(data, "Evaluations")] == ["0", "4"]
    assert {text["title"]: text["text"] for text in data["texts"]} == {"config.yaml": (run / "config.yaml").read_text()}


def test_labels_may_be_called_as_anything(tmp_path: Path) -> None:
    """As a curve of another kind, too: each has its own."""
    evaluations = []
    for each in (evaluated(step, [[True], [False], [True]]) for step in (0, 4)):
        labels = {n: each.tasks["chain_sum"].model_copy(update={"part": "labelled"}) for n in ("greedy", "sampled")}
        evaluations.append(each.model_copy(update={"tasks": {**each.tasks, **labels}}))
    data = page_data(write_report(write_run(tmp_path / "run", evaluations)).file)
    curves = [(series["name"], len(series["points"])) for series in data["charts"][0]["series"]]
    names = ["sampled", "greedy", "held-out tasks", "greedy (label)", "sampled (label)"]
    assert curves == [(name, 2) for name in names]


def test_a_runs_rollouts(tmp_path: Path) -> None:
    """Those of evaluations, greedy ones apart, and of training; questions once, by number."""
    write_report(write_run(tmp_path / "run"))
    rollouts = page_data(tmp_path / "run" / "report.html")["rollouts"]
    records = rollouts["records"]
    assert rollouts["variants"] == ["step 0", "step 4"]
    assert rollouts["found"] == len(records) == 2 * (8 + 4) + 4
    assert [sum(r["source"] == source for r in records) for source in ("evaluation", "training")] == [24, 4]
    assert len(rollouts["texts"]) == len(set(rollouts["texts"])) == 4 + 4 + 1
    (greedy,) = [r for r in records if r.get("draw") == "greedy" and r["step"] == 4 and r["problem"] == 1]
    assert (greedy["completion"], greedy["correct"], greedy["variant"]) == ("greedy at 4", False, 1)
    second = [r for r in records if r.get("draw") == "sampled" and r["step"] == 4 and r["problem"] == 1][1]
    assert (second["rollout"], second["status"]) == (1, "wrong")
    assert {rollouts["texts"][r["system"]] for r in records} == {"Think first."}


def test_an_evaluations_page(tmp_path: Path, report: Callable[..., tuple[int, str, str]]) -> None:
    """Its tables say what the results say, and each rollout has the prompt of its model."""
    folder = write_evaluation(tmp_path / "eval")
    assert report(folder) == (0, f"{folder / 'report.html'}\n", "")
    data = page_data(folder / "report.html")
    (group,) = data["bars"]
    assert (group["floor"], [(bar["name"], bar["estimate"]["value"]) for bar in group["bars"]]) == (
        0.25,
        [("base", 0.375), ("trained", 0.75)],
    )
    summary = table(data, "All tasks")
    assert [(row["model"], row["accuracy"].split()[0], row["prompt tokens"], row["cost"]) for row in summary] == [
        ("base", "0.38", "1,000", "–"),
        ("trained", "0.75", "1,000", "–"),
    ]
    (compared,) = table(data, "Models compared, by task")
    assert compared["models"] == "trained − base"
    assert (compared["difference in accuracy"], compared["p"]) == ("+0.50 [+0.10, +0.90]", "0.0300")
    rollouts = data["rollouts"]
    assert (rollouts["variants"], rollouts["found"]) == (["base", "trained"], 16)
    prompts = {(r["model"], rollouts["texts"][r["system"]]) for r in rollouts["records"]}
    assert prompts == {("base", "Think."), ("trained", "Answer as a cat.")}


def test_a_single_tasks_file_and_another_output(tmp_path: Path, report: Callable[..., tuple[int, str, str]]) -> None:
    """A file can be given in place of its folder."""
    folder, output = write_evaluation(tmp_path / "eval"), tmp_path / "page.html"
    with (folder / "rollouts.jsonl").open("a") as lines:
        lines.write(json.dumps(evaluation_record("base", 0, 0, True, task="maze")) + "\n")
    code, printed, errors = report(folder / "results_leg_counting_20250101-000000.json", "--output", output)
    assert (code, printed, errors) == (0, f"{output}\n", ""), "what is of other tasks is not asked for"
    data = page_data(output)
    assert [row["model"] for row in table(data, "Tasks")] == ["base", "trained"]
    assert len(data["rollouts"]["records"]) == 16
    assert not (folder / "report.html").exists()


def test_the_newest_results_are_shown(tmp_path: Path) -> None:
    """Of several, with a note; and rollouts that they do not count are noted."""
    folder = write_evaluation(tmp_path / "eval")
    for name in folder.glob("results_all_tasks_*"):
        name.unlink()
    newer = results_of_records(evaluation_records()[:8], created="2025-01-02")
    (folder / "results_leg_counting_20250102-000000.json").write_text(newer.model_dump_json())
    report = write_report(folder)
    assert report.notes == [
        "several results: results_leg_counting_20250102-000000.json shown, the newest",
        "rollouts.jsonl also has rollouts that the results do not count: trained on leg_counting",
    ]
    data = page_data(report.file)
    assert [row["model"] for row in table(data, "Tasks")] == ["base"]
    assert data["notes"] == report.notes


def test_tasks_without_a_summary_are_shown_together(tmp_path: Path) -> None:
    """As an evaluation leaves them that ended before it."""
    for task in ("leg_counting", "maze"):
        results = results_of_records(evaluation_records(), task)
        (tmp_path / f"results_{task}_1.json").write_text(results.model_dump_json())
    data = page_data(write_report(tmp_path).file)
    assert [group["name"] for group in data["bars"]] == ["leg_counting", "maze"]
    assert data["notes"] == ["no rollouts.jsonl: there are no rollouts to show"]


def test_rollouts_alone_give_figures(tmp_path: Path) -> None:
    """As in mid-evaluation: clustered by question, the last line about a rollout counts, a failed call is an answer."""
    records = evaluation_records()
    again = evaluation_record("base", 0, 0, True)
    failed = evaluation_record("base", 4, 0, False, completion=None, error="503", extracted=None, status="failed")
    write_lines(tmp_path / "rollouts.jsonl", [*records, again, failed])
    data = page_data(write_report(tmp_path).file)
    (base, trained) = table(data, "Tasks")
    values = [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0]]
    assert base["accuracy"] == figure(Estimate.of_values(values, share=True))
    assert (base["questions"], base["rollouts"]) == ("5", "9")
    assert trained["accuracy"].startswith("0.75 ")
    assert data["rollouts"]["found"] == len(data["rollouts"]["records"]) == 17
    first = next(
        r for r in data["rollouts"]["records"] if r["model"] == "base" and r["problem"] == 0 and r["rollout"] == 0
    )
    assert first["correct"] is True
    assert any("1 rollouts were made again later" in note for note in data["notes"])
    assert any("no results file" in note for note in data["notes"])


def test_results_that_count_other_rollouts_are_told(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "eval")
    write_lines(folder / "rollouts.jsonl", evaluation_records()[1:])
    notes = write_report(folder).notes
    assert notes == ["leg_counting, base: rollouts.jsonl has 7 rollouts, the results count 8"]


def test_evaluations_that_asked_otherwise_are_not_paired(tmp_path: Path) -> None:
    """The last one is shown, with a note."""
    evaluations = evaluated(0, [[True], [True]]), evaluated(4, [[True], [False], [True]])
    report = write_report(write_run(tmp_path / "run", evaluations))
    assert report.notes == ["the first and the last evaluation had different questions, and are not compared"]
    assert {row["step"] for row in table(page_data(report.file), "Tasks")} == {"step 4"}


def test_long_runs_are_thinned_and_say_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_lines(run / "metrics.jsonl", [{"step": step, "reward": 1.0} for step in range(2 * POINTS + 1)])
    data = page_data(write_report(run).file)
    steps, values = data["metrics"]["values"]["reward"]
    assert len(steps) == len(values) <= POINTS
    assert data["metrics"]["note"] == "1 of 3 values"


def test_too_many_rollouts_keep_whole_questions(tmp_path: Path, report: Callable[..., tuple[int, str, str]]) -> None:
    """All answers to a question stay together, the page tells how many there are, and figures are those of all."""
    folder = write_evaluation(tmp_path / "eval")
    code, _, errors = report(folder, "--rollouts", "9")
    assert code == 0
    assert "8 of 16 rollouts are in this page: all answers to 2 of 4 questions" in errors
    data = page_data(folder / "report.html")
    records = data["rollouts"]["records"]
    assert (len(records), data["rollouts"]["found"]) == (8, 16)
    assert len({record["problem"] for record in records}) == 2
    assert table(data, "Tasks")[0]["accuracy"].startswith("0.38 ")


def test_too_much_text_is_left_out_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path / "rollouts.jsonl", [training_record(1, f"{n} and " + 400 * "x") for n in range(10)])
    monkeypatch.setattr(report_rollouts, "MAX_CHARACTERS", 2000)
    data = page_data(write_report(tmp_path).file)
    assert len(data["rollouts"]["records"]) == 4
    assert data["rollouts"]["found"] == 10


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=6))
def test_intervals_are_those_of_the_statistics(values: list[list[float]]) -> None:
    """Student's t over problems; a share's stays between 0 and 1, and one problem has none."""
    estimate = Estimate.of_values(values, share=True)
    mean, error = mean_and_error(values)
    assert estimate is not None
    assert estimate.value == mean
    if len(values) == 1:
        assert (estimate.low, estimate.high) == (None, None)
    else:
        half = t_critical(len(values) - 1) * error
        assert estimate.low is not None
        assert estimate.high is not None
        assert math.isclose(estimate.low, max(0.0, mean - half), abs_tol=1e-12)
        assert math.isclose(estimate.high, min(1.0, mean + half), abs_tol=1e-12)
