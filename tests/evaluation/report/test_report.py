"""Tests of `rg-env report`: pages of runs and evaluations, hostile model output and damaged files."""

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from report_samples import (
    HOSTILE,
    Reader,
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
from result_files import all_results, model_result, task_results

from rg_env.core.statistics import share_interval
from rg_env.errors import InputError
from rg_env.evaluation.report import as_script_data, render, write_report
from rg_env.evaluation.report.content import POINTS, Page, RolloutList

Run = Callable[..., tuple[int, str, str]]


def accuracies(data: Any) -> dict[str, dict[str, float]]:
    """Return the accuracies drawn as bars, by task and by model or step."""
    return {task["name"]: {name: each["accuracy"] for name, each in task["scores"]} for task in data["tasks"]}


def test_a_runs_page_has_its_figures(tmp_path: Path, rg_env: Run) -> None:
    """The page has facts, curves, and each task's accuracy at both steps with the paired difference."""
    run = write_run(tmp_path / "run")
    assert rg_env("report", run) == (0, f"{run / 'report.html'}\n", "")
    assert not list(run.rglob("*.part"))
    data = page_data(run / "report.html")
    assert (data["title"], data["kind"], data["notes"]) == ("tiny on chain_sum", "training run", [])
    facts = {"folder": "run", "model": "tiny", "state": "finished", "date": "2025-01-01 12:00 UTC"}
    assert facts.items() <= dict(data["facts"]).items()
    assert dict(data["facts"])["commit"] == "0123abc"
    assert table(data, "Monitor findings") == [{"finding": "step 3: monitor length: it grows"}]
    curves, *batches = data["charts"]
    assert {name: [(step, value) for step, (value, *_) in points] for name, points in curves["lines"].items()} == {
        "sampled": [(0, pytest.approx(1 / 6)), (4, 0.5)],
        "held-out tasks": [(0, 0.0), (4, 0.5)],
        "greedy": [(0, 0.0), (4, 0.0)],
    }
    assert [chart["title"] for chart in batches] == ["Training batches: reward", "Training batches: accuracy"]
    assert batches[0]["lines"]["mean"] == [[step, [step / 4, None, None]] for step in (1, 2, 3, 4)]
    assert data["metrics"] == {
        "accuracy": [[1, 2, 3, 4], [0.125, 0.25, 0.375, 0.5]],
        "reward": [[1, 2, 3, 4], [0.25, 0.5, 0.75, 1.0]],
    }
    tasks = {(row["task"], row["step"]): row for row in table(data, "Results")}
    assert tasks["chain_sum", "step 4"]["accuracy"].startswith("0.500 [")
    assert tasks["maze (held out)", "step 0"]["accuracy"].startswith("0.000 [")
    assert tasks["chain_sum", "step 4"]["difference to step 0"].startswith("+0.333 [")
    assert tasks["maze (held out)", "step 4"]["difference to step 0"].startswith("+0.500 [")
    assert {each["title"] for each in data["tables"]} == {"Monitor findings", "Results"}
    assert [(each["headline"], each["outcome"]) for each in data["verdicts"]] == [
        ("0.17 → 0.50, p = 0.500, n = 3", "no clear difference"),
        ("0.00 → 0.50, p = 1.000, n = 1", "no clear difference"),
    ]
    assert accuracies(data)["chain_sum"] == {"step 0": pytest.approx(1 / 6), "step 4": 0.5}
    assert data["texts"] == [["config.yaml", (run / "config.yaml").read_text()]]


def test_labels_may_have_the_names_of_curves(tmp_path: Path) -> None:
    """Labels named like the built-in curves get curves of their own."""
    evaluations = []
    for each in (evaluated(step, [[True], [False], [True]]) for step in (0, 4)):
        labels = {n: each.tasks["chain_sum"].model_copy(update={"part": "labelled"}) for n in ("greedy", "sampled")}
        evaluations.append(each.model_copy(update={"tasks": {**each.tasks, **labels}}))
    data = page_data(write_report(write_run(tmp_path / "run", evaluations)).file)
    names = ["sampled", "greedy", "held-out tasks", "greedy (label)", "sampled (label)"]
    assert {name: len(points) for name, points in data["charts"][0]["lines"].items()} == dict.fromkeys(names, 2)


def test_a_runs_rollouts(tmp_path: Path) -> None:
    """RolloutList of training and of evaluations are included, greedy ones separately; each text is stored once."""
    write_report(write_run(tmp_path / "run"))
    rollouts = page_data(tmp_path / "run" / "report.html")["rollouts"]
    records = rollouts["records"]
    assert rollouts["variants"] == ["step 0", "step 4"]
    assert rollouts["found"] == len(records) == 2 * (8 + 4) + 4
    assert [sum(r["source"] == source for r in records) for source in ("evaluation", "training")] == [24, 4]
    assert len(rollouts["texts"]) == len(set(rollouts["texts"])) == 4 + 4 + 1
    (greedy,) = [r for r in records if r.get("draw") == "greedy" and r["step"] == 4 and r.get("problem") == 1]
    assert (greedy["completion"], greedy["correct"], greedy["variant"]) == ("greedy at 4", False, 1)
    second = [r for r in records if r.get("draw") == "sampled" and r["step"] == 4 and r.get("problem") == 1][1]
    assert (second["rollout"], second["status"]) == (1, "wrong")
    assert {rollouts["texts"][r["system"]] for r in records} == {"Think first."}


def test_an_evaluations_page(tmp_path: Path, rg_env: Run) -> None:
    """The tables agree with the results, and each rollout has its model's prompt."""
    folder = write_evaluation(tmp_path / "eval")
    assert rg_env("report", folder) == (0, f"{folder / 'report.html'}\n", "")
    data = page_data(folder / "report.html")
    assert accuracies(data) == {"leg_counting": {"base": 0.375, "trained": 0.75}}
    assert data["tasks"][0]["floor"] == 0.25
    assert data["title"] == "base, trained on leg_counting"
    base, trained = table(data, "Results")
    assert [(row["model"], row["accuracy"].split()[0]) for row in (base, trained)] == [
        ("base", "0.375"), ("trained", "0.750")]  # fmt: skip
    assert (trained["difference to base"], trained["p-value"]) == ("+0.500 [+0.100, +0.900]", "0.030")
    assert (base["difference to base"], base["constant"]) == ("–", "0.250")
    (verdict,) = data["verdicts"]
    assert (verdict["headline"], verdict["outcome"]) == ("0.38 → 0.75, p = 0.030, n = 4", "better")
    assert verdict["about"] == "Accuracy on the questions, base → trained; difference +0.50 [+0.10, +0.90]"
    rollouts = data["rollouts"]
    assert (rollouts["variants"], rollouts["found"]) == (["base", "trained"], 16)
    prompts = {(r["model"], rollouts["texts"][r["system"]]) for r in rollouts["records"]}
    assert prompts == {("base", "Think."), ("trained", "Answer as a cat.")}


def test_a_single_tasks_file_and_another_output(tmp_path: Path, rg_env: Run) -> None:
    """A results file can be given instead of its folder; rollouts of other tasks are left out."""
    folder, output = write_evaluation(tmp_path / "eval"), tmp_path / "page.html"
    with (folder / "rollouts.jsonl").open("a") as lines:
        lines.write(json.dumps(evaluation_record("base", 0, 0, True, task="maze")) + "\n")
    code, printed, errors = rg_env("report", folder / "results_leg_counting_20250101-000000.json", "--output", output)
    assert (code, printed, errors) == (0, f"{output}\n", ""), "rollouts of other tasks are left out"
    data = page_data(output)
    assert [row["model"] for row in table(data, "Results")] == ["base", "trained"]
    assert len(data["rollouts"]["records"]) == 16
    assert not (folder / "report.html").exists()


def test_the_newest_results_are_shown(tmp_path: Path) -> None:
    """A note reports that other results files exist."""
    folder = write_evaluation(tmp_path / "eval")
    newer = results_of_records(evaluation_records()[:8], created="2025-01-02")
    (folder / "results_all_tasks_20250102-000000.json").write_text(newer.model_dump_json())
    report = write_report(folder)
    assert report.notes == [
        "the folder has several results files, and this page shows the newest, results_all_tasks_20250102-000000.json",
    ]
    data = page_data(report.file)
    assert [row["model"] for row in table(data, "Results")] == ["base"]
    assert data["notes"] == report.notes


def test_rollouts_alone_give_figures(tmp_path: Path) -> None:
    """Accuracies of an unfinished evaluation are clustered by question. Of repeated records the last one counts, and a
    failed call counts as wrong."""
    records = evaluation_records()
    again = evaluation_record("base", 0, 0, True)
    failed = evaluation_record("base", 4, 0, False, completion=None, error="503", extracted=None, status="failed")
    write_lines(tmp_path / "rollouts.jsonl", [*records, again, failed])
    data = page_data(write_report(tmp_path).file)
    (base, trained) = table(data, "Results")
    values = [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0]]
    low, high = share_interval(values)
    assert base["accuracy"] == f"0.444 [{low:.3f}, {high:.3f}]"
    assert (base["questions"], base["rollouts"]) == ("5", "9")
    assert trained["accuracy"].startswith("0.750 ")
    assert data["rollouts"]["found"] == len(data["rollouts"]["records"]) == 17
    by_key = {(each["model"], each["problem"], each["rollout"]): each for each in data["rollouts"]["records"]}
    assert by_key["base", 0, 0]["correct"] is True
    assert any("1 repeated rollout; only the last record of each rollout is used" in note for note in data["notes"])
    assert any("no results file" in note for note in data["notes"])


