"""The examples train in processes of their own and report a user's mistakes on one line."""

import ast
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from data_files import data
from run_code import EXAMPLES, example_module
from run_metrics import logged, results_of

from rg_env.commands import run_command
from rg_env.core.data.dataset import build_rows
from rg_env.core.grading.scoring import score
from rg_env.core.rewards import resolve_rewards
from rg_env.errors import ConfigError
from rg_env.training import load_train_config

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return a function that runs an example in this process, in an empty folder, and returns its exit code and
    standard error."""

    def call(name: str, *arguments: str) -> tuple[int, str]:
        module = example_module(name)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as caught:
            run_command(module.main)
        return int(caught.value.code or 0), capsys.readouterr().err

    return call


FILES = {"old/train_results.json": "{}", "data.jsonl": '{"problem": "1"}\n'}


@pytest.mark.parametrize(("command", "words"), data("command_mistakes")["examples"])
def test_mistakes_are_one_line(run: Callable[..., tuple[int, str]], tmp_path: Path, command: str, words: str) -> None:
    """The exit code is 2, and no file is written."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    code, errors = run(*shlex.split(command.replace("LONG", "x" * 300)))
    assert code == 2, errors
    assert words in errors
    assert "Traceback" not in errors
    assert errors.count("error: ") == 1
    assert errors.partition("error: ")[2].count("\n") == 1
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")} == {*FILES}


PUBLIC = {"rg_env", "rg_env.commands", "rg_env.errors", "rg_env.evaluation", "rg_env.publish.push", "rg_env.tiny",
          "rg_env.training"}  # fmt: skip


def test_examples_import_only_public_modules() -> None:
    """`train_trl` is an exception, because it demonstrates an adapter."""
    for file in {*(REPOSITORY / "examples").glob("*.py")} - {REPOSITORY / "examples" / "train_trl.py"}:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rg_env"):
                assert node.module in PUBLIC, file.name


CONFIG = """
imports: [{examples}/custom_task.py, {examples}/custom_reward.py]
model: tiny
tasks: {{dice_sum: {{levels: {{dice: 1}}, config: {{sides: 6}}}}}}
splits: {{num_train_examples: 64, num_eval_examples: 16}}
rewards: {{correctness: 1.0, shows_work: {{weight: 0.2, when: correct, options: {{lines: 3}}}}}}
"""


@pytest.mark.slow
def test_a_config_imports_tasks_and_rewards(tmp_path: Path) -> None:
    """Imported tasks and rewards are available by name; without the import, they are unknown."""
    file = tmp_path / "run.yaml"
    text = CONFIG.format(examples=REPOSITORY / "examples")
    file.write_text("\n".join(line for line in text.splitlines() if not line.startswith("imports")))
    with pytest.raises(ConfigError, match=r"unknown task 'dice_sum'(.|\n)*unknown reward 'shows_work'"):
        load_train_config(file)
    file.write_text(text)
    config = load_train_config(file)
    rows = build_rows(config.gym, "train", 8, seed=0, cache=False)
    assert all(row["question"].count("+") == 2 for row in rows)
    assert score(f"<answer>{rows[0]['answer']}</answer>", rows[0]["info"]).status == "correct"
    near = score(f"<answer>{int(rows[0]['answer']) + 1}</answer>", rows[0]["info"])
    assert (near.status, near.progress) == ("wrong", 0.1)
    assert [reward.name for reward in resolve_rewards(config.rewards)] == ["correctness", "shows_work"]


def test_a_failing_import_is_reported_with_its_line_in_the_config(tmp_path: Path) -> None:
    """The import's path is relative to the config."""
    file = tmp_path / "run.yaml"
    file.write_text("model: {name: tiny}\nimports: [gone.py]\ntasks: [leg_counting]\n")
    with pytest.raises(ConfigError, match=rf"^imports = .* @ .*run\.yaml:2: imports: .*no file {tmp_path}/gone\.py$"):
        load_train_config(file)


SMALL = ["training.max_steps=2", "splits.num_train_examples=32", "splits.num_eval_examples=8"]
STEPS = ["--max-steps", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "metric"),
    [
        ("custom_task", STEPS, "reward"),
        ("custom_reward", STEPS, "rewards/shows_work/mean"),
        ("train_curriculum", ["--model", "tiny", *STEPS, "--schedule", "0:0", "1:2"], "curriculum/chain_sum/level"),
        ("train_from_config", [str(REPOSITORY / "configs/train/tiny.yaml"), *SMALL], "reward"),
        (
            "train_minimal",
            ["--model", "tiny", "--max-steps", "2", "--tasks", "chain_sum", "--num-eval", "16"],
            "rewards/answers_once/mean",
        ),
    ],
)
def test_examples_train(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    arguments: list[str],
    metric: str,
) -> None:
    """Each example's documented command trains for two steps."""
    output = ["output.dir=run"] if script == "train_from_config" else ["--output-dir", "run"]
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *arguments, *output])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{script}.py"), run_name="__main__")
    printed, errors = capsys.readouterr()
    assert not ended.value.code, errors
    results = results_of(here / "run")
    assert (results["steps"], results["model"], results["interrupted"]) == (2, "tiny", False)
    trained = [row for row in logged(here / "run") if "reward" in row]
    assert len(trained) == 2
    assert all(row.get("status/ungradable", 0) == row.get("status/timed_out", 0) == 0 for row in trained)
    assert any(row[metric] > 0 for row in trained)
    if script == "custom_task":
        assert results["eval_after"]["tasks"]["dice_sum"]["n"] == 200
        assert 0 < results["eval_after"]["accuracy"] < 1
    if script == "train_curriculum":
        assert "step 1: chain_sum rises to level 2 (scheduled)" in printed
        assert [row[metric] for row in trained] == [0, 2]
    if script == "train_from_config":
        assert "greedy accuracy" in printed.splitlines()[-1]
