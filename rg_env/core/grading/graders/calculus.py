"""Check antiderivatives by comparing a formula's derivative with the integrand at sample points, using ball arithmetic.

Derivatives are computed by forward-mode automatic differentiation with dual numbers (Clifford 1873; Griewank and
Walther, *Evaluating Derivatives*, chapter 3). Each node of the expression tree computes its value and, by the chain
rule, its derivative, so the derivative is never written out as a formula. Only values are compared, so formulas need
not be brought into the same form. Formulas are not simplified, except that rational constants are computed exactly.

Values and derivatives are balls (see below), which account for all rounding errors. A formula is refuted at a point if
its derivative provably differs from the integrand, and confirmed if both provably agree to ten digits or more. In all
other cases, such as when digits cancel, the formula is undecided at that point. For example,
`integrand*(x + 1e30*pi - 1e30*pi)` is undecided everywhere and therefore rejected.

The sample points depend on the question and the answer, so answers cannot be tuned to them. The constant of integration
may differ between pieces of the domain, as with `ln|x|` or `atan(1/x)`.

A ball represents a real number by a midpoint and a radius that provably bounds its error. Each operation returns a ball
that contains every result for operands in the given balls, including rounding (van der Hoeven, *Ball arithmetic*, 2009;
Johansson, *Arb*, 2017). If digits cancel, midpoints become meaningless and radii grow. Plain floats would hide this
loss of precision. For example, the ball of `1 + 1e30 - 1e30` is about `0 +- 7e14`. Operations raise ValueError or
ArithmeticError if a ball is not entirely inside their domain. Values too large for a float become infinite or raise
OverflowError, so check results with `is_finite`.
"""

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from typing import Literal

from rg_env.core.grading.graders.expressions import Node, fraction

Ball = tuple[float, float]
"""Midpoint and radius."""
Dual = tuple[Ball, Ball]
"""A value and its derivative."""
Function = Callable[[Mapping[str, Dual]], Dual]
"""Function that computes a value and its derivative from those of the variables. The function raises ValueError or
ArithmeticError outside its real domain."""

_NEAR = (0.1, 300.0)
"""Range of magnitudes for the first sample points. This range is too wide for a series expansion or quadrature about
zero to be accurate everywhere."""
_WIDE = (0.05, 1e4)
"""Range of magnitudes for additional sample points, which are needed for integrands with a small or distant domain,
such as `asin(3*x)` or `sqrt(x - 100)`."""
_NEAR_PAIRS, _WIDE_PAIRS = 6, 60
_EXTREME = (1e-25, -1e-25, 1e25, -1e25)
"""Points where the lowest or highest power of a polynomial dominates. These points can refute an answer but need not
confirm it."""
_FROM_EDGE = (1e-1, 1e-2, 1e-3, 1e-4)
"""Distances of points from an edge of the domain, relative to the edge's magnitude. These points can refute an answer
but need not confirm it."""
_HALVINGS = 24
_WANTED_POINTS = 12
"""Number of points to try in the integrand's domain."""
_NEEDED_POINTS = 5
"""Number of points that must confirm an answer. This minimum is lower than `_WANTED_POINTS` because an answer's domain
can be smaller than the integrand's: `ln(x)` has half the domain of `1/x`."""
_WIDEST = 1e-10
"""Maximum radius, relative to the integrand, of the difference between the derivative and the integrand at a point that
confirms an answer.

This radius must be well below 1e-8, the square root of the rounding error. A sawtooth such as `u = atan(tan(K*x))/K`
has slope 1 and values below `2/K`, so the derivative of `integrand*u` is nearly the integrand. The answer `integrand*u`
is refuted unless `1/K` is as small as the radius of the slope, which is about `K` times the rounding error.
"""
_MARGIN = 1 + 1e-9
"""Safety factor for rounding errors in the radii of long formulas."""
_TINY = 1e-200
_MODERATE, _HUGE = (-1.0, 1.0), (30.0, 60.0)
"""Ranges of decimal exponents for the values of integration constants. Huge values make `C*x/10^20` significant, and
moderate values keep `exp(C)` finite."""
_MAX_BITS = 4_096
"""Maximum size, in bits, of the numerator and denominator of an exact rational constant. Formulas with larger constants
are rejected."""
_DOUBLE_DIGITS = 15
"""Minimum number of significant digits for a decimal number to be treated as a printed float, accurate to one unit in
its last digit."""
_CONSTANTS = {"e": math.e, "pi": math.pi}


