"""Tests of whole evaluations against a real server: requests, concurrency, failures and resuming."""

import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from run_code import files_up_to, without_progress
from starlette.responses import JSONResponse

from rg_env import evaluation
from rg_env.core.data.dataset import build_rows
from rg_env.core.processes import entered
from rg_env.core.rewards import registry
from rg_env.core.run_folder import json_lines, locked
from rg_env.errors import InputError, OutputFolderError, RewardError, ServerError, install_command
from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.load import load_eval_config
from rg_env.evaluation.results import Results, read_results, results_files
from rg_env.evaluation.runner import run_evaluation
from rg_env.tiny import TASKS

RgEnv = Callable[..., tuple[int, str, str]]
PROGRAM = str(Path(sys.executable).with_name("rg-env"))
LEGS = f"tasks.leg_counting.config={json.dumps(TASKS['leg_counting'])}"
SPEC = {"name": "leg_counting", "config": TASKS["leg_counting"]}
GOLD = {row["question"]: row["answer"] for row in build_rows(SPEC, "eval", 40, 0)}


def half(question: str) -> str:
    """Answer about every second question correctly."""
    return f"<answer>{GOLD[question] if len(question) % 2 else 'none'}</answer>"


def right(question: str) -> str:
    return f"<answer>{GOLD[question]}</answer>"


def refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message}}, status)


def _arguments(server: ChatServer, folder: Path, *overrides: str, n: int = 20, models: Any = None) -> list[str]:
    models = models or {"a": {"model": "m", "url": server.url}}
    return [f"models={json.dumps(models)}", LEGS, f"num_examples={n}", f"output.dir={folder}", "requests.pause_s=0.01",
            "requests.tries=1", *overrides]  # fmt: skip


def _config(*given: Any, **more: Any) -> EvalConfig:
    return load_eval_config(None, _arguments(*given, **more))


def _run(config: EvalConfig, **options: Any) -> Results:
    return run_evaluation(config, **options)[0]


def _records(folder: Path) -> list[dict[str, Any]]:
    return list(json_lines(folder / "rollouts.jsonl"))


