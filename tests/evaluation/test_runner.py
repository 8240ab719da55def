"""Whole evaluations against a real server: requests, concurrency, failures and resuming."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from starlette.responses import JSONResponse

from rg_env import evaluation
from rg_env.core.data.dataset import build_rows
from rg_env.core.processes import entered
from rg_env.errors import InputError, OutputFolderError, RewardError, ServerError
from rg_env.evaluation.config import EvalConfig, eval_config_of
from rg_env.evaluation.results import Results, read_results
from rg_env.evaluation.runner import run_evaluation
from rg_env.tiny import TASKS

SIZES = json.dumps(TASKS["leg_counting"])
GOLD = {row["question"]: row["answer"] for row in build_rows({"name": "leg_counting", "config": TASKS["leg_counting"]},
                                                             "eval", 40, 0)}  # fmt: skip


def half(question: str) -> str:
    """Right on about every second question."""
    return f"<answer>{GOLD[question] if len(question) % 2 else 'none'}</answer>"


def _config(server: ChatServer, folder: Path, *overrides: str, n: int = 20, models: str = "") -> EvalConfig:
    models = models or json.dumps({"a": {"model": "m", "url": server.url}})
    return eval_config_of(
        [f"models={models}", f"tasks.leg_counting.config={SIZES}", f"num_examples={n}", f"output.dir={folder}",
         "requests={tries: 3, pause_s: 0.01}", *overrides]
    )  # fmt: skip


def _run(config: EvalConfig, **options: Any) -> Results:
    return run_evaluation(config, **options)[0]


def _records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def test_every_question_is_asked_and_scored(chat: ChatServer, tmp_path: Path) -> None:
    """The given number of times, with the training prompts and the given settings, all recorded in the files."""
    chat.reset(half)
    config = _config(chat, tmp_path / "e", "rollouts_per_example=2", "sampling={temperature: 0.5, max_tokens: 77}")
    results = _run(config)
    asked = Counter(body["messages"][-1]["content"] for body in chat.requests)
    expected = build_rows({"name": "leg_counting", "config": TASKS["leg_counting"]}, "eval", 20, 0)
    assert asked == {row["question"]: 2 for row in expected}
    body = chat.requests[0]
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("m", 0.5, 1.0, 77)
    assert body["messages"][0] == {"role": "system", "content": config.prompt.system_prompt}
    right = sum(len(row["question"]) % 2 for row in expected) / 20
    scores = results.tasks["leg_counting"].models["a"].scores
    assert scores.accuracy == pytest.approx(right)
    assert scores.reward == pytest.approx(right + 0.1)
    assert (scores.n, scores.answers, scores.failed, scores.left_out) == (20, 40, 0, 0)
    assert results.models["a"].usage.completion_tokens == 40 * 5
    (file,) = (tmp_path / "e").glob("results_leg_counting_*.json")
    assert read_results(file) == results.of_task("leg_counting")
    (file,) = (tmp_path / "e").glob("results_all_tasks_*.json")
    assert read_results(file) == results
    assert len(list((tmp_path / "e").glob("*.png"))) == 2
    assert "macro" not in (tmp_path / "e" / "summary.md").read_text()
    record = _records(tmp_path / "e")[0]
    assert record["answer"] == GOLD[record["question"]]
    assert record["rewards"].keys() == {"correctness", "format"}


def test_a_task_may_have_sampling_of_its_own(chat: ChatServer, tmp_path: Path) -> None:
    """Other settings are the defaults; the results record how each task was sampled. `rg_env.evaluation.evaluate` stays
    a function after its first call."""
    tasks = {"gcd": {"num_examples": 3, "sampling": {"temperature": 0, "max_tokens": 9}}, "lcm": {}}
    more = {"num_examples": 5, "sampling": {"top_p": 0.9}}
    for name in "ab":
        chat.reset(lambda question: "<answer>1</answer>")
        output = {"dir": str(tmp_path / name)}
        results, folder = evaluation.evaluate({"m": {"model": "m", "url": chat.url}}, tasks, output=output, **more)
        asked = Counter((body["temperature"], body["top_p"], body["max_tokens"]) for body in chat.requests)
        assert asked == {(1.0, 0.9, 1024): 5, (0.0, 0.9, 9): 3}
        found = {name: (task.sampling.temperature, task.sampling.max_tokens) for name, task in results.tasks.items()}
        assert found == {"lcm": (1.0, 1024), "gcd": (0.0, 9)}
        summary = (folder / "summary.md").read_text()
        assert "temperature 0, top_p 0.9, at most 9 tokens (gcd); temperature 1, top_p 0.9" in summary


def test_calls_under_way_stay_at_their_number(chat: ChatServer, tmp_path: Path) -> None:
    """When one call ends, the next one starts: a slow call does not delay others."""
    chat.reset(half, trouble=lambda number, body: 1.5 if number == 0 else 0.02)
    start = time.monotonic()
    _run(_config(chat, tmp_path / "e", "requests.concurrency=4", n=40))
    assert chat.most == 4
    assert time.monotonic() - start < 15
    order = [body["messages"][-1]["content"] for body in chat.requests]
    slow = next(i for i, record in enumerate(_records(tmp_path / "e")) if record["question"] == order[0])
    assert slow > 20  # most others were done by then


def test_failed_calls_are_wrong_answers_that_are_counted(chat: ChatServer, tmp_path: Path) -> None:
    """They stay in the denominator, and resuming repeats them."""
    refused = {question for question in GOLD if len(question) % 2}

    def trouble(number: int, body: dict[str, Any]) -> Any:
        asked = body["messages"][-1]["content"]
        return JSONResponse({"error": {"message": "too long"}}, 400) if asked in refused else None

    chat.reset(lambda question: f"<answer>{GOLD[question]}</answer>", trouble=trouble)
    config = _config(chat, tmp_path / "e")
    scores = _run(config).tasks["leg_counting"].models["a"].scores
    asked = len([record for record in _records(tmp_path / "e") if record["question"] in refused])
    assert 0 < asked < 20
    assert scores.failed == asked
    assert scores.accuracy == pytest.approx(1 - asked / 20)
    assert scores.status == pytest.approx({"correct": 1 - asked / 20, "failed": asked / 20})
    assert {r["error"] for r in _records(tmp_path / "e") if r["status"] == "failed"} == {"HTTP 400: too long"}
    chat.reset(lambda question: f"<answer>{GOLD[question]}</answer>")
    scores = _run(config, resume=True).tasks["leg_counting"].models["a"].scores
    assert (scores.accuracy, scores.failed, len(chat.requests)) == (1.0, 0, asked)


def test_an_endpoint_that_fails_ends_alone(chat: ChatServer, tmp_path: Path) -> None:
    """The other models are evaluated completely, no results are written, and resuming requests the rest."""
    model = {"model": "m", "url": chat.url}
    models = json.dumps({"a": model, "b": {**model, "system_prompt": "B"}})
    of_b = lambda body: body["messages"][0]["content"] == "B"  # noqa: E731

    def gone(number: int, body: dict[str, Any]) -> Any:
        return JSONResponse({"error": {"message": "out of credit"}}, 402) if of_b(body) else None

    chat.reset(half, trouble=gone)
    config = _config(chat, tmp_path / "e", models=models)
    with pytest.raises(ServerError, match=r"^b: HTTP 402: out of credit; no results are written\. Resume with --"):
        _run(config)
    assert {record["model"] for record in _records(tmp_path / "e")} == {"a"}
    assert not list((tmp_path / "e").glob("results*"))
    chat.reset(half)
    results = _run(config, resume=True)
    assert all(of_b(body) for body in chat.requests)
    assert len(chat.requests) == 20
    assert results.models["a"].accuracy == results.models["b"].accuracy
    assert results.comparisons[0].p_value == 1


def test_a_server_that_never_answers_has_no_result(chat: ChatServer, tmp_path: Path) -> None:
    """It is given up after some calls in a row; an accuracy that was not measured is never reported as 0."""
    chat.reset(half, trouble=lambda number, body: JSONResponse({"error": {"message": "overloaded"}}, 503))
    impatient = ["requests.give_up_after=5", "requests.concurrency=2", "requests.tries=1"]
    with pytest.raises(ServerError, match=r"a: 5 calls failed in a row: HTTP 503: overloaded"):
        _run(_config(chat, tmp_path / "e", *impatient, n=40))
    assert len(chat.requests) < 10
    chat.reset(half, trouble=lambda number, body: JSONResponse({"error": {"message": "bad parameter"}}, 400))
    with pytest.raises(ServerError, match=r"all calls failed \(20\), so there is no .* such as HTTP 400: bad"):
        _run(_config(chat, tmp_path / "f"))
    assert not list(tmp_path.rglob("results*"))


def test_going_on_needs_the_same_questions(chat: ChatServer, tmp_path: Path) -> None:
    """And a folder that holds an evaluation; without --resume, none at all."""
    chat.reset(half)
    _run(_config(chat, tmp_path / "e", n=4))
    with pytest.raises(OutputFolderError, match=r"not empty: .*--resume\)"):
        _run(_config(chat, tmp_path / "e", n=4))
    with pytest.raises(InputError, match="has different num_examples, grading, sampling: use the same"):
        _run(_config(chat, tmp_path / "e", "sampling.top_p=0.5", "grading=partial", n=5), resume=True)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "x").touch()
    with pytest.raises(OutputFolderError, match="does not contain an evaluation to resume"):
        _run(_config(chat, tmp_path / "f", n=4), resume=True)
    count = len(chat.requests)
    _run(_config(chat, tmp_path / "e", "requests.concurrency=3", n=4), resume=True)
    assert len(chat.requests) == count  # all was there


def test_a_reward_that_raises_ends_the_evaluation(chat: ChatServer, tmp_path: Path) -> None:
    """By name, never as a silent 0."""
    from rg_env.core import rewards as registry

    def broken(rollout: Any) -> float:
        raise KeyError("no such thing")

    registry._REGISTRY["broken"] = broken
    try:
        chat.reset(half)
        with pytest.raises(RewardError, match="broken"):
            _run(_config(chat, tmp_path / "e", "rewards.broken=1.0", n=4))
    finally:
        del registry._REGISTRY["broken"]


def test_killed_at_any_moment_it_goes_on_to_the_same_figures(chat: ChatServer, tmp_path: Path) -> None:
    """By SIGKILL, SIGTERM and Ctrl-C: no rollout is lost, and only pending ones are requested again."""
    chat.reset(half)
    whole = _run(_config(chat, tmp_path / "whole", n=40))
    chat.reset(half, trouble=lambda number, body: 0.1)
    command = [
        str(Path(sys.executable).with_name("rg-env")), "eval",
        f"models={json.dumps({'a': {'model': 'm', 'url': chat.url}})}",
        f"tasks.leg_counting.config={SIZES}", "num_examples=40", f"output.dir={tmp_path / 'e'}",
        "requests.concurrency=2", "requests.tries=3",
    ]  # fmt: skip
    for kind, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 130), (signal.SIGINT, 130)):
        before = len(chat.requests)
        again = ["--resume"] if before else []
        process = subprocess.Popen([*command, *again], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.monotonic() + 120
        while len(chat.requests) < before + 7 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        os.kill(process.pid, kind)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == code, output
        assert "Traceback" not in output
        asked = [entered("rg-env"), *command[1:], "--output-dir", str(tmp_path / "e"), "--resume"]
        assert (f"resume with {shlex.join(asked)}\n" in output) == (code == 130)
    chat.trouble = lambda number, body: None
    rest = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=120)
    assert rest.returncode == 0, rest.stderr
    assert len(chat.requests) <= 40 + 3 * 2
    (file,) = (tmp_path / "e").glob("results_leg_counting_*.json")
    again = read_results(file)
    ours = whole.tasks["leg_counting"].models["a"]
    assert again.tasks["leg_counting"].models["a"].scores == ours.scores
    assert again.tasks["leg_counting"].models["a"].correct == ours.correct