# Balls

ZERO: Ball = (0.0, 0.0)
ONE: Ball = (1.0, 0.0)
_ROUNDING = 2.0**-52
"""Relative error per operation: twice the IEEE 754 bound, to cover the rounding of radii."""
_LIBRARY = 2.0**-50
"""Relative error of a C library function. The documented or measured error is at most 2 ulp for glibc, musl, macOS and
Windows."""
_UNDERFLOW = 2e-323
"""Absolute error of products below the range of normal numbers."""


def is_finite(a: Ball) -> bool:
    return math.isfinite(a[0]) and math.isfinite(a[1])


def of_fraction(value: Fraction) -> Ball:
    """Return a ball that represents a fraction. Its radius is 0 if a float can represent the fraction exactly. Raises
    OverflowError if the fraction is too large."""
    middle = float(value)
    return middle, 0.0 if middle == value else _ROUNDING * abs(middle) + _UNDERFLOW


def around(middle: float) -> Ball:
    """Return a ball that represents a real number, such as pi, given the float closest to it."""
    return middle, _ROUNDING * abs(middle)


def add(a: Ball, b: Ball) -> Ball:
    middle = a[0] + b[0]
    return middle, a[1] + b[1] + _ROUNDING * abs(middle)


def negative(a: Ball) -> Ball:
    return -a[0], a[1]


def multiply(a: Ball, b: Ball) -> Ball:
    if a == ZERO or b == ZERO:
        return ZERO
    (x, r), (y, s) = a, b
    middle = x * y
    return middle, abs(x) * s + abs(y) * r + r * s + _ROUNDING * abs(middle) + _UNDERFLOW


def inverse(a: Ball) -> Ball:
    x, r = _finite(a)
    least = abs(x) - r
    if least <= 0:
        raise ZeroDivisionError("the ball contains zero")
    middle = 1 / x
    return middle, r / abs(x) / least + _ROUNDING * abs(middle) + _UNDERFLOW


def power(a: Ball, exponent: Fraction) -> Ball:
    """Compute a power. With an integer exponent, the base may be any number, except zero if the exponent is negative.
    With any other exponent, the base must be positive."""
    if exponent.denominator != 1:
        return exp(multiply(of_fraction(exponent), log(a)))
    n = exponent.numerator
    if n < 0:
        return inverse(power(a, -exponent))
    if n <= 1:
        return a if n else ONE
    x, r = _finite(a)
    middle = math.pow(x, n)
    spread = n * math.pow(abs(x) + r, n - 1) * r if r else 0.0
    return middle, spread + _LIBRARY * (abs(middle) + spread) + _UNDERFLOW


def _finite(a: Ball) -> Ball:
    if not is_finite(a):
        raise OverflowError("the ball is too large for a float")
    return a


def _lifted(function: Callable[[float], float], spread: Callable[[float, float], float]) -> Callable[[Ball], Ball]:
    """Lift `function` to balls. `spread` bounds the change in `function` within a ball, given the ball's midpoint and
    radius."""

    def lifted(a: Ball) -> Ball:
        x, r = _finite(a)
        middle, change = function(x), spread(x, r)
        return middle, change + _LIBRARY * (abs(middle) + change) + _UNDERFLOW

    return lifted


def _log_spread(x: float, r: float) -> float:
    if x - r <= 0:
        raise ValueError("the ball contains numbers without a logarithm")
    return r / (x - r)