def _started(server: ChatServer, command: list[str], calls: int) -> subprocess.Popen[str]:
    """Start the command and return its process after it has made `calls` requests."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    before, deadline = len(server.requests), time.monotonic() + 300
    while len(server.requests) < before + calls and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    return process


def test_every_question_is_asked_and_scored(chat: ChatServer, tmp_path: Path) -> None:
    """Each question is sent as often as requested, with the training prompt and the given sampling settings. The files
    record everything."""
    chat.reset(half)
    config = _config(chat, tmp_path / "e", "rollouts_per_example=2", "sampling={temperature: 0.5, max_tokens: 77}")
    results = _run(config)
    asked = Counter(body["messages"][-1]["content"] for body in chat.requests)
    expected = build_rows(SPEC, "eval", 20, 0)
    assert asked == {row["question"]: 2 for row in expected}
    body = chat.requests[0]
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("m", 0.5, 1.0, 77)
    assert body["messages"][0] == {"role": "system", "content": config.prompt.system_prompt}
    accuracy = sum(len(row["question"]) % 2 for row in expected) / 20
    scores = results.tasks["leg_counting"].models["a"].scores
    assert (scores.accuracy, scores.reward) == (pytest.approx(accuracy), pytest.approx(accuracy + 0.1))
    assert (scores.n, scores.answers, scores.failed, scores.left_out) == (20, 40, 0, 0)
    assert results.models["a"].usage.completion_tokens == 40 * 5
    (file,) = (tmp_path / "e").glob("results_leg_counting_*.json")
    assert read_results(file) == results.of_task("leg_counting")
    (file,) = results_files(tmp_path / "e")
    assert read_results(file) == results
    assert len(list((tmp_path / "e").glob("*.png"))) == 2
    assert "macro" not in (tmp_path / "e" / "summary.md").read_text()
    record = _records(tmp_path / "e")[0]
    assert record["answer"] == GOLD[record["question"]]
    assert record["rewards"].keys() == {"correctness", "format"}


def test_lenient_extraction_adds_a_figure_and_changes_no_other(chat: ChatServer, tmp_path: Path) -> None:
    """With `extraction: lenient`, answers without tags count in the lenient accuracy only, also on resuming."""
    chat.reset(lambda question: right(question) if len(question) % 2 else f"So \\boxed{{{GOLD[question]}}}")
    strict = _run(_config(chat, tmp_path / "strict")).tasks["leg_counting"].models["a"].scores
    config = _config(chat, tmp_path / "lenient", "extraction=lenient")
    results = _run(config)
    lenient = results.tasks["leg_counting"].models["a"].scores
    assert 0 < strict.accuracy < 1
    assert strict.lenient_accuracy is None
    assert (lenient.accuracy, lenient.reward) == (strict.accuracy, strict.reward)
    assert lenient.lenient_accuracy == 1
    assert all(record["lenient"] for record in _records(tmp_path / "lenient"))
    assert "lenient accuracy" in (tmp_path / "lenient" / "summary.md").read_text()
    assert _run(config, resume=True).tasks == results.tasks
    with pytest.raises(InputError, match=r"extraction = 'loose'.*'strict' or 'lenient'"):
        _config(chat, tmp_path / "e", "extraction=loose")


def test_a_task_may_have_sampling_of_its_own(chat: ChatServer, tmp_path: Path) -> None:
    """Other settings keep their defaults, and the results record how each task was sampled."""
    tasks = {"gcd": {"num_examples": 3, "sampling": {"temperature": 0, "max_tokens": 9}}, "lcm": {}}
    chat.reset(lambda question: "<answer>1</answer>")
    results, folder = evaluation.evaluate({"m": {"model": "m", "url": chat.url}}, tasks, num_examples=5,
                                          output={"dir": str(tmp_path / "e")}, sampling={"top_p": 0.9})  # fmt: skip
    asked = Counter((body["temperature"], body["top_p"], body["max_tokens"]) for body in chat.requests)
    assert asked == {(1.0, 0.9, 1024): 5, (0.0, 0.9, 9): 3}
    found = {name: (task.sampling.temperature, task.sampling.max_tokens) for name, task in results.tasks.items()}
    assert found == {"lcm": (1.0, 1024), "gcd": (0.0, 9)}
    summary = (folder / "summary.md").read_text()
    assert "temperature 0, top_p 0.9, at most 9 tokens (gcd); temperature 1, top_p 0.9" in summary


def test_concurrency_stays_constant(chat: ChatServer, tmp_path: Path) -> None:
    """A new call starts when one ends, so a slow call does not delay the others."""
    chat.reset(half, trouble=lambda number, body: 1.5 if number == 0 else 0.02)
    _run(_config(chat, tmp_path / "e", "requests.concurrency=4", n=40))
    assert chat.most == 4
    order = [body["messages"][-1]["content"] for body in chat.requests]
    slow = next(i for i, record in enumerate(_records(tmp_path / "e")) if record["question"] == order[0])
    assert slow > 20  # most others had finished earlier


def test_failed_calls_count_as_wrong_answers(chat: ChatServer, tmp_path: Path) -> None:
    """Failed calls stay in the denominator, and resuming repeats them."""
    refused = {question for question in GOLD if len(question) % 2}

    def trouble(number: int, body: dict[str, Any]) -> Any:
        return refusal(400, "too long") if body["messages"][-1]["content"] in refused else None

    chat.reset(right, trouble=trouble)
    config = _config(chat, tmp_path / "e")
    scores = _run(config).tasks["leg_counting"].models["a"].scores
    asked = len([record for record in _records(tmp_path / "e") if record["question"] in refused])
    assert 0 < asked < 20
    assert scores.failed == asked
    assert scores.accuracy == pytest.approx(1 - asked / 20)
    assert scores.status == pytest.approx({"correct": 1 - asked / 20, "failed": asked / 20})
    assert {r["error"] for r in _records(tmp_path / "e") if r["status"] == "failed"} == {"HTTP 400: too long"}
    chat.reset(right)
    scores = _run(config, resume=True).tasks["leg_counting"].models["a"].scores
    assert (scores.accuracy, scores.failed, len(chat.requests)) == (1.0, 0, asked)


def test_an_endpoint_that_fails_does_not_stop_the_others(chat: ChatServer, tmp_path: Path) -> None:
    """The other models are evaluated completely, no results are written, and resuming requests the rest."""
    model = {"model": "m", "url": chat.url}

    def of_b(body: dict[str, Any]) -> bool:
        return bool(body["messages"][0]["content"] == "B")

    chat.reset(half, trouble=lambda number, body: refusal(402, "out of credit") if of_b(body) else None)
    config = _config(chat, tmp_path / "e", models={"a": model, "b": {**model, "system_prompt": "B"}})
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
    """The model is given up after several consecutive failures; an accuracy that was not measured is never reported as
    0."""
    chat.reset(half, trouble=lambda number, body: refusal(503, "overloaded"))
    with pytest.raises(ServerError, match=r"a: 5 calls failed in a row: HTTP 503: overloaded"):
        _run(_config(chat, tmp_path / "e", "requests.give_up_after=5", "requests.concurrency=2", n=40))
    assert len(chat.requests) < 10
    chat.reset(half, trouble=lambda number, body: refusal(400, "bad parameter"))
    with pytest.raises(ServerError, match=r"all 20 calls failed, so there is no .* such as HTTP 400: bad"):
        _run(_config(chat, tmp_path / "f"))
    chat.reset(half, trouble=lambda number, body: None if body["temperature"] else refusal(400, "bad"))
    with pytest.raises(ServerError, match=r"all 20 greedy calls failed, so there is no .* such as HTTP 400: bad"):
        _run(_config(chat, tmp_path / "g", "greedy=true"))
    assert not list(tmp_path.rglob("results*"))


@pytest.mark.slow
def test_resuming_requires_the_same_questions(chat: ChatServer, tmp_path: Path) -> None:
    """Resuming also requires a folder with an undamaged evaluation that no other process writes to, and a new
    evaluation requires an empty folder."""
    chat.reset(half)
    folder = tmp_path / "e"
    _run(_config(chat, folder, n=4))
    with pytest.raises(OutputFolderError, match=r"not empty.*\(--resume\)"):
        _run(_config(chat, folder, n=4))
    with pytest.raises(InputError, match="has different num_examples, grading, sampling: use the same"):
        _run(_config(chat, folder, "sampling.top_p=0.5", "grading=partial", n=5), resume=True)
    with locked(folder), pytest.raises(OutputFolderError, match=r"^process \d+ is writing to "):
        _run(_config(chat, folder, n=4), resume=True)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "x").touch()
    with pytest.raises(OutputFolderError, match="does not contain an evaluation to resume"):
        _run(_config(chat, tmp_path / "f", n=4), resume=True)
    (folder / "config.yaml").rename(tmp_path / "config.yaml")
    (folder / "config.yaml").write_text("!!python/object:x")
    with pytest.raises(InputError, match=r"config\.yaml is damaged: "):
        _run(_config(chat, folder, n=4), resume=True)
    (tmp_path / "config.yaml").rename(folder / "config.yaml")
    count = len(chat.requests)
    _run(_config(chat, folder, "requests.concurrency=3", n=4), resume=True)
    assert len(chat.requests) == count  # nothing was missing


def test_a_reward_that_raises_ends_the_evaluation(
    chat: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the reward function, whose failure must not count as a reward of 0."""

    def broken(rollout: Any) -> float:
        raise KeyError("no such thing")

    monkeypatch.setitem(registry._REGISTRY, "broken", broken)
    chat.reset(half)
    with pytest.raises(RewardError, match="broken"):
        _run(_config(chat, tmp_path / "e", "rewards.broken=1.0", n=4))


