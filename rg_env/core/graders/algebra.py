"""Graders of the algebra tasks."""

import re
from fractions import Fraction

from rg_env.core.graders import forms
from rg_env.core.graders.calculus import is_antiderivative
from rg_env.core.graders.expressions import exact, names, parse
from rg_env.core.graders.polynomials import RealRoots, dense, parse_expanded
from rg_env.core.graders.types import Config, Entry, Grader

Complex = tuple[Fraction, Fraction]
"""Real and imaginary part."""

_PLACES = 4
"""Decimal places that polynomial_equations asks for."""
_NO_ROOTS = {"", '""', "''", "none", "no real solutions", "no real solution", "no real values", "no real roots"}
_MAX_CHARS = 2_000
_COMPLEX_TOLERANCE = Fraction(1, 10**6)
_FLOAT_ERROR = Fraction(12, 10**17)
"""Half a unit in the last place, relative: what the stored text may be off from the stored number."""
# values of the constant of integration at the first sample point
_CONSTANTS = {"C": 0.37, "c": 0.83, "K": 1.61, "k": 2.29}
_LEFT_SIDE = re.compile(r"\s*(?:[FGIfgy]\s*(?:\(\s*[xX]\s*\))?|(?:∫|\\int)[^=]*?)\s*=")
_DECIMAL = r"(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:e[+-]?\d{1,3})?"
_IMAGINARY = rf"(?:{_DECIMAL}\*?)?[ij]"
_COMPLEX = re.compile(
    rf"(?:(?P<real>[+-]?{_DECIMAL})(?P<imaginary>[+-]{_IMAGINARY})?"
    rf"|(?P<first>[+-]?{_IMAGINARY})(?P<second>[+-]{_DECIMAL})?)"
)


def _complex(text: str) -> Complex | None:
    """`3 - 2i`, `-2.0i + 3`, `(3-2j)`, `7`, `-i`: a value, not a calculation."""
    text = forms.plain_digits(text.strip()).lower()
    if len(text) > _MAX_CHARS or re.search(r"\d\s+\d", text):
        return None
    text = re.sub(r"\s+", "", text).replace("+-", "-")
    if text[:1] == "(" and text[-1:] == ")":
        text = text[1:-1]
    match = _COMPLEX.fullmatch(text)
    if match is None:
        return None
    real = forms.number(match["real"] or match["second"] or "0")
    coefficient = re.sub(r"\*?[ij]$", "", match["imaginary"] or match["first"] or "0i")
    imaginary = forms.number(coefficient + "1" if coefficient in ("", "+", "-") else coefficient)
    return None if real is None or imaginary is None else (real, imaginary)


def _computed(a: Complex, b: Complex, operation: str) -> Complex:
    if operation in "+-":
        sign = 1 if operation == "+" else -1
        return a[0] + sign * b[0], a[1] + sign * b[1]
    if operation == "/":
        norm = b[0] * b[0] + b[1] * b[1]
        b = b[0] / norm, -b[1] / norm
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def complex_arithmetic(answer: str, entry: Entry, config: Config) -> float:
    """The value of the operation as `a + bi`, in any order of the parts. Where floating point made the stored result
    inexact (large bounds), the exact one is right too."""
    value = _complex(answer)
    if value is None:
        return 0.0
    metadata = entry["metadata"]
    numbers = metadata["num1"], metadata["num2"], metadata["result"]
    # Exact arithmetic takes its time: what is far off in floats, by all that rounding can do, needs none.
    try:
        rough, sizes = complex(*map(float, value)), [abs(complex(*number)) for number in numbers]
    except OverflowError:
        return 0.0
    if abs(rough - complex(*numbers[2])) > 10 * _COMPLEX_TOLERANCE + 1e-6 * (sum(sizes) + sizes[0] * sizes[1]):
        return 0.0
    a, b, stored = ((Fraction(real), Fraction(imaginary)) for real, imaginary in numbers)
    return float(_close(value, stored) or _close(value, _computed(a, b, metadata["operation"])))


def _close(value: Complex, right: Complex) -> bool:
    pairs = zip(value, right, strict=True)
    return all(abs(mine - theirs) <= max(_COMPLEX_TOLERANCE, _FLOAT_ERROR * abs(theirs)) for mine, theirs in pairs)


