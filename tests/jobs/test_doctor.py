"""Tests of `rg-env doctor` on this machine."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rg_env.jobs.doctor import diagnose, machine
from rg_env.jobs.doctor.machine import PlannedRun

CONFIG = (
    "model: {name: tiny}\ntasks: {leg_counting: {}}\nsplits: {num_train_examples: 16, num_eval_examples: 4}\n"
    "training: {rollouts_per_step: 8, max_prompt_length: 60, max_tokens: 90}\n"
    "evaluation: {tasks: {lcm: {num_examples: 3}, legs: {task: leg_counting, num_examples: 2}}}\n"
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def gpus_here() -> machine.Gpus:
    """Return the GPUs of this machine, queried once per session because this takes seconds."""
    return machine.ask_gpus()


@pytest.fixture
def doctor(rg_env: Run, monkeypatch: pytest.MonkeyPatch, gpus_here: machine.Gpus) -> Run:
    """Return a function that runs `rg-env doctor` and returns its exit code, stdout and stderr."""
    monkeypatch.setattr(machine, "ask_gpus", lambda: gpus_here)
    return lambda *arguments: rg_env("doctor", *arguments)


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("configs") / "run.yaml"
    file.write_text(CONFIG)
    return str(file)


def by_name(text: str) -> dict[str, str]:
    return {line.split()[1]: line for line in text.splitlines()}


def test_this_machine_can_train_the_tiny_policy(doctor: Run, tmp_path: Path, environ: Callable[..., None]) -> None:
    """The command writes no files and prints no part of a token."""
    token = "hf_QxZjKvWqYpLmNbTr"
    environ(HF_TOKEN=token, WANDB_API_KEY=token[::-1], CUDA_VISIBLE_DEVICES=None)
    code, text, errors = doctor("--model", "tiny")
    assert code == 0, text
    *lines, closing = text.splitlines()
    assert closing.endswith(" 0 failed")
    assert {line.split()[0] for line in lines} <= {"ok", "warning", "skipped"}
    assert any("Hugging Face token found" in line for line in lines)
    assert any("within 160 tokens" in line for line in lines)
    for secret in (token, token[::-1]):
        assert not any(secret[at : at + 6] in text + errors for at in range(len(secret) - 5))
    assert list(tmp_path.iterdir()) == []


def test_every_problem_is_reported_with_its_fix(doctor: Run) -> None:
    code, text, _ = doctor("--model", "tiny", "--num-generations", "7", "--max-prompt-length", "20")
    assert code == 1
    failed = {name: line for name, line in by_name(text).items() if line.startswith("failed ")}
    assert set(failed) == {"batch", "prompts"}
    assert "128 rollouts are not divisible by num_generations=7; fix: training.rollouts_per_step=" in failed["batch"]
    assert "fix: set training.max_prompt_length=" in failed["prompts"]
    assert text.splitlines()[-1].endswith(", 2 failed")


def test_a_config_is_checked_including_its_evaluations(doctor: Run, config: str, tmp_path: Path) -> None:
    """Overrides apply, and fixes name the config's keys."""
    out = f"output.dir={tmp_path / 'out'}"

    def lines(*overrides: str) -> dict[str, str]:
        code, text, _ = doctor(config, out, *overrides)
        found = by_name(text)
        assert code == any(line.startswith("failed") for line in found.values())
        return found

    plain, adapters = lines(), lines("lora.r=4")
    assert "8 rollouts per step: 1 prompt x 8" in plain["batch"]
    assert "all 20 prompts are within 60 tokens" in plain["prompts"]
    assert "; evaluations use 5 more prompts, the longest of which has " in plain["prompts"]
    assert adapters["memory"].split("(")[1] != plain["memory"].split("(")[1]  # adapters need less memory
    short = lines("training.max_prompt_length=20")["prompts"]
    assert "longer than 20 tokens" in short
    assert "; fix: set training.max_prompt_length=" in short
    long = "evaluation.tasks.long={task: word_sorting, config: {min_words: 90, max_words: 100}, num_examples: 1}"
    assert "the longest evaluation prompt has " in (line := lines(long)["prompts"])
    assert line.startswith("failed ")
    line = lines("evaluation.tasks.hanoi={task: tower_of_hanoi, config: {max_disks: 3, max_pegs: 3}}")["prompts"]
    assert "too few distinct questions" in line
    assert "fix: correct the value of evaluation.tasks.hanoi; " in line
    assert "engine's cache in evaluations" in lines("evaluation.max_tokens=91")["memory"]
    assert "engine's cache in evaluations" not in lines("evaluation=null")["memory"]


