"""Tests of behavior that all programs share: one-line errors, exit codes, keys from `.env`."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from run_code import run_code

from rg_env.commands import load_keys, run_command
from rg_env.errors import InputError, RGEnvError

FULL = Path("/dev/full")
PRINTS = ["print('x')", "print('x' * 100_000)", "print('x') or exit(0)"]


def fail(error: BaseException) -> None:
    raise error


def program_of(main: str) -> str:
    return f"import os, sys\nfrom rg_env.commands import run_command\nrun_command(lambda: {main})"


def run_program(
    main: str, environment: dict[str, str], stdout: Any = subprocess.PIPE, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program with this `main` to completion, with the given environment variables and without keys."""
    left_out = {"PYTHONIOENCODING", "WANDB_API_KEY", "HF_TOKEN"}
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    command, variables = [sys.executable, "-c", program_of(main)], {**inherited, **environment}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=variables, cwd=cwd)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("no such thing: use another"), 2, "error: no such thing: use another\n"),
        (RGEnvError("a check failed"), 1, "error: a check failed\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_errors_become_one_line(error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The line is printed to stderr without a traceback, and the exit code is the error's."""
    with pytest.raises(SystemExit) as caught:
        run_command(lambda: fail(error))
    assert caught.value.code == code
    assert capsys.readouterr().err == line


def test_a_program_runs_without_standard_output(tmp_path: Path) -> None:
    """Python sets `sys.stdout` to None if standard output is closed."""
    shell = 'exec "$0" -c "$1" <&- >&- 2>&-'
    command = ["sh", "-c", shell, sys.executable, program_of("3 + sys.stdout.isatty()")]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 3


def test_an_interrupt_hidden_by_another_error_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """If a library raises another error while it cleans up after Ctrl-C, the program still reports the interrupt."""

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


def test_an_interrupt_while_keys_are_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C before the program's own work starts also prints one line."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dotenv.dotenv_values", interrupted)
    with pytest.raises(SystemExit) as caught:
        run_command(lambda: 0)
    assert caught.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("shown", PRINTS)
def test_output_that_cannot_be_written_is_no_traceback(shown: str, unbuffered: str) -> None:
    """With a closed pipe (`| head`), a program prints nothing, and on a full disk one line."""
    read, closed = os.pipe()
    os.close(read)
    environment = {"PYTHONUNBUFFERED": unbuffered}
    done = run_program(shown, environment, stdout=closed)
    os.close(closed)
    assert (done.returncode, done.stderr) == (1, "")
    if FULL.exists():  # a device that is always full
        with FULL.open("w") as full:
            done = run_program(shown, environment, stdout=full)
        assert (done.returncode, done.stderr) == (1, "error: cannot write: No space left on device\n")


def test_a_file_on_a_full_disk_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_command(lambda: fail(OSError(errno.ENOSPC, "No space left on device", "run/metrics.jsonl")))
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: cannot write run/metrics.jsonl: No space left on device\n"


@pytest.mark.parametrize("error", [ZeroDivisionError(), BrokenPipeError(), FileNotFoundError(errno.ENOENT, "No", "x")])
def test_other_errors_keep_their_traceback(error: Exception) -> None:
    """They may be bugs. A broken pipe to a worker or server is not mistaken for closed output."""
    with pytest.raises(type(error)):
        run_command(lambda: fail(error))


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1:strict"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=lambda given: next(iter(given.values())),
)
def test_characters_outside_the_encoding_are_escaped(environment: dict[str, str]) -> None:
    done = run_program("print('\\u2713 \\u221a2')", environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u2713 \\u221a2\n", "")


def test_keys_come_from_dotenv(tmp_path: Path) -> None:
    """The file is in the working directory. Existing variables take precedence, and empty values set nothing."""
    (tmp_path / ".env").write_text("WANDB_API_KEY=from-file\nHF_TOKEN=\nRG_ENV_TEST_KEY=file\n")
    names = "WANDB_API_KEY", "HF_TOKEN", "RG_ENV_TEST_KEY"
    done = run_program(f"print(*map(os.environ.get, {names}))", {"RG_ENV_TEST_KEY": "environment"}, cwd=tmp_path)
    assert done.stdout == "from-file None environment\n"


def test_an_unreadable_env_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"RG_ENV_TEST_KEY=\xff\xfe")
    done = run_program("0", {}, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot read .env in this folder (not plain text): fix the file, or run in ")


def test_errors_are_printed_without_control_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """Errors may quote text from a model, a server or a file. Line breaks and letters of all languages are kept."""
    with pytest.raises(SystemExit):
        run_command(lambda: fail(InputError("2 mistakes\n  'größe 語'\x1b[31m\r\x9b\u202e\ud800\u2028")))
    assert capsys.readouterr().err == "error: 2 mistakes\n  'größe 語'\\x1b[31m\\r\\x9b\\u202e\\ud800\\u2028\n"


GROUP = """
import atexit, os, tempfile, torch
from rg_env.commands import run_command
from rg_env.errors import InputError


class Last:
    def __del__(self, write=os.write):
        write(1, b"finalized ")


last = Last()


def main():
    torch.distributed.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
    atexit.register(print, "at exit", end=" ")
    return END


run_command(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"), [("3", 3), ("(_ for _ in ()).throw(InputError('bad'))", 2)], ids=["code", "error"]
)
def test_a_process_of_a_group_does_not_finalize_the_interpreter(end: str, code: int) -> None:
    """gloo's threads could abort the process during finalization. Registered exit handlers still run."""
    done = run_code(GROUP.replace("END", end), check=False)
    assert (done.returncode, done.stdout) == (code, "at exit "), done.stderr
    assert done.stderr == ("error: bad\n" if code == 2 else "")


def test_only_keys_are_read_from_the_folders_file(tmp_path: Path) -> None:
    """A downloaded folder's `.env` can neither run code nor send keys elsewhere, and what is ignored is named."""
    refused = [
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH_", "HF_ENDPOINT"),
        *("HTTPS_PROXY", "https_proxy", "OPENAI_BASE_URL", "WANDB_BASE_URL", "WANDB_DIR", "WANDB__EXECUTABLE"),
        *("TRACKIO_SPACE_ID", "TRACKIO_DIR", "HF_HOME", "RG_ENV_CACHE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"),
    ]
    accepted = ["OPENAI_API_KEY", "MY_KEY", "HF_TOKEN", "WANDB_API_KEY", "WANDB_PROJECT", "WANDB_MODE"]
    (tmp_path / ".env").write_text("".join(f"{name}=from-file\n" for name in [*refused, *accepted]))
    without = {name: value for name, value in os.environ.items() if name not in {*refused, *accepted}}
    main = "print(*sorted(name for name in os.environ if os.environ[name] == 'from-file'))"
    command = [sys.executable, "-P", "-c", program_of(main)]
    done = subprocess.run(command, capture_output=True, text=True, env=without, cwd=tmp_path, check=True)
    assert done.stdout.split() == sorted(accepted)
    assert done.stderr.startswith(
        "note: PYTHONPATH, PYTHONHOME, PYTHONSTARTUP, LD_PRELOAD, LD_LIBRARY_PATH and 14 more"
    )
    assert done.stderr.count("\n") == 1


def test_a_strangers_dotenv_reads_no_other_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither copies another variable, nor ends the program with a traceback, nor is read without an end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RG_ENV_TEST_OTHER", "secret")
    monkeypatch.delenv("RG_ENV_TEST_KEY", raising=False)
    file = tmp_path / ".env"
    try:
        file.write_text("RG_ENV_TEST_KEY=${RG_ENV_TEST_OTHER}\n")
        load_keys()
        assert os.environ["RG_ENV_TEST_KEY"] == "${RG_ENV_TEST_OTHER}"
        del os.environ["RG_ENV_TEST_KEY"]
        file.write_bytes(b"RG_ENV_TEST_KEY=a\0b\n")
        with pytest.raises(InputError, match=r"^cannot read .env in this folder \(not plain text\): fix"):
            load_keys()
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(InputError, match=r"^cannot read .env in this folder \(it is not a regular file\): fix"):
            load_keys()
        file.unlink()
        file.symlink_to("/dev/zero")
        load_keys()
    finally:
        os.environ.pop("RG_ENV_TEST_KEY", None)