def _antiderivative(answer: str, entry: Entry, config: Config) -> float:
    """Any function whose derivative is the integrand, with a constant of integration or without.

    `F(x) =` before it is forgiven, and so is the variable in the other letter case: questions say `dx` even for `X`.
    """
    variable = str(entry["metadata"]["variable"])
    integrand = parse(str(entry["metadata"]["integrand"]), (variable,))
    if integrand is None:
        raise ValueError(f"cannot read the integrand {entry['metadata']['integrand']!r}")
    if left := _LEFT_SIDE.match(answer[:_MAX_CHARS]):
        answer = answer[left.end() :]
    for name in (variable, variable.swapcase()):
        constants = {key: value for key, value in _CONSTANTS.items() if key != name}
        formula = parse(answer, (name, *constants))
        if formula is None:
            continue
        if sum(used in constants for used in names(formula)) > 1:  # `C C`, `C + c`
            return 0.0
        return float(is_antiderivative(formula, integrand, {variable, name}, constants))
    return 0.0


def polynomial_equations(answer: str, entry: Entry, config: Config) -> float:
    """All real roots, each once, in any order, rounded to four places or closer.

    The question asks for rounding down where others round up, so both are right. The roots are counted here: for
    degree 4 the stored ones are not always all.
    """
    metadata = entry["metadata"]
    variable = str(metadata["variable"])
    polynomial = parse_expanded(str(metadata["polynomial_expr"]), (variable,))
    if polynomial is None:
        raise ValueError(f"cannot read the polynomial {metadata['polynomial_expr']!r}")
    values = _values(answer, variable)
    if values is None:
        return 0.0
    if not polynomial:  # 0 = 0: each number is a root
        return float(values == sorted(Fraction(str(root)) for root in metadata["real_solutions"]))
    roots = RealRoots(dense(polynomial))
    return float(len(values) == roots.total() and _all_matched(values, roots))


def _values(answer: str, variable: str) -> list[Fraction] | None:
    """The numbers of a list such as `-0.5, 1/3`, `x = 1 or x = 2`, `[1, 2]`, in order; for no roots an empty list."""
    text = answer.strip().strip("[](){}").strip()
    if text.rstrip(".").lower() in _NO_ROOTS:
        return []
    if len(text) > _MAX_CHARS:
        return None
    values = []
    for part in re.split(r"[,;\n]|\band\b|\bor\b", text):
        name, equals, number = part.rpartition("=")
        if equals and not re.fullmatch(rf"{re.escape(variable)}(?:_?\{{?\d\}}?)?", name.strip()):
            return None
        value = forms.rational(number.strip().strip("'\""))
        if value is None:
            return None
        values.append(value)
    return sorted(values)


def _all_matched(values: list[Fraction], roots: RealRoots) -> bool:
    """Whether each value, in order, can be given a root of its own that it may stand for."""
    unit = Fraction(1, 10**_PLACES)
    start = end = None
    members = 0
    for value in values:
        # cut to four places the root lies up to a unit away, on either side for a negative one; else half a unit
        cut = (value / unit).denominator == 1
        below = unit if cut and value < 0 else unit / 2
        low, high = value - below, value + (unit if cut and value else unit / 2)
        if not roots.within(low, high):
            return False
        if end is None or low > end:
            start, members = low, 0
        end = high if not members or end is None else max(end, high)
        members += 1
        assert start is not None
        if roots.within(start, end) < members:
            return False
    return True


def polynomial_multiplication(answer: str, entry: Entry, config: Config) -> float:
    """The expanded product with like terms collected. The product as the question has it is no answer."""
    variables = tuple(map(str, entry["metadata"]["variables"]))
    gold = parse_expanded(str(entry["answer"]), variables)
    if gold is None:
        raise ValueError("cannot read the stored product")
    if len(answer) > 2 * len(entry["answer"]) + _MAX_CHARS:
        return 0.0
    return float(parse_expanded(answer, variables) == gold)


def simple_equations(answer: str, entry: Entry, config: Config) -> float:
    """A number that makes both sides equal, `x =` before it or not."""
    variable = str(entry["metadata"]["variable"])
    sides = [parse(side, (variable,)) for side in str(entry["metadata"]["equation"]).split("=")]
    if len(sides) != 2 or sides[0] is None or sides[1] is None:
        raise ValueError(f"cannot read the equation {entry['metadata']['equation']!r}")
    name, equals, number = answer.rpartition("=")
    if equals and name.strip() != variable:
        return 0.0
    value = forms.rational(number)
    if value is None:
        return 0.0
    return float(exact(sides[0], {variable: value}) == exact(sides[1], {variable: value}))


GRADERS: dict[str, Grader] = {
    "complex_arithmetic": complex_arithmetic,
    "intermediate_integration": _antiderivative,
    "polynomial_equations": polynomial_equations,
    "polynomial_multiplication": polynomial_multiplication,
    "simple_equations": simple_equations,
    "simple_integration": _antiderivative,
}
