"""Errors that the user's own code raises, told in one line: what, and where in a file of theirs."""

import os
import sys
import traceback

from rg_env.errors import RGEnvError

_DETAIL_CHARS = 300


def told(error: BaseException) -> str:
    """An error of the user's code in one line: "TYPE: MESSAGE (FILE, line N)"."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # it is their class, too
        text = ""
    what = " ".join(text.split())[:_DETAIL_CHARS]
    if not isinstance(error, RGEnvError):  # whose messages stand for themselves
        what = f"{type(error).__name__}: {what}".rstrip(": ")
    return f"{what}{where(error)}"


def where(error: BaseException) -> str:
    """(FILE, line N): the last line of the user's own that took part; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    libraries = [os.path.dirname(os.__file__), here, *(path for path in sys.path if path.endswith("-packages"))]
    others = ("<", *(os.path.join(folder, "") for folder in libraries))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
