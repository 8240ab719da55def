"""`rg-env report`: what a page says about runs and evaluations, good and damaged."""

import base64
import contextlib
import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator
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
    task_results,
    training_record,
    write_evaluation,
    write_lines,
    write_run,
)

from rg_env.cli import run as run_cli
from rg_env.commands import run_command
from rg_env.core.statistics import mean_and_error, t_critical
from rg_env.errors import InputError
from rg_env.evaluation.report import rollouts as report_rollouts
from rg_env.evaluation.report import write_report
from rg_env.evaluation.report.html import as_script_data, render
from rg_env.evaluation.report.parts import Estimate, Page, Rollouts, figure
from rg_env.evaluation.report.run import POINTS


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process; gives its exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            run_command(lambda: run_cli(["report", *map(str, arguments)]))
        return int(caught.value.code or 0), *capsys.readouterr()

    return call


def table(data: Any, title: str) -> list[dict[str, str]]:
    """A table's rows by column."""
    (found,) = [each for each in data["tables"] if each["title"] == title]
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


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
    mean, error = mean_and_error([[0.5], [0.5], [0.0]])  # of the problems of chain_sum, after minus before
    half = t_critical(2) * error
    tasks = {row["task"]: row for row in table(data, "Tasks")}
    assert tasks["chain_sum"]["change"] == f"+{mean:.2f} [{mean - half:+.2f}, {mean + half:+.2f}]".replace(
        "-", "\u2212"
    )
    assert tasks["chain_sum"]["accuracy, step 4"].startswith("0.50 [0.00, 1.00]")
    assert tasks["maze (held out)"]["accuracy, step 0"] == "0.00", "one problem: no interval"
    groups = {
        group["name"]: [(bar["name"], bar["estimate"]["value"]) for bar in group["bars"]] for group in data["bars"]
    }
    assert groups["chain_sum"] == [("step 0", pytest.approx(1 / 6)), ("step 4", 0.5)]
    assert [row["step"] for row in table(data, "Evaluations")] == ["0", "4"]
    assert {text["title"]: text["text"] for text in data["texts"]} == {"config.yaml": (run / "config.yaml").read_text()}


def test_labels_may_be_called_as_anything(tmp_path: Path) -> None:
    """As a curve of another kind, too: each has its own."""
    evaluations = [evaluated(step, [[True], [False], [True]]) for step in (0, 4)]
    for each in evaluations:
        each.labelled["greedy"] = each.labelled["sampled"] = each.overall
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
    assert "extracted" not in greedy
    second = [r for r in records if r.get("draw") == "sampled" and r["step"] == 4 and r["problem"] == 1][1]
    assert (second["rollout"], second["extracted"], second["status"]) == (1, "2", "correct")
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
    (compared,) = table(data, "Models compared, all tasks")
    assert compared["models"] == "trained − base"
    assert (compared["difference in accuracy"], compared["p"]) == ("+0.50 [+0.10, +0.90]", "0.0300")
    rollouts = data["rollouts"]
    assert (rollouts["variants"], rollouts["found"]) == (["base", "trained"], 16)
    prompts = {(r["model"], rollouts["texts"][r["system"]]) for r in rollouts["records"]}
    assert prompts == {("base", "Think step by step."), ("trained", "Answer as a cat.")}


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


def test_the_newest_results_are_shown_and_said(tmp_path: Path) -> None:
    """Of several, and damaged ones are named."""
    folder = write_evaluation(tmp_path / "eval")
    for name in folder.glob("results_all_tasks_*"):
        name.unlink()
    (folder / "results_z.json").write_text('{"format": "rg_env.results/2"}')
    newer = task_results(evaluation_records()[:8], created="2025-01-02")
    (folder / "results_leg_counting_20250102-000000.json").write_text(newer.model_dump_json())
    report = write_report(folder)
    assert any(
        "results_z.json is a results file of another version (rg_env.results/2)" in note for note in report.notes
    )
    assert "several results: results_leg_counting_20250102-000000.json is shown, the newest" in report.notes
    assert any(
        "also has rollouts that the results do not count: trained on leg_counting" in note for note in report.notes
    )
    data = page_data(report.file)
    assert [row["model"] for row in table(data, "Tasks")] == ["base"]
    assert data["notes"] == report.notes


def test_tasks_without_a_summary_stand_together(tmp_path: Path) -> None:
    """Those of an evaluation that ended before it."""
    records = evaluation_records()
    for task in ("leg_counting", "maze"):
        (tmp_path / f"results_{task}_1.json").write_text(task_results(records, task).model_dump_json())
    data = page_data(write_report(tmp_path).file)
    assert [group["name"] for group in data["bars"]] == ["leg_counting", "maze"]
    assert data["notes"] == ["there is no rollouts.jsonl beside the results: no rollouts to show"]


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
    assert any("1 rollouts were written again later" in note for note in data["notes"])
    assert any("no results file" in note for note in data["notes"])