def _tan_spread(x: float, r: float) -> float:
    """Bound the change in `tan` within a ball.

    If `r (1 + |tan x|) < 1/4`, every point of the ball is at least two thirds as far from the pole as `x` is. The slope
    is `1 / sin^2` of the distance to the pole, so it is at most 2.25 times the slope at `x`.
    """
    middle = math.tan(x)
    if r * (1 + abs(middle)) >= 0.25:
        raise ValueError("the ball may contain a pole")
    return 2.25 * r * (1 + middle * middle)


exp = _lifted(math.exp, lambda x, r: math.exp(x) * math.expm1(r))
log = _lifted(math.log, _log_spread)
tan = _lifted(math.tan, _tan_spread)
sqrt = _lifted(math.sqrt, lambda x, r: r / (math.sqrt(x) + math.sqrt(x - r)) if r else 0.0)
sin, cos, atan = (_lifted(function, lambda x, r: r) for function in (math.sin, math.cos, math.atan))
asin, acos = (
    _lifted(function, lambda x, r: r / math.sqrt(1 - (abs(x) + r) ** 2) if r else 0.0)
    for function in (math.asin, math.acos)
)
sinh, cosh = (_lifted(function, lambda x, r: r * math.cosh(abs(x) + r)) for function in (math.sinh, math.cosh))


def sign(a: Ball) -> Ball:
    x, r = _finite(a)
    if abs(x) <= r:
        raise ValueError("the ball contains zero")
    return math.copysign(1.0, x), 0.0


def _arc_slope(u: Ball, v: Ball) -> Ball:
    return inverse(sqrt(add(ONE, negative(multiply(u, u)))))


DIFFERENTIABLE: dict[str, tuple[Callable[[Ball], Ball], Callable[[Ball, Ball], Ball]]] = {
    "negative": (negative, lambda u, v: (-1.0, 0.0)),
    "inverse": (inverse, lambda u, v: negative(multiply(v, v))),
    "exp": (exp, lambda u, v: v),
    "log": (log, lambda u, v: inverse(u)),
    "sin": (sin, lambda u, v: cos(u)),
    "cos": (cos, lambda u, v: negative(sin(u))),
    "tan": (tan, lambda u, v: add(ONE, multiply(v, v))),
    "sqrt": (sqrt, lambda u, v: inverse(add(v, v))),
    "asin": (asin, _arc_slope),
    "acos": (acos, lambda u, v: negative(_arc_slope(u, v))),
    "atan": (atan, lambda u, v: inverse(add(ONE, multiply(u, u)))),
    "sinh": (sinh, lambda u, v: cosh(u)),
    "cosh": (cosh, lambda u, v: sinh(u)),
    "abs": (lambda a: (abs(a[0]), a[1]), lambda u, v: sign(u)),
}
"""Functions by name, each with its derivative as a function of the argument and the value."""


# Formulas


def compiled(node: Node) -> Function:
    """Compile a formula into a function. Rational constants are computed exactly, so `x + 10^30 - 10^30` is `x`.

    Raises ArithmeticError if a constant is undefined, or is too large for a float or for `_MAX_BITS`.
    """
    return _function(_compiled(node))


def _function(part: Fraction | Function) -> Function:
    return _constant(of_fraction(part)) if isinstance(part, Fraction) else part


def _constant(ball: Ball) -> Function:
    dual = ball, ZERO
    return lambda values: dual


def _compiled(node: Node) -> Fraction | Function:
    match node:
        case ("number", text):
            return _number(text)
        case ("constant", name):
            return _constant(around(_CONSTANTS[name]))
        case ("name", name):
            return lambda values: values[name]
        case ("negative" | "inverse" as kind, operand):
            part = _compiled(operand)
            if not isinstance(part, Fraction):
                return _call(kind, part)
            return -part if kind == "negative" else 1 / part
        case ("sum" | "product" as kind, *_):
            parts = [_compiled(part) for part in _flat(node)]
            constant = Fraction(kind == "product")
            for part in parts:
                if isinstance(part, Fraction):
                    constant = _bounded(constant + part if kind == "sum" else constant * part)
            functions = [part for part in parts if not isinstance(part, Fraction)]
            operation = _sum if kind == "sum" else _product
            return _joined(operation, [_function(constant), *functions]) if functions else constant
        case ("power", ("constant", "e"), exponent):
            return _call("exp", _function(_compiled(exponent)))
        case ("power", base, exponent):
            return _power(_compiled(base), _compiled(exponent))
    _, function, argument = node
    return _call(function, _function(_compiled(argument)))


