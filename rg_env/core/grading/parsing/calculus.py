"""Is a formula an antiderivative of another? Decided by its derivative at sample points, in ball arithmetic.

The derivative is by forward-mode automatic differentiation (dual numbers: Clifford 1873; Griewank and Walther,
*Evaluating Derivatives*, chapter 3): each node of the tree gives its value and its derivative, by the chain rule. No
formula is transformed beyond its rational constants, so any way of writing the answer will do, and nothing can blow up.

Values and derivatives are balls (see `balls`), so rounding cannot decide: a formula is refuted where its derivative
is proven to differ from the integrand, confirmed where both are proven to agree to ten digits or more, and undecided
where digits cancel. `integrand*(x + 1e30*pi - 1e30*pi)` is undecided everywhere, hence refused.

The sample points depend on the question and the answer, so that no answer can be tuned to them. "Antiderivative" is
meant piece by piece: the constant may differ between the pieces of the domain, as it may for `ln|x|` or `atan(1/x)`.
"""

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal

from rg_env.core.grading.parsing import balls
from rg_env.core.grading.parsing.balls import ONE, ZERO, Ball
from rg_env.core.grading.parsing.expressions import (
    Call,
    Constant,
    Inverse,
    Name,
    Negative,
    Node,
    Number,
    Power,
    Product,
    Sum,
)

Dual = tuple[Ball, Ball]
"""A value and its derivative."""
Function = Callable[[Mapping[str, Dual]], Dual]
"""Of the values of all names. ValueError or ArithmeticError outside its real domain."""

_NEAR = (0.1, 300.0)
"""Sizes of the first points: so wide that no series or quadrature about zero agrees at all of them."""
_WIDE = (0.05, 1e4)
"""Sizes of further points, for integrands whose domain is small or far: `asin(3*x)`, `sqrt(x - 100)`."""
_NEAR_PAIRS, _WIDE_PAIRS = 6, 60
_EXTREME = (1e-25, -1e-25, 1e25, -1e25)
"""Points where the lowest or the highest power of a polynomial rules. They can refute but need not confirm."""
_FROM_EDGE = (1e-1, 1e-2, 1e-3, 1e-4)
"""Distances from an edge of the domain, relative to its size, of points that can refute but need not confirm."""
_HALVINGS = 24
_WANTED_POINTS = 12
"""Points in the domain of the integrand that are tried."""
_NEEDED_POINTS = 5
"""How many of them must confirm: `ln(x)` has half the domain of `1/x`."""
_WIDEST = 1e-10
"""Largest radius of a difference that confirms, relative to the integrand.

It must be well below 1e-8, the root of the rounding error: a sawtooth such as `u = atan(tan(K*x))/K` has slope 1 and
values below `1/K`, so that `integrand*u` has nearly the wanted derivative. It is refuted until `1/K` is as small as
the radius of its slope, which is about `K` times the rounding error.
"""
_MARGIN = 1 + 1e-9
"""For the rounding of the radii of long formulas."""
_TINY = 1e-200
_MODERATE, _HUGE = (-1.0, 1.0), (30.0, 60.0)
"""Decimal exponents of the values of constants of integration: huge ones make `C*x/10^20` count, and with moderate
ones `exp(C)` has a value."""
_MAX_BITS = 4_096
"""Rational constants are exact up to this size; larger ones have no value."""
_DOUBLE_DIGITS = 15
"""A decimal with as many digits is a float as printed: right to a unit in its last digit."""
_CONSTANTS = {"e": math.e, "pi": math.pi}


def compiled(node: Node) -> Function:
    """The function that the formula is, its rational constants computed exactly: `x + 10^30 - 10^30` is `x`.

    ArithmeticError if a constant is undefined or too large for a float.
    """
    return _function(_compiled(node))


def _function(part: Fraction | Function) -> Function:
    return _constant(balls.of_fraction(part)) if isinstance(part, Fraction) else part


def _constant(ball: Ball) -> Function:
    dual = ball, ZERO
    return lambda values: dual


def _compiled(node: Node) -> Fraction | Function:
    match node:
        case Number(text):
            return _number(text)
        case Constant(name):
            return _constant(balls.around(_CONSTANTS[name]))
        case Name(name):
            return lambda values: values[name]
        case Negative(operand):
            part = _compiled(operand)
            return -part if isinstance(part, Fraction) else _negative(part)
        case Inverse(operand):
            part = _compiled(operand)
            return 1 / part if isinstance(part, Fraction) else _inverse(part)
        case Sum():
            total, parts = Fraction(0), []
            for term in _flat(node):
                part = _compiled(term)
                if isinstance(part, Fraction):
                    total = _bounded(total + part)
                else:
                    parts.append(part)
            return _sum(parts, total) if parts else total
        case Product():
            total, parts = Fraction(1), []
            for factor in _flat(node):
                part = _compiled(factor)
                if isinstance(part, Fraction):
                    total = _bounded(total * part)
                else:
                    parts.append(part)
            return _product(parts, total) if parts else total
        case Power(base, exponent):
            return _power(Constant("e") if base == Constant("e") else _compiled(base), _compiled(exponent))
        case Call(function, argument):
            return _call(function, _function(_compiled(argument)))


