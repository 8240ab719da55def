"""The type of graders, and graders for answers with a single right value in any task: a text, a word, a number."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rg_env.core.grading.graders import forms

Entry = Mapping[str, Any]
"""The library's item in JSON form: `question`, `answer`, `metadata`."""
Config = Mapping[str, Any]
"""Options set by the user; others have the library's default."""
Grader = Callable[[str, Entry, Config], float]
"""Function of (answer, entry, config) that returns real progress in [0, 1], 1.0 if right. It never raises for an
answer."""


_TRUTH = {"true": True, "yes": True, "false": False, "no": False}


def text(answer: str, entry: Entry, config: Config) -> float:
    """The stored answer, except for white space at line ends and around the text."""
    return float(forms.same_text(answer, entry["answer"]))


def word(answer: str, entry: Entry, config: Config) -> float:
    """The stored answer in any letter case and spacing."""
    return float(answer.casefold().split() == str(entry["answer"]).casefold().split())


def exact_number(answer: str, entry: Entry, config: Config) -> float:
    """The stored decimal number in any notation."""
    value = forms.number(answer)
    return float(value is not None and value == forms.number(str(entry["answer"])))


def fraction(answer: str, entry: Entry, config: Config) -> float:
    """The stored number as a decimal or a fraction, reduced or not."""
    value = forms.rational(answer)
    return float(value is not None and value == forms.rational(str(entry["answer"])))


def truth(answer: str, entry: Entry, config: Config) -> float:
    """The stored True or False, or Yes or No, in any letter case; yes and true are equivalent."""
    value = _TRUTH.get(answer.strip().casefold())
    return float(value is not None and value is _TRUTH[str(entry["answer"]).casefold()])


def squeezed(text: str) -> str:
    """`text` without separators: white space, commas, quotes, hyphens, brackets."""
    return re.sub(r"[\s,'\"`‘’“”()\[\]-]+", "", text)


def progress(right: int, given: int, total: int) -> float:
    """Fraction of the missing part now right: 1.0 for all of `total`, 0.0 for no more than `given`."""
    return 1.0 if right == total else max(0, right - given) / max(1, total - given)


def prefix(given: Sequence[object], gold: Sequence[object]) -> int:
    """The number of right entries before the first wrong one."""
    for index, (one, other) in enumerate(zip(given, gold, strict=False)):
        if one != other:
            return index
    return min(len(given), len(gold))


def in_order(given: Sequence[Any], gold: Sequence[Any], start: Callable[[], Sequence[Any]]) -> float:
    """Progress of a list beyond `start`, the question's own list; 0.0 if its items differ from those of `gold`."""
    if given == gold:
        return 1.0
    return progress(prefix(given, gold), prefix(start(), gold), len(gold)) if sorted(given) == sorted(gold) else 0.0


def too_long(answer: str, entry: Entry) -> bool:
    """Whether the answer is longer than any notation of the stored one, and therefore not worth parsing."""
    return len(answer) > 4 * len(entry["answer"]) + 200