@pytest.mark.slow
def test_a_killed_evaluation_resumes_to_the_same_figures(chat: ChatServer, tmp_path: Path) -> None:
    """After SIGKILL, SIGTERM and SIGINT, no finished rollout is lost, and only calls in flight are repeated."""
    chat.reset(half)
    whole = _run(_config(chat, tmp_path / "whole", n=40))
    chat.reset(half, trouble=lambda number, body: 0.1)
    command = [PROGRAM, "eval", *_arguments(chat, tmp_path / "e", "requests.concurrency=2", n=40)]
    for kind, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 130), (signal.SIGINT, 130)):
        process = _started(chat, [*command, *(["--resume"] if chat.requests else [])], 7)
        os.kill(process.pid, kind)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == code, output
        assert "Traceback" not in output
        hint = [entered("rg-env"), *command[1:], "--output-dir", str(tmp_path / "e"), "--resume"]
        assert (f"resume with {shlex.join(hint)}\n" in output) == (code == 130)
    chat.trouble = lambda number, body: None
    rest = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=300)
    assert rest.returncode == 0, rest.stderr
    assert len(chat.requests) <= 40 + 3 * 2
    again = read_results(*results_files(tmp_path / "e")).tasks["leg_counting"].models["a"]
    ours = whole.tasks["leg_counting"].models["a"]
    assert (again.scores, again.correct) == (ours.scores, ours.correct)


