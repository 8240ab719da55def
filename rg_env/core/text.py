"""Human-readable text: one-line errors, untrusted text made safe for terminals, and short forms of values and names.

    raise InputError(f"cannot load {name}: {reason_of(error)}")       # another library's error on one line
    print(without_controls(completion))                               # control characters as escapes

This module also checks user-supplied values.
"""

import functools
import inspect
import json
import os
import re
import shutil
import sys
import traceback
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from textwrap import fill
from typing import Any, TypeGuard

from rg_env.errors import RGEnvError, nearest

_UNSAFE = re.compile("weights_only|trust_remote_code|safe_globals|trusted source|you trust")
_JOINERS = "\u200c\u200d"  # joiners in Indic and Persian scripts and in emoji, which neither reorder nor hide text


def similar_file(missing: Path) -> str:
    """Return a question that suggests files with similar names from the missing file's folder, or "" if no
    name is similar. If the folder does not exist, return a text that reports it."""
    folder = missing.parent
    if not folder.is_dir():
        return f"the folder {one_line(folder)} does not exist"
    names = [file.name for file in folder.iterdir() if file.is_file()]
    found = " or ".join(one_line(folder / name) for name in nearest(missing.name, names))
    return found and f"did you mean {found}?"


# Untrusted text


def one_line(what: object, most: int = 200) -> str:
    """Make untrusted text safe for a terminal or a log: one line of printable characters, cut to `most` characters plus
    "..."."""
    text = " ".join("".join(each if each.isprintable() else " " for each in str(what)).split())
    return text if len(text) <= most else f"{text[:most]}..."


def without_controls(text: str) -> str:
    """Return `text` with control characters, and characters that hide or reorder text, replaced by escapes ("\\x1b").

    Line breaks and tabs are kept.
    """
    kinds = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return "".join(
        each.encode("unicode_escape").decode()
        if each not in "\n\t" and each not in _JOINERS and unicodedata.category(each) in kinds
        else each
        for each in text
    )


def visible_line(text: str) -> str:
    """Escape characters as `without_controls` does, and return one line with visible symbols for line breaks."""
    return without_controls(text.strip().replace("\r\n", "\n")).replace("\n", " ⏎ ").replace("\t", " ")


def wrapped(text: str) -> str:
    """Wrap lines at spaces to the width of the terminal. The second line starts below the text after a line's first
    column, and with "#" if the first does. If the output is not a terminal, lines stay whole."""
    if not sys.stdout.isatty():
        return text
    lines = []
    for line in text.splitlines():
        first = re.match(r"#? *\S+(?: \S+)*?  +", line)
        start = line[: line.startswith("#")].ljust(first.end() if first else 0)
        width = shutil.get_terminal_size().columns
        lines.append(fill(line, width, subsequent_indent=start, break_long_words=False, break_on_hyphens=False))
    return "\n".join(lines)


# Errors


def reason_of(error: BaseException, most: int = 300) -> str:
    """Return the message of another library's error, shortened to one line, or the error's class if the message is
    empty.

    Advice to run code from a file (`weights_only=False`, `trust_remote_code=True`), which rg_env never does, is left
    out. For an `OSError`, only the reason is returned because the surrounding message names the file.
    """
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    sentences = re.split(r"(?<=[.!?])\s+", str(reason))
    return one_line(" ".join(each for each in sentences if not _UNSAFE.search(each)), most) or type(error).__name__


def json_problem(error: ValueError | RecursionError) -> str:
    """Return the reason why `json.loads` raised an error, as a predicate: "is not JSON: ..."."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if type(error) is ValueError:  # subclasses of ValueError are for syntax and encoding errors
        return f"has a number with more than {sys.get_int_max_str_digits():,} digits"
    return f"is not JSON: {one_line(error)}"


def user_error(error: BaseException) -> str:
    """Describe an error from the user's code on one line: "TYPE: MESSAGE (FILE, line N)"."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # str() of a user-defined exception may also fail
        text = ""
    what = one_line(text, 300)
    if not isinstance(error, RGEnvError):  # rg_env's own messages do not need the type
        what = f"{type(error).__name__}: {what}".rstrip(": ")
    if isinstance(error, SyntaxError) and error.filename:
        return f"{what} ({error.filename}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return f"{what} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else what