def _number(text: str) -> Fraction | Function:
    whole, point, decimals = text.partition(".")
    value = fraction(text.removesuffix("."))
    if not point or len((whole + decimals).strip("0")) < _DOUBLE_DIGITS:
        return value
    middle, radius = of_fraction(value)
    return _constant((middle, radius + 10.0 ** -len(decimals)))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise OverflowError("a constant is too large")
    return value


def _flat(node: Node) -> Iterator[Node]:
    """Yield the node's parts, flattening nested nodes of the same kind."""
    for part in node[1:]:
        if part[0] == node[0]:
            yield from _flat(part)
        else:
            yield part


def _joined(operation: Callable[[Dual, Dual], Dual], parts: list[Function]) -> Function:
    return lambda values: reduce(operation, (part(values) for part in parts))


def _sum(one: Dual, other: Dual) -> Dual:
    return add(one[0], other[0]), add(one[1], other[1])


def _product(one: Dual, other: Dual) -> Dual:
    return multiply(one[0], other[0]), add(multiply(one[1], other[0]), multiply(one[0], other[1]))


def _power(base: Fraction | Function, exponent: Fraction | Function) -> Fraction | Function:
    if not isinstance(exponent, Fraction):
        return _call("exp", _joined(_product, [exponent, _call("log", _function(base))]))
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
    return _constant(power(of_fraction(base), exponent))


def _rational_power(base: Function, exponent: Fraction) -> Function:
    factor, less = of_fraction(exponent), exponent - 1

    def raised(values: Mapping[str, Dual]) -> Dual:
        value, slope = base(values)
        if slope == ZERO or not exponent:
            return power(value, exponent), ZERO
        lower = power(value, less)
        return multiply(lower, value), multiply(multiply(factor, lower), slope)

    return raised


def _call(function: str, argument: Function) -> Function:
    of, derivative = DIFFERENTIABLE[function]

    def call(values: Mapping[str, Dual]) -> Dual:
        inner, slope = argument(values)
        value = of(inner)
        return value, ZERO if slope == ZERO else multiply(derivative(inner, value), slope)

    return call


def _size(node: Node) -> Callable[[Mapping[str, Dual]], float]:
    """Return a function that computes the magnitude that the value would have if no terms canceled, as a reference for
    rounding errors."""
    match node:
        case ("negative", operand):
            return _size(operand)
        case ("sum", *terms):
            parts = [_size(term) for term in terms]
            return lambda values: sum(part(values) for part in parts)
        case ("product", *factors):
            parts = [_size(factor) for factor in factors]
            return lambda values: math.prod(part(values) for part in parts)
        case ("power", base, ("number", text)):
            size, exponent = _size(base), float(text)
            return lambda values: math.pow(size(values), exponent)
        case ("call", "sin" | "cos", _):
            return lambda values: 1.0
        case _:
            of = compiled(node)
            return lambda values: abs(of(values)[0][0])


# Antiderivatives


@dataclass(frozen=True, slots=True)
class Integrand:
    """The formula to integrate."""

    value: Function
    size: Callable[[Mapping[str, Dual]], float]
    is_zero: bool

    @classmethod
    def of(cls, node: Node) -> "Integrand":
        part = _compiled(node)
        return cls(_function(part), _size(node), part == 0)

    def has_value(self, values: Mapping[str, Dual]) -> bool:
        try:
            return is_finite(self.value(values)[0])
        except (ValueError, ArithmeticError):
            return False


