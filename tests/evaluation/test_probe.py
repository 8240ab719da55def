"""Tests of `rg-env probe`: verdicts on tasks before training, and the mixture derived from them."""

import asyncio
import contextlib
import io
import json
import re
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import ChatServer
from forked_python import PYTHON
from hypothesis import given
from hypothesis import strategies as st
from result_files import all_results, model_result, task_results
from rich.console import Console
from starlette.responses import JSONResponse, Response

from rg_env.core.data.dataset import build_rows
from rg_env.core.environment import ReasoningGym
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import load_table
from rg_env.errors import InputError, UnknownNameError
from rg_env.evaluation import local_models
from rg_env.evaluation.config import EvalModel
from rg_env.evaluation.endpoints import endpoint
from rg_env.evaluation.load import load_eval_config
from rg_env.evaluation.probe import LEAST_QUESTIONS, TRIAL, Probed, fitted, judge, labels, mixture, print_probed, starts
from rg_env.evaluation.questions import TaskAnswers, draw
from rg_env.evaluation.results import TaskResults
from rg_env.evaluation.runner import answer_sets_of, ask_all, run_evaluation
from rg_env.evaluation.scores import ModelSource, results_of
from rg_env.training.config.load import load_train_config

CONFIGS = Path(__file__).parents[2] / "configs"
Groups = list[list[bool]]
MIXED, EASY, HARD = [[True, False] * 2] * 20, [[True] * 4] * 20, [[False] * 4] * 20


def _task(groups: Groups, name: str = "gcd", task: str = "gcd", floor: float | None = 0.0) -> TaskResults:
    accuracy = sum(map(sum, groups)) / sum(map(len, groups))
    made = model_result(accuracy, len(groups), len(groups[0]))
    model = made.model_copy(update={"correct": {f"q{number}": group for number, group in enumerate(groups)}})
    size = {"n": len(groups), "rollouts_per_example": len(groups[0])}
    return task_results({"m": model}, name, spec={"name": task}, floor=floor, **size)


def _judged(*tasks: TaskResults) -> list[Probed]:
    return judge(all_results(list(tasks)), "m")


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=40))
def test_a_verdict_follows_from_the_groups(groups: Groups) -> None:
    """A group is informative if its answers differ. A trainable task is solved 10 to 80% of the time, and enough of its
    groups are informative."""
    (found,) = _judged(_task(groups))
    mixed = sum(any(group) and not all(group) for group in groups)
    assert found.informative == pytest.approx(mixed / len(groups))
    assert found.rollouts == (pytest.approx(4 * len(groups) / mixed) if mixed else None)
    assert (found.verdict == "too few") == (len(groups) < LEAST_QUESTIONS)
    if found.verdict == "trainable":
        assert 0.1 <= found.solved <= 0.8
        assert found.informative >= 0.15


@pytest.mark.parametrize(
    ("groups", "floor", "verdict"),
    [
        (EASY, 0.0, "too easy"),
        (HARD, 0.0, "too hard"),
        (MIXED[:10], 0.0, "too few"),
        ([[True, False, False, False]] * 20, 0.0, "trainable"),
        ([[True, False, False, False], *HARD[:3]] * 5, 0.0, "too hard"),  # solved 1/16 of the time
        ([*EASY[:4], [True, False, True, True]] * 4, 0.0, "too easy"),
        (MIXED, 0.5, "guessable"),
        ([[True, False, False, False]] * 20, 0.3, "guessable"),
        (MIXED, 0.1, "trainable"),
        (MIXED, None, "trainable"),
        ([[True, True, True, False]] * 20, 0.3, "trainable"),  # significantly better than a constant answer
    ],
)
def test_verdicts(groups: Groups, floor: float | None, verdict: str) -> None:
    (found,) = _judged(_task(groups, "own", "a task of the user", floor=floor))
    assert found.verdict == verdict


def test_the_constant_answer_comes_from_the_shipped_table() -> None:
    """With few questions, two equal gold answers would make a constant answer look good by chance."""
    (found,) = _judged(_task(MIXED, "leg_counting", "leg_counting", floor=0.5))
    assert found.verdict == "trainable"
    assert found.floor is not None
    assert found.floor < 0.1


