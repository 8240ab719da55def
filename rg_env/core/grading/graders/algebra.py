"""Graders of the algebra tasks; expanded polynomials, and their real roots counted exactly."""

import re
from collections.abc import Collection
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from rg_env.core.grading.graders import forms
from rg_env.core.grading.graders.calculus import Integrand, is_antiderivative
from rg_env.core.grading.graders.common import Config, Entry, Grader
from rg_env.core.grading.graders.expressions import MAX_CHARS, exact, parse, plain

Complex = tuple[Fraction, Fraction]
"""Real and imaginary part."""
Monomial = tuple[tuple[str, int], ...]
"""Variables with their exponents, both in order: `x*y**2` is `(("x", 1), ("y", 2))`."""
Dense = list[Fraction]
"""Coefficients in ascending order, without leading zeros; empty for the zero polynomial."""

_PLACES = 4
"""Decimal places that polynomial_equations asks for."""
_NO_ROOTS = {"", '""', "''", "none", "no real solutions", "no real solution", "no real values", "no real roots"}
_MAX_CHARS = 2_000
_MAX_DIGITS = 300
_NUMBER = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+"
_EXACT_FLOATS = 2**53
_FLOAT_ERROR = Fraction(12, 10**17)
"""Relative error of the stored text against the stored number: half a unit in the last place."""
# Letters of a constant of integration: not those of Euler's number, the imaginary unit, functions and variables.
_LETTERS = "ABCDKLMNPQRSabcdklmnpqrs"
_CONSTANT = re.compile(
    rf"\\(?:text|mathrm|textrm|textit)\s*\{{\s*(?:const(?:ant)?\.?|[{_LETTERS}])\s*\}}"
    r"|(?<![A-Za-z\\])(?:"
    r"[Cc]onst(?:\.|ant(?: of integration)?)?(?![A-Za-z])"
    rf"|[{_LETTERS}](?:_?\d{{1,2}}|_\{{\s*\w{{1,2}}\s*\}}|_[A-Za-z])?(?![A-Za-z0-9_({{\[])"
    r")"
)
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_REPEATED = re.compile(r"constant[A-Z] +constant[A-Z]")
"""`C C`: a word written twice, not a product."""
_MAX_CONSTANTS = 8
_LEFT_SIDE = re.compile(r"\s*(?:[FGIfgy]\s*(?:\(\s*[xX]\s*\)\s*)?|(?:∫|\\int)[^=]*)=")
_DECIMAL = r"(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:e[+-]?\d{1,3})?"
_IMAGINARY = rf"(?:{_DECIMAL}\*?)?[ij]"
_COMPLEX = re.compile(
    rf"(?:(?P<real>[+-]?{_DECIMAL})(?P<imaginary>[+-]{_IMAGINARY})?"
    rf"|(?P<first>[+-]?{_IMAGINARY})(?P<second>[+-]{_DECIMAL})?)"
)


def _complex(text: str) -> Complex | None:
    """`3 - 2i`, `-2.0i + 3`, `(3-2j)`, `7`, `-i`: a value, not a calculation."""
    text = forms.plain_thousands(forms.plain_digits(text.strip())).lower()
    if len(text) > _MAX_CHARS or re.search(r"\d\s+\d", text):
        return None
    text = re.sub(r"\s+", "", text).replace("+-", "-")
    while text[:1] == "(" and text[-1:] == ")":
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
    # Exact arithmetic takes its time: what is further off in floats than rounding explains needs none.
    try:
        rough, sizes = complex(*map(float, value)), [abs(complex(*number)) for number in numbers]
        if abs(rough - complex(*numbers[2])) > 1e-6 * (1 + sum(sizes) + sizes[0] * sizes[1]):
            return 0.0
    except OverflowError:
        return 0.0
    a, b, stored = ((Fraction(real), Fraction(imaginary)) for real, imaginary in numbers)
    return float(_close(value, stored) or _close(value, _computed(a, b, metadata["operation"])))


def _close(value: Complex, right: Complex) -> bool:
    """Whether the values are equal, up to the rounding of whole numbers that floats cannot represent exactly."""
    return all(
        mine == theirs or (abs(theirs) > _EXACT_FLOATS and abs(mine - theirs) <= _FLOAT_ERROR * abs(theirs))
        for mine, theirs in zip(value, right, strict=True)
    )


def _antiderivative(answer: str, entry: Entry, config: Config) -> float:
    """Any function whose derivative is the integrand, with constants of integration of any usual name or without.

    `F(x) =` before it is forgiven, and so is the variable in the other letter case: questions say `dx` even for `X`.
    """
    variable, source = str(entry["metadata"]["variable"]), str(entry["metadata"]["integrand"])
    integrand = _integrand(source, variable)
    answer = answer[: MAX_CHARS + 1]  # longer ones are refused
    if left := _LEFT_SIDE.match(answer[:_MAX_CHARS]):
        answer = answer[left.end() :]
    text, constants = _with_constants_named(answer, {variable, variable.swapcase()})
    if len(constants) > _MAX_CONSTANTS or _REPEATED.search(text):
        return 0.0
    for name in (variable, variable.swapcase()):
        formula = parse(text, (name, *constants))
        if formula is not None:
            return float(is_antiderivative(formula, integrand, {variable, name}, constants, f"{source}\n{answer}"))
    return 0.0


