"""Polynomials: reading an expanded one, and counting real roots exactly."""

import re
from collections.abc import Collection
from fractions import Fraction
from itertools import pairwise

from rg_env.core.grading.parsing import forms
from rg_env.core.grading.parsing.expressions import plain

Monomial = tuple[tuple[str, int], ...]
"""Variables with their exponents, both in order: `x*y**2` is `(("x", 1), ("y", 2))`."""
Dense = list[Fraction]
"""Coefficients from the constant one up, the last not zero; empty for the zero polynomial."""

_MAX_DIGITS = 300
_NUMBER = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+"


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
        term = _Term()
        while position < len(text):
            match = token.match(text, position)
            if match is None:
                return None
            sign, times, number, name, plain_exponent, exponent = match.groups()
            if sign and term.factors and not term.open:
                break
            if not (term.sign(sign) if sign else term.times() if times else term.factor(number, name)):
                return None
            if name:
                term.powers[name] = int(plain_exponent or exponent or 1)
            position = match.end()
        if not term.factors or term.open:
            return None
        monomial = tuple(sorted(power for power in term.powers.items() if power[1]))
        if monomial in found:
            return None
        found[monomial] = term.coefficient()
    return {monomial: value for monomial, value in found.items() if value} if found else None


class _Term:
    """One term while it is read; each method says whether the next token may stand there."""

    def __init__(self) -> None:
        self.negative = False
        self.signs = 0
        self.factors = 0
        self.open = False
        self.number = ""
        self.powers: dict[str, int] = {}

    def sign(self, sign: str) -> bool:
        self.signs += 1
        self.negative ^= sign == "-"
        return not self.factors and self.signs <= 2  # `+ -3*x`

    def times(self) -> bool:
        fits = self.factors > 0 and not self.open
        self.open = True
        return fits

    def factor(self, number: str | None, name: str | None) -> bool:
        if number:
            fits = not self.number and (not self.factors or self.open) and len(number) <= _MAX_DIGITS
            self.number = number
        else:
            fits = name not in self.powers
        self.factors += 1
        self.open = False
        return fits

    def coefficient(self) -> Fraction:
        value = Fraction(self.number.replace(",", "").removesuffix(".") or 1)
        return -value if self.negative else value


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
        # without the common factor each root is simple, which the theorem wants of the ends of an interval
        self.chain = [_divide(p, chain[-1])[0] for p in chain]

    def total(self) -> int:
        below = [p[-1] * (-1) ** (len(p) - 1) for p in self.chain]
        return _changes(below) - _changes([p[-1] for p in self.chain])

    def within(self, low: Fraction, high: Fraction) -> int:
        """How many lie in [low, high], for `low <= high`."""
        inside = _changes([_value(p, low) for p in self.chain]) - _changes([_value(p, high) for p in self.chain])
        return inside + (_value(self.chain[0], low) == 0)  # the theorem counts (low, high]


def _changes(values: Dense) -> int:
    """How often the sign changes along the values, zeros left out."""
    signs = [value > 0 for value in values if value]
    return sum(left != right for left, right in pairwise(signs))
