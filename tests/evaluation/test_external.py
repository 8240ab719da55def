"""Tests of external benchmarks with real lm-eval on small local data, the tiny policy and an endpoint."""

import json
import math
import os
import re
import signal
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from chat_server import ChatServer
from result_files import all_results
from starlette.responses import JSONResponse

from rg_env.cli.main import run
from rg_env.core.data.dataset import build_rows
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.core.run_folder import json_lines
from rg_env.core.statistics import error_interval, wilson_interval
from rg_env.errors import InputError, RGEnvError, ServerError
from rg_env.evaluation import external
from rg_env.evaluation.external import Harness
from rg_env.evaluation.load import eval_config_of
from rg_env.evaluation.plots.files import plot_files
from rg_env.evaluation.report.content import results_page
from rg_env.evaluation.results import ExternalResult, Results, read_results, results_files
from rg_env.evaluation.tables import markdown, print_results
from rg_env.tiny import TASKS

ROWS = build_rows({"name": "leg_counting", "config": TASKS["leg_counting"]}, "eval", 30, 0)
GOLD = {row["question"].strip(): row["answer"] for row in ROWS}
LEGS = f"""
dataset_path: json
dataset_kwargs: {{data_files: {{train: DIR/train.jsonl, test: DIR/test.jsonl}}}}
process_docs: !function keys.checked
test_split: test
fewshot_split: train
output_type: generate_until
description: "{SYSTEM_PROMPT}"
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["</answer>"], max_gen_toks: 90, top_k: 5}}
filter_list:
  - name: strict-match
    filter:
      - {{function: regex, regex_pattern: '<answer>(-?[0-9]+)', group_select: -1}}
      - {{function: take_first}}
  - name: flexible-extract
    filter:
      - {{function: regex, regex_pattern: '(-?[0-9]+)', group_select: -1}}
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
metadata: {{version: 2.5}}
"""
FILES = {
    "legs_zero.yaml": "task: legs_zero\n" + LEGS,
    "legs_shown.yaml": """
include: legs_zero.yaml
task: legs_shown
num_fewshot: 2
fewshot_config: {sampler: first_n}
""",
    "legs.yaml": """
group: legs
task: [legs_zero, legs_shown]
aggregate_metric_list: [{metric: exact_match, aggregation: mean, weight_by_size: true, filter_list: strict-match}]
metadata: {version: 1.0}
""",
    "legs_odd.yaml": """
include: legs_zero.yaml
task: legs_odd
process_results: !function keys.fails
""",
    "keys.py": """
import os

def checked(docs):
    assert not {"EXTERNAL_KEY", "OPENAI_API_KEY"} & os.environ.keys()
    return docs

def fails(doc, results):
    raise ZeroDivisionError("by nought")
""",
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write task files as a user would, with their data."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, text in FILES.items():
        (folder / name).write_text(text.replace("DIR", str(folder)))
    docs = [{"question": question, "answer": answer} for question, answer in GOLD.items()]
    for name, part in (("train", docs[:5]), ("test", docs[5:])):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(doc)}\n" for doc in part))
    return folder


def _right(question: str) -> str:
    """Text after the end of the answer must not be graded."""
    return f"<answer>{GOLD[question.strip()]}</answer> It is 999."


def _results(folder: Path) -> Results:
    return read_results(results_files(folder)[0])


def _of(results: Results, model: str) -> ExternalResult:
    (found,) = (each for each in results.external if each.model == model)
    return found


def _figures(result: ExternalResult) -> dict[tuple[str, str], tuple[float, int, int | None, str | None]]:
    return {(each.task, each.filter): (each.value, each.n, each.num_fewshot, each.version) for each in result.scores}


