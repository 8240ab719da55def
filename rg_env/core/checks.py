"""Checks of values that users give, for one-line errors."""

import math
import unicodedata


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


def one_line(what: object, most: int = 200) -> str:
    """Foreign text for a terminal or a log: one line of printable characters, `most` of them and "..."."""
    text = " ".join("".join(each if each.isprintable() else " " for each in str(what)).split())
    return text if len(text) <= most else f"{text[:most]}..."


def reason_of(error: BaseException, most: int = 300) -> str:
    """What an error of somebody else's code says, in one line as of `one_line`; its class where it says nothing."""
    return one_line(error, most) or type(error).__name__


def without_controls(text: str) -> str:
    """`text`, where what a terminal would obey, or could not show, is written as its number; lines stay lines."""
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(
        each.encode("unicode_escape").decode() if each != "\n" and unicodedata.category(each) in kinds else each
        for each in text
    )


def shortened(value: object) -> str:
    """`repr(value)` for an error message, in at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole numbers of over 4,300 digits
        return f"a {type(value).__name__} too long to write"
    return text if len(text) <= 80 else f"{text[:60]} ... {text[-15:]}"
