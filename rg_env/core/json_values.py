"""Reading files that may be damaged, or of other versions: what is not there, or not what it should be, is None."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rg_env.errors import InputError

_HUGE = 1e100  # no measure is: and the square of what is below is a number still


def json_values(text: str | bytes) -> Any:
    """JSON, with None for what is no finite number. Raises as `json.loads`."""
    return json.loads(text, parse_constant=lambda _: None, parse_float=_finite)


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in a file; None: damaged.

    Raises:
        InputError: it cannot be read.
    """
    try:
        values = json_values(file.read_bytes())
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def json_lines(file: Path) -> Iterator[dict[str, Any] | None]:
    """The objects in a file, one a line; None: the line is none, or broken off. Blank lines are passed over.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with file.open("rb") as lines:  # bytes: one bad character must not end the reading, and only \n ends a line
            for line in lines:
                if line.strip():
                    try:
                        values = json_values(line)
                    except (ValueError, RecursionError):
                        values = None
                    yield values if isinstance(values, dict) else None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error


def dict_of(value: object) -> dict[str, Any]:
    """`value`; empty if it is no mapping."""
    return value if isinstance(value, dict) else {}


def text_of(value: object) -> str | None:
    return value if isinstance(value, str) else None


def whole_of(value: object) -> int | None:
    """An integer that the page's code can hold, too."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None


def number_of(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _HUGE else None
