"""The examples of a task and of a reward of the user's own: as scripts, and imported by a config."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from user_code import nothing_left

from rg_env.core.data.dataset import build_rows
from rg_env.core.grading.scoring import score
from rg_env.core.rewards.builtin import resolve_rewards
from rg_env.errors import ConfigError
from rg_env.training.config.load import load_train_config

REPOSITORY = Path(__file__).parents[2]
CONFIG = """
imports: [{examples}/custom_task.py, {examples}/custom_reward.py]
model: {{name: tiny}}
tasks: {{dice_sum: {{levels: {{dice: 1}}, config: {{sides: 6}}}}}}
splits: {{num_train_examples: 64, num_eval_examples: 16}}
rewards: {{correctness: 1.0, shows_work: {{weight: 0.2, when: correct, options: {{lines: 3}}}}}}
"""


def test_a_config_imports_tasks_and_rewards(tmp_path: Path) -> None:
    """Then they are checked, drawn and graded by name; without the import they are not known."""
    file = tmp_path / "run.yaml"
    text = CONFIG.format(examples=REPOSITORY / "examples")
    with nothing_left():
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
        assert [reward.name for reward in resolve_rewards(config.reward_specs)] == ["correctness", "shows_work"]


def test_an_import_that_fails_is_told_with_its_place_in_the_config(tmp_path: Path) -> None:
    """The path that was looked at is the one beside the config."""
    file = tmp_path / "run.yaml"
    file.write_text("model: {name: tiny}\nimports: [gone.py]\ntasks: [leg_counting]\n")
    with pytest.raises(ConfigError, match=rf"^imports = .* @ .*run\.yaml:2: imports: .*no file {tmp_path}/gone\.py$"):
        load_train_config(file)


@pytest.mark.slow
@pytest.mark.parametrize(("script", "logged"), [("custom_task.py", "dice_sum"), ("custom_reward.py", "shows_work")])
def test_examples_train(script: str, logged: str, tmp_path: Path) -> None:
    """Two steps, from the repository's root, as their docstrings say."""
    command = [sys.executable, f"examples/{script}", "--steps", "2", "--output-dir", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "run" / "train_results.json").read_text())
    assert (results["steps"], results["model"], results["interrupted"]) == (2, "tiny", False)
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in metrics if "reward" in row]
    assert len(trained) == 2
    assert all(row.get("status/ungradable", 0) == row.get("status/timed_out", 0) == 0 for row in trained)
    if script == "custom_task.py":
        assert results["eval_after"]["tasks"][logged]["n"] == 200
        assert 0 < results["eval_after"]["accuracy"] < 1
    else:
        assert any(row[f"rewards/{logged}/mean"] > 0 for row in trained)