def test_evaluations_on_other_questions_are_not_paired(tmp_path: Path) -> None:
    """Only the last evaluation counts, with a note; the table has both, without a difference."""
    evaluations = evaluated(0, [[True], [True]]), evaluated(4, [[True], [False], [True]])
    report = write_report(write_run(tmp_path / "run", evaluations))
    assert report.notes == ["the first and last evaluations are not compared, because their questions differ"]
    assert {name for task in page_data(report.file)["tasks"] for name, _ in task["scores"]} == {"step 4"}


def test_each_reward_has_a_chart(tmp_path: Path) -> None:
    """A reward that equals the accuracy shares its chart."""
    run = write_run(tmp_path / "run")
    rewards = {"correctness": 0.25, "shows_steps": 0.75}
    means = {f"rewards/{name}/mean": value for name, value in rewards.items()}
    write_lines(run / "metrics.jsonl", [{"step": step, "reward": 1.0, "accuracy": 0.25, **means} for step in (1, 2)])
    charts = page_data(write_report(run).file)["charts"][1:]
    values = {chart["title"].removeprefix("Training batches: "): chart["lines"]["mean"][0][1][0] for chart in charts}
    assert values == {"reward": 1.0, "accuracy = correctness (reward)": 0.25, "shows_steps (reward)": 0.75}