# External failures


@pytest.mark.slow
def test_a_folder_that_is_removed_or_renamed_is_reported(chat: ChatServer, tmp_path: Path) -> None:
    """If the folder is removed, the evaluation stops at once, because further answers could not be saved. If it is
    renamed, rollouts are saved in the renamed folder."""
    chat.reset(half, lambda number, body: shutil.rmtree(tmp_path / "e") if number == 5 else None)
    with pytest.raises(OutputFolderError, match=r"rollouts\.jsonl was removed during the evaluation"):
        _run(_config(chat, tmp_path / "e", "requests.concurrency=2", n=40))
    assert len(chat.requests) < 10
    chat.reset(half, lambda number, body: (tmp_path / "e").rename(tmp_path / "f") and None if number == 1 else None)
    with pytest.raises(OutputFolderError, match=r"cannot write .*/e/results_\S+: the folder \S+/e does not"):
        _run(_config(chat, tmp_path / "e", n=4))
    assert _run(_config(chat, tmp_path / "f", n=4), resume=True).models["a"].failed == 0
    assert len(chat.requests) == 4


@pytest.mark.slow
@pytest.mark.parametrize("existed", [False, True])
def test_a_failed_start_leaves_the_folder_as_it_was(
    chat: ChatServer, existed: bool, tmp_path: Path, rg_env: RgEnv
) -> None:
    """The corrected command can use the same folder, and answers are kept if there are any."""
    folder = tmp_path / "new" / "e"
    if existed:
        folder.mkdir(parents=True)
    arguments = ["eval", *_arguments(chat, folder, "requests.concurrency=2", n=4)]
    chat.reset(half, lambda number, body: refusal(401, "no"))
    for given in ([each.replace(chat.url, "http://127.0.0.1:9/v1") for each in arguments], arguments):
        assert rg_env(*given)[0] == 2
        assert [*tmp_path.rglob("*")] == ([folder.parent, folder] if existed else [])
    chat.reset(half, lambda number, body: refusal(401, "no") if number > 2 else None)
    assert rg_env(*arguments)[0] == 2
    assert (folder / "rollouts.jsonl").stat().st_size
    chat.reset(half)
    assert rg_env(*arguments, "--resume")[0] == 0


