"""A user's mistakes in the examples: one line, exit code 2, nothing written."""

import importlib.util
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rg_env.commands import run_command
from rg_env.errors import InputError

EXAMPLES = Path(__file__).parents[2] / "examples"


def load_example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs an example in this process, in an empty folder; gives its exit code and its standard error."""
    monkeypatch.chdir(tmp_path)

    def call(example: str, *arguments: str) -> tuple[int, str]:
        module = load_example(example)
        monkeypatch.setattr(sys, "argv", [example, *arguments])
        with pytest.raises(SystemExit) as caught:
            run_command(module.main)
        return int(caught.value.code or 0), capsys.readouterr().err

    return call


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


TINY = ["--model", "tiny"]


@pytest.mark.parametrize(
    ("example", "arguments", "words"),
    [
        ("train_ultra_minimal", ["--task", "leg_countin"], "unknown task 'leg_countin': did you mean 'leg_counting'"),
        ("train_ultra_minimal", ["--task", "game_of_24"], "it is called 'puzzle24'"),
        ("train_ultra_minimal", ["--task", "chain_sum", "chain_sum"], "chain_sum"),
        ("train_ultra_minimal", ["--task", "tower_of_hanoi"], "too few distinct questions"),
        ("train_ultra_minimal", ["--model", "nowhere/at-all"], "cannot load the model 'nowhere/at-all'"),
        ("train_ultra_minimal", ["--model", "."], "holds no model"),
        ("train_ultra_minimal", ["--manifest", "none.json"], "none.json' cannot be read: No such file"),
        ("train_ultra_minimal", ["--steps", "0"], "--steps"),
        ("train_ultra_minimal", ["--steps", "-3"], "--steps"),
        ("train_ultra_minimal", ["--seed", "-1"], "--seed"),
        (
            "train_minimal",
            ["--num-generations", "7"],
            "rollouts_per_step: 128 rollouts are not divisible by num_generations=7; try 126 or",
        ),
        ("train_minimal", ["--num-generations", "1"], "num_generations=1: must be at least 2"),
        ("train_minimal", ["--max-prompt-length", "0"], "--max-prompt-length"),
        ("train_minimal", ["--batch-size", "0"], "--batch-size"),
        ("train_minimal", ["--rollouts-per-step", "-1"], "--rollouts-per-step"),
        ("train_minimal", ["--rollouts-per-step", "100"], "100 rollouts are not divisible by num_generations=8"),
        ("train_minimal", ["--max-tokens", "0"], "--max-tokens"),
        ("train_minimal", ["--learning-rate", "nan"], "learning_rate=nan: must be a finite number"),
        ("train_minimal", ["--output-dir", "x" * 300], "File name too long; choose another output folder"),
        ("train_ultra_minimal", ["--model", ""], "the name of the model is empty"),
        ("train_ultra_minimal", ["--model", "x" * 300], "File name too long"),
        ("train_ultra_minimal", ["--model", "a\0b"], "cannot load the model"),
        ("train_ultra_minimal", ["--model", "nowhere/at-all", "--task", "leg_countin"], "unknown task 'leg_countin'"),
        ("train_ultra_minimal", ["--model", "nowhere/at-all", "--output-dir", "x" * 300], "File name too long"),
        ("train_ultra_minimal", ["--output-dir", "a\0b"], "null byte; choose another output folder"),
        ("train_minimal", ["--max-prompt-length", "5"], "training prompts are longer than max_prompt_length=5"),
        ("train_minimal", ["--data", "missing.jsonl"], "missing.jsonl"),
        ("train_minimal", ["--num-eval", "100000"], "100000"),
    ],
)
def test_mistakes_are_one_line(
    run: Callable[..., tuple[int, str]], tmp_path: Path, example: str, arguments: list[str], words: str
) -> None:
    """And nothing is written."""
    model = [] if "--model" in arguments else TINY
    code, errors = run(example, *model, *arguments)
    assert code == 2, errors
    assert words in errors
    assert "Traceback" not in errors
    assert errors.count("error: ") == 1
    assert errors.partition("error: ")[2].count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == []


def test_no_server_is_told_at_once(run: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: Any) -> None:
    """Where `--engine vllm` was asked for."""
    code, errors = run("train_ultra_minimal", *TINY, "--engine", "vllm", "--vllm-port", str(free_port()))
    assert code == 2
    assert "no vLLM server at 127.0.0.1" in errors
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_another_run_is_refused(run: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """Nothing in it changes."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "train_results.json").write_text("{}")
    code, errors = run("train_ultra_minimal", *TINY, "--output-dir", "old")
    assert code == 2
    assert "old is not empty: it may hold another run" in errors
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["train_results.json"]


