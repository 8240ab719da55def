"""The processes that train together, by what their launcher has set. Imports no torch."""

import os

from rg_env.errors import InputError

_LEAST = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": -1}
"""What accelerate reads, too: there something else than a number would be a traceback."""


def world_size() -> int:
    """How many there are; 1 without a launcher.

    Raises:
        InputError: what a launcher sets is no number.
    """
    return {name: _number(name, least) for name, least in _LEAST.items()}["WORLD_SIZE"]


def say(line: str) -> None:
    """Print a line that all of them would say, once."""
    if os.environ.get("RANK", "0") == "0":
        print(line, flush=True)


def _number(name: str, least: int) -> int:
    text = os.environ.get(name, str(least))
    try:
        if (number := int(text)) >= least:
            return number
    except ValueError:
        pass
    raise InputError(f"the environment has {name}={text!r}: a whole number from {least} up, or unset it")
