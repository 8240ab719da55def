"""Text for people: one-line errors, foreign text made safe for terminals, values and names in few characters.

    raise InputError(f"cannot load {name}: {reason_of(error)}")       # another library's error in one line
    print(without_controls(completion))                               # what a terminal would obey is shown instead

Also checks of values that users give.
"""

import json
import math
import os
import re
import sys
import traceback
import unicodedata
from collections.abc import Iterable
from typing import Any

from rg_env.errors import RGEnvError

_JOINERS = "\u200c\u200d"  # of Indic and Persian scripts, and of emoji: they change no direction and hide nothing


# Foreign text


def one_line(what: object, most: int = 200) -> str:
    """Foreign text for a terminal or a log: one line of printable characters, `most` of them and "..."."""
    text = " ".join("".join(each if each.isprintable() else " " for each in str(what)).split())
    return text if len(text) <= most else f"{text[:most]}..."


def without_controls(text: str) -> str:
    """`text` with everything that a terminal would obey, or that hides or turns text, shown as its escape ("\\x1b").
    Lines stay lines, and tabs tabs."""
    kinds = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return "".join(
        each.encode("unicode_escape").decode()
        if each not in "\n\t" and each not in _JOINERS and unicodedata.category(each) in kinds
        else each
        for each in text
    )


def visible_line(text: str) -> str:
    """`without_controls` in one line, with line breaks shown as such."""
    return without_controls(text.strip().replace("\r\n", "\n")).replace("\n", " ⏎ ").replace("\t", " ")


# Errors


def reason_of(error: BaseException, most: int = 300) -> str:
    """The message of another library's error as `one_line`; its class if it has none. An `OSError` gives its reason
    without the file, which the message around it names."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return one_line(reason, most) or type(error).__name__


def user_error(error: BaseException) -> str:
    """An error of the user's code in one line: "TYPE: MESSAGE (FILE, line N)"."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # their class may fail, too
        text = ""
    what = one_line(text, 300)
    if not isinstance(error, RGEnvError):  # whose messages need no type
        what = f"{type(error).__name__}: {what}".rstrip(": ")
    return f"{what}{user_code_line(error)}"


def user_code_line(error: BaseException) -> str:
    """ " (FILE, line N)": the last line of the user's own code in the traceback, or empty."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    libraries = [os.path.dirname(os.__file__), here, *(path for path in sys.path if path.endswith("-packages"))]
    others = ("<", *(os.path.join(folder, "") for folder in libraries))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


# Values that users give


def is_number(value: object) -> bool:
    """Whether `value` is a number as configs hold them: no boolean, and of a size that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # 10**400
        return False


def is_count(value: object, most: int = 2**31) -> bool:
    """Whether `value` is a whole number from 0 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def shortened(value: object) -> str:
    """`repr(value)` for an error message, in at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole numbers of over 4,300 digits
        return f"a {type(value).__name__} too long to write"
    return text if len(text) <= 80 else f"{text[:60]} ... {text[-15:]}"


def cut_bytes(text: str, most: int = 80) -> str:
    """The start of `text` in at most `most` bytes, for names of folders: file systems allow 255."""
    return text.encode()[:most].decode(errors="ignore")


def file_part(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^\w.-]", "_", name)


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """The last part of each dotted key, or as many parts as make it unique."""
    keys = list(keys)

    def end(key: str, count: int) -> str:
        return ".".join(key.split(".")[-count:])

    def is_alone(key: str, count: int) -> bool:
        return [end(other, count) for other in keys].count(end(key, count)) == 1

    return {
        key: end(key, next((n for n in range(1, key.count(".") + 1) if is_alone(key, n)), key.count(".") + 1))
        for key in keys
    }


def shown(value: object) -> str:
    """A value of a config in one line of few characters. Different values may look the same."""
    if isinstance(value, list):
        return "+".join(map(shown, value))
    if isinstance(value, dict):
        return "+".join(f"{key}-{shown(each)}" for key, each in value.items())
    return " ".join(value.split()) if isinstance(value, str) else json.dumps(value)


def described(values: dict[str, Any]) -> str:
    """Values by key in one line: "learning_rate=1e-06 max_tokens=64"."""
    return " ".join(f"{label}={shown(values[key])}" for key, label in short_keys(values).items())
