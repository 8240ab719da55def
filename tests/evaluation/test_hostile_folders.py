"""What happens to an evaluation's files, terminal and options from outside: removed, full, shared, edited, closed."""

import contextlib
import io
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from starlette.responses import JSONResponse

from rg_env.core.processes import entered
from rg_env.core.run_folder import locked
from rg_env.errors import OutputFolderError, install_command
from rg_env.evaluation.config import EvalConfig, eval_config_of
from rg_env.evaluation.results import Results
from rg_env.evaluation.runner import run_evaluation

RgEnv = Callable[..., tuple[int, str, str]]


def _overrides(chat: ChatServer, folder: Path, n: int = 4, name: str = "a") -> list[str]:
    models = json.dumps({name: {"model": "m", "url": chat.url}})
    return [f"models={models}", "tasks=gcd", f"num_examples={n}", f"output.dir={folder}", "requests.tries=1",
            "requests.concurrency=2"]  # fmt: skip


def _config(chat: ChatServer, folder: Path, n: int = 4, name: str = "a") -> EvalConfig:
    return eval_config_of(_overrides(chat, folder, n, name))


def _run(config: EvalConfig, **options: Any) -> Results:
    return run_evaluation(config, **options)[0]


def test_a_folder_that_is_removed_ends_the_evaluation(chat: ChatServer, tmp_path: Path) -> None:
    """It stops at once, because later answers could not be saved."""
    chat.reset(str, lambda number, body: shutil.rmtree(tmp_path / "e") if number == 5 else None)
    with pytest.raises(OutputFolderError, match=r"rollouts\.jsonl was removed during the evaluation: "):
        _run(_config(chat, tmp_path / "e", n=40))
    assert len(chat.requests) < 10


def test_a_folder_that_is_renamed_is_told(chat: ChatServer, tmp_path: Path) -> None:
    """Answers are in the renamed folder, and the evaluation continues there."""
    chat.reset(str, lambda number, body: (tmp_path / "e").rename(tmp_path / "f") and None if number == 1 else None)
    with pytest.raises(OutputFolderError, match=r"cannot write .*/e/results_\S+: No such file"):
        _run(_config(chat, tmp_path / "e"))
    assert _run(_config(chat, tmp_path / "f"), resume=True).models["a"].failed == 0
    assert len(chat.requests) == 4


@pytest.mark.parametrize("existed", [False, True])
def test_a_failed_start_leaves_the_folder_as_it_was(
    chat: ChatServer, existed: bool, tmp_path: Path, rg_env: RgEnv
) -> None:
    """The corrected command can use the same folder. Answers are kept."""
    folder = tmp_path / "new" / "e"
    if existed:
        folder.mkdir(parents=True)
    chat.reset(str)
    overrides = _overrides(chat, folder)
    assert rg_env("eval", *(each.replace(chat.url, "http://127.0.0.1:9/v1") for each in overrides))[0] == 2
    assert [*tmp_path.rglob("*")] == ([folder.parent, folder] if existed else [])
    chat.reset(str, lambda number, body: JSONResponse({"error": {"message": "no"}}, 401))
    assert rg_env("eval", *overrides)[0] == 2
    assert [*tmp_path.rglob("*")] == ([folder.parent, folder] if existed else [])
    chat.reset(str, lambda number, body: JSONResponse({"error": {"message": "no"}}, 401) if number > 2 else None)
    assert rg_env("eval", *overrides)[0] == 2
    assert (folder / "rollouts.jsonl").stat().st_size
    chat.reset(str)
    assert rg_env("eval", *overrides, "--resume")[0] == 0


