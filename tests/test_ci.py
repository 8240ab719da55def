"""Tests of `.ci/run` as a process, in a copy of the checkout with stand-ins for the tools."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
RESULTS = {
    "steps": 25,
    "seconds": 47.2,
    "eval_before": {"accuracy": 0.31, "greedy_accuracy": 0.33, "n": 200},
    "eval_after": {"accuracy": 0.85, "greedy_accuracy": 0.91, "n": 200},
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a checkout whose README's test command passes and writes the results of one run."""
    shutil.copytree(REPOSITORY / ".ci", tmp_path / ".ci")
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name in ("ruff", "mypy"):
        put_tool(tools / name)
    for name in ("chromium", "chromedriver"):
        put_tool(tmp_path / "system" / name)
    (tools / "python").symlink_to(sys.executable)
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.25}\n{"step": 2, "reward": 0.5}\n')
    set_test_command(
        tmp_path,
        'mkdir "$RG_ENV_KEEP_RUNS/seed-0"\n'
        'cp metrics.jsonl "$RG_ENV_KEEP_RUNS/seed-0"\n'
        'cp results.json "$RG_ENV_KEEP_RUNS/seed-0/train_results.json"\n'
        "echo '== 12 passed in 3.4s =='",
    )
    return tmp_path


def put_tool(path: Path, script: str = "exit 0") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def set_test_command(checkout: Path, command: str) -> None:
    other = "```bash\nexit 9\n```\n"
    text = f"{other}<!-- tests -->\n```bash\n{command}\n```\n{other}"
    for name, passed, seconds in (("slow", 6, 7), ("matrix", 7, 8), ("stack", 5, 9)):
        block = f"touch {name} && echo '== {passed} passed in {seconds}.0s =='"
        text += f"<!-- {name}-tests -->\n```bash\n{block}\n```\n"
    (checkout / "README.md").write_text(text)


def ci(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Run `.ci/run` with an almost empty environment: no HOME, no terminal."""
    environment = {"PATH": f"{checkout / 'system'}:/usr/bin:/bin"}
    options: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 200}
    return subprocess.run([checkout / ".ci" / "run"], env=environment, cwd="/", **options)


def test_green_run_ends_with_the_curve_and_pytests_closing_line(checkout: Path) -> None:
    done = ci(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy         0.310 -> 0.850" in done.stdout
    assert "reward by step   0.25 0.50" in done.stdout
    assert done.stdout.splitlines()[-2] == "pytest: " + "|".join(
        f"== {passed} passed in {seconds}s ==" for passed, seconds in ((12, 3.4), (6, 7.0), (7, 8.0), (5, 9.0))
    )
    assert all((checkout / block).exists() for block in ("slow", "matrix", "stack"))


def test_failing_tests_fail_ci_and_the_linters_still_run(checkout: Path) -> None:
    set_test_command(checkout, "echo '== 1 failed, 11 passed in 3.4s =='\nfalse\necho unreachable")
    done = ci(checkout)
    assert done.returncode == 1
    assert "\nunreachable" not in done.stdout.partition("== readme_block")[2]
    assert "== .venv/bin/mypy" in done.stdout


def test_a_failing_linter_fails_ci(checkout: Path) -> None:
    put_tool(checkout / ".venv" / "bin" / "mypy", "exit 1")
    assert ci(checkout).returncode == 1


def test_a_missing_learning_curve_fails_ci(checkout: Path) -> None:
    set_test_command(checkout, "echo '== 12 passed in 3.4s =='")
    done = ci(checkout)
    assert done.returncode == 1
    assert "did the end-to-end test run?" in done.stderr


def test_a_readme_without_a_test_command_is_reported(checkout: Path) -> None:
    (checkout / "README.md").write_text("no block here\n")
    done = ci(checkout)
    assert done.returncode == 2
    assert "no fenced block" in done.stderr