def test_damaged_lines_are_counted(tmp_path: Path, report: Callable[..., tuple[int, str, str]]) -> None:
    """In the page and on standard error; what is whole is shown, and no figure is made of the rest."""
    run = write_run(tmp_path / "run")
    with (run / "rollouts.jsonl").open("ab") as lines:
        lines.write(b'{"step": 5, "question"\n[1]\n\xff\xfe\n\n')
        lines.write(json.dumps(training_record(5, correct="yes")).encode() + b"\n")
        lines.write(json.dumps(training_record(5, reward=True)).encode() + b"\n")
        lines.write(json.dumps({"step": 5, "question": "no answer at all"}).encode() + b"\n")
        lines.write(b'{"question": 1' + b"0" * 5000 + b', "completion": ""}\n')
        lines.write(b'{"question": ' + b"[" * 100_000 + b"\n")
    with (run / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 5, "reward": NaN, "accuracy": 0.5, "huge": 1e999}\n{"reward": 7}\n{"st')
    (run / "eval_results" / "eval_step_9.json").write_text('{"step": 9')
    code, _, errors = report(run)
    assert code == 0
    assert errors.splitlines() == [
        "note: eval_results/eval_step_9.json is damaged: left out",
        "note: metrics.jsonl: 2 damaged lines left out",
        "note: rollouts.jsonl: 8 damaged rollouts left out",
    ]
    data = page_data(run / "report.html")
    assert [f"note: {note}" for note in data["notes"]] == errors.splitlines()
    assert data["metrics"]["values"]["reward"] == [[1, 2, 3, 4], [0.25, 0.5, 0.75, 1.0]]
    assert data["metrics"]["values"]["accuracy"][0] == [1, 2, 3, 4, 5]
    assert "huge" not in data["metrics"]["values"]
    assert data["rollouts"]["found"] == 28


def test_answers_of_other_environments_may_be_no_texts(tmp_path: Path) -> None:
    """They are shown as JSON has them, and nothing is extracted where rg_env did not grade."""
    write_lines(
        tmp_path / "rollouts.jsonl", [training_record(1, answer=[1, 2], completion="<answer>1</answer>", level=3)]
    )
    (record,) = page_data(write_report(tmp_path).file)["rollouts"]["records"]
    assert (record["answer"], record["level"], "extracted" in record) == ("[1, 2]", 3, False)


def test_results_that_count_other_rollouts_are_told(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "eval")
    write_lines(folder / "rollouts.jsonl", evaluation_records()[1:])
    notes = write_report(folder).notes
    assert notes == ["leg_counting, base: rollouts.jsonl has 7 rollouts, the results count 8"]


def test_evaluations_that_asked_otherwise_are_not_paired(tmp_path: Path) -> None:
    """There is no change to tell, and the table says why."""
    first, last = evaluated(0, [[True], [True]]), evaluated(4, [[True], [False]])
    last.questions[0]["prompts_sha256"] = "other"
    data = page_data(write_report(write_run(tmp_path / "run", [first, last])).file)
    (found,) = [each for each in data["tables"] if each["title"] == "Tasks"]
    assert "change" not in found["columns"]
    assert "were not asked the same questions" in found["note"]


def test_a_run_of_an_older_version_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    """Files without keys that came later."""
    run = write_run(tmp_path / "run")
    for file in (run / "eval_results").iterdir():
        values = json.loads(file.read_text())
        for name in ("labelled", "held_out", "pass_at_k", "pass_at_k_se", "sampling"):
            del values[name]
        file.write_text(json.dumps(values))
    (run / "train_results.json").unlink()
    (run / "config.yaml").write_text("a: [")
    report = write_report(run)
    assert report.notes == ["config.yaml is damaged: it is shown as it is"]
    data = page_data(report.file)
    assert [row["task"] for row in table(data, "Tasks")] == ["chain_sum"]
    assert ["state", "not finished"] in data["facts"]


def test_long_runs_are_thinned_and_say_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_lines(run / "metrics.jsonl", [{"step": step, "reward": 1.0} for step in range(2 * POINTS + 1)])
    data = page_data(write_report(run).file)
    steps, values = data["metrics"]["values"]["reward"]
    assert len(steps) == len(values) <= POINTS
    assert data["metrics"]["note"] == "every 3th value"


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


def test_nothing_to_report_is_one_line(tmp_path: Path, report: Callable[..., tuple[int, str, str]]) -> None:
    """And exit code 2, and no page."""
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.yaml").write_text("{}")
    (tmp_path / "bare").mkdir()
    (tmp_path / "started").mkdir()
    (tmp_path / "started" / "metrics.jsonl").write_text("nonsense\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "results_x.json").write_text('{"format": "rg_env.results/7"}')
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "rollouts.jsonl").write_text("\n{]\n")
    run = write_run(tmp_path / "run")
    for source, words in (
        ("absent", "does not exist"),
        ("bare", "holds neither a training run (metrics.jsonl, eval_results/) nor an evaluation"),
        ("sweep", "is a sweep: give the folder of one of its runs, or `rg-env compare"),
        ("started", "no metrics, evaluations or rollouts to show (metrics.jsonl: 1 damaged line left out)"),
        ("other", "is a results file of another version (rg_env.results/7)"),
        ("none", "holds no rollouts (rollouts.jsonl: 1 damaged rollout left out)"),
        (run / "train_results.json", "is no results file of rg-env eval"),
        (run / "rollouts.jsonl", "is of a training run: give its folder"),
    ):
        code, printed, errors = report(tmp_path / source)
        assert (code, printed, errors.count("\n")) == (2, "", 1), errors
        assert words in errors
    assert not list(tmp_path.rglob("*.html"))


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("run/rollouts.jsonl", "does not end in .html"),
        ("nowhere/page.html", "cannot write"),
        ("folder.html", "cannot write"),
    ],
)
def test_a_page_that_cannot_be_written(
    tmp_path: Path, report: Callable[..., tuple[int, str, str]], output: str, words: str
) -> None:
    """No file of the run is lost, and nothing half is left."""
    run = write_run(tmp_path / "run")
    (tmp_path / "folder.html").mkdir()
    before = (run / "rollouts.jsonl").read_bytes()
    code, _, errors = report(run, "--output", tmp_path / output)
    assert (code, errors.count("\n")) == (2, 1)
    assert words in errors
    assert (run / "rollouts.jsonl").read_bytes() == before
    assert not list(tmp_path.rglob("*.part"))


