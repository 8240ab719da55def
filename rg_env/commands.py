"""Helpers for commands and example scripts: one-line errors, API keys from `.env`, and quiet libraries."""

import argparse
import atexit
import contextlib
import difflib
import errno
import gc
import io
import logging
import os
import re
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from rg_env.core.files import FULL, regular
from rg_env.core.processes import stop_signals
from rg_env.core.text import listed, one_line, without_controls, wrapped
from rg_env.errors import InputError, MissingExtraError, RGEnvError, StoppedTogether, from_interrupt, how_to_install

_UNUSABLE = (errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)
"""System errors about a path. Even a check whether the file exists raises them."""
_MAY_BE_IN_FILE = re.compile(
    r"[A-Za-z]\w*_(KEY|TOKEN)|WANDB_(PROJECT|ENTITY|NAME|MODE|TAGS|NOTES|RUN_GROUP|JOB_TYPE)|TRACKIO_PROJECT"
)
"""Pattern for the names of variables that are read from `.env`: keys, and what a tracker shows about a run. Endpoints
and folders are not included."""


def run_command(main: Callable[[], Any]) -> None:
    """Run `main` as a program and exit with the code it returns. On an `RGEnvError` or Ctrl-C, print a message to
    stderr without a traceback.

    If a write fails (for example, because the disk is full), the program prints one line and exits with code 1. If the
    reader of standard output closed the pipe (`| head`), it exits with code 1 and prints nothing. Environment variables
    that are not set (such as `WANDB_API_KEY`) are read from `.env` in the working directory.
    """
    try:
        load_keys()
        prepare_process()
        try:
            code = main()
        finally:  # also flush when argparse exits after --help
            sys.stdout.flush()  # a failure at interpreter exit would print a traceback and exit with code 120
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, OSError) and (write := _failed_write(error)) is not None:
            code, message = 1, write
        elif from_interrupt(error):
            code, message = 130, "interrupted"
        elif isinstance(error, OSError) and error.errno in _UNUSABLE and error.filename:
            code, message = 2, f"error: cannot open {one_line(error.filename)}: {error.strerror}"
        elif isinstance(error, RGEnvError):
            code, message = error.exit_code, f"error: {without_controls(str(error))}"  # may quote untrusted text
            # Only one rank reports the error.
            if isinstance(error, StoppedTogether) and os.environ.get("RANK", "0") != "0":
                message = ""
        else:
            raise
        if message:
            print(message, file=sys.stderr)
    code = code if isinstance(code, int) else 0
    _exit_from_process_group(code)
    sys.exit(code)


def _exit_from_process_group(code: int) -> None:
    """With several processes, exit without finalizing the interpreter, because gloo's threads could abort the process.

    A gloo thread may need the interpreter lock to release a Python tensor from the last collective operation. During
    finalization, Python ends threads that acquire the interpreter lock, and C++ then calls `std::terminate`. Destroying
    the process group would join the threads, but DistributedDataParallel keeps a reference to the group.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if code == 0:  # after an error, the other processes may no longer respond
        distributed.destroy_process_group()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def say(line: str) -> None:
    """Print and flush a line without control characters, because the line may quote untrusted text."""
    print(without_controls(line), flush=True)


def print_plan(*texts: str) -> None:
    """Print a config in YAML and comments, which are wrapped on a terminal."""
    lines = "\n".join(texts).split("\n")
    print("\n".join(wrapped(line) if line.startswith("#") else line for line in lines), flush=True)


@contextlib.contextmanager
def end_signals_as_ctrl_c() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that servers are stopped, partial files are removed and the resume
    command is printed."""

    def interrupt(number: int, frame: Any) -> None:
        signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)  # type: ignore[misc, operator]

    with stop_signals(interrupt):
        # A shell's background jobs ignore SIGINT, and asyncio replaces only the default handler.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield


def _failed_write(error: OSError) -> str | None:
    """Return the message for `error` if it was caused by a failed write rather than a bug (empty if the reader of
    standard output closed the pipe), otherwise None."""
    is_closed = False
    with contextlib.suppress(OSError):  # sys.stdout may have been replaced with an object that is not a file
        (poll := select.poll()).register(sys.stdout.fileno(), 0)
        is_closed = isinstance(error, BrokenPipeError) and bool(poll.poll(0))
    if not is_closed and error.errno not in FULL:
        return None
    try:
        sys.stdout.flush()  # fails again if standard output caused the error
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would retry the write at exit
    where = f" {error.filename}" if error.filename else ""
    return "" if is_closed else f"error: cannot write{where}: {error.strerror}"