@pytest.mark.slow
def test_benchmarks_are_run_graded_and_resumed(
    tasks: Path, offline: None, chat: ChatServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The reported figures match an independent count of the answers."""
    refused = {question for question in list(GOLD)[5:] if len(question) % 3 == 0}

    def trouble(number: int, body: dict[str, Any]) -> Any:
        question = body["messages"][-1]["content"].strip()
        return JSONResponse({"error": {"message": "too long"}}, 400) if question in refused else None

    chat.reset(_right, trouble=trouble)
    api = {"model": "m", "url": chat.url, "key_variable": "EXTERNAL_KEY", "system_prompt": "Be brief.",
           "price": {"input": 1.0, "output": 2.0}}  # fmt: skip
    folder = tmp_path / "e"
    command = ["eval", "--external", "legs", "--temperature", "1", "--output-dir", str(folder), "models.tiny=tiny",
               f"models.api={json.dumps(api)}", f"external.include={tasks}", "requests.tries=1"]  # fmt: skip
    assert run(command) == 0
    console, errors = capfd.readouterr()
    assert "settings not sent to models: legs: top_k" in console
    assert f"api, legs: {2 * len(refused)} failed calls (counted as wrong)" in console
    assert not errors  # lm-eval's own messages are in its log
    assert "25/25 [" in (folder / "external" / "lm_eval.log").read_text()

    # The requests contain lm-eval's chats with the settings of the task and the command line.
    chats = [body["messages"] for body in chat.requests]
    assert {len(each) for each in chats} == {2, 6}
    assert {each[0]["content"] for each in chats} == {f"Be brief.\n\n{SYSTEM_PROMPT}"}
    shown = next(each for each in chats if len(each) == 6)
    assert [each["role"] for each in shown] == ["system", "user", "assistant", "user", "assistant", "user"]
    examples = zip(shown[1:5:2], shown[2:5:2], strict=True)
    assert {(each["content"].strip(), then["content"]) for each, then in examples} == {*list(GOLD.items())[:2]}
    settings = [{key: value for key, value in body.items() if key != "messages"} for body in chat.requests]
    assert all(each == {"model": "m", "temperature": 1.0, "top_p": 1.0, "max_tokens": 90} for each in settings)
    key = os.environ["EXTERNAL_KEY"]
    assert chat.keys == {f"Bearer {key}"}
    assert not [file for file in folder.rglob("*") if file.is_file() and key in file.read_text()]

    # The endpoint's figures are known in advance: it is right whenever it answers.
    results = _results(folder)
    share = 1 - len(refused) / 25
    api_result = _of(results, "api")
    assert _figures(api_result) == {
        ("legs", "strict-match"): (pytest.approx(share), 50, None, "1.0"),
        **{(f"legs_{name}", each): (pytest.approx(share), 25, shots, "2.5")
           for name, shots in (("zero", 0), ("shown", 2)) for each in ("strict-match", "flexible-extract")},
    }  # fmt: skip
    assert (api_result.answers, api_result.failed) == (50, 2 * len(refused))
    done = 50 - 2 * len(refused)
    assert api_result.usage.model_dump() == {
        "prompt_tokens": done * 10, "completion_tokens": done * 5, "cost": pytest.approx(done * 20 / 1e6)}  # fmt: skip

    # The tiny policy's figures are counted from its answers, without lm-eval.
    answers = list(json_lines(folder / "external" / "answers.jsonl"))
    assert Counter(each["model"] for each in answers) == {"tiny": 50, "api": 50}
    texts = {each["key"]: each["text"] for each in answers if each["model"] == "tiny"}
    samples = json_lines(folder / "external" / "legs_tiny_samples.jsonl")
    strict = [each for each in samples if each["filter"] == "strict-match"]
    assert Counter(each["resps"][0][0] for each in strict) == Counter(t.split("</answer>")[0] for t in texts.values())
    tiny = {each.task: each for each in _of(results, "tiny").scores if each.filter == "strict-match"}
    for task in ("legs_zero", "legs_shown"):
        right = []
        for each in (each for each in strict if each["task"] == task):
            found = re.findall(r"<answer>(-?\d+)", each["resps"][0][0])
            right.append(bool(found) and found[-1] == GOLD[each["doc"]["question"].strip()])
        value = fmean(right)
        stderr = math.sqrt(value * (1 - value) / 24)
        assert (tiny[task].value, tiny[task].stderr) == (pytest.approx(value), pytest.approx(stderr))
        assert tiny[task].interval == pytest.approx(wilson_interval(value, 24 if stderr else 25), abs=1e-6)
    assert 0 < tiny["legs_zero"].value < 1
    assert tiny["legs"].value == pytest.approx((tiny["legs_zero"].value + tiny["legs_shown"].value) / 2)
    assert results.versions["lm-eval"] in (folder / "summary.md").read_text()
    row = f"| legs | exact_match | strict-match | 50 | – | {tiny['legs'].value:.3f} ["
    assert row in (folder / "summary.md").read_text()

    # Resuming repeats the failed calls only. Tasks of Reasoning Gym cannot be added afterwards.
    chat.reset(_right)
    assert run([*command, "--resume"]) == 0
    assert Counter(body["messages"][-1]["content"].strip() for body in chat.requests) == dict.fromkeys(refused, 2)
    after = _results(folder)
    assert {value[0] for value in _figures(_of(after, "api")).values()} == {1.0}
    assert _of(after, "tiny") == _of(results, "tiny")
    with pytest.raises(InputError, match="has different tasks: use the same"):
        run([*command, "--resume", "--tasks", "leg_counting"])


@pytest.mark.slow
def test_benchmarks_and_reasoning_gym_tasks_in_one_evaluation(
    tasks: Path, offline: None, chat: ChatServer, tmp_path: Path
) -> None:
    """One evaluation can have both, and -n limits the questions of each."""
    model = f"models.m={{model: m, url: '{chat.url}', key_variable: EXTERNAL_KEY}}"
    chat.reset(lambda question: f"<answer>{GOLD[question.strip()]}</answer>")
    sizes = json.dumps(TASKS["leg_counting"])
    command = ["eval", model, "--external", "legs_zero", "-n", "4", "--output-dir", str(tmp_path / "e"),
               f"tasks.leg_counting.config={sizes}", f"external.include={tasks}", "requests.tries=1"]  # fmt: skip
    assert run(command) == 0
    assert len(chat.requests) == 8
    results = _results(tmp_path / "e")
    assert results.models["m"].accuracy == 1
    assert _figures(_of(results, "m"))["legs_zero", "strict-match"] == (1.0, 4, 0, "2.5")
    assert len(list((tmp_path / "e").glob("*.png"))) == 2
    page = results_page(tmp_path / "e", 10)
    assert "External benchmarks" in [table.title for table in page.tables]
    assert page.rollouts.found == 4


@pytest.mark.slow
def test_answers_that_fail_or_cannot_be_graded(tasks: Path, offline: None, chat: ChatServer, tmp_path: Path) -> None:
    """A benchmark whose calls all fail has no result. If lm-eval cannot grade answers, they are kept, and a one-line
    error is raised, with the traceback in the log."""
    command = ["eval", f"models.m={{model: m, url: '{chat.url}', key_variable: EXTERNAL_KEY}}", "--external",
               "legs_odd", "-n", "2", f"external.include={tasks}", f"output.dir={tmp_path}"]  # fmt: skip
    chat.reset(str, trouble=lambda number, body: JSONResponse({"error": {"message": "too long"}}, 400))
    with pytest.raises(ServerError, match=r"^m, legs_odd: all 2 calls failed, .*; external/answers.jsonl"):
        run(command)
    chat.reset(str)
    message = rf"^legs_odd, m: lm-eval cannot grade the answers \(by nought\)\. .* --output-dir {tmp_path} --resume$"
    with pytest.raises(RGEnvError, match=message) as caught:
        run([*command, "--resume"])
    assert caught.value.exit_code == 1
    errors = [each["error"] for each in json_lines(tmp_path / "external" / "answers.jsonl")]
    assert errors == ["HTTP 400: too long"] * 2 + [None] * 2
    assert "ZeroDivisionError: by nought" in (tmp_path / "external" / "lm_eval.log").read_text()
    assert not list(tmp_path.glob("results*"))


@pytest.mark.slow
def test_ctrl_c_before_the_first_answer_leaves_nothing(
    tasks: Path, chat: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Harness) -> None:
        (self._folder / external.LOG).write_text("loading\n")
        raise KeyboardInterrupt

    monkeypatch.setattr(Harness, "prepare", interrupted)
    chat.reset(str)
    with pytest.raises(KeyboardInterrupt):
        run(["eval", "--models", f"m@{chat.url}", "--external", "legs_odd", f"external.include={tasks}",
             f"output.dir={tmp_path / 'new/e'}"])  # fmt: skip
    assert not (tmp_path / "new").exists()


def _external(model: str, value: float, *, stderr: float | None = 0.05, failed: int = 0) -> ExternalResult:
    scores = [
        {"task": task, "metric": "exact_match", "filter": "strict|match", "value": value, "stderr": stderr, "n": n,
         "interval": error_interval(value, stderr, n), "num_fewshot": shots, "version": "1.0"}
        for task, n, shots in (("legs", 40, None), ("legs_zero", 20, 0))
    ]  # fmt: skip
    return ExternalResult.model_validate(
        {"model": model, "benchmark": "legs", "answers": 40, "failed": failed, "truncated": None,
         "usage": {"prompt_tokens": None, "completion_tokens": None, "cost": None}, "scores": scores}
    )  # fmt: skip


def _only(*results: ExternalResult) -> Results:
    return all_results([], versions={"lm-eval": "0.4.13"}, external=list(results))


def test_tables_have_a_column_for_each_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The console, summary.md and the report have the results, even without Reasoning Gym tasks."""
    results = _only(_external("a", 0.98, failed=3), _external("b", 0.5, stderr=None))
    text = markdown(results)
    assert text.splitlines()[2] == "2025-01-01T12:00:00+00:00; lm-eval 0.4.13."
    assert "| legs | exact_match | strict\\|match | 40 | – | 0.980 [0.645, 0.999] | 0.500 |" in text
    assert "| legs: legs_zero | exact_match | strict\\|match | 20 | 0 | 0.980 [0.645, 0.999] | 0.500 |" in text
    assert "| legs | failed calls |  |  |  | 3 | – |" in text
    print_results(results)
    assert "0.980 [0.645, 0.999]" in capsys.readouterr().out
    (tmp_path / "results_all_tasks_1.json").write_text(results.model_dump_json())
    assert read_results(tmp_path / "results_all_tasks_1.json") == results
    with pytest.raises(InputError, match="has no answers except to external benchmarks, which cannot be plotted"):
        plot_files([tmp_path / "results_all_tasks_1.json"])
    page = results_page(tmp_path, 10)
    (table,) = page.tables
    assert table.rows[0] == ["legs", "exact_match", "strict|match", "40", "–", "0.980 [0.645, 0.999]", "0.500"]
    assert "there is no rollouts.jsonl" not in " ".join(page.notes)


@pytest.mark.parametrize(
    ("of_task", "overrides", "expected"),
    [
        ({}, [], (0.0, 1.0, 1024)),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 4096}, [], (0.6, 0.95, 4096)),
        ({"do_sample": False, "temperature": 0.6}, ["sampling.max_tokens=9"], (0.0, 1.0, 9)),
        ({"temperature": 0.6, "max_tokens": 5}, ["external={temperature: 0, top_p: 0.5, max_tokens: 7}"], (0, 0.5, 7)),
    ],
)
def test_sampling_settings_of_the_task_can_be_overridden(
    of_task: dict[str, Any], overrides: list[str], expected: tuple[float, float, int]
) -> None:
    config = _config(*overrides)
    found = external.sampling_of(config, of_task)
    assert (found.temperature, found.top_p, found.max_tokens) == expected


