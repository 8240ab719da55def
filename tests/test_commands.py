"""What programs share: errors as one line, exit codes, keys from `.env`."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rg_env.commands import load_keys, run_command
from rg_env.errors import InputError, RGEnvError

FULL = Path("/dev/full")


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("no such thing: use another"), 2, "error: no such thing: use another\n"),
        (RGEnvError("a check failed"), 1, "error: a check failed\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_errors_become_one_line(error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, with the error's exit code and no traceback."""
    with pytest.raises(SystemExit) as caught:
        run_command(lambda: fail(error))
    assert caught.value.code == code
    assert capsys.readouterr().err == line


def test_without_standard_output_a_program_runs_all_the_same(tmp_path: Path) -> None:
    """Python has None for it, then."""
    code = "import sys; from rg_env.commands import run_command; run_command(lambda: 3 + sys.stdout.isatty())"
    shell = 'exec "$0" -c "$1" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", shell, sys.executable, code], cwd=tmp_path, check=False).returncode == 3


def test_an_interrupt_behind_another_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A library that raises while it cleans up after Ctrl-C does not hide it; nor does an error made of that."""

    def clean_up() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise TimeoutError

    def wrapped() -> None:
        try:
            clean_up()
        except TimeoutError as error:
            raise InputError("cannot read") from error

    for main in (clean_up, wrapped):
        with pytest.raises(SystemExit) as caught:
            run_command(main)
        assert caught.value.code == 130
        assert capsys.readouterr().err == "interrupted\n"


def test_an_interrupt_before_the_program_has_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While keys are read, which imports a library, it is one line, too."""
    monkeypatch.setattr("rg_env.commands.load_keys", lambda: fail(KeyboardInterrupt()))
    with pytest.raises(SystemExit) as caught:
        run_command(lambda: 0)
    assert caught.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_bugs_keep_their_traceback() -> None:
    """What is no error of the user's is not hidden."""
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: 1 / 0)


def run_with(program: str, stdout: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python program with that standard output, and variables besides those of the environment."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONIOENCODING"}
    command, variables = [sys.executable, "-c", program], {**inherited, **environment}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=variables)


def run_unread(program: str, unbuffered: str) -> tuple[int, str]:
    """Exit code and errors of a Python program whose standard output nobody reads."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = run_with(program, stdout=write, PYTHONUNBUFFERED=unbuffered)
    finally:
        os.close(write)
    return done.returncode, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "shown", ["print('x')", "print('x', flush=True)", "print('x' * 100_000)", "print('x') or exit(0)"]
)
def test_output_that_nobody_reads_ends_a_program_quietly(shown: str, unbuffered: str) -> None:
    """As after `| head`: the exit code that SIGPIPE would give, and no traceback, however much is printed and when."""
    program = f"from rg_env.commands import run_command\nrun_command(lambda: {shown})"
    assert run_unread(program, unbuffered) == (141, "")


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "shown", ["print('x')", "print('x', flush=True)", "print('x' * 100_000)", "print('x') or exit(0)"]
)
def test_output_that_cannot_be_written_is_one_line(shown: str, unbuffered: str) -> None:
    """As on a full disk: no traceback, however much is printed and when."""
    program = f"from rg_env.commands import run_command\nrun_command(lambda: {shown})"
    with FULL.open("w") as full:
        done = run_with(program, stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write")
    assert done.stderr.endswith(": No space left on device\n")
    assert done.stderr.count("\n") == 1


def test_output_that_is_for_reading_only_is_one_line() -> None:
    """Whatever the reason is that it cannot be written."""
    program = "from rg_env.commands import run_command\nrun_command(lambda: print('x'))"
    with open(os.devnull) as source:
        done = run_with(program, stdout=source, PYTHONUNBUFFERED="")
    assert (done.returncode, done.stderr) == (1, "error: cannot write standard output: Bad file descriptor\n")


def test_a_file_on_a_full_disk_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Other errors of the system stay what they are: they may be bugs."""
    with pytest.raises(SystemExit) as caught:
        run_command(lambda: fail(OSError(errno.ENOSPC, "No space left on device", "run/metrics.jsonl")))
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: cannot write run/metrics.jsonl: No space left on device\n"
    with pytest.raises(FileNotFoundError):
        run_command(lambda: fail(FileNotFoundError(errno.ENOENT, "No such file or directory", "x")))


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1:strict"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=lambda given: next(iter(given.values())),
)
def test_characters_that_the_output_lacks_are_shown_by_number(environment: dict[str, str]) -> None:
    program = "from rg_env.commands import run_command\nrun_command(lambda: print('\\u2713 \\u221a2'))"
    done = run_with(program, stdout=subprocess.PIPE, **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u2713 \\u221a2\n", "")


def test_another_broken_pipe_is_an_error() -> None:
    """A worker or a server that is gone is not taken for closed output."""
    with pytest.raises(BrokenPipeError):
        run_command(lambda: fail(BrokenPipeError()))


def test_keys_come_from_dotenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the working folder; what the environment has already wins, and empty lines set nothing."""
    (tmp_path / ".env").write_text("WANDB_API_KEY=from-file\nHF_TOKEN=\nRG_ENV_TEST_KEY=file\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RG_ENV_TEST_KEY", "environment")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    load_keys()
    assert os.environ["WANDB_API_KEY"] == "from-file"
    assert os.environ["RG_ENV_TEST_KEY"] == "environment"
    assert "HF_TOKEN" not in os.environ
    monkeypatch.delenv("WANDB_API_KEY")


@pytest.mark.parametrize("content", [b"RG_ENV_TEST_KEY=\xff\xfe", b"RG_ENV_TEST_KEY=a\x00b"])
def test_an_env_file_that_is_no_text_is_told(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".env").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run_command(lambda: 0)
    assert caught.value.code == 2
    told = "error: cannot read .env in this folder (it is not UTF-8 text): fix it, or run in another folder\n"
    assert capsys.readouterr().err == told


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_somebody_elses_env_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".env").touch(mode=0)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run_command(lambda: 0)
    assert caught.value.code == 2
    assert "cannot read .env in this folder (Permission denied): " in capsys.readouterr().err


def test_errors_are_shown_without_codes_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """They may quote what a model, a server or a file says; lines, and letters of all languages, stay as they are."""
    with pytest.raises(SystemExit):
        run_command(lambda: fail(InputError("2 mistakes\n  'größe 語'\x1b[31m\r\x9b\u202e\ud800\u2028")))
    told = "error: 2 mistakes\n  'größe 語'\\x1b[31m\\r\\x9b\\u202e\\ud800\\u2028\n"
    assert capsys.readouterr().err == told
