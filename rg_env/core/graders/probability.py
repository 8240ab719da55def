"""Graders of the probability tasks."""

import re
from fractions import Fraction

from rg_env.core.graders import forms
from rg_env.core.graders.types import Config, Entry, Grader

_PLACES, _MOST_PLACES = 4, 10
"""A decimal has at least so many places, and is checked to so many: the stored answer has no more."""
_RELATIVE_TOLERANCE = Fraction(1, 20)
_MAX_CHARS = 2_000


def coin_flip(answer: str, entry: Entry, config: Config) -> float:
    """The probability as a fraction, a decimal of four places or more, or a percentage; in two forms (`1/8 = 0.125`)
    both right.

    A decimal may be rounded or cut, and is right in every place that it has. A small probability must also be right
    within 5 %: else zero would be right for the smallest.
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
    shown = next((n for n in range(_PLACES, _MOST_PLACES) if 10**n % value.denominator == 0), _MOST_PLACES)
    unit = Fraction(1, 10**shown)
    return -unit / 2 <= value - gold <= unit / 2 or -unit < value - gold < 0


def _probability(text: str) -> Fraction | None:
    text = text.strip()
    if text.endswith("%"):
        value = forms.number(text.removesuffix("%").removesuffix("\\"))
        return None if value is None else value / 100
    return forms.rational(text)


GRADERS: dict[str, Grader] = {"coin_flip": coin_flip}