def test_notes_explain_only_what_the_table_has(tmp_path: Path) -> None:
    """Notes are separate, and nothing is explained that is not a row or a column."""
    (table,) = page_data(write_report(write_evaluation(tmp_path / "eval")).file)["tables"]
    assert [note.split(":")[0].split(",")[0] for note in table["notes"]] == [
        "Means with 95% intervals", "Difference", "Constant"]  # fmt: skip
    page = Page("", "")
    costs = {"a": model_result(0.5), "b": model_result(0.25)}
    page.add_results(all_results([task_results(costs), task_results(costs, "gcd")], notes=["a: one", "b: two"]))
    assert page.notes == ["a: one", "b: two"]
    assert page.tables[0].rows[0][:2] == ["macro average", "a"]
    assert any(note.startswith("Macro average") for note in page.tables[0].notes)


def test_a_folder_of_runs_has_an_index(tmp_path: Path, rg_env: Run) -> None:
    """Each run and evaluation has its own report, also within a sweep; a damaged run is listed with its error."""
    for name in ("b", "sweep/rate=1e-6 #1%"):
        write_run(tmp_path / name)
    write_evaluation(tmp_path / "a")
    (tmp_path / "sweep/sweep.yaml").write_text("points: {}")
    (write_run(tmp_path / "bad") / "metrics.jsonl").write_text("[]\n")
    (tmp_path / "other").mkdir()
    code, _, errors = rg_env("report", tmp_path)
    assert (code, "bad/metrics.jsonl is damaged" in errors) == (0, True)
    data = page_data(tmp_path / "report.html")
    rows = {row["run"]: row for row in table(data, "Runs")}
    assert list(rows) == ["a", "b", "bad", "sweep/rate=1e-6 #1%"]
    assert rows["b"]["result"] == "0.17 → 0.50, p = 0.500, n = 3"
    assert (rows["b"]["state"], rows["bad"]["state"], rows["a"]["kind"]) == ("finished", "damaged", "evaluation")
    assert data["links"]["sweep/rate=1e-6 #1%"] == "./sweep/rate%3D1e-6%20%231%25/report.html"
    assert set(data["links"]) == {"a", "b", "sweep/rate=1e-6 #1%"}
    assert all((tmp_path / name / "report.html").is_file() for name in data["links"])
    assert list(data["charts"][0]["lines"]) == ["b", "sweep/rate=1e-6 #1%"]


