"""Graders of the probability tasks."""

import re
from fractions import Fraction

from rg_env.core.graders import forms
from rg_env.core.graders.types import Config, Entry, Grader

_TOLERANCE = 1e-4
_RELATIVE_TOLERANCE = Fraction(1, 20)
_MAX_CHARS = 2_000


def coin_flip(answer: str, entry: Entry, config: Config) -> float:
    """The probability as a fraction, a decimal within 0.0001, or a percentage; in two forms (`1/8 = 0.125`) both right.

    A small probability must also be right within 5 %: else zero would be right for the smallest.
    """
    gold = forms.rational(str(entry["answer"]))
    if gold is None:
        raise ValueError(f"cannot read the stored probability {entry['answer']!r}")
    if len(answer) > _MAX_CHARS:
        return 0.0
    return float(all(_close(_probability(part), gold) for part in re.split(r"=|≈|\\approx\b", answer)))


def _close(value: Fraction | None, gold: Fraction) -> bool:
    if value is None or abs(value - gold) > gold * _RELATIVE_TOLERANCE:
        return False
    return abs(float(value) - float(gold)) <= _TOLERANCE  # as floats, so that ties fall as in the library


def _probability(text: str) -> Fraction | None:
    text = text.strip()
    if text.endswith("%"):
        value = forms.number(text.removesuffix("%").removesuffix("\\"))
        return None if value is None else value / 100
    return forms.rational(text)


GRADERS: dict[str, Grader] = {"coin_flip": coin_flip}
