"""The `rg-env` command, as a user's shell sees it."""

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from rg_env.training.tiny import POLICY_DIR

COMMAND = [sys.executable, "-m", "rg_env.cli"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60)


def test_tasks_lists_all_and_shows_one() -> None:
    """By category; with options and defaults."""
    listing = run("tasks")
    assert listing.returncode == 0
    assert "arithmetic: " in listing.stdout
    assert len(listing.stdout.replace(":", ",").split(", ")) > 105
    one = run("tasks", "leg_counting")
    assert "max_animals: 10" in one.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tasks", "leg_countin"], "unknown task 'leg_countin': did you mean 'leg_counting'"),
        (["serve", "--model", "/nowhere/at/all", "--port", "0"], "cannot load the model '/nowhere/at/all'"),
        (["serve", "--model", "tiny", "--port", "70000"], "port 70000 does not exist"),
        (["tasks", "fizzbuzz"], "Reasoning Gym never had it"),
        (["nonsense"], "invalid choice"),
        ([], "required"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    """No traceback."""
    result = run(*arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    """With what to do."""
    for file in POLICY_DIR.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    result = run("serve", "--model", str(tmp_path), "--port", "0")
    assert result.returncode == 2
    assert "has no chat template" in result.stderr


def test_serve_answers_and_ends_on_ctrl_c() -> None:
    """The line it prints tells where; Ctrl-C ends it without a traceback."""
    server = subprocess.Popen(
        [*COMMAND, "serve", "--model", "tiny", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout
        line = server.stdout.readline()
        url = line.split(" at ")[1].split()[0]
        with urllib.request.urlopen(url.removesuffix("/v1") + "/health", timeout=10) as answer:
            assert answer.status == 200
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=10)
    finally:
        server.kill()
        server.wait()
    assert "Traceback" not in errors
    assert server.returncode in (0, 130)
