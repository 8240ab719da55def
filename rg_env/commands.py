"""What commands and example scripts share: errors as one line, keys from `.env`, quiet libraries."""

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
from rg_env.errors import InputError, MissingExtraError, RGEnvError, StoppedTogether, from_interrupt

_NO_BUG = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""A full disk, a quota, a limit of file sizes, a device that fails."""


def run_command(main: Callable[[], Any]) -> None:
    """Run `main` as a program: its result is the exit code; an `RGEnvError` or Ctrl-C is one line on standard error.

    Where whoever reads standard output goes away (`| head`), the program ends quietly with 141, as if by SIGPIPE. What
    cannot be written (a full disk) is one line and the exit code 1. Keys (`WANDB_API_KEY`, `HF_TOKEN`) are read from
    `.env` in the working folder, where the environment has none.
    """
    try:
        load_keys()
        prepare_process()
        try:
            code = main()
        finally:  # also after --help
            sys.stdout.flush()  # here, where it can be told: at exit it would be a message and the exit code 120
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
            if not (isinstance(error, StoppedTogether) and os.environ.get("RANK", "0") != "0"):  # said once
                print(f"error: {without_controls(str(error))}", file=sys.stderr)  # it may quote what others wrote
            code = error.exit_code
        else:
            raise
    sys.exit(code if isinstance(code, int) else 0)


def say(line: str) -> None:
    """Print a line at once. It may quote what others wrote: what a terminal would obey is shown as its number."""
    print(without_controls(line), flush=True)


@contextmanager
def end_signals_as_ctrl_c() -> Iterator[None]:
    """What clusters, and terminals that are closed, end a job by ends it in good order too: servers are ended, half
    files go, and how to go on is told."""

    def interrupt(number: int, frame: Any) -> None:
        signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)  # type: ignore[misc, operator]

    # A shell's background jobs ignore SIGINT, and asyncio puts its own handler in the place of the default one alone.
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
    """Whether nobody reads standard output any more; what is still to be written there is dropped then."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except OSError:  # no file, but something in its place
        return False
    closed = any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    if closed:
        _drop_output()
    return closed


def _unwritable(error: OSError) -> str | None:
    """What could not be written, in words; empty if that cannot be told, None if `error` is another one."""
    try:
        sys.stdout.flush()  # what could not be written is still to be
    except OSError as again:
        _drop_output()
        if again.errno == error.errno:
            return " standard output"
    if error.errno not in _NO_BUG:
        return None
    return f" {error.filename}" if error.filename else ""


def _drop_output() -> None:
    """What is still to be written on standard output leads nowhere: Python would try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


def seed(text: str) -> int:
    """An argparse type: a seed that every library takes."""
    if not 0 <= int(text) < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not in 0 ... 2^32 - 1")
    return int(text)


def take_overrides_anywhere(parser: argparse.ArgumentParser) -> None:
    """Make `section.key=value` words belong to its positional `overrides` wherever they stand: argparse takes them
    beside the first positional only, and not after options."""
    parse = parser.parse_known_args

    def parse_known_args(*given: Any) -> tuple[argparse.Namespace, list[str]]:
        options, rest = parse(*given)
        options.overrides = [*options.overrides, *(word for word in rest if not word.startswith("-"))]
        return options, [word for word in rest if word.startswith("-")]

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign, assignment]


def require(package: str, extra: str) -> None:
    """Tell how to install `package`, of an extra of ours, where it is missing: before anything is read.

    Raises:
        MissingExtraError: it is.
    """
    if find_spec(package) is None:
        raise MissingExtraError(f"this needs {package}, which is not installed: `pip install 'rg-env[{extra}]'`")


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
    except (OSError, ValueError) as error:  # somebody else's, or no text
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise InputError(
            f".env in this folder cannot be read ({reason}): mend it, or work in another folder"
        ) from error


def prepare_process() -> None:
    """Set what must be set before torch, transformers and verifiers are imported.

    Threads spin shortly while they wait, and libraries keep what they say of themselves out of a program's output.
    Where there is no standard output (`>&-`), one leads nowhere: Python's None would be an error later. Characters that
    its encoding lacks are shown as on standard error, by their numbers.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")
    # OpenMP's threads spin for milliseconds by default, and hold cores that others wait for: beside one busy process a
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
