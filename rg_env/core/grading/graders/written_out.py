"""Answers that write out more than the result: a calculation (`2*3 + 4 = 10`) or the counted thing (`6 sisters`)."""

import re
from collections.abc import Callable
from fractions import Fraction

from rg_env.core.grading.graders import forms
from rg_env.core.grading.graders.expressions import MAX_CHARS, exact, parse
from rg_env.core.grading.graders.forms import Unreadable

_MAX_STEPS = 10
_MAX_EXPRESSION = 500
_BOLD_NUMBER = re.compile(r"(\*\*|\$)(?:\\boxed\{)?([^A-Za-z*${}]{0,400}\d)\}?\1(?=\s|°)")
_UNIT = re.compile(r"([^A-Za-z]*\d)\s+([A-Za-z][A-Za-z' -]{0,60}?)(?:\s+in total)?\.?")
_LATEX_TEXT = re.compile(r"(?:\\[,;: ]\s*)?\\(?:text|textrm|mathrm|mbox) ?\{([^{}]*)\}")
_NAME = re.compile(r"([A-Za-z][A-Za-z ]{0,30})(?:\(([^()]{1,200})\))?")
_COUNTED = re.compile(
    r"\b(?:how many|number of) ((?:(?!(?:is|are|was|were|do|does|did|has|have|had|can|will|in|of|to|from|the)\b)"
    r"[a-z'-]+ ?){1,5})",
    re.IGNORECASE,
)
"""Matches the name of what a question asks to count."""


def result_is_right(answer: str, question: str, is_right: Callable[[str], bool]) -> bool:
    """Whether the answer is a right result followed by what the question asks to count, or the last part of a correct
    calculation.

    In a calculation, each part before the result must be an expression from the question, an arithmetic expression
    whose value is the result, or another right answer. The first part may also name the result (`GCD(8, 12) = 4`) or be
    missing (`= 4`).
    """
    answer = answer.strip()
    plain = _LATEX_TEXT.sub(r" \1 ", answer).strip()
    if bold := _BOLD_NUMBER.match(plain):
        plain = bold[2] + plain[bold.end() :]
    if plain != answer and is_right(plain):
        return True
    if unit := _UNIT.fullmatch(plain):
        return _is_counted(unit[2], question) and is_right(unit[1])
    if not 0 < plain.count("=") <= _MAX_STEPS or len(answer) > MAX_CHARS:
        return False
    first, *others = map(forms.unwrap, plain.split("="))
    if not is_right(others[-1]):
        return False
    value = forms.attempt(forms.rational, others[-1])
    steps = [*([] if _is_name(first, question) else [first]), *others[:-1]]
    return all(_has_value(step, value) or _is_from(step, question) or is_right(step) for step in steps)


def ends_in_word(text: str) -> bool:
    """Whether the last word ends in a letter and does not start with a digit, like a unit after a space but unlike
    `2i`."""
    return text[-1:].isalpha() and not text.split()[-1][0].isdigit()


def _is_counted(name: str, question: str) -> bool:
    words = f" {_singular(name)} "
    return any(words in f" {_singular(counted)} " for counted in _COUNTED.findall(question))


def _singular(name: str) -> str:
    return " ".join(word.removesuffix("s") for word in name.casefold().split())


def _is_name(step: str, question: str) -> bool:
    """Whether `step` is empty, a letter, or words of the question, which may have arguments from the question."""
    name = _NAME.fullmatch(step.lstrip("\\∠"))
    if name is None or (name[2] and name[2] not in question):
        return not step
    words = name[1].casefold().split()
    return len(name[1]) == 1 or ("not" not in words and set(words) <= set(re.findall("[a-z]+", question.casefold())))


def _is_from(step: str, question: str) -> bool:
    """Whether `step` is a whole expression of the question that contains an operator."""
    written = "".join(step.split())
    if len(written) > _MAX_EXPRESSION or not re.search(r"[\w)][-+*/^(]", written):
        return False
    spaced = r"\s*".join(map(re.escape, written))
    return re.search(rf"(?<![\w+*/^(-])(?<![+*/^(-] ){spaced}(?!\w|\s*[-+*/^)])", question) is not None


def _has_value(step: str, value: Fraction | None) -> bool:
    try:
        return value is not None and exact(parse(step)) == value
    except (Unreadable, ValueError, ZeroDivisionError):
        return False
