"""Graders of the code and induction tasks."""

import json
from math import isclose
from typing import Any

from rg_env.core.grading.graders.common import Config, Entry, Grader, text, word
from rg_env.core.grading.parsing import forms

_FLOAT_TOLERANCE = 1e-9
"""Relative: what the last digits of a computed float vary by, no more."""
_LITERAL_MARGIN = 100
"""Python literals have as many brackets and commas as JSON, but for trailing commas, and are slow to read."""
_NOT_JSON = object()


def codeio(answer: str, entry: Entry, config: Config) -> float:
    """The stored value, as JSON or a Python literal; keys in any order, whole numbers exact, floats to nine digits.

    Where an input is asked for, others than the stored one may be feasible. They are not accepted: to check one means
    to run the code.
    """
    gold = _json(entry["answer"])
    if gold is _NOT_JSON:  # NaN and infinity
        return text(answer, entry, config)
    value = _json(answer)
    if value is _NOT_JSON and _may_be_literal(answer.strip(), gold, entry["answer"]):
        literal = forms.literal(answer)
        value = _NOT_JSON if literal is None else literal
    if value is _NOT_JSON:
        return float(isinstance(gold, str) and answer.strip() == gold)
    return float(_same(value, gold))


def _n_signs(source: str) -> int:
    return sum(map(source.count, "[](){},:"))


def _may_be_literal(source: str, gold: Any, stored: str) -> bool:
    """Begins and ends as a literal of the kind of `gold`, and is no longer: others are not worth the time."""
    if isinstance(gold, list | dict):
        opening, closing = ("[(", "])") if isinstance(gold, list) else ("{(", "})")
        if source[:1] not in opening or source[-1:] not in closing:
            return False
    return _n_signs(source) <= _n_signs(stored) + _LITERAL_MARGIN


def _json(source: str) -> Any:
    try:
        return json.loads(source, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _same(value: Any, gold: Any) -> bool:
    """Equal in structure; no deeper than `gold`, whatever `value` is."""
    if isinstance(gold, dict):
        if not isinstance(value, dict) or len(value) != len(gold):
            return False
        if not all(isinstance(key, str) or abs(key) < 10**18 for key in value):  # Python refuses to write longer ones
            return False
        named = {str(key): item for key, item in value.items()}
        return named.keys() == gold.keys() and all(_same(named[key], item) for key, item in gold.items())
    if isinstance(gold, list):
        if not isinstance(value, list | tuple) or len(value) != len(gold):
            return False
        return all(map(_same, value, gold))
    if isinstance(gold, bool) or isinstance(value, bool) or not isinstance(gold, int | float):
        return type(value) is type(gold) and bool(value == gold)
    if not isinstance(value, int | float):
        return False
    if isinstance(gold, float) and not gold.is_integer() and abs(value) < 1e300:
        return isclose(value, gold, rel_tol=_FLOAT_TOLERANCE)
    return value == gold


_MAX_TEXT = 1_000
"""Ten numbers take a tenth of it."""


def acre(answer: str, entry: Entry, config: Config) -> float:
    """The word, `on`, `off` or `undetermined`, in any letter case, in quotation marks or not."""
    return word(answer.strip().strip("\"'"), entry, config)


def list_functions(answer: str, entry: Entry, config: Config) -> float:
    """The same numbers in the same order, with brackets or, unless the list is empty, without."""
    numbers = forms.numbers(answer.replace("{,}", "")) if len(answer) <= _MAX_TEXT else None
    if numbers is None or not (numbers or "[" in answer):
        return 0.0
    return float(numbers == forms.numbers(entry["answer"]))


GRADERS: dict[str, Grader] = {
    "bf": text,
    "codeio": codeio,
    "acre": acre,
    "list_functions": list_functions,
}