def test_a_config_with_own_data_is_checked(doctor: Run, config: str, tmp_path: Path) -> None:
    """Prompt lengths are those of the file's rows; data on the Hub is not downloaded to measure them."""
    rows = [{"question": f"{number} + 1", "answer": number + 1} for number in range(30)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = ["tasks=null", "splits.num_eval_examples=6", "evaluation=null", f"output.dir={tmp_path / 'out'}"]
    code, text, errors = doctor(config, *own, "data=own.jsonl")
    assert (code, errors) == (0, ""), text
    assert "all 30 prompts are within 60 tokens" in by_name(text)["prompts"]
    code, text, _ = doctor(config, *own, "data=own.jsonl", "training.max_prompt_length=2")
    assert "fix: set training.max_prompt_length=" in (line := by_name(text)["prompts"])
    assert line.endswith(", or shorten these questions")
    (tmp_path / "own.jsonl").write_text("{")
    code, text, _ = doctor(config, *own, "data=own.jsonl")
    assert code == 1
    assert "own.jsonl: line 1 is not JSON" in (line := by_name(text)["prompts"])
    assert "; fix: correct the value of data; " in line
    assert by_name(doctor(config, *own, "data=nobody/nothing")[1])["prompts"].startswith("skipped ")


def test_a_missing_default_model_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Like a run, the doctor falls back to the tiny policy."""
    device = {"index": 0, "capability": [8, 0], "free": 80 * 2**30, "problem": ""}
    gpus = machine.Gpus(["0, GPU"], torch={"version": "2.8.0", "cuda": "12.8", "devices": [device]})
    monkeypatch.setattr("rg_env.inference.models.DEFAULT_GPU_MODEL", str(tmp_path / "nowhere"))
    monkeypatch.setattr(machine, "ask_gpus", lambda: gpus)
    model, batch = [check for check in diagnose(PlannedRun.of_options({})) if check.name in ("model", "batch")]
    assert model.status == "warning"
    assert "the tiny policy is used instead" in model.finding
    assert "in 2 micro-batches" in batch.finding  # the tiny policy's defaults


def test_json_output_reports_a_missing_model(doctor: Run) -> None:
    code, text, _ = doctor("--json", "--model", os.devnull)
    assert code == 1
    records = {record["name"]: record for record in json.loads(text)}
    assert records["model"]["status"] == "failed"
    assert records["model"]["fix"].startswith("pass a folder with config.json")
    memory = {"name": "memory", "status": "skipped", "finding": "the model is not available", "fix": ""}
    assert records["memory"] == memory


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tasks", "leg_countin"], "unknown task 'leg_countin': did you mean 'leg_counting'"),
        (["--port", "70000"], "engine.port = 70000 @ command line: must be at most 65535"),
        (["--engine", "trl"], "rg-env doctor: argument --engine: invalid choice"),
        (["CONFIG", "training.max_tokens=x"], "training.max_tokens = 'x' @ command line: must be a whole number"),
        (["CONFIG", "--max-tokens", "3"], "training.max_tokens cannot be combined with a config"),
    ],
)
def test_bad_input_exits_with_code_2(doctor: Run, config: str, arguments: list[str], words: str) -> None:
    """The error is reported before any check runs."""
    code, text, errors = doctor(*(config if argument == "CONFIG" else argument for argument in arguments))
    assert (code, text) == (2, "")
    assert words in errors