def positive(text: str) -> int:
    """Parse an integer of at least 1 (an argparse type)."""
    if _whole(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


class OptionParser(argparse.ArgumentParser):
    """An argparse parser that does not accept abbreviated options, reports errors on one line, and suggests the right
    name for an unknown option. The description is shown as it is written."""

    def __init__(self, *given: Any, **options: Any):
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(*given, **{"allow_abbrev": False, "formatter_class": raw, **options})
        self.advice = f"`{self.prog} --help` lists the options"
        self.hints: dict[str, str] = {}
        """Hints for options of other commands, which no option of this one resembles."""
        self._arguments: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._arguments = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise an error about a misnamed option if there is one, because argparse may report only that a required
        option is missing. Otherwise, raise argparse's error as one line."""
        for argument in self._arguments:
            if argument.startswith("--") and argument.partition("=")[0] not in self._option_string_actions:
                raise self.unknown(argument)
        if match := re.match(r"argument (?:-\w/)?(--[\w-]+)\S*: (expected|ignored) .*argument", message):
            action = self._option_string_actions[match[1]]
            value = (
                f"needs a value: {match[1]} {action.metavar or action.dest.upper()}"
                if match[2] == "expected"
                else "takes no value"
            )
            message = f"{match[1]} {value}"
        raise InputError(f"{self.prog}: {message}; see `{self.prog} --help`")

    def unknown(self, argument: str) -> InputError:
        """Return the error for an unknown argument."""
        flag, _, value = argument.partition("=")
        if not flag.startswith("-"):
            return InputError(f"{self.prog}: unexpected argument {argument!r}; see `{self.prog} --help`")
        return InputError(f"{self.prog} has no option {flag!r}: {self.hint(flag, value)}")

    def hint(self, flag: str, value: str) -> str:
        """Return a hint on what to write instead of an unknown option."""
        return self.hints.get(flag) or self.similar(flag) or self.advice

    def similar(self, flag: str) -> str:
        """Return a question that suggests the most similar option, or "" if no option is similar."""
        near = difflib.get_close_matches(flag.replace("_", "-"), self._option_string_actions, n=1, cutoff=0.8)
        return f"did you mean {near[0]}?" if near else ""


class Names(argparse.Action):
    """An argparse action for `nargs="+"` that accepts names separated by spaces or commas. Arguments with "=" are not
    split."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        parts = [[text] if "=" in text else text.split(",") for text in values]
        names = [name for part in parts for each in part if (name := each.strip())]
        if not names:
            raise argparse.ArgumentError(self, "expected at least one name")
        setattr(namespace, self.dest, names)


def option(text: str) -> tuple[str, Any]:
    """Parse "name=value", with a YAML value (an argparse type)."""
    from rg_env.core.config.yaml12 import load_word

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    return name, load_word(value)


def seed(text: str) -> int:
    """Parse a seed in the range that all libraries accept (an argparse type)."""
    if not 0 <= _whole(text) < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 2^32 - 1")
    return int(text)


def require(*packages: str, extra: str) -> None:
    """Check early that `packages` (installed by the extra `extra`) are available.

    Raises:
        MissingExtraError: a package is not installed. The message contains the install command.
    """
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(f"{package} is required but not installed: {how_to_install(extra)}")


def load_keys() -> None:
    """Load the keys in `.env` in the working directory into the environment. Existing variables take precedence. Other
    variables are ignored, with a line on standard error that names them.

    Raises:
        InputError: `.env` cannot be read.
    """
    try:
        from dotenv import dotenv_values
    except ImportError:  # dotenv is part of the train and eval extras
        return
    # `load_dotenv` is not used, because an empty HF_TOKEN in the environment would hide the token stored by `hf auth
    # login`. The folder may have been downloaded, so a `${NAME}` is not replaced by the value of another key.
    try:
        found = {} if Path(".env").is_char_device() else dotenv_values(regular(".env"), interpolate=False)
        values = {name: value for name, value in found.items() if value}
        for name in filter(_MAY_BE_IN_FILE.fullmatch, values):
            os.environ.setdefault(name, values[name])
    except (OSError, ValueError) as error:  # the file is not readable, or is not text
        reason = error.strerror if isinstance(error, OSError) else "not plain text"
        raise InputError(
            f"cannot read .env in this folder ({reason}): fix the file, or run in another folder"
        ) from error
    # Others could run code (PYTHONPATH) or send keys elsewhere (HF_ENDPOINT), and the folder may have been downloaded.
    others = [one_line(name, 40) for name in values if not _MAY_BE_IN_FILE.fullmatch(name) and name not in os.environ]
    if others and os.environ.get("RANK", "0") == "0":
        print(
            f"note: {listed(others, 5)} in .env: ignored, because only keys (*_KEY, *_TOKEN, some WANDB_*) are read "
            "from this file; set other variables in the shell",
            file=sys.stderr,
        )


def prepare_process() -> None:
    """Set up the process before torch, transformers and verifiers are imported.

    Make OpenMP threads spin only briefly, and silence library messages. If standard output is closed (`>&-`), replace
    it with the null device, because Python sets `sys.stdout` to None and any later use would fail. Print characters
    outside the output's encoding as escapes, as on standard error.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited; the exit codes of child processes would be lost
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # OpenMP threads spin for milliseconds by default and occupy cores that other processes need. While another
    # process was busy, a parallel matrix product took 16 ms with the default, and 0.3 ms with a short spin.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Set the levels of child loggers, because importing verifiers resets the level of the "verifiers" logger.
    for part in ("envs", "inference", "rubrics", "trainers", "utils"):
        logging.getLogger(f"verifiers.{part}").setLevel(logging.CRITICAL)  # rg_env raises and reports errors itself
    # Use a filter, because importing DeepSpeed resets its logger's level.
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Collect garbage less often, because importing torch and transformers allocates a million objects that stay. The
    # interpreter's last collections would also visit them, which takes 2 to 3 CPU seconds.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