def is_antiderivative(
    answer: Node, integrand: Integrand, variables: Collection[str], constants: Collection[str], seed: str
) -> bool:
    """Whether the derivative of `answer` equals `integrand` wherever both have a real value.

    Values count as equal if they agree to within rounding errors that are at most `_WIDEST`, relative to the integrand.

    Args:
        variables: all accepted names for the variable of integration.
        constants: names of constants of integration. Their values vary from point to point, so a derivative that still
            contains a constant (as with `C*x`) never matches by chance.
        seed: text that determines the sample points.
    """
    try:
        derivative = compiled(answer)
    except ArithmeticError:
        return False
    draw = random.Random(seed)

    def at(point: float) -> dict[str, Dual]:
        return dict.fromkeys(variables, (around(point), ONE))

    tried: dict[float, bool] = {}
    """Whether each point tried so far is in the integrand's domain."""
    confirmed = 0
    for point in _points(draw):
        n_inside = sum(tried.values())
        if n_inside == _WANTED_POINTS:
            break
        exponents = _HUGE if n_inside % 2 else _MODERATE
        names = {name: ((10 ** draw.uniform(*exponents), 0.0), ZERO) for name in constants}
        verdict = _compared(derivative, integrand, names | at(point))
        if verdict == "different":
            return False
        tried[point] = verdict != "outside"
        confirmed += verdict == "equal"
        if sum(tried.values()) - confirmed > _WANTED_POINTS - _NEEDED_POINTS:
            return False
    if confirmed < _NEEDED_POINTS:
        return False
    edges = _near_edges(tried, lambda point: integrand.has_value(at(point)))
    names = dict.fromkeys(constants, (ONE, ZERO))
    return all(_compared(derivative, integrand, names | at(point)) != "different" for point in (*_EXTREME, *edges))


def _points(draw: random.Random) -> Iterator[float]:
    """Yield sample points with alternating signs. The magnitudes of the first points are spread evenly on a logarithmic
    scale."""
    for low, high, pairs, strata in ((*_NEAR, _NEAR_PAIRS, _NEAR_PAIRS), (*_WIDE, _WIDE_PAIRS, 1)):
        for index in range(pairs):
            for sign in (1, -1):
                yield sign * low * (high / low) ** ((index % strata + draw.random()) / strata)


def _near_edges(tried: Mapping[float, bool], has_value: Callable[[float], bool]) -> Iterator[float]:
    """Yield points that approach the nearest edge of the domain on each side of zero.

    A series expansion or quadrature of `asin(3*x)` about zero agrees with the function to all digits in the middle of
    the domain, so only points close to an edge refute such an answer.
    """
    for sign in (1, -1):
        for near, far in pairwise(sorted((point for point in tried if point * sign > 0), key=abs)):
            if tried[near] and not tried[far]:
                for _ in range(_HALVINGS):
                    middle = (near + far) / 2
                    near, far = (middle, far) if has_value(middle) else (near, middle)
                yield from (near * (1 - distance) for distance in _FROM_EDGE)
                break


def _compared(
    derivative: Function, integrand: Integrand, values: Mapping[str, Dual]
) -> Literal["equal", "different", "undecided", "outside"]:
    """Compare an answer's derivative with the integrand at one point.

    "outside" means that the point is outside the integrand's domain, or that the integrand's value is outside the
    usable range.
    """
    try:
        wanted, size = integrand.value(values)[0], integrand.size(values)
    except (ValueError, ArithmeticError):
        return "outside"
    if not is_finite(wanted) or not math.isfinite(size) or (size < _TINY and not integrand.is_zero):
        return "outside"
    try:
        slope = derivative(values)[1]
    except (ValueError, ArithmeticError):
        return "undecided"
    middle, radius = add(slope, negative(wanted))
    if abs(middle) > radius * _MARGIN:  # False for infinity and NaN
        return "different"
    return "equal" if radius <= _WIDEST * size else "undecided"
