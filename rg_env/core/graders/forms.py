"""Harmless form: what an answer may be wrapped in, and the ways to write a number, a list or a grid.

The text comes from a model. Nothing here evaluates it, every function takes time linear in its length (callers bound
that length), and what does not have the wanted form is None, never an exception.
"""

import re
import unicodedata
from fractions import Fraction
from typing import Any

from rg_env.core.graders import literals

_MAX_DIGITS = 1_000
_MAX_EXPONENT = 400
_MAX_NUMBERS = 500
_FENCE = re.compile(r"```[\w+-]*[ \t]*\n?(.*?)\n?```", re.DOTALL)
_MATH = [("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")]
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_MARKS = ("**", "`")
_MINUS = str.maketrans({"−": "-", "–": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "＋": "+"})
# Thousands in groups of three, separated by one and the same sign: a comma, an underscore, or a (narrow) space.
_NUMBER = re.compile(
    r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+|\d{1,3}(?:_\d{3})+|\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+)?"
    r"(?:\.\d*)?(?:[eE][+-]?\d{1,4})?"
)
_PLAIN_NUMBER = re.compile(r"(-?[0-9]+)(?:\.([0-9]*))?")
_FRACTION = re.compile(r"([+-]?)\s*\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")


def candidates(answer: str) -> list[str]:
    """The answer as it stands, without its wrapping, and without a trailing period, in this order, each once.

    A grader tries each: for some tasks a period, a dollar sign or white space is part of the answer.
    """
    bare = unwrap(answer)
    found = [answer, bare]
    if bare.endswith(".") and bare.strip("."):
        found.append(unwrap(bare[:-1]))
    return list(dict.fromkeys(found))


def unwrap(text: str) -> str:
    r"""Without the white space, code fence, `\boxed{}`, `$...$`, `**...**` around the whole of it."""
    for _ in range(6):  # `**$\boxed{5}$**`, not an onion
        inner = _unwrap_once(text.strip())
        if inner == text:
            break
        text = inner
    return text


def _unwrap_once(text: str) -> str:
    if fence := _FENCE.fullmatch(text):
        return fence[1]
    if (boxed := _BOXED.match(text)) and text.endswith("}"):
        inner = text[boxed.end() : -1]
        return inner if _balanced(inner) else text
    for start, end in _MATH:
        if text.startswith(start) and text.endswith(end) and len(text) > len(start) + len(end):
            inner = text[len(start) : -len(end)]
            return inner if start not in inner and end not in inner else text
    for mark in _MARKS:
        inner = text[len(mark) : -len(mark)]
        if text.startswith(mark) and text.endswith(mark) and inner and mark not in inner:
            return inner
    return text


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def same_text(answer: str, gold: str) -> bool:
    """Equal but for white space at the ends of lines and of the whole."""
    return _lines(answer) == _lines(gold)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def plain_digits(text: str) -> str:
    """Decimal digits of any script and all minus signs as ASCII. Superscripts and the like stay what they are."""
    if text.isascii():
        return text
    text = text.translate(_MINUS)
    return "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)


def number(text: str) -> Fraction | None:
    """A decimal number: `-1,234.50`, `.5`, `2e3`. No NaN, no infinity, at most 1,000 digits."""
    text = text.strip()
    if len(text) > _MAX_DIGITS:
        return None
    if plain := _PLAIN_NUMBER.fullmatch(text):  # nearly all of them, and ten times as fast
        whole, decimals = plain.groups()
        return Fraction(int(whole + decimals), 10 ** len(decimals)) if decimals else Fraction(int(whole))
    text = plain_digits(text)
    if not _NUMBER.fullmatch(text) or not any(c.isdigit() for c in text):
        return None
    mantissa, _, exponent = re.sub(r"[,_\s]", "", text).lower().partition("e")
    if not any(c.isdigit() for c in mantissa) or (exponent and abs(int(exponent)) > _MAX_EXPONENT):
        return None
    value = Fraction(mantissa if mantissa[-1] != "." else mantissa[:-1])
    return value * Fraction(10) ** int(exponent) if exponent else value


def integer(text: str) -> int | None:
    """A whole number, also as `4.0`."""
    value = number(text)
    return int(value) if value is not None and value.denominator == 1 else None


def rational(text: str) -> Fraction | None:
    r"""A decimal number or a fraction of two: `3/4`, `-6 / 8`, `\frac{3}{4}`."""
    text = text.strip()
    if latex := _FRACTION.fullmatch(text):
        sign, above, below = latex.groups()
        text = f"{sign}{above}/{below}"
    above, slash, below = text.partition("/")
    numerator = number(above)
    if not slash or numerator is None:
        return numerator
    denominator = number(below)
    return numerator / denominator if denominator else None


def literal(text: str) -> Any:
    """JSON, or a Python literal, see `literals.parse`; digits of any script. None for anything else."""
    return literals.parse(plain_digits(text))


def numbers(text: str) -> list[Fraction] | None:
    """A list of numbers: `[1, 2.5]`, `(1, 2)`, `1, 2`, or separated by white space."""
    text = plain_digits(text.strip())
    if text[:1] + text[-1:] in ("[]", "()", "{}"):
        text = text[1:-1].strip()
    if not text:
        return []
    parts = re.split(r"\s*[,;]\s*|\s+", text)
    if len(parts) > _MAX_NUMBERS:
        return None
    found = [number(part.strip("'\"")) for part in parts if part]
    return None if None in found else [value for value in found if value is not None]


def grid(text: str) -> list[list[str]] | None:
    """Rows of cells as texts, from JSON, a Python literal, or lines of cells separated by spaces, commas or bars.

    Rows may differ in length. None if there is no row, or a cell is no number, word or sign.
    """
    value = literal(text) if text.strip()[:1] in ("[", "(") else None
    if isinstance(value, list | tuple):
        if not value or not all(isinstance(row, list | tuple) for row in value):
            return None
        if any(isinstance(cell, list | tuple | dict) for row in value for cell in row):
            return None
        return [[str(int(cell) if isinstance(cell, bool) else cell) for cell in row] for row in value]
    rows = [re.split(r"[\s,|]+", line.strip().strip("[](),|").strip()) for line in plain_digits(text).splitlines()]
    return [[cell.strip("'\"") for cell in row] for row in rows if row != [""]] or None
