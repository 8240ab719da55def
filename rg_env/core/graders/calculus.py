"""Is a formula an antiderivative of another? Told by its derivative at sample points.

The derivative is by forward-mode automatic differentiation (dual numbers: Clifford 1873; Griewank and Walther,
*Evaluating Derivatives*, chapter 3): each node of the tree gives its value and its derivative, by the chain rule, in
floating point. No formula is transformed, so any way of writing the answer will do, and nothing can blow up.
"""

import math
from collections.abc import Callable, Collection, Mapping

from rg_env.core.graders.expressions import Call, Constant, Inverse, Name, Negative, Node, Number, Power, Product, Sum

Dual = tuple[float, float]
"""A value and its derivative."""

_CONSTANTS = {"e": math.e, "pi": math.pi}
_POINTS = (0.2371, -0.1893, 0.1117, -0.2839, 0.7319, -0.8627, 1.4173, -1.6361, 2.7689, -2.3917, 0.0533, -0.0671)
_MORE_POINTS = (0.4127, -0.4391, 0.5813, -0.5639, 0.9389, -0.9713, 1.1719, -1.1273, 1.9087, -1.8647, 3.6719, -3.4391)
_FAR_POINTS = (5.1931, -4.6723, 9.7157, -8.9341, 13.371, -12.637, 27.917, -31.153, 117.31, -123.77, 1319.3, -1433.9)
"""Tried in this order. Of both signs and many sizes: the domain may be `x > 10` as well as `|x| < 1/3`."""
_WANTED_POINTS = 10
_NEEDED_POINTS = 4
_TOLERANCE = 1e-11
_TINY = 1e-200
# value, and the derivative as a function of argument and value
_FUNCTIONS: dict[str, tuple[Callable[[float], float], Callable[[float, float], float]]] = {
    "exp": (math.exp, lambda u, v: v),
    "log": (math.log, lambda u, v: 1 / u),
    "sin": (math.sin, lambda u, v: math.cos(u)),
    "cos": (math.cos, lambda u, v: -math.sin(u)),
    "tan": (math.tan, lambda u, v: 1 + v * v),
    "sqrt": (math.sqrt, lambda u, v: 0.5 / v),
    "asin": (math.asin, lambda u, v: 1 / math.sqrt(1 - u * u)),
    "acos": (math.acos, lambda u, v: -1 / math.sqrt(1 - u * u)),
    "atan": (math.atan, lambda u, v: 1 / (1 + u * u)),
    "sinh": (math.sinh, lambda u, v: math.cosh(u)),
    "cosh": (math.cosh, lambda u, v: math.sinh(u)),
    "abs": (abs, lambda u, v: math.copysign(1.0, u)),
}


def dual(node: Node, values: Mapping[str, Dual]) -> Dual:
    """Value and derivative of the tree; ValueError or ArithmeticError outside its real domain."""
    match node:
        case Number(text):
            return float(text), 0.0
        case Name(name):
            return values[name]
        case Constant(name):
            return _CONSTANTS[name], 0.0
        case Negative(operand):
            value, slope = dual(operand, values)
            return -value, -slope
        case Inverse(operand):
            value, slope = dual(operand, values)
            return 1 / value, -slope / (value * value)
        case Sum(terms):
            value = slope = 0.0
            for term in terms:
                more, more_slope = dual(term, values)
                value, slope = value + more, slope + more_slope
            return value, slope
        case Product(factors):
            value, slope = 1.0, 0.0
            for factor in factors:
                more, more_slope = dual(factor, values)
                value, slope = value * more, slope * more + value * more_slope
            return value, slope
        case Power(base, exponent):
            return _power(dual(base, values), dual(exponent, values))
        case Call(function, argument):
            inner, slope = dual(argument, values)
            of, derivative = _FUNCTIONS[function]
            value = of(inner)
            return value, derivative(inner, value) * slope if slope else 0.0


def _power(base: Dual, exponent: Dual) -> Dual:
    (u, du), (n, dn) = base, exponent
    value = math.pow(u, n)  # raises for a negative base with a broken exponent, where `**` would turn complex
    slope = n * math.pow(u, n - 1) * du if n and du else 0.0
    return value, slope + value * math.log(u) * dn if dn else slope


def _size(node: Node, values: Mapping[str, Dual]) -> float:
    """How large the terms are that make up the value, were they not to cancel: what rounding errors are relative to."""
    match node:
        case Negative(operand):
            return _size(operand, values)
        case Sum(terms):
            return sum(_size(term, values) for term in terms)
        case Product(factors):
            return math.prod(_size(factor, values) for factor in factors)
        case Power(base, Number(text)):
            return math.pow(_size(base, values), float(text))
        case Call("sin" | "cos", _):
            return 1.0
        case _:
            return abs(dual(node, values)[0])


def is_antiderivative(
    answer: Node, integrand: Node, variables: Collection[str], constants: Mapping[str, float]
) -> bool:
    """Whether the derivative of `answer` is `integrand`, wherever both have a real value.

    All `variables` name the same one.

    `constants` are names of constants of integration with a value for the first point; it changes from point to point,
    so that a constant which does not vanish from the derivative (`C*x`) cannot be taken for the right number.
    """
    points = 0
    valid = 0
    for point in _POINTS + _MORE_POINTS + _FAR_POINTS:
        if points == _WANTED_POINTS:
            break
        values = dict.fromkeys(variables, (point, 1.0))
        try:
            wanted, size = dual(integrand, values)[0], _size(integrand, values)
        except (ValueError, ArithmeticError):
            continue
        if not math.isfinite(size) or (size < _TINY and integrand != Number("0")):
            continue
        points += 1
        values |= {name: (value + points, 0.0) for name, value in constants.items()}
        try:
            slope = dual(answer, values)[1]
        except (ValueError, ArithmeticError):
            continue
        if not math.isfinite(slope):
            continue
        if abs(slope - wanted) > _TOLERANCE * size:
            return False
        valid += 1
    return valid >= _NEEDED_POINTS