def test_rows_that_are_not_those_of_the_manifest(run: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """Told before the run's folder is made."""
    part = {"seed": 0, "size": 0, "question_hashes": [], "problems": []}
    rows = {
        "versions": {"reasoning-gym": "0.0.1"},
        "tasks": [],
        "split_by": "problem",
        "splits": {"train": part, "eval": part},
    }
    (tmp_path / "old.json").write_text(json.dumps({"rows": rows}))
    code, errors = run("train_ultra_minimal", *TINY, "--manifest", "old.json")
    assert code == 2
    assert "error: these are not the rows of the manifest: its version of reasoning-gym is '0.0.1', and here" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


def test_columns_that_are_missing_are_named(run: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """With those there are."""
    (tmp_path / "data.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
    code, errors = run("train_minimal", *TINY, "--data", "data.jsonl")
    assert code == 2
    assert "data.jsonl lacks question; it has problem, answer" in errors


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # datasets leaves CSV files open
@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_local_files_are_read(tmp_path: Path, suffix: str) -> None:
    """Each kind that `train_minimal.py` names: two columns, answers as text, each question once."""
    from datasets import Dataset

    from rg_env.training.data.user_rows import load_rows

    rows = Dataset.from_list([{"question": f"{i % 5} + 1 =", "answer": i % 5 + 1, "id": i} for i in range(8)])
    path = tmp_path / f"data.{suffix}"
    {"csv": rows.to_csv, "parquet": rows.to_parquet}.get(suffix, rows.to_json)(str(path))
    data = load_rows(str(path))
    assert data == [{"question": f"{i} + 1 =", "answer": str(i + 1)} for i in range(5)]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "1 + 1", "answer": None}, "row 2 has no answer"),
        ({"question": None, "answer": "2"}, "row 2 has no question"),
        ({"question": " \n", "answer": "2"}, "row 2: its question is blank"),
        ({"question": "1 + 1", "answer": ""}, "row 2: its answer is blank"),
        ({"question": "1 + 1", "answer": "so #### "}, "row 2: nothing follows '####' in its answer"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_named(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    """With file, row and column."""
    from rg_env.training.data.user_rows import load_rows

    rows = [{"question": "2 + 2", "answer": "#### 4"}, row]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=rf"data\.jsonl: {words}"):
        load_rows(str(tmp_path / "data.jsonl"), answer_after="####")


def test_lists_are_no_text() -> None:
    """Nor are mappings; numbers will do as answers, but not as questions."""
    from rg_env.training.data.user_rows import load_rows

    for row, words in (
        ({"question": "1 + 1", "answer": ["2"]}, "row 1: its answer is not text, but list"),
        ({"question": {"text": "1 + 1"}, "answer": "2"}, "row 1: its question is not text, but dict"),
        ({"question": 1, "answer": "2"}, "row 1: its question is not text, but int"),
    ):
        with pytest.raises(InputError, match=words):
            load_rows([row])
    rows = [{"question": q, "answer": a} for q, a in (("b", 1), ("a", 2), ("b", 3))]
    assert load_rows(rows) == [{"question": "b", "answer": "1"}, {"question": "a", "answer": "2"}]


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    """Its reader raises without a word."""
    from rg_env.training.data.user_rows import load_rows

    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match=r"empty.jsonl.*no rows"):
        load_rows(str(tmp_path / "empty.jsonl"))