def test_a_report_is_rewritten_until_the_run_ends(tmp_path: Path, rg_env: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of an unfinished run reloads itself; the page of a finished run does not."""
    run, waited, refreshes = write_run(tmp_path / "run"), [], []
    results = (run / "train_results.json").read_text()
    (run / "train_results.json").unlink()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        refreshes.append(page_data(run / "report.html")["refresh_s"])
        if len(waited) == 2:
            (run / "train_results.json").write_text(results)

    monkeypatch.setattr("rg_env.cli.show.time.sleep", wait)
    code, printed, _ = rg_env("report", run, "--watch", "30")
    assert (code, waited, refreshes) == (0, [30, 30], [30, 30])
    assert printed.splitlines()[-1] == str(run / "report.html")
    assert page_data(run / "report.html")["refresh_s"] is None


def test_long_runs_are_thinned_with_a_note(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_lines(run / "metrics.jsonl", [{"step": step, "reward": 1.0} for step in range(2 * POINTS + 1)])
    data = page_data(write_report(run).file)
    steps, values = data["metrics"]["reward"]
    assert len(steps) == len(values) <= POINTS
    assert data["thinned"] == "1 of 3 values"


def test_too_many_rollouts_keep_whole_questions(tmp_path: Path, rg_env: Run) -> None:
    """The page has all answers to the questions that it keeps, and the total number; accuracies include all
    rollouts."""
    folder = write_evaluation(tmp_path / "eval")
    code, _, errors = rg_env("report", folder, "--max-rollouts", "9")
    assert code == 0
    assert "8 of 16 rollouts are on this page: all answers to 2 of 4 questions" in errors
    data = page_data(folder / "report.html")
    records = data["rollouts"]["records"]
    assert (len(records), data["rollouts"]["found"]) == (8, 16)
    assert len({record["problem"] for record in records}) == 2
    assert table(data, "Results")[0]["accuracy"].startswith("0.375 ")


def test_rollouts_with_too_much_text_are_left_out(tmp_path: Path) -> None:
    page = Page("", "")
    page.add_rollouts([training_record(1, f"{n} and " + 400 * "x") for n in range(10)], 100, characters=2000)
    assert (len(page.rollouts.records), page.rollouts.found) == (4, 10)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("metrics.jsonl", '{"reward": 7'), ("rollouts.jsonl", '{"step": 5, "completion": "no question"}'),
        ("eval_results/eval_step_4.json", "{"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_error_that_names_it(tmp_path: Path, name: str, line: str) -> None:
    """No page is written from the other files."""
    run = write_run(tmp_path / "run")
    with (run / name).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(InputError, match=rf"{name} is damaged: .*; restore it from a copy, or remove it$"):
        write_report(run)
    assert not list(tmp_path.rglob("*.html"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("manifest.json", '{"created": 5}'), ("manifest.json", '{"commit": 5}'), ("train_results.json", "{}"),
        ("train_results.json", '{"seconds": "x"}'), ("config.yaml", "environment: x"),
        ("rollouts.jsonl", '{"question": "1", "step": 1, "answer": "1", "reward": 1, "task": []}'),
        ("metrics.jsonl", '{"step": 1e308, "reward": 1e308}\n{"step": -1e308, "reward": -1e308}'),
    ],
)  # fmt: skip
def test_a_file_with_other_values_is_one_error(tmp_path: Path, name: str, text: str, rg_env: Run) -> None:
    """They may be from somebody else, or from another version."""
    run = write_run(tmp_path / "run")
    (run / name).write_text(text)
    for command in ("report", "plot"):
        code, _, error = rg_env(command, run)
        assert code == 0 or (code, error.count("\n"), "damaged: a value" in error) == (2, 1, True), error
    (run / "config.yaml").write_bytes(b"\xff")
    (run / "arguments.yaml").write_text("model: tiny")
    assert rg_env("report", run)[0] in (0, 2)


def test_the_last_line_of_a_killed_run_may_be_incomplete(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        with (run / name).open("a") as file:
            file.write('{"step": 5, "ques')
    (run / "train_results.json").unlink()
    data = page_data(write_report(run).file)
    assert data["metrics"]["reward"][0] == [1, 2, 3, 4]
    assert ["state", "not finished"] in data["facts"]


def test_gold_answers_may_be_other_values_than_text(tmp_path: Path) -> None:
    """Such values are shown as JSON."""
    write_lines(tmp_path / "rollouts.jsonl", [training_record(1, answer=[1, 2], level=3)])
    (record,) = page_data(write_report(tmp_path).file)["rollouts"]["records"]
    assert (record["answer"], record["level"]) == ("[1, 2]", 3)


def test_nothing_to_report_is_a_one_line_error(tmp_path: Path, error_of: Callable[..., str]) -> None:
    """The exit code is 2, and no page is written."""
    for name, file, text in (
        ("sweep", "sweep.yaml", "{}"), ("bare", "notes.txt", ""), ("started", "metrics.jsonl", ""),
        ("other", "results_all_tasks_1.json", '{"format": "rg_env.evaluation/7"}'), ("none", "rollouts.jsonl", "\n"),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    run = write_run(tmp_path / "run")
    for source, words in (
        ("absent", "does not exist"),
        ("bare", "contains neither a training run (metrics.jsonl, eval_results/) nor an evaluation"),
        ("sweep", "is a sweep: use `rg-env compare"),
        ("started", "contains a training run without metrics, evaluations or rollouts"),
        ("other", "results_all_tasks_1.json is damaged: its contents do not match the current results format: format"),
        ("none", "has no rollouts"),
        (run / "train_results.json", "is not a results file from rg-env eval"),
        (run / "rollouts.jsonl", "is part of a training run: pass the run's folder"),
    ):
        assert words in error_of("report", str(tmp_path / source))
    assert not list(tmp_path.rglob("*.html"))


def test_a_page_that_cannot_be_written(tmp_path: Path, error_of: Callable[..., str]) -> None:
    """The run's own files are not overwritten."""
    run = write_run(tmp_path / "run")
    before = (run / "rollouts.jsonl").read_bytes()
    for output, words in (("run/rollouts.jsonl", "must end in .html"), ("nowhere/page.html", "cannot write")):
        assert words in error_of("report", str(run), "--output", str(tmp_path / output))
    assert (run / "rollouts.jsonl").read_bytes() == before


def test_the_policy_lets_only_the_pages_own_code_run(tmp_path: Path) -> None:
    """The policy allows script and style by hash; the page loads no URLs and has no inline handlers or styles."""
    reader = Reader(write_report(write_run(tmp_path / "run")).file.read_text(encoding="utf-8"))
    rules = dict(rule.strip().split(" ", 1) for rule in reader.policy.split(";"))
    assert rules["default-src"] == "'none'"
    for tag in ("script", "style"):
        (text,) = reader.found[tag]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert (rules["require-trusted-types-for"], rules["trusted-types"]) == ("'script'", "'none'")
    for name, value in reader.attributes:
        assert not name.startswith("on")
        assert name != "style"
        if name in ("src", "href", "action"):
            assert (value or "").startswith(("#", "data:,"))


TEXTS = st.text(st.characters() | st.sampled_from("<>&/!-'\"\\$\u2028\u2029\ud800\udfff\x00\r\n"))


@given(TEXTS)
@example("".join(HOSTILE))
def test_any_text_comes_back_from_a_page(text: str) -> None:
    """Text survives JSON and HTML unchanged, read back by an HTML parser, and adds no attributes to the page."""
    record = {"question": 0, "completion": text, "rewards": {text: 1.0}}
    page = render(Page(text, text, notes=[text], rollouts=RolloutList([record], [text], [text], 1)))
    reader = Reader(page.encode("utf-8", "replace").decode())
    assert reader.data["rollouts"] == {"records": [record], "texts": [text], "variants": [text], "found": 1}
    assert (reader.data["title"], reader.data["notes"]) == (text, [text])
    assert len(reader.attributes) == len(Reader(render(Page("", ""))).attributes)
    assert as_script_data(text).isascii()
    assert not set("<>&") & set(as_script_data(text))