def test_training_starts_at_the_level_with_most_informative_groups() -> None:
    """A task without a trainable level is left out, and one without levels is included as is."""
    some = [[True, False] * 2, *HARD[:2]] * 7
    parts = [("leg_counting", EASY, 0), ("leg_counting", MIXED, 1), ("leg_counting", MIXED, 2),
             ("leg_counting", some, 3), ("leg_counting", HARD, 4), ("gcd", HARD, 0)]  # fmt: skip
    tasks = [_task(groups, f"{task}-level{level}", task) for task, groups, level in parts]
    found = _judged(*tasks, _task(MIXED, "arc_1d", "arc_1d"))
    assert [(each.level, each.verdict) for each in found if each.task == "leg_counting"] == [
        (0, "too easy"), (1, "trainable"), (2, "trainable"), (3, "trainable"), (4, "too hard")]  # fmt: skip
    assert {name: each.level for name, each in starts(found).items()} == {"arc_1d": None, "leg_counting": 2}
    assert mixture(found) == {"tasks": {"arc_1d": {}, "leg_counting": {"level": 2}}}
    with pytest.raises(InputError, match="none of these tasks is trainable"):
        mixture([each for each in found if each.task == "gcd"])
    with pytest.raises(InputError, match="too few questions to judge; probe with --num-examples 16 or more"):
        mixture(_judged(_task(MIXED[:8]), _task(HARD, "maze", "maze")))


def test_the_columns_of_the_table_are_explained() -> None:
    """The text below the table explains each of its column heads."""
    out = io.StringIO()
    print_probed(
        [Probed("maze", 1, 20, 0.5, 0.75, 0.0, 1.0, 0.25, "trainable", 10.7, 80)], Console(file=out, width=200)
    )
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "task level solved groups that teach cut off answered constant rollouts for one verdict" in lines
    assert "maze 1 0.500 0.750 0.000 1.000 0.250 11 trainable <- start" in lines
    heads = ("groups that teach", "rollouts for one", "cut off", "answered", "constant")
    assert [head for head in heads if head not in " ".join(lines[4:])] == []


@pytest.mark.parametrize(
    ("solved", "truncated", "answered", "reason"),
    [
        (0.0, 0.0, 0.0, "maze at level 1: no reply has a complete <answer>...</answer>: show the form in examples"),
        (0.0, 0.1, 0.04, "maze at level 1: only 4% of the replies have a complete <answer>...</answer>"),
        (0.0, 0.9, 0.1, "maze at level 1: 90% of the replies are cut off: raise max_tokens"),
        (0.0, 0.7, 0.0, "maze at level 1: no reply has a complete <answer>...</answer>"),  # nor has a reply that ended
        (0.0, 0.9, 0.5, None),
        (0.5, 0.9, 0.1, None),
    ],
)
def test_a_probe_reports_that_the_form_of_answers_is_the_obstacle(
    solved: float, truncated: float, answered: float, reason: str | None
) -> None:
    """A model that never writes the answer in tags cannot start to learn, whatever the level."""
    verdict: Any = "trainable" if solved else "too hard"
    out = io.StringIO()
    print_probed([Probed("maze", 1, 20, solved, 0.0, truncated, answered, 0.25, verdict, None, 80)], Console(file=out))
    last = " ".join(out.getvalue().split()).partition("has the required form. ")[2]
    assert last.startswith(reason) if reason else not last


def test_only_existing_levels_are_probed() -> None:
    """Levels that do not work are left out, and each remaining entry is valid in an evaluation."""
    found = labels(["maze", "caesar_cipher"], [0, 2, 99])
    assert set(found) == {"maze-level0", "maze-level2", "caesar_cipher-level0"}
    for task in load_table():
        if task != "knight_swap":
            for entry in labels([task], [0, 1, 2]).values():
                Mixture.parse({"name": task, **{key: value for key, value in entry.items() if key != "task"}})
    for task, levels, remedy in (("knight_swap", [0], "remove the task"), ("maze", [98], "choose --levels from 0")):
        with pytest.raises(InputError, match=f"{task} cannot be generated at any of the given levels .*: {remedy}"):
            labels([task], levels)
    with pytest.raises(UnknownNameError, match="did you mean 'maze'"):
        labels(["mase"], [0])


def test_tasks_that_an_endpoint_refuses_are_skipped() -> None:
    """A task whose prompts exceed the server's context is an example; one call per level detects it."""

    def trouble(number: int, body: dict[str, Any]) -> Response | None:
        is_long = "spell" in body["messages"][-1]["content"].lower()
        return JSONResponse({"error": {"message": "the prompt is too long"}}, status) if is_long else None

    status = 400

    with ChatServer(str, trouble=trouble) as server:
        tasks = labels(["leg_counting", "spell_backward"], [0, 1])
        given = [f"models={json.dumps(['m@' + server.url])}", f"tasks={json.dumps(tasks)}", "num_examples=4"]
        config, lines = fitted(load_eval_config(None, given))
        assert list(config.tasks) == ["leg_counting-level0", "leg_counting-level1"]
        reason = "skipped: HTTP 400: the prompt is too long"
        assert lines == [f"spell_backward-level0: {reason}", f"spell_backward-level1: {reason}"]
        assert len(server.requests) == 4
        refused = load_eval_config(None, [given[0], "tasks={spell_backward-level0: {task: spell_backward, level: 0}}"])
        with pytest.raises(InputError, match=r"no task can be probed: .*: HTTP 400: .*; lower --max-tokens, or choose"):
            fitted(refused)
        status = 451
        with pytest.raises(InputError, match=r"no task can be probed: .*: HTTP 451: the prompt is too long$"):
            fitted(refused)


