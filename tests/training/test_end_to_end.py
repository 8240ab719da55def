"""Real programs from start to end: Ctrl-C and resuming, and training on own data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked_python import PYTHON
from interrupts import interrupted
from run_metrics import evaluation_of, results_of

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]


@pytest.mark.parametrize("by", ["config", "script"])
def test_ctrl_c_saves_and_ends(tmp_path: Path, by: str) -> None:
    """The run ends within seconds, leaves a loadable checkpoint and the results so far, and prints a command that
    resumes it."""
    from rg_env.training import load_policy

    config = EXAMPLES.parent / "configs" / "train" / "tiny.yaml"
    arguments = ["-m", "rg_env.cli.main", "train", str(config), "training.max_steps=500", "output.dir=run",
                 "splits.num_eval_examples=16"]  # fmt: skip
    if by == "script":
        script = str(EXAMPLES / "train_minimal.py")
        arguments = [script, "--output-dir=run", "--model", "tiny", "--num-eval", "16", "--max-steps", "500"]
    command = [*PYTHON, "-u", *arguments]
    elsewhere = {**os.environ, "PATH": "/usr/bin:/bin"}  # so the shell would not find our programs by name
    printed, _, seconds = interrupted(command, tmp_path, "step   2/", env=elsewhere)
    assert seconds < 5 * max(6.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # more if the machine is busy
    results = results_of(tmp_path / "run")
    assert results["interrupted"]
    assert results["eval_before"]["n"] == 16
    load_policy(str(tmp_path / "run" / f"checkpoint-{results['steps']}"))
    resume = printed.splitlines()[-1].removeprefix("Resume with: ")
    programs = Path(sys.executable).parent
    if by == "config":
        assert resume == f"{programs}/rg-env train run/config.yaml output.dir=run --resume auto"
        command = [*arguments[:3], *resume.split()[2:], "--dry-run"]
    else:
        options = "--output-dir=run --model tiny --num-eval 16 --max-steps 500 --output-dir run --resume auto"
        assert resume == f"{programs}/python {script} {options}"
        command = [*resume.split()[1:], "--max-steps", str(results["steps"])]
    done = subprocess.run([*PYTHON, *command], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def test_own_data_trains(tmp_path: Path) -> None:
    """Accuracy is measured with the gold answers of a local file, and rewards come from the script. Configs with own
    data are trained by tests/evaluation/test_trained.py."""
    question = "State the final answer to the following arithmetic problem: {} + 7 ="
    rows = [{"problem": question.format(i), "answer": i + 7} for i in range(80)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = "--data data.jsonl --question-column problem --max-steps 2 --batch-size 16 --num-eval 16 --model tiny"
    words = [str(EXAMPLES / "train_minimal.py"), *options.split(), "--output-dir", "run"]
    done = subprocess.run([*PYTHON, *words], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    results = results_of(tmp_path / "run")
    assert (results["steps"], results["eval_after"]["n"]) == (2, 16)
    rollouts = evaluation_of(tmp_path / "run", 2)["rollouts"]
    sampled = [each for each in rollouts if each["draw"] == "sampled"]
    assert len(sampled) == 16
    for rollout in rollouts:
        once = rollout["completion"].count("<answer>") == 1
        assert rollout["reward"] == pytest.approx(1.0 * rollout["correct"] + 0.1 * once)
    assert results["eval_after"]["accuracy"] == sum(each["correct"] for each in sampled) / 16