def test_a_full_disk_is_reported_and_the_evaluation_can_be_resumed(
    chat: ChatServer, tmp_path: Path, rg_env: RgEnv
) -> None:
    """Only the answers that did not fit are requested again."""
    chat.reset(lambda question: "x" * 30_000)
    arguments = ["eval", *_arguments(chat, tmp_path / "e", "requests.concurrency=2", n=8)]
    with files_up_to(100_000):
        code, _, error = rg_env(*arguments)
    file = tmp_path / "e" / "rollouts.jsonl"
    start = f"error: cannot write {file}: File too large; 3 rollouts kept; free some space and resume with "
    assert (code, error.startswith(start), error.endswith(" --resume\n"), error.count("\n")) == (1, True, True, 1)
    assert len(chat.requests) <= 5
    chat.reset(lambda question: "y")
    code, _, error = rg_env(*arguments, "--resume")
    assert (code, error) == (0, "")
    # A request of the failed evaluation may have arrived after the reset.
    assert len(chat.requests) - 1 <= 8 - 3 <= len(chat.requests)
    assert [len(each["completion"]) for each in _records(tmp_path / "e")] == [30_000] * 3 + [1] * 5


def test_rollouts_of_other_questions_are_reported(
    chat: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such rollouts, for example of another version's questions, are reported and requested again."""
    chat.reset(half)
    config = _config(chat, tmp_path / "e", n=4)
    _run(config)
    file = tmp_path / "e" / "rollouts.jsonl"
    file.write_text(file.read_text().replace('"row": "', '"row": "0', 3))
    assert _run(config, resume=True).models["a"].failed == 0
    assert "rollouts.jsonl has 3 rollouts for other questions (not counted)" in capsys.readouterr().out
    assert len(chat.requests) == 4 + 3


@pytest.mark.slow
def test_a_closed_output_loses_no_results(chat: ChatServer, tmp_path: Path) -> None:
    """If the reader closes the pipe during the evaluation, all files are still written, and no error is printed."""
    chat.reset(half, lambda number, body: 0.05)
    command = [PROGRAM, "eval", *_arguments(chat, tmp_path / "e", n=4)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()  # type: ignore[union-attr]
        error = process.stderr.read()  # type: ignore[union-attr]
    assert (process.returncode, without_progress(error)) == (1, "")
    assert len(list((tmp_path / "e").glob("results_*.json"))) == 2
    assert (tmp_path / "e" / "summary.md").exists()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_names_are_not_interpreted_as_markup(chat: ChatServer, tmp_path: Path) -> None:
    """Model names that look like rich markup are shown literally next to progress bars."""
    chat.reset(half)
    names = ["[/b]x", "[red]x[/red]"]
    models = {name: {"model": "m", "url": chat.url} for name in names}
    with contextlib.redirect_stdout(_Terminal()) as terminal:
        _run(_config(chat, tmp_path / "e", models=models, n=4))
    assert all(f"{name} " in terminal.getvalue() for name in names)


def test_gpus_that_no_server_would_use_are_refused(tmp_path: Path) -> None:
    """The embedded engine does not use `serving.gpus`, so the answers would come from elsewhere without a word."""
    given = {"models": ["tiny"], "tasks": ["leg_counting"], "num_examples": 2, "output.dir": str(tmp_path / "out")}
    config = load_eval_config(None, options={**given, "serving.kind": "embedded", "serving.gpus": [0]})
    with pytest.raises(InputError, match=r"serving.gpus \(--gpus\) is for vLLM servers, .* embedded engine"):
        run_evaluation(config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "arguments"),
    [("scipy", ["eval", "--tasks", "gcd"]), ("matplotlib", ["probe", "--tasks", "gcd"]), ("matplotlib", ["plot", "x"])],
)
def test_a_missing_package_is_reported_before_any_call(
    chat: ChatServer, package: str, arguments: list[str], tmp_path: Path
) -> None:
    """The error has one line, with the command that installs the package."""
    chat.reset(half)
    code = f"import sys; sys.modules['{package}'] = None; from rg_env.cli.main import main; main()"
    if arguments[0] != "plot":
        arguments = [*arguments, "--model", f"m@{chat.url}", "--output-dir", str(tmp_path / "e")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n"), chat.requests) == (2, 1, [])
    assert package in done.stderr
    assert install_command("eval") in done.stderr
    assert not (tmp_path / "e").exists()
