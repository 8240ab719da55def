"""Arithmetic on balls: a real number as a midpoint and a radius that it is proven not to leave.

Each operation returns a ball that holds every result for operands within theirs, rounding included (van der Hoeven,
*Ball arithmetic*, 2009; Johansson, *Arb*, 2017). Where digits cancel, midpoints lose their meaning and radii grow, so
a caller sees what floats alone hide: `1 + 1e30 - 1e30` is `0 +- 1e15`.

Operations raise ValueError or ArithmeticError where a ball is not entirely inside the domain. Values too large for a
float become infinite or raise OverflowError: what is used must be checked with `is_finite`.
"""

import math
from collections.abc import Callable
from fractions import Fraction

Ball = tuple[float, float]
"""Midpoint and radius."""

ZERO: Ball = (0.0, 0.0)
ONE: Ball = (1.0, 0.0)
_ROUNDING = 2.0**-52
"""Relative error of one operation, twice what IEEE 754 guarantees: the rest covers the rounding of the radii."""
_LIBRARY = 2.0**-50
"""Relative error of a function of the C library; glibc, musl, macOS and Windows document or measure 2 ulp at most."""
_UNDERFLOW = 2e-323
"""Absolute error where products leave the range of normal numbers."""


def is_finite(a: Ball) -> bool:
    return math.isfinite(a[0]) and math.isfinite(a[1])


def of_fraction(value: Fraction) -> Ball:
    """Exact for whole numbers that a float can hold; OverflowError for what it cannot hold at all."""
    middle = float(value)
    return middle, 0.0 if middle == value else _ROUNDING * abs(middle) + _UNDERFLOW


def around(middle: float) -> Ball:
    """A float that stands for a real number next to it, such as `math.pi`."""
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
        raise ZeroDivisionError("the ball holds zero")
    middle = 1 / x
    return middle, r / abs(x) / least + _ROUNDING * abs(middle) + _UNDERFLOW


def power(a: Ball, exponent: Fraction) -> Ball:
    """A whole exponent takes any base (but zero if negative), another one a positive base."""
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


def log(a: Ball) -> Ball:
    x, r = _finite(a)
    if x - r <= 0:
        raise ValueError("the ball holds what has no logarithm")
    return _value(math.log(x), r / (x - r))


def tan(a: Ball) -> Ball:
    """With `r (1 + |tan x|) < 1/4` the ball keeps two thirds of the distance to the pole, so that the slope, which is
    `1 / sin^2` of that distance, is at most 2.25 times the slope at `x`."""
    x, r = _finite(a)
    middle = math.tan(x)
    if r * (1 + abs(middle)) >= 0.25:
        raise ValueError("the ball may hold a pole")
    return _value(middle, 2.25 * r * (1 + middle * middle))


def sqrt(a: Ball) -> Ball:
    x, r = _finite(a)
    if x - r < 0:
        raise ValueError("the ball holds what has no square root")
    middle = math.sqrt(x)
    return _value(middle, r / middle if r else 0.0)


def absolute(a: Ball) -> Ball:
    return abs(a[0]), a[1]


def sign(a: Ball) -> Ball:
    """ValueError where the ball holds zero."""
    x, r = _finite(a)
    if abs(x) <= r:
        raise ValueError("the ball holds zero")
    return math.copysign(1.0, x), 0.0


def _value(middle: float, spread: float) -> Ball:
    return middle, spread + _LIBRARY * (abs(middle) + spread) + _UNDERFLOW


def _finite(a: Ball) -> Ball:
    if not is_finite(a):
        raise OverflowError("too large for a float")
    return a


def _lifted(function: Callable[[float], float], spread: Callable[[float, float], float]) -> Callable[[Ball], Ball]:
    """The function of balls; `spread` bounds its change from the midpoint, given that and the radius."""

    def lifted(a: Ball) -> Ball:
        x, r = _finite(a)
        return _value(function(x), spread(x, r))

    return lifted


def _arc_spread(x: float, r: float) -> float:
    end = abs(x) + r
    return r / math.sqrt(1 - end * end) if r else 0.0


sin, cos, atan = (_lifted(function, lambda x, r: r) for function in (math.sin, math.cos, math.atan))
asin, acos = (_lifted(function, _arc_spread) for function in (math.asin, math.acos))
sinh, cosh = (_lifted(function, lambda x, r: r * math.cosh(abs(x) + r)) for function in (math.sinh, math.cosh))
exp = _lifted(math.exp, lambda x, r: math.exp(x) * math.expm1(r))


def _arc_slope(u: Ball, v: Ball) -> Ball:
    return inverse(sqrt(add(ONE, negative(multiply(u, u)))))


FUNCTIONS: dict[str, tuple[Callable[[Ball], Ball], Callable[[Ball, Ball], Ball]]] = {
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
    "abs": (absolute, lambda u, v: sign(u)),
}
"""By name: the function, and its derivative from the argument and the function's value there."""