def definition_line(function: object) -> str:
    """Return where a function in the user's own code is defined, as " (FILE, line N)", or an empty string for other
    code."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function) if callable(function) else function
    call = getattr(type(function), "__call__", None)  # noqa: B004
    code = getattr(function, "__code__", None) or getattr(call, "__code__", None)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code and _is_users(code.co_filename) else ""


def _is_users(file: str) -> bool:
    """Whether a source file is the user's own, rather than part of rg_env or a library."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    libraries = [os.path.dirname(os.__file__), here, *(path for path in sys.path if path.endswith("-packages"))]
    return not file.startswith(("<", *(os.path.join(folder, "") for folder in libraries)))


# User-supplied values


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is a valid number in a config: not a boolean, and within the range of a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_count(value: object, most: int = 2**31) -> bool:
    """Whether `value` is a whole number from 0 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def plain(value: Any) -> Any:
    """Return a scalar of numpy or torch as a Python number, also within mappings, and any other value as it is."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def shortened(value: object) -> str:
    """Return `repr(value)` for an error message, as one line of at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers with more than 4,300 digits
        return f"<{type(value).__name__}, too long to print>"
    text = " ".join(text.split()) if "\n" in text else text  # a table, such as a data frame
    return text if len(text) <= 80 else f"{text[:60]} ... {text[-15:]}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """List the first `most` names and how many more there are, as in "a, b, c and 2 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def gigabytes(size: float) -> str:
    """Format bytes in decimal units (1 GB is 10^9 bytes), as GPU and disk vendors do."""
    if size < 9.5e8:
        return f"{size / 1e6:.0f} MB"
    return f"{size / 1e9:.1f} GB" if size < 9.95e9 else f"{size / 1e9:.0f} GB"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun, as in "1 question", "1,024 questions" or "2 processes"."""
    plural = "es" if noun.endswith(("s", "ch")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def cut_bytes(text: str, most: int = 80) -> str:
    """Cut `text` to its first `most` bytes, for folder names, which file systems limit to 255 bytes."""
    return text.encode()[:most].decode(errors="ignore")


def file_part(name: str) -> str:
    """Make `name` safe for use in a file name."""
    return re.sub(r"[^\w.-]", "_", name)


def short_keys(keys: Iterable[str], separator: str = ".") -> dict[str, str]:
    """Return a unique short form for each dotted key: its last part, or more parts if needed."""
    keys = list(keys)

    def is_alone(end: str) -> bool:
        return sum(f"{separator}{key}".endswith(f"{separator}{end}") for key in keys) == 1

    short = {}
    for key in keys:
        parts = key.split(separator)
        ends = (separator.join(parts[-count:]) for count in range(1, len(parts) + 1))
        short[key] = next(filter(is_alone, ends), key)
    return short


def shown(value: object) -> str:
    """Return a config value as short text on one line. Different values may look the same."""
    if isinstance(value, list):
        return "+".join(map(shown, value))
    if isinstance(value, dict):
        return "+".join(f"{key}-{shown(each)}" for key, each in value.items())
    if isinstance(value, float) and 0 < abs(value) < 1e-3:
        return _scientific(value)
    return " ".join(value.split()) if isinstance(value, str) else json.dumps(value)


def _scientific(value: float) -> str:
    """Format a number as it is typed: "3e-5", where `repr` has "3e-05"."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    rest = "".join(map(str, digits[1:]))
    return f"{'-' * sign}{digits[0]}{rest and '.'}{rest}e{int(exponent) + len(digits) - 1}"


def shown_alike(values: Sequence[object]) -> list[str]:
    """Return `shown` for each value of one key, with all numbers in the same notation: "1e-3" next to "1e-4"."""
    numbers = [value for value in values if isinstance(value, float) and is_number(value) and value]
    is_scientific = any("e" in shown(value) for value in numbers)
    return [_scientific(value) if is_scientific and value in numbers else shown(value) for value in values]


def point_labels(points: Sequence[dict[str, Any]], separator: str = " ") -> list[str]:
    """Return a label for each point, which all have the same keys: "learning_rate=3e-5 beta=0.1"."""
    labels = short_keys(points[0])
    columns = [[f"{label}={text}" for text in shown_alike([p[key] for p in points])] for key, label in labels.items()]
    return [separator.join(parts) for parts in zip(*columns, strict=True)] or [""] * len(points)


def described(values: dict[str, Any]) -> str:
    """Format `values` as key=value pairs on one line, such as "learning_rate=1e-6 max_tokens=64"."""
    return point_labels([values])[0]
