"""`rg-env doctor` on this machine."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rg_env.cli.main import run as run_cli
from rg_env.commands import run_command
from rg_env.jobs.doctor import Check, gpus, machine


@pytest.fixture(scope="session")
def torch_here() -> tuple[dict[str, Any] | None, str]:
    """What torch sees on this machine: asked once, for it takes seconds."""
    return gpus.ask_torch()


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process, in an empty folder; gives exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            run_command(lambda: run_cli(["doctor", *arguments]))
        return int(caught.value.code or 0), *capsys.readouterr()

    return call


def test_this_machine_can_train_the_tiny_policy(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, and no part of a token is shown."""
    token = "hf_QxZjKvWqYpLmNbTr"
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("WANDB_API_KEY", token[::-1])
    code, text, errors = run("--model", "tiny")
    assert code == 0, text
    *lines, closing = text.splitlines()
    assert closing.endswith(" 0 failed")
    assert {line.split()[0] for line in lines} <= {"ok", "warning", "skipped"}
    assert any("a token is there" in line for line in lines)
    assert any("within 160 tokens" in line for line in lines)
    for secret in (token, token[::-1]):
        assert not any(secret[at : at + 6] in text + errors for at in range(len(secret) - 5))
    assert list(tmp_path.iterdir()) == []


def test_what_would_stop_the_run_ends_with_the_fix(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, torch_here: Any
) -> None:
    """All of it at once, not the first alone; exit code 1."""
    monkeypatch.setattr(gpus, "ask_torch", lambda: torch_here)
    code, text, _ = run("--model", "tiny", "--num-generations", "7", "--max-prompt-length", "20")
    assert code == 1
    failed = {line.split()[1]: line for line in text.splitlines() if line.startswith("failed ")}
    assert set(failed) == {"batch", "prompts"}
    assert "128 rollouts are not divisible by num_generations=7; fix: --rollouts-per-step " in failed["batch"]
    assert "fix: --max-prompt-length " in failed["prompts"]
    assert text.splitlines()[-1].endswith(", 2 failed")


def test_a_config_is_looked_at_as_it_stands(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, torch_here: Any, tmp_path: Path
) -> None:
    """Its tasks, prompt, lengths and adapters. Overrides count; options beside it are refused, and no fix has them."""
    monkeypatch.setattr(gpus, "ask_torch", lambda: torch_here)
    config = tmp_path / "run.yaml"
    config.write_text(
        "model: {name: tiny}\ntasks: {leg_counting: {}}\nsplits: {num_train_examples: 16, num_eval_examples: 4}\n"
        "training: {rollouts_per_step: 8, max_prompt_length: 60, max_tokens: 90}\n"
    )
    code, text, _ = run(str(config), "lora.r=4", f"output.dir={tmp_path / 'out'}")
    lines = {line.split()[1]: line for line in text.splitlines()}
    assert code == 0
    assert "8 rollouts a step: 1 prompts x 8" in lines["batch"]
    assert "all 20 within 60 tokens" in lines["prompts"]
    whole = run(str(config), "--json")[1]
    memory = [next(r for r in json.loads(each) if r["name"] == "memory")["finding"] for each in (whole,)]
    assert memory[0].split("(")[1] != lines["memory"].split("(")[1]  # adapters are less than all weights
    code, text, _ = run(str(config), "training.max_prompt_length=20")
    assert code == 1
    assert "longer than 20 tokens" in text
    assert "; fix: training.max_prompt_length=" in text
    code, text, errors = run(str(config), "training.max_tokens=x")
    assert (code, text) == (2, "")
    assert "training.max_tokens = 'x' @ command line: must be a whole number" in errors
    code, text, errors = run(str(config), "--max-tokens", "3")
    assert (code, text) == (2, "")
    assert "--max-tokens beside a config" in errors
    looked: list[int] = []

    def note(run: Any, model: Any, tokens: int) -> tuple[Check, bool]:
        looked.append(tokens)
        return Check("server", "skipped", "not asked"), False

    monkeypatch.setattr(machine, "check_server", note)
    run(str(config), "evaluation.max_tokens=300")
    assert looked == [60 + 300]


def test_what_is_evaluated_besides_counts_too(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, torch_here: Any, tmp_path: Path
) -> None:
    """Prompts of held-out tasks and of labels: what would stop the run at its first evaluation is told."""
    monkeypatch.setattr(gpus, "ask_torch", lambda: torch_here)
    config = tmp_path / "run.yaml"
    config.write_text(
        "model: {name: tiny}\ntasks: {leg_counting: {}}\nsplits: {num_train_examples: 16, num_eval_examples: 4}\n"
        "training: {rollouts_per_step: 8, max_prompt_length: 60, max_tokens: 90}\n"
        "evaluation: {tasks: {lcm: {num_examples: 3}, legs: {task: leg_counting, num_examples: 2}}}\n"
    )

    def prompts(*overrides: str) -> str:
        code, text, _ = run(str(config), f"output.dir={tmp_path / 'out'}", *overrides)
        (line,) = (line for line in text.splitlines() if line.split()[1] == "prompts")
        assert code == (1 if line.startswith("failed") else 0)
        return line

    assert "all 20 within 60 tokens" in prompts()
    assert "; 5 more in evaluations, the longest has " in prompts()
    long = "evaluation.tasks.long={task: word_sorting, config: {min_words: 90, max_words: 100}, num_examples: 1}"
    line = prompts(long)
    assert line.startswith("failed ")
    assert "the longest that evaluations ask has " in line
    line = prompts("evaluation.tasks.hanoi={task: tower_of_hanoi, config: {max_disks: 3, max_pegs: 3}}")
    assert "too few distinct questions" in line
    assert "fix: change evaluation.tasks.hanoi; " in line
    caches = [
        json.loads(run(str(config), "--json", each)[1]) for each in ("evaluation.max_tokens=91", "evaluation=null")
    ]
    findings = [next(r["finding"] for r in records if r["name"] == "memory") for records in caches]
    assert "engine's cache in evaluations" in findings[0]
    assert "engine's cache in evaluations" not in findings[1]


def test_records(run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, torch_here: Any) -> None:
    """`--json`, also of a model that is not there."""
    monkeypatch.setattr(gpus, "ask_torch", lambda: torch_here)
    code, text, _ = run("--json", "--model", os.devnull)
    assert code == 1
    records = {record["name"]: record for record in json.loads(text)}
    assert records["model"]["status"] == "failed"
    assert records["model"]["fix"].startswith("check --model")
    assert records["memory"] == {
        "name": "memory",
        "status": "skipped",
        "finding": "there is no model to measure with",
        "fix": "",
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "leg_countin"], "unknown task 'leg_countin': did you mean 'leg_counting'"),
        (["--vllm-port", "70000"], "port 70000 does not exist"),
        (["--processes", "0"], "not at least 1"),
        (["--engine", "trl"], "invalid choice"),
    ],
)
def test_bad_input_is_no_finding(run: Callable[..., tuple[int, str, str]], arguments: list[str], words: str) -> None:
    """Exit code 2, as everywhere."""
    code, text, errors = run(*arguments)
    assert code == 2
    assert words in errors
    assert text == ""