def test_a_folder_with_a_name_that_is_no_text(tmp_path: Path) -> None:
    """As other systems leave them: the page is made all the same."""
    run = write_run(Path(f"{tmp_path}/<b>\udcff"))
    reader = Reader(write_report(run).file.read_text(encoding="utf-8"))
    assert reader.found["title"] == ["<b>? · rg_env report"]
    assert reader.data["title"] == "<b>\udcff"


def test_the_policy_lets_only_the_pages_own_code_run(tmp_path: Path) -> None:
    """By hash; no address is loaded, and no attribute is code."""
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


def test_hostile_texts_stay_within_the_data(tmp_path: Path) -> None:
    """A question, an answer, a model's name: none of them adds a tag to the page, and all come back as they were."""
    texts = [evaluation_record("base", n, 0, True)["question"] for n in range(len(HOSTILE))]
    plain, hostile = tmp_path / "plain", tmp_path / "hostile"
    for folder, said in ((plain, texts), (hostile, list(HOSTILE))):
        folder.mkdir()
        fields = (
            "question",
            "completion",
            "reasoning",
            "answer",
            "extracted",
            "model",
            "task",
            "detail",
            "status",
            "error",
        )
        records = [evaluation_record("base", n, 0, True) | dict.fromkeys(fields, text) for n, text in enumerate(said)]
        write_lines(folder / "rollouts.jsonl", records)
    readers = [Reader(write_report(folder).file.read_text(encoding="utf-8")) for folder in (plain, hostile)]
    assert readers[0].attributes == readers[1].attributes
    assert readers[0].found["script"] == readers[1].found["script"]
    data = readers[1].data["rollouts"]
    assert [data["texts"][record["question"]] for record in data["records"]] == list(HOSTILE)
    assert [record["completion"] for record in data["records"]] == list(HOSTILE)


TEXTS = st.text(st.characters() | st.sampled_from("<>&/!-'\"\\$\u2028\u2029\ud800\udfff\x00\r\n"))


