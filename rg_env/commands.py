"""What commands and example scripts share: errors as one line, keys from `.env`, quiet libraries."""

import argparse
import logging
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

from rg_env.errors import RGEnvError, StoppedTogether, from_interrupt


def run_command(main: Callable[[], Any]) -> None:
    """Run `main` as a program: its result is the exit code; an `RGEnvError` or Ctrl-C is one line on standard error.

    Where whoever reads standard output goes away (`| head`), the program ends quietly with 141, as if by SIGPIPE.
    Keys (`WANDB_API_KEY`, `HF_TOKEN`) are read from `.env` in the working folder, where the environment has none.
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
        elif from_interrupt(error):
            print("interrupted", file=sys.stderr)
            code = 130
        elif isinstance(error, RGEnvError):
            if not (isinstance(error, StoppedTogether) and os.environ.get("RANK", "0") != "0"):  # said once
                print(f"error: {error}", file=sys.stderr)
            code = error.exit_code
        else:
            raise
    sys.exit(code if isinstance(code, int) else 0)


def _output_is_closed() -> bool:
    """Whether nobody reads standard output any more; what is still to be written there is dropped then."""
    poll = select.poll()
    try:
        poll.register(descriptor := sys.stdout.fileno(), 0)
    except OSError:  # no file, but something in its place
        return False
    closed = any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return closed


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


def load_keys() -> None:
    """Read `.env` in the working folder into the environment, where it has no such variable yet."""
    try:
        from dotenv import dotenv_values
    except ImportError:  # only part of the train extra
        return
    # Not load_dotenv: an empty HF_TOKEN in the environment would hide the one that `hf auth login` stored.
    for name, value in dotenv_values(".env").items():
        if value:
            os.environ.setdefault(name, value)


def prepare_process() -> None:
    """Set what must be set before torch, transformers and verifiers are imported.

    Threads spin shortly while they wait, and libraries keep what they say of themselves out of a program's output.
    Where there is no standard output (`>&-`), one leads nowhere: Python's None would be an error later.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
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