def _replies_in_form(which: dict[str, Any]) -> tuple[Any, Counter[str]]:
    """Return the answers of a model that writes the required form in the replies to a task whose number is in `which`,
    and a count of the replies by task."""
    counts = Counter[str]()
    tasks = {row["question"]: task for task in which for row in build_rows({"name": task}, "eval", 10, 0)}

    def answer(question: str) -> str:
        task = tasks[question]
        counts[task] += 1
        return "<answer>none</answer>" if counts[task] in which[task] else "It is 3."

    return answer, counts


@pytest.mark.parametrize("servers", [1, 2])
def test_a_task_is_stopped_if_no_reply_to_its_first_questions_has_the_form(
    servers: int, chat: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tasks get all their questions. A second server waits until the first questions are answered, and a slow
    reply to one of these counts, too. Resuming asks nothing else."""

    @contextlib.asynccontextmanager
    async def served(*_: Any) -> AsyncIterator[Any]:
        yield await endpoint(EvalModel(model="m", url=chat.url), config)

    def asked() -> list[TaskAnswers]:
        answer_sets = answer_sets_of(config, drawn, TRIAL)
        asyncio.run(ask_all(config, tmp_path, answer_sets))
        return answer_sets

    monkeypatch.setattr(local_models, "served", served)
    monkeypatch.setattr(local_models, "encoder_of", lambda *_: None)
    which = {"gcd": range(1, 41), "lcm": (), "prime_factorization": (TRIAL,), "fraction_simplification": range(17, 41)}
    answer, counts = _replies_in_form(which)
    chat.reset(answer, lambda number, body: 0.2 if number % 16 == 5 else None)
    model = {"model": "m", "url": chat.url} if servers == 1 else {"model": "tiny"}
    given = [f"models={json.dumps({'m': model})}", f"tasks={json.dumps(list(which))}", "num_examples=10",
             "rollouts_per_example=4", "requests.concurrency=16", "requests.tries=1"]  # fmt: skip
    more = ["serving.kind=vllm", "serving.gpus=[0, 1]"] if servers == 2 else []
    config = load_eval_config(None, given + more)
    drawn = [draw(config, name) for name in config.tasks]
    results = results_of(asked(), {"m": ModelSource("m", "tiny", "vllm")})
    expected = {"gcd": 40, "lcm": TRIAL, "prime_factorization": 40, "fraction_simplification": TRIAL}
    assert counts == expected
    assert {name: task.scores.answers for name, task in results.tasks.items()} == expected
    found = {each.task: each for each in judge(results, "m")}
    assert [each.verdict for each in found.values() if each.stopped] == ["too hard", "too hard"]
    assert {name for name, each in found.items() if each.stopped} == {"lcm", "fraction_simplification"}
    print_probed(list(found.values()), Console(file=(out := io.StringIO()), width=200))
    assert out.getvalue().count("too hard (stopped)") == 2
    assert not any(each.missing() for each in asked())
    assert counts == expected


@pytest.mark.slow
def test_the_engine_asks_first_questions_of_all_tasks_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A task whose answers are cut off before the form is complete is stopped. The speed is printed."""
    tasks = {"leg_counting": {}, "cut": {"task": "leg_counting", "sampling": {"max_tokens": 3}}}
    given = ["models=tiny", f"tasks={json.dumps(tasks)}", "num_examples=20", "rollouts_per_example=8"]
    given += [f"output.dir={tmp_path / 'e'}", "sampling.max_tokens=60"]
    results, _ = run_evaluation(load_eval_config(None, given), trial=TRIAL)
    assert {name: task.scores.answers for name, task in results.tasks.items()} == {"cut": 16, "leg_counting": 160}
    tokens = results.models["tiny"].usage.completion_tokens
    assert re.search(rf"^tiny: {tokens:,} answer tokens in \d+ s \([\d,]+ tokens/s\)$", capsys.readouterr().out, re.M)


@pytest.mark.parametrize(
    ("answered", "truncated", "rest"),
    [
        (0.95, 0.0, "76 of 80 replies: set prompt.few_shot: 2 in the training config"),
        (0.05, 0.0, "4 of 80 replies: use a model that follows instructions"),
        (0.1, 0.9, "8 of 80 replies: raise --max-tokens"),
        (0.0, 0.8, "0 of 80 replies: raise --max-tokens, or use a model that follows instructions"),
    ],
)
def test_the_effect_of_examples_is_reported(answered: float, truncated: float, rest: str) -> None:
    out, numbers = io.StringIO(), (0.25, "too hard", None, 80)
    without: Any = Probed("maze", None, 20, 0.0, 0.0, 0.0, 0.0, *numbers)
    print_probed([without, Probed("maze", None, 20, 0.0, 0.0, truncated, answered, *numbers, 2)], Console(file=out))
    assert " ".join(out.getvalue().split()).endswith(
        f"maze: 0 of 80 replies have a complete <answer>...</answer>; with 2 few-shot examples, {rest}"
    )


@pytest.mark.slow
def test_a_model_that_never_writes_the_form_is_probed_again_with_examples(rg_env: Any, tmp_path: Path) -> None:
    """The lines and `mixture.yaml` name the number of examples, and the examples are training questions."""

    def trouble(number: int, body: dict[str, Any]) -> Response | None:
        is_shown = any(message["role"] == "assistant" for message in body["messages"])
        right = golds[body["messages"][-1]["content"]]
        text = f"<answer>{right if number % 2 else 'x'}</answer>" if is_shown else f"It is {right}."
        return JSONResponse({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})

    golds = {row["question"]: row["answer"] for row in _sums(16).eval_rows}
    with ChatServer(str, trouble=trouble) as server:
        arguments = ["--model", f"m@{server.url}", "--tasks", "chain_sum", "--levels", "0", "-n", "16", "-r", "4"]
        code, printed, _ = rg_env("probe", *arguments, "--output-dir", str(tmp_path / "probe"))
    assert code == 0
    assert "chain_sum at level 0: 0 of 16 replies have a complete <answer>...</answer>; with 2" in printed
    written = yaml.safe_load((tmp_path / "probe" / "mixture.yaml").read_text())
    assert written == {"tasks": {"chain_sum": {"level": 0}}, "prompt": {"few_shot": 2}}
    shots = {body["messages"][1]["content"] for body in server.requests if len(body["messages"]) > 2}
    assert len(shots) == 1
    assert shots.isdisjoint(row["question"] for row in _sums(300).eval_rows)


def _sums(n: int) -> ReasoningGym:
    return ReasoningGym({"name": "chain_sum", "level": 0}, num_train_examples=0, num_eval_examples=n)


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_a_probe_of_the_tiny_policy_gives_a_config_that_trains(tmp_path: Path) -> None:
    """A task that does not fit the context is skipped, and the mixture can be extended by a training config."""
    words = "probe --model tiny --tasks leg_counting,spell_backward maze --levels 0 -n 16 --max-tokens 90"
    command = [*PYTHON, "-m", "rg_env.cli.main", *words.split(), "--output-dir", "probe"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("maze-level0: skipped: a prompt of ") == 2
    (file,) = (tmp_path / "probe").glob("results_all_tasks_*.json")
    assert set(json.loads(file.read_text())["tasks"]) == {"leg_counting-level0", "spell_backward-level0"}
    assert "too hard" in result.stdout  # spelling, which the tiny policy was not trained on
    parts = {"extends": [str(CONFIGS / "train" / "tiny.yaml"), "probe/mixture.yaml"]}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(parts))
    assert load_train_config(tmp_path / "train.yaml").tasks["leg_counting"].level == 0


@pytest.mark.slow
def test_too_few_questions_are_reported_first(rg_env: Any, tmp_path: Path) -> None:
    """A note is printed at the start, and the last line explains why mixture.yaml is missing. The default folder is
    named after the probe."""
    arguments = ["--model", "tiny", "--tasks", "leg_counting", "--levels", "0", "-n", "2", "-r", "2"]
    with contextlib.chdir(tmp_path):
        code, printed, _ = rg_env("probe", *arguments, "--max-tokens", "4")
    assert code == 1
    first, *_, last = printed.splitlines()
    assert first == "note: -n 2 is too low; a verdict and mixture.yaml require at least 16"
    assert last.startswith("mixture.yaml was not written: too few questions to judge; probe with --num-examples 16")
    (folder,) = (tmp_path / "outputs").glob("probe-leg_counting-*")
    assert not (folder / "mixture.yaml").exists()
