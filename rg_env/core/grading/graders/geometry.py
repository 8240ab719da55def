"""Graders of the geometry tasks."""

import re
from fractions import Fraction

from rg_env.core.grading.graders.common import Config, Entry, Grader
from rg_env.core.grading.parsing import balls, forms

_MAX_TEXT = 200
_HALF_A_THOUSANDTH = Fraction(1, 2000)
_HALF_A_HUNDREDTH = Fraction(1, 200)
_MAX_DECIMALS = _MAX_TEXT
_FLOAT_ERROR = Fraction(1, 10**9)
"""What the library's floats may be off by."""
_DEGREES = re.compile(r"°|\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree|degrees?|deg")
_ROOT = re.compile(r"\\?sqrt(?:\{(\d{1,12})\}|\((\d{1,12})\)|(\d{1,12}))|√(?:\((\d{1,12})\)|\{(\d{1,12})\}|(\d{1,12}))")
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{(\d{1,9})\}")
_QUOTIENT = re.compile(r"\(([^()]+)\)(?:/\(?(\d{1,9})\)?)?")
_TERM = re.compile(r"([+-])(?:(\d{1,9})\*?)?(?:√(\d{1,12}))?(?:/(\d{1,9}))?")


def advanced_geometry(answer: str, entry: Entry, config: Config) -> float:
    """Coordinates, radius or angle, correct to three decimals, or exact: fractions, and for a radius square roots.

    An angle may have two decimals, as the stored one has. A fraction is no rounded number: it must be exact.
    """
    if len(answer) > _MAX_TEXT:
        return 0.0
    metadata = entry["metadata"]
    if metadata["task_type"] == "orthocenter":
        return float(_is_point(answer, [Fraction(coordinate) for coordinate in metadata["ortho"]]))
    if metadata["task_type"] == "incircle_radius":
        return float(_is_radius(answer, Fraction(metadata["incircle_radius_approx"])))
    return float(_is_angle(answer, Fraction(metadata["angle_ABC_degrees"])))


def _is_point(answer: str, right: list[Fraction]) -> bool:
    text = re.sub(r"\\left|\\right", "", answer).strip()
    if text[:1] + text[-1:] in ("()", "[]"):
        text = text[1:-1]
    found = [forms.rational(part) for part in text.split(",")]
    return len(found) == 2 and all(
        value is not None and abs(value - exact) <= (_HALF_A_THOUSANDTH if _is_decimal(value) else 0)
        for value, exact in zip(found, right, strict=True)
    )


def _is_radius(answer: str, right: Fraction) -> bool:
    value = forms.rational(answer)
    if value is not None:
        return abs(value - right) <= (_HALF_A_THOUSANDTH if _is_decimal(value) else 0) + _FLOAT_ERROR
    surd = _surd(answer)
    return surd is not None and abs(surd[0] - float(right)) + surd[1] <= _FLOAT_ERROR


def _is_angle(answer: str, right: Fraction) -> bool:
    number = _without_degrees(answer)
    value = forms.rational(number)
    if value is None:
        return False
    coarse = _HALF_A_THOUSANDTH if len(number.partition(".")[2]) > 2 else _HALF_A_HUNDREDTH
    return abs(value - right) <= (coarse if _is_decimal(value) else 0) + _FLOAT_ERROR


def _is_decimal(value: Fraction) -> bool:
    """Whether a decimal can write it; other fractions are exact or wrong."""
    return 10**_MAX_DECIMALS % value.denominator == 0


def _surd(text: str) -> balls.Ball | None:
    r"""Sums of whole numbers and square roots of such over whole numbers: `3√5/2`, `\frac{\sqrt{5} - 1}{2}`.

    Nothing else, no root below the line above all: a formula with the question's numbers put in is no answer.
    """
    text = re.sub(r"\s|\\left|\\right|\\,", "", forms.plain_digits(text))
    text = re.sub(r"\\cdot|\\times|[×·⋅]", "*", text)
    text = _ROOT.sub(lambda root: f"√{next(filter(None, root.groups()))}", text)
    text = _FRACTION.sub(r"(\1)/\2", text)
    below = 1
    if quotient := _QUOTIENT.fullmatch(text):
        text, below = quotient[1], int(quotient[2] or 1)
    terms = [part for part in re.split(r"(?=[+-])", text if text[:1] in "+-" else f"+{text}") if part]
    total = balls.ZERO
    for part in terms:
        term = _TERM.fullmatch(part)
        if term is None or not (term[2] or term[3]):
            return None
        under = int(term[4] or 1)
        if not under:
            return None
        factor = Fraction(int(term[2] or 1), under)
        root = balls.sqrt(balls.of_fraction(Fraction(term[3] or 1)))
        total = balls.add(total, balls.multiply(balls.of_fraction(-factor if term[1] == "-" else factor), root))
    return balls.multiply(total, balls.of_fraction(Fraction(1, below))) if terms and below else None


def simple_geometry(answer: str, entry: Entry, config: Config) -> float:
    """The angle, with or without a sign or word for degrees."""
    value = forms.number(_without_degrees(answer)) if len(answer) <= _MAX_TEXT else None
    return float(value is not None and value == forms.number(entry["answer"]))


def _without_degrees(text: str) -> str:
    """Without one sign or word for degrees at the end."""
    text = text.strip()
    ends = [match for match in _DEGREES.finditer(text) if match.end() == len(text)]
    return text[: ends[-1].start()].rstrip() if ends else text


GRADERS: dict[str, Grader] = {"advanced_geometry": advanced_geometry, "simple_geometry": simple_geometry}