def test_a_full_disk_is_told_and_the_evaluation_goes_on_later(chat: ChatServer, tmp_path: Path, rg_env: RgEnv) -> None:
    """Only the answer whose line did not fit is requested again."""
    chat.reset(lambda question: "x" * 30_000)
    arguments = ["eval", *_overrides(chat, tmp_path / "e", n=8)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        code, _, error = rg_env(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, error) == (1, f"error: cannot write {tmp_path / 'e' / 'rollouts.jsonl'}: File too large\n")
    assert len(chat.requests) <= 5
    chat.reset(lambda question: "y")
    code, _, error = rg_env(*arguments, "--resume")
    assert (code, error) == (0, "")
    # A request of before may have been on its way still.
    assert len(chat.requests) - 1 <= 8 - 3 <= len(chat.requests)
    lines = (tmp_path / "e" / "rollouts.jsonl").read_text().splitlines()
    assert [len(line) > 30_000 for line in lines] == [True] * 3 + [False] * 5


def test_rollouts_of_other_questions_are_counted_as_such(
    chat: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For example, lines of another version: they are requested again, with a notice."""
    chat.reset(str)
    _run(_config(chat, tmp_path / "e"))
    file = tmp_path / "e" / "rollouts.jsonl"
    file.write_text(file.read_text().replace('"row": "', '"row": "0', 3))
    assert _run(_config(chat, tmp_path / "e"), resume=True).models["a"].failed == 0
    assert "rollouts.jsonl has 3 rollouts for other questions (not counted)" in capsys.readouterr().out
    assert len(chat.requests) == 4 + 3


def test_a_damaged_config_in_the_folder_is_one_line(chat: ChatServer, tmp_path: Path, rg_env: RgEnv) -> None:
    (tmp_path / "config.yaml").write_text("!!python/object:x")
    code, _, error = rg_env("eval", *_overrides(chat, tmp_path), "--resume")
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith(f"error: {tmp_path / 'config.yaml'} is damaged: ")


def test_a_closed_output_loses_no_results(chat: ChatServer, tmp_path: Path) -> None:
    """If the reader closes the pipe during the evaluation, the files are still written, and then it exits as usual."""
    chat.reset(str, lambda number, body: 0.05)
    command = [sys.executable, "-m", "rg_env.cli.main", "eval", *_overrides(chat, tmp_path / "e")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()  # type: ignore[union-attr]
        error = process.stderr.read()  # type: ignore[union-attr]
    assert (process.returncode, error) == (141, "")
    assert len(list((tmp_path / "e").glob("results_*.json"))) == 2
    assert (tmp_path / "e" / "summary.md").exists()


def test_one_evaluation_writes_to_a_folder_at_a_time(chat: ChatServer, tmp_path: Path) -> None:
    """The second one would repeat all missing calls."""
    chat.reset(str)
    _run(_config(chat, tmp_path / "e"))
    with locked(tmp_path / "e", "busy"), pytest.raises(OutputFolderError, match="another evaluation is writing to"):
        _run(_config(chat, tmp_path / "e"), resume=True)
    assert _run(_config(chat, tmp_path / "e"), resume=True).models["a"].failed == 0


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", ["[/b]x", "[red]x[/red]"])
def test_names_are_no_markup(chat: ChatServer, name: str, tmp_path: Path) -> None:
    """On a terminal, with bars."""
    chat.reset(str)
    with contextlib.redirect_stdout(_Terminal()) as terminal:
        _run(_config(chat, tmp_path / "e", name=name))
    assert f"{name} · gcd" in terminal.getvalue()


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("scipy", ["eval", "--tasks", "gcd"], "eval"),
        ("matplotlib", ["probe", "--tasks", "gcd"], "eval"),
        ("lm_eval", ["eval", "--external", "gsm8k_rg"], "eval-external"),
    ],
)
def test_a_missing_package_is_reported_before_any_call(
    chat: ChatServer, package: str, arguments: list[str], extra: str, tmp_path: Path
) -> None:
    """In one line, with the command that installs it."""
    chat.reset(str)
    code = f"import sys; sys.modules['{package}'] = None; from rg_env.cli.main import main; main()"
    command = [sys.executable, "-c", code, *arguments, "--model", f"m@{chat.url}", "--output-dir", str(tmp_path / "e")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n"), chat.requests) == (2, 1, [])
    assert f"{package}" in done.stderr
    assert install_command(extra) in done.stderr
    assert not (tmp_path / "e").exists()


def test_a_probe_that_is_interrupted_says_how_it_goes_on(chat: ChatServer, tmp_path: Path) -> None:
    """With the command that was entered; SIGTERM, which clusters send, ends it as Ctrl-C does."""
    chat.reset(str, lambda number, body: 0.2)
    folder = tmp_path / "a probe"
    command = [str(Path(sys.executable).with_name("rg-env")), "probe", "--model", f"m@{chat.url}", "--tasks", "gcd",
               "--levels", "0", "-n", "40", "-r", "4", "--output-dir", str(folder)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(chat.requests) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    os.kill(process.pid, 15)
    output, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "interrupted\n")
    resume = output.splitlines()[-1].rpartition("resume with ")[2]
    assert shlex.split(resume) == [entered("rg-env"), *command[1:], "--resume"]