def _config(*overrides: str) -> Any:
    return eval_config_of(["models=tiny", *overrides, "external.tasks=[gsm8k_rg]"])


def test_a_process_that_ends_or_takes_too_long_is_reported(tmp_path: Path) -> None:
    """The error gives the reason, and the process does not outlive its context manager."""
    with Harness(_config(), tmp_path) as harness:
        os.kill(harness._process.pid, signal.SIGKILL)
        with pytest.raises(RGEnvError, match=r"^lm-eval ended with signal 9 \(Killed\): no error message$"):
            harness.prepare()
    with Harness(_config(), tmp_path) as harness:
        process = harness._process
        with pytest.raises(RGEnvError, match=r"^lm-eval was stopped because grading took longer than 0 s$"):
            harness._call({"tasks": []}, 0.0)
        assert process.code is None
    assert process.code == -signal.SIGKILL


def test_the_line_of_the_manual_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """Names may be separated by commas or spaces, and a single model may be given; options apply to benchmarks too."""
    line = "eval --external gsm8k_rg,math_rg mmlu_pro --model M -n 7 --temperature 0.6 --dry-run"
    assert run(line.split()) == 0
    shown = capsys.readouterr().out
    assert "external:\n  tasks:\n  - gsm8k_rg\n  - math_rg\n  - mmlu_pro\n" in shown
    assert "  num_examples: 7\n  temperature: 0.6\n" in shown
