"""Graders of the algorithmic tasks on numbers and strings of signs; `words` and `matrices` have the others."""

import re
from collections.abc import Sequence
from fractions import Fraction

from rg_env.core.graders import forms
from rg_env.core.graders.common import exact_number, prefix, progress, squeezed, too_long, truth
from rg_env.core.graders.types import Config, Entry, Grader

_EMPTY = ("", '""', "''", "``", "[]", "empty", "(empty)", "empty string", "the empty string", "nothing")
_PREFIXES = {2: "0b", 8: "0o", 16: "0x"}
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_ASSIGNMENT = re.compile(r"([A-Z])(?:=|:|->|→)([0-9])")


def signs(answer: str, entry: Entry, config: Config) -> float:
    """The stored string of letters and signs, in any letter case; also as a list of them, in quotes, or spaced."""
    gold = squeezed(entry["answer"]).casefold()
    return float(squeezed(answer).casefold() == gold if gold else answer.strip().casefold() in _EMPTY)


def ab(answer: str, entry: Entry, config: Config) -> float:
    """The tokens that remain, in any letter case, with any separators or none."""
    gold = entry["answer"].split()
    if not gold:
        return float(answer.strip().casefold() in _EMPTY)
    if too_long(answer, entry):
        return 0.0
    pieces = re.split(r"[\s,'\"`\[\]()]+", answer.upper())
    tokens = [piece[at : at + 2] for piece in pieces for at in range(0, len(piece), 2)]
    return float(tokens == gold)


def base_conversion(answer: str, entry: Entry, config: Config) -> float:
    """The number in the target base; capitals, `0x`, leading zeros, gaps and the base as a subscript do no harm."""
    metadata = entry["metadata"]
    base = metadata["target_base"]
    digits = forms.plain_digits("".join(answer.split())).lower()
    # `1010_2` names the base, and so does `1010₂`: the same text must not be two numbers, so `_` groups no digits.
    subscript = re.fullmatch(r"([0-9a-z]+)(?:_\{?([0-9]{1,2})\}?|([₀-₉]{1,2}))", digits)
    if subscript:
        digits, named = subscript[1], subscript[2] or subscript[3].translate(_SUBSCRIPTS)
        if int(named) != base:
            return 0.0
    digits = digits.removeprefix(_PREFIXES.get(base, " "))
    if not re.fullmatch(r"[0-9a-z]+", digits):
        return 0.0
    # The library stores no digit at all for zero in most bases.
    return float((digits.lstrip("0") or "0") == (metadata["target_repr"] or "0"))


def cryptarithm(answer: str, entry: Entry, config: Config) -> float:
    """Any assignment of different digits to just the letters of the puzzle that makes the sum right."""
    if too_long(answer, entry):
        return 0.0
    text = re.sub(r"[\s\"'`*{}\[\]()]", "", answer).upper()
    pairs = _ASSIGNMENT.findall(text)
    if _ASSIGNMENT.sub("", text).strip(",;|"):
        return 0.0
    digits = dict(pairs)
    metadata = entry["metadata"]
    words = [*metadata["words_letters"], metadata["result_letters"]]
    if len(set(pairs)) != len(digits) or len(set(digits.values())) != len(digits) or set(digits) != set("".join(words)):
        return 0.0
    values = ["".join(digits[letter] for letter in word) for word in words]
    if not metadata.get("allow_leading_zero", False) and any(value.startswith("0") for value in values):
        return 0.0
    *addends, total = map(int, values)
    return float(sum(addends) == total)


def number_filtering(answer: str, entry: Entry, config: Config) -> float:
    """The numbers that remain, in their order, each in any way of writing it; brackets may lack unless none remains."""
    gold = _exact(entry["metadata"]["result"])
    if not gold:
        return float("".join(answer.split()) in ("[]", "()"))
    return float(_numbers(answer, len(gold)) == gold)


def number_sorting(answer: str, entry: Entry, config: Config) -> float:
    """The numbers of the question, all of them and no others, in order; in part, how far the list is right."""
    gold = _exact(entry["metadata"]["sorted_numbers"])
    given = _numbers(answer, len(gold))
    if given == gold:
        return 1.0
    if given is None or sorted(given) != sorted(gold):
        return 0.0
    return progress(prefix(given, gold), prefix(_exact(entry["metadata"]["original_numbers"]), gold), len(gold))


def counts(answer: str, entry: Entry, config: Config) -> float:
    """The stored whole numbers in their order, with any separators."""
    gold = entry["answer"].split()
    if answer.split() == gold:
        return 1.0
    return float(_numbers(answer, len(gold)) == _exact(gold))


def _numbers(answer: str, count: int) -> list[Fraction] | None:
    """A list of `count` numbers. Quotes, where there are any, pair, and each pair holds one number."""
    if len(re.findall(r"[^\s,;()\[\]'\"]+", answer)) != count:
        return None
    if "'" not in answer and '"' not in answer:
        return forms.numbers(answer)
    listed = forms.literal(answer)
    if not isinstance(listed, list | tuple) or len(listed) != count:
        return None
    found = [forms.number(str(item)) for item in listed]
    return None if None in found else [value for value in found if value is not None]


def _exact(texts: Sequence[str]) -> list[Fraction]:
    return [Fraction(text) for text in texts]


GRADERS: dict[str, Grader] = {
    "ab": ab,
    "base_conversion": base_conversion,
    "binary_alternation": exact_number,
    "count_primes": exact_number,
    "cryptarithm": cryptarithm,
    "isomorphic_strings": truth,
    "letter_counting": exact_number,
    "number_filtering": number_filtering,
    "number_sorting": number_sorting,
    "ransom_note": truth,
    "string_insertion": signs,
    "string_manipulation": signs,
    "string_splitting": counts,
    "string_synthesis": counts,
}
