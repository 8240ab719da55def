"""Shared by commands and example scripts: errors in one line, keys from `.env`, quiet libraries."""

import argparse
import errno
import io
import logging
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rg_env.core.text import without_controls
from rg_env.errors import InputError, MissingExtraError, RGEnvError, StoppedTogether, from_interrupt, how_to_install

_NO_BUG = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""A full disk, a quota, a limit of file sizes, a device that fails."""


def run_command(main: Callable[[], Any]) -> None:
    """Run `main` as a program: its result is the exit code; an `RGEnvError` or Ctrl-C is one line on standard error.

    If the reader of standard output goes away (`| head`), the program ends quietly with 141, as if by SIGPIPE. A failed
    write (a full disk) is one line and exit code 1. Keys (`WANDB_API_KEY`, `HF_TOKEN`) that the environment lacks are
    read from `.env` in the working folder.
    """
    try:
        load_keys()
        prepare_process()
        try:
            code = main()
            _leave_process_group()
        finally:  # also after --help
            sys.stdout.flush()  # an error at exit would be a traceback and exit code 120
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            code = 128 + signal.SIGPIPE
        elif isinstance(error, OSError) and (what := _unwritable(error)) is not None:
            print(f"error: cannot write{what}: {error.strerror}", file=sys.stderr)
            code = 1
        elif from_interrupt(error):
            print("interrupted", file=sys.stderr)
            code = 130
        elif isinstance(error, RGEnvError):
            if not (isinstance(error, StoppedTogether) and os.environ.get("RANK", "0") != "0"):  # one rank reports it
                print(f"error: {without_controls(str(error))}", file=sys.stderr)  # it may quote foreign text
            code = error.exit_code
        else:
            raise
    sys.exit(code if isinstance(code, int) else 0)


def _leave_process_group() -> None:
    """Join the threads of torch's process group, if any: at the interpreter's end they can abort the process."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def say(line: str) -> None:
    """Print a line at once; it may quote foreign text."""
    print(without_controls(line), flush=True)


@contextmanager
def end_signals_as_ctrl_c() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C: servers are stopped, partial files removed, the resume command printed."""

    def interrupt(number: int, frame: Any) -> None:
        signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)  # type: ignore[misc, operator]

    # A shell's background jobs ignore SIGINT, and asyncio replaces only the default handler by its own.
    new: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: interrupt}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        new[signal.SIGHUP] = interrupt
    before = {kind: signal.signal(kind, handler) for kind, handler in new.items()}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _output_is_closed() -> bool:
    """Whether the reader of standard output is gone; unwritten output is dropped then."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except OSError:  # replaced by something that is not a file
        return False
    closed = any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    if closed:
        _drop_output()
    return closed


def _unwritable(error: OSError) -> str | None:
    """What could not be written, for the message; empty if unknown, None if `error` is not a failed write."""
    try:
        sys.stdout.flush()  # fails again if standard output is the cause
    except OSError as again:
        _drop_output()
        if again.errno == error.errno:
            return " standard output"
    if error.errno not in _NO_BUG:
        return None
    return f" {error.filename}" if error.filename else ""


def _drop_output() -> None:
    """Drop unwritten standard output: Python would try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


class Names(argparse.Action):
    """An argparse action for `nargs="+"`: names separated by spaces or commas. Those with "=" stay whole."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        parts = [[text] if "=" in text else text.split(",") for text in values]
        names = [name for part in parts for each in part if (name := each.strip())]
        if not names:
            raise argparse.ArgumentError(self, "expected at least one name")
        setattr(namespace, self.dest, names)


def seed(text: str) -> int:
    """An argparse type: a seed that every library takes."""
    if not 0 <= int(text) < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not in 0 ... 2^32 - 1")
    return int(text)


def take_overrides_anywhere(parser: argparse.ArgumentParser) -> None:
    """Accept `section.key=value` overrides anywhere on the command line: argparse takes them right after the first
    positional only, and not after options."""
    parse = parser.parse_known_args

    def parse_known_args(*given: Any) -> tuple[argparse.Namespace, list[str]]:
        options, rest = parse(*given)
        options.overrides = [*options.overrides, *(word for word in rest if not word.startswith("-"))]
        return options, [word for word in rest if word.startswith("-")]

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign, assignment]


def require(package: str, extra: str) -> None:
    """Check early that `package`, of one of our extras, is installed.

    Raises:
        MissingExtraError: it is not; with the command that installs it.
    """
    if find_spec(package) is None:
        raise MissingExtraError(f"this needs {package}, which is not installed: {how_to_install(extra)}")


def load_keys() -> None:
    """Read `.env` in the working folder into the environment, where it has no such variable yet.

    Raises:
        InputError: it cannot be read.
    """
    try:
        from dotenv import dotenv_values
    except ImportError:  # part of the extras train and eval
        return
    # Not load_dotenv: an empty HF_TOKEN in the environment would hide the one that `hf auth login` stored.
    try:
        for name, value in dotenv_values(".env").items():
            if value:
                os.environ.setdefault(name, value)
    except (OSError, ValueError) as error:  # no permission, or not text
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f".env in this folder cannot be read ({reason}): fix it, or work in another folder") from error


def prepare_process() -> None:
    """Set what must be set before torch, transformers and verifiers are imported.

    Threads spin briefly while they wait, and libraries keep their notices out of a program's output. A closed standard
    output (`>&-`) is replaced by one that drops everything: Python's None would be an error later. Characters that the
    output's encoding lacks are shown as escapes, as on standard error.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")
    # OpenMP's threads spin for milliseconds by default, and hold cores that others wait for: next to one busy process a
    # parallel matrix product was measured at 16 ms, and at 0.3 ms with a short spin.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Its parts, not "verifiers" itself: that one's level is set again whenever verifiers is imported.
    for part in ("envs", "inference", "rubrics", "trainers", "utils"):
        logging.getLogger(f"verifiers.{part}").setLevel(logging.CRITICAL)  # errors are raised, and reported then
    # A filter, not a level: DeepSpeed sets its level when it is imported.
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