@given(TEXTS)
@example("".join(HOSTILE))
def test_any_text_comes_back_from_a_page(text: str) -> None:
    """Through JSON and HTML, by a parser of HTML, in a page that has no more tags than another one."""
    record = {"question": 0, "completion": text, "rewards": {text: 1.0}}
    page = render(Page(text, text, notes=[text], rollouts=Rollouts([record], [text], [text], 1)))
    reader = Reader(page.encode("utf-8", "replace").decode())
    assert reader.data["rollouts"] == {"records": [record], "texts": [text], "variants": [text], "found": 1}
    assert (reader.data["title"], reader.data["notes"]) == (text, [text])
    assert len(reader.attributes) == len(Reader(render(Page("", ""))).attributes)
    assert as_script_data(text).isascii()
    assert not set("<>&") & set(as_script_data(text))


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                [*report_rollouts._TEXTS, *report_rollouts._NAMES, *report_rollouts._WHOLE, "correct", "rewards"]
            ),
            st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.dictionaries(TEXTS, st.floats()),
        ),
        max_size=4,
    )
)
def test_any_record_is_shown_or_counted(records: list[dict[str, Any]]) -> None:
    """Whatever stands in its fields: the page can hold it, or it is damaged."""
    found = [report_rollouts.checked(record) for record in records]
    sources = [
        report_rollouts.Source("x", lambda: iter([r if r is None else r | {"source": "training"} for r in found]))
    ]
    gathered = report_rollouts.gather(sources, 100)
    shown, damaged = gathered.rollouts.records, sum(record is None for record in found)
    assert len(shown) + damaged == len(records)
    assert json.loads(as_script_data(shown)) == shown
    assert (gathered.notes == []) == (damaged == 0)


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=6))
def test_intervals_are_those_of_the_statistics(values: list[list[float]]) -> None:
    """Student's t over problems; a share's stays between 0 and 1, and one problem has none."""
    estimate = Estimate.of_values(values, share=True)
    mean, error = mean_and_error(values)
    assert estimate.value == mean
    if len(values) == 1:
        assert (estimate.low, estimate.high) == (None, None)
    else:
        half = t_critical(len(values) - 1) * error
        assert estimate.low is not None
        assert estimate.high is not None
        assert math.isclose(estimate.low, max(0.0, mean - half), abs_tol=1e-12)
        assert math.isclose(estimate.high, min(1.0, mean + half), abs_tol=1e-12)


ODD = (None, True, 3, -1, 2**70, 1.5, 9e99, 1e101, "x", "", [], {}, [1], {"a": 1}, [None], {"n": None}, "\udc80", [[]])


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value within a value."""
    yield place
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*place, key))


def replaced(value: Any, place: tuple[Any, ...], by: Any) -> Any:
    if not place:
        return by
    changed = value.copy()
    changed[place[0]] = replaced(value[place[0]], place[1:], by)
    return changed


@pytest.mark.parametrize("seed", range(5))
def test_odd_values_anywhere_are_no_traceback(tmp_path: Path, seed: int) -> None:
    """Whatever stands in the place of a value, in any file: a page, whose data are JSON, or an error for people."""
    draw = random.Random(seed)
    run, folder = write_run(tmp_path / "run"), write_evaluation(tmp_path / "eval")
    names = ("metrics.jsonl", "rollouts.jsonl", "train_results.json", "eval_results/eval_step_0.json")
    files = [run / name for name in names] + [folder / "rollouts.jsonl", *folder.glob("results_*.json")]
    for _ in range(60):
        file = draw.choice(files)
        text = file.read_text()
        lines = text.splitlines() if file.suffix == ".jsonl" else [text]
        number = draw.randrange(len(lines))
        values = json.loads(lines[number])
        lines[number] = json.dumps(replaced(values, draw.choice(list(places(values))), draw.choice(ODD)))
        file.write_text("\n".join(lines))
        with contextlib.suppress(InputError):
            page_data(write_report(run if file.is_relative_to(run) else folder).file)
        file.write_text(text)


def test_rollouts_that_are_none_and_figures_beyond_measure(tmp_path: Path) -> None:
    """In the place of a list, of which nothing can be told; and where squares would overflow."""
    run = write_run(tmp_path / "run")
    file = run / "eval_results" / "eval_step_0.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rollouts": 3, "reward": 1e299, "reward_se": 1e299}))
    write_lines(run / "rollouts.jsonl", [training_record(1, reward=1e299), training_record(2)])
    report = write_report(run)
    assert report.notes == [
        "eval_step_0.json: 1 damaged rollout left out",
        "rollouts.jsonl: 1 damaged rollout left out",
    ]
    data = page_data(report.file)
    assert table(data, "Evaluations")[0]["reward"] == "–"
    assert {row["change"] for row in table(data, "Tasks")} == {"–"}, "no rollouts to pair"
    folder = tmp_path / "eval"
    folder.mkdir()
    write_lines(folder / "rollouts.jsonl", [evaluation_record("base", n, 0, True, reward=n * 1e99) for n in range(3)])
    assert table(page_data(write_report(folder).file), "Tasks")[0]["reward"] != "–"


def test_an_unreadable_file_is_said(tmp_path: Path) -> None:
    """A folder in the place of a file."""
    run = write_run(tmp_path / "run")
    (run / "eval_results" / "eval_step_7.json").mkdir()
    with pytest.raises(InputError, match=r"eval_step_7\.json cannot be read: Is a directory"):
        write_report(run)