def _number(text: str) -> Fraction | Function:
    whole, point, decimals = text.partition(".")
    value = Fraction(text.removesuffix("."))
    if not point or len((whole + decimals).strip("0")) < _DOUBLE_DIGITS:
        return value
    middle, radius = balls.of_fraction(value)
    return _constant((middle, radius + 10.0 ** -len(decimals)))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise OverflowError("a constant is too large")
    return value


def _flat(node: Sum | Product) -> Iterator[Node]:
    """The parts, and in their place those of a part of the same kind."""
    for part in node.terms if isinstance(node, Sum) else node.factors:
        if isinstance(part, Sum | Product) and type(part) is type(node):
            yield from _flat(part)
        else:
            yield part


def _negative(of: Function) -> Function:
    def negative(values: Mapping[str, Dual]) -> Dual:
        value, slope = of(values)
        return balls.negative(value), balls.negative(slope)

    return negative


def _inverse(of: Function) -> Function:
    def inverse(values: Mapping[str, Dual]) -> Dual:
        value, slope = of(values)
        value = balls.inverse(value)
        return value, balls.negative(balls.multiply(slope, balls.multiply(value, value)))

    return inverse


def _sum(parts: list[Function], constant: Fraction) -> Function:
    start = balls.of_fraction(constant)

    def total(values: Mapping[str, Dual]) -> Dual:
        value, slope = start, ZERO
        for part in parts:
            more, more_slope = part(values)
            value, slope = balls.add(value, more), balls.add(slope, more_slope)
        return value, slope

    return total


def _product(parts: list[Function], constant: Fraction) -> Function:
    start = balls.of_fraction(constant)

    def product(values: Mapping[str, Dual]) -> Dual:
        value, slope = start, ZERO
        for part in parts:
            more, more_slope = part(values)
            slope = balls.add(balls.multiply(slope, more), balls.multiply(value, more_slope))
            value = balls.multiply(value, more)
        return value, slope

    return product


def _power(base: Constant | Fraction | Function, exponent: Fraction | Function) -> Fraction | Function:
    if isinstance(base, Constant):
        return _call("exp", _function(exponent))
    if not isinstance(exponent, Fraction):
        return _general_power(_function(base), exponent)
    if not isinstance(base, Fraction):
        return _rational_power(base, exponent)
    if exponent.denominator == 1:
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if size * abs(exponent) > _MAX_BITS and base not in (0, 1, -1):
            raise OverflowError("a constant is too large")
        return base**exponent.numerator
    if base <= 0:
        if base == 0 and exponent > 0:
            return base
        raise ArithmeticError("a root of a negative constant, or a division by zero")
    return _constant(balls.power(balls.of_fraction(base), exponent))


def _rational_power(base: Function, exponent: Fraction) -> Function:
    factor, less = balls.of_fraction(exponent), exponent - 1

    def power(values: Mapping[str, Dual]) -> Dual:
        value, slope = base(values)
        if slope == ZERO or not exponent:
            return balls.power(value, exponent), ZERO
        lower = balls.power(value, less)
        return balls.multiply(lower, value), balls.multiply(balls.multiply(factor, lower), slope)

    return power


def _general_power(base: Function, exponent: Function) -> Function:
    def power(values: Mapping[str, Dual]) -> Dual:
        (u, du), (n, dn) = base(values), exponent(values)
        logarithm = balls.log(u)
        value = balls.exp(balls.multiply(n, logarithm))
        inner = balls.add(balls.multiply(dn, logarithm), balls.multiply(balls.multiply(n, du), balls.inverse(u)))
        return value, balls.multiply(value, inner)

    return power


def _call(function: str, argument: Function) -> Function:
    of, derivative = balls.FUNCTIONS[function]

    def call(values: Mapping[str, Dual]) -> Dual:
        inner, slope = argument(values)
        value = of(inner)
        return value, ZERO if slope == ZERO else balls.multiply(derivative(inner, value), slope)

    return call


def _size(node: Node) -> Callable[[Mapping[str, Dual]], float]:
    """How large the terms are that make up the value, were they not to cancel: what rounding errors are relative to."""
    match node:
        case Negative(operand):
            return _size(operand)
        case Sum(terms):
            parts = [_size(term) for term in terms]
            return lambda values: sum(part(values) for part in parts)
        case Product(factors):
            parts = [_size(factor) for factor in factors]
            return lambda values: math.prod(part(values) for part in parts)
        case Power(base, Number(text)):
            size, exponent = _size(base), float(text)
            return lambda values: math.pow(size(values), exponent)
        case Call("sin" | "cos", _):
            return lambda values: 1.0
        case _:
            of = compiled(node)
            return lambda values: abs(of(values)[0][0])