@lru_cache(maxsize=256)
def _integrand(source: str, variable: str) -> Integrand:
    """The parsed integrand, cached for all answers to a question."""
    node = parse(source, (variable,))
    if node is None:
        raise ValueError(f"cannot read the integrand {source!r}")
    return Integrand.of(node)


def _with_constants_named(text: str, variables: Collection[str]) -> tuple[str, list[str]]:
    """The text with a name of letters instead of each constant of integration, and these names.

    Only a separate word is one: `2*C`, `+ C_1`, `+ c_{0}`, `+ D`, `+ const`, not `xC`, `C(x)` or a part of a word.
    """
    found: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        written = match[0]
        if written in variables:
            return written
        return f" {found.setdefault(written, 'constant' + chr(ord('A') + len(found)))} "

    return _CONSTANT.sub(name, text.translate(_LOWERED)), list(found.values())


def parse_expanded(text: str, variables: Collection[str]) -> dict[Monomial, Fraction] | None:
    """The polynomial, if it is expanded and like terms are collected: no brackets, one number and each variable once a
    term, each monomial once. The order of terms and factors is free, and so is the sign of multiplication."""
    names = "|".join(re.escape(name) for name in sorted(variables, key=lambda name: (-len(name), name))) or "(?!)"
    # a name takes its exponent along: 2, (2)
    token = re.compile(
        rf"\s*(?:(?P<sign>[+-])|(?P<times>\*)(?!\*)|(?P<number>{_NUMBER})"
        rf"|(?P<name>{names})(?:\s*(?:\*\*|\^)\s*(?:(\d{{1,4}})(?!\d)|\(\s*(\d{{1,4}})\s*\)))?)"
    )
    text = plain(forms.plain_thousands(text)).rstrip()
    found: dict[Monomial, Fraction] = {}
    position = 0
    while position < len(text):
        signs, number, powers = "", "", dict[str, int]()
        factors, is_open = 0, True  # a factor must follow: at the start, and after a `*`
        while match := token.match(text, position):
            sign, times, digits, name, exponent, bracketed = match.groups()
            if sign and not is_open:
                break
            if sign:
                signs += sign
                fits = not factors and len(signs) <= 2  # `+ -3*x`
            elif times:
                fits, is_open = not is_open, True
            else:
                fits = name not in powers if name else not number and is_open and len(digits) <= _MAX_DIGITS
                factors, is_open = factors + 1, False
            if not fits:
                return None
            number = digits or number
            if name:
                powers[name] = int(exponent or bracketed or 1)
            position = match.end()
        monomial = tuple(sorted(power for power in powers.items() if power[1]))
        if is_open or monomial in found or (match is None and position < len(text)):
            return None
        value = Fraction(number.replace(",", "").removesuffix(".") or 1)
        found[monomial] = -value if signs.count("-") == 1 else value
    return {monomial: value for monomial, value in found.items() if value} if found else None


def dense(polynomial: dict[Monomial, Fraction]) -> Dense:
    """The coefficients of a polynomial in one variable."""
    degrees = {sum(power for _, power in monomial): value for monomial, value in polynomial.items()}
    return [degrees.get(degree, Fraction(0)) for degree in range(max(degrees, default=-1) + 1)]


def _value(polynomial: Dense, at: Fraction) -> Fraction:
    value = Fraction(0)
    for coefficient in reversed(polynomial):
        value = value * at + coefficient
    return value


def _divide(dividend: Dense, divisor: Dense) -> tuple[Dense, Dense]:
    """Quotient and remainder."""
    rest = list(dividend)
    quotient = [Fraction(0)] * max(0, len(dividend) - len(divisor) + 1)
    while len(rest) >= len(divisor):
        shift = len(rest) - len(divisor)
        quotient[shift] = rest[-1] / divisor[-1]
        for index, coefficient in enumerate(divisor):
            rest[shift + index] -= quotient[shift] * coefficient
        while rest and not rest[-1]:
            rest.pop()
    return quotient, rest


class RealRoots:
    """Counts the distinct real roots of a polynomial that is not zero, by Sturm's theorem, in exact arithmetic."""

    def __init__(self, polynomial: Dense) -> None:
        chain = [polynomial]
        following = [degree * value for degree, value in enumerate(polynomial)][1:]
        while following:
            chain.append(following)
            following = [-value for value in _divide(chain[-2], chain[-1])[1]]
        # Dividing by the common factor makes roots simple, which the theorem requires at the ends of an interval.
        self.chain = [_divide(p, chain[-1])[0] for p in chain]

    def total(self) -> int:
        below = [p[-1] * (-1) ** (len(p) - 1) for p in self.chain]
        return _changes(below) - _changes([p[-1] for p in self.chain])

    def within(self, low: Fraction, high: Fraction) -> int:
        """The number of roots in [low, high], for `low <= high`."""
        inside = _changes([_value(p, low) for p in self.chain]) - _changes([_value(p, high) for p in self.chain])
        return inside + (_value(self.chain[0], low) == 0)  # the theorem counts (low, high]


def _changes(values: Dense) -> int:
    """The number of sign changes along the values, ignoring zeros."""
    signs = [value > 0 for value in values if value]
    return sum(left != right for left, right in pairwise(signs))


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
    """Whether each value, in order, can be given a root of its own that it may be rounded from."""
    unit = Fraction(1, 10**_PLACES)
    start = end = None
    members = 0
    for value in values:
        # cut to four places the root is up to a unit away, on either side for a negative one; else half a unit
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
    """The expanded product with like terms collected. The product as the question has it is wrong."""
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
