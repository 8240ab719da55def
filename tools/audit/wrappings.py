"""Wrappings: formats in which a model may write an answer without changing its meaning; graders should accept them."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rg_env.core.grading.graders import gold_answer, grade
from rg_env.core.grading.graders.gold import NO_OPTIONS

from .changes import TABLES

Wrapping = Callable[[str], str | None]
"""Function that returns the answer in this wrapping, or None if the wrapping does not fit, for example because
of unpaired braces."""


def _around(start: str, end: str, never: str = "") -> Wrapping:
    """Return a wrapping that puts the answer between `start` and `end`. The wrapping does not fit answers that
    contain a character from `never`."""
    return lambda answer: None if any(sign in answer for sign in never) else f"{start}{answer}{end}"


def _box(start: str, end: str) -> Wrapping:
    def wrapped(answer: str) -> str | None:
        paired = not re.sub(r"[^{}]", "", answer).replace("{}", "").replace("{}", "")
        return f"{start}{answer}{end}" if paired else None

    return wrapped


def _thousands(separator: str) -> Wrapping:
    """Return a wrapping that groups the digits of a number in threes."""

    def wrapped(answer: str) -> str | None:
        number = re.fullmatch(r"(-?)(\d{4,})(\.\d+)?", answer)
        if number is None or number[2].startswith("0"):
            return None
        return f"{number[1]}{int(number[2]):,}{number[3] or ''}".replace(",", separator)

    return wrapped


def _listed(quote: str) -> Wrapping:
    """Return a wrapping that puts the answer into a one-element list, unless the answer has commas, brackets or other
    special characters."""
    return lambda answer: f"[{quote}{answer}{quote}]" if re.fullmatch(r"[\w./ +-]*\w", answer) else None


WRAPPINGS: dict[str, Wrapping] = {
    **{name: _box(*ends) for name, ends in TABLES["boxes"].items()},
    "box in dollars": lambda answer: None if "$" in answer else _box(r"$\boxed{", "}$")(answer),
    **{name: _around(*ends) for name, ends in TABLES["around"].items()},
    "list": _listed(""),
    "list of a text": _listed('"'),
    "thousands {,}": _thousands("{,}"),
    r"thousands \,": _thousands(r"\,"),
}


def taken(
    task: str, entries: Sequence[Mapping[str, Any]], config: Mapping[str, Any] = NO_OPTIONS
) -> tuple[float, list[str]]:
    """Return the share of wrapped gold answers that are graded as right, and the names of the wrappings that were
    rejected at least once."""
    tried = 0
    refused: Counter[str] = Counter()
    for entry in entries:
        gold = (gold_answer(task, entry, config) or "").strip()
        for name, wrapping in WRAPPINGS.items():
            answer = wrapping(gold) if gold else None
            if answer is not None:
                tried += 1
                refused[name] += grade(task, config, entry, answer) < 1.0
    return 1 - refused.total() / max(1, tried), [name for name in WRAPPINGS if refused[name]]