@dataclass(frozen=True, slots=True)
class Integrand:
    """A formula to find an antiderivative of."""

    value: Function
    size: Callable[[Mapping[str, Dual]], float]
    is_zero: bool

    @classmethod
    def of(cls, node: Node) -> "Integrand":
        part = _compiled(node)
        return cls(_function(part), _size(node), part == 0)


def is_antiderivative(
    answer: Node, integrand: Integrand, variables: Collection[str], constants: Collection[str], seed: str
) -> bool:
    """Whether the derivative of `answer` is `integrand`, wherever both have a real value.

    All `variables` name the same one. `constants` are names of constants of integration, whose values change from point
    to point: one that does not vanish from the derivative (`C*x`) is not taken for the right number. `seed` chooses the
    points. What differs by less than the rounding error of floats, relative to the integrand, is taken for equal.
    """
    try:
        derivative = compiled(answer)
    except ArithmeticError:
        return False
    draw = random.Random(seed)
    tried = confirmed = 0
    domain = _Domain(integrand, variables)
    for point in _points(draw):
        if tried == _WANTED_POINTS:
            break
        exponents = _HUGE if tried % 2 else _MODERATE
        names = {name: ((10 ** draw.uniform(*exponents), 0.0), ZERO) for name in constants}
        verdict = _compared(derivative, integrand, names | dict.fromkeys(variables, (balls.around(point), ONE)))
        if verdict == "different":
            return False
        domain.add(point, verdict != "outside")
        tried += verdict != "outside"
        confirmed += verdict == "equal"
        if tried - confirmed > _WANTED_POINTS - _NEEDED_POINTS:
            return False
    if confirmed < _NEEDED_POINTS:
        return False
    for point in (*_EXTREME, *domain.near_edges()):
        values = dict.fromkeys(constants, (ONE, ZERO)) | dict.fromkeys(variables, (balls.around(point), ONE))
        if _compared(derivative, integrand, values) == "different":
            return False
    return True


def _points(draw: random.Random) -> Iterator[float]:
    """One of either sign at a time, of evenly spread sizes at first."""
    for low, high, pairs, strata in ((*_NEAR, _NEAR_PAIRS, _NEAR_PAIRS), (*_WIDE, _WIDE_PAIRS, 1)):
        for index in range(pairs):
            for sign in (1, -1):
                yield sign * low * (high / low) ** ((index % strata + draw.random()) / strata)


class _Domain:
    """Where the integrand has values, as far as points have shown it.

    A series or a quadrature about zero of `asin(3*x)` agrees with it to all digits in the middle of its domain: only
    points close to an edge refute it.
    """

    def __init__(self, integrand: Integrand, variables: Collection[str]) -> None:
        self._integrand, self._variables = integrand, variables
        self._points: dict[float, bool] = {}

    def add(self, point: float, inside: bool) -> None:
        self._points[point] = inside

    def near_edges(self) -> Iterator[float]:
        """For each sign, points inside that are ever closer to the first edge on the way outwards."""
        for sign in (1, -1):
            sizes = sorted((point * sign, inside) for point, inside in self._points.items() if point * sign > 0)
            for (near, inside), (far, beyond) in pairwise(sizes):
                if inside and not beyond:
                    edge = self._edge(near * sign, far * sign)
                    yield from (edge * (1 - distance) for distance in _FROM_EDGE)
                    break

    def _edge(self, inside: float, outside: float) -> float:
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            values = dict.fromkeys(self._variables, (balls.around(middle), ONE))
            try:
                has_value = balls.is_finite(self._integrand.value(values)[0])
            except (ValueError, ArithmeticError):
                has_value = False
            inside, outside = (middle, outside) if has_value else (inside, middle)
        return inside


def _compared(
    derivative: Function, integrand: Integrand, values: Mapping[str, Dual]
) -> Literal["equal", "different", "undecided", "outside"]:
    """The derivative of an answer and the integrand at one point; "outside" the integrand's domain or range."""
    try:
        wanted, size = integrand.value(values)[0], integrand.size(values)
    except (ValueError, ArithmeticError):
        return "outside"
    if not balls.is_finite(wanted) or not math.isfinite(size) or (size < _TINY and not integrand.is_zero):
        return "outside"
    try:
        slope = derivative(values)[1]
    except (ValueError, ArithmeticError):
        return "undecided"
    middle, radius = balls.add(slope, balls.negative(wanted))
    if abs(middle) > radius * _MARGIN:  # False for what is infinite or not a number
        return "different"
    return "equal" if radius <= _WIDEST * size else "undecided"
