"""Ball arithmetic and derivatives: against 60 digits, and what floats hide."""

import math
from fractions import Fraction

import mpmath
import pytest
import sympy
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rg_env.core.grading.parsing import balls
from rg_env.core.grading.parsing.calculus import Dual, compiled
from rg_env.core.grading.parsing.expressions import FUNCTIONS, parse

_ONE = (1.0, 0.0)


def _at(text: str, x: float) -> Dual:
    node = parse(text, ("x",))
    assert node is not None
    return compiled(node)({"x": ((x, 0.0), _ONE)})


_FORMULAS = st.recursive(
    st.sampled_from(["x", "x", "x", "3", "(7/5)", "(1/8)", "pi", "e", "10^12"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"(({t[0]}) {t[1]} ({t[2]}))"),
        st.tuples(st.sampled_from(sorted(FUNCTIONS)), inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(inner, st.sampled_from(["2", "3", "-1", "(1/2)", "(-5/2)"])).map(lambda t: f"({t[0]})**{t[1]}"),
    ),
    max_leaves=7,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(_FORMULAS, st.floats(0.01, 30) | st.floats(-30, -0.01))
def test_no_value_or_derivative_leaves_its_ball(text: str, x: float) -> None:
    """As sympy differentiates and mpmath computes to 60 digits, however much cancels."""
    node = parse(text, ("x",))
    assert node is not None
    try:
        function = compiled(node)
    except ArithmeticError:  # and nothing else
        assume(False)
    try:
        value, slope = function({"x": ((x, 0.0), _ONE)})
    except (ValueError, ArithmeticError):
        assume(False)
    assume(balls.is_finite(value) and balls.is_finite(slope))
    names = {"x": sympy.Symbol("x", real=True), "e": sympy.E, "abs": sympy.Abs}
    formula = sympy.sympify(text.replace("^", "**"), locals=names)
    with mpmath.workdps(60):
        for ball, wanted in ((value, formula), (slope, formula.diff(names["x"]))):
            right = mpmath.mpmathify(sympy.lambdify(names["x"], wanted, "mpmath")(mpmath.mpf(x)))
            if mpmath.isfinite(right):
                assert abs(right - ball[0]) <= ball[1]


@pytest.mark.parametrize(
    "text",
    [
        "x**3",
        "x**-2",
        "2**x",
        "x**x",
        "exp(x**2)",
        "log(3*x)",
        "sin(x)*cos(x)",
        "tan(x)",
        "sqrt(x + 1)",
        "asin(x/2)",
        "acos(x/2)",
        "atan(3*x)",
        "sinh(x)/x",
        "cosh(-x)",
        "|x - 3|",
        "(x + 1)**(3/2)",
        "1/(1 + x)",
        "pi*x + e",
        "e^(2x)",
        "(x - 2)**(4/2)",
        "7",
    ],
)
def test_the_derivative_is_that_of_the_difference_quotient(text: str) -> None:
    """Each rule of differentiation against a central difference; and the balls are small."""
    at, step = 0.83, 1e-6
    above, below = (_at(text, at + shift)[0][0] for shift in (step, -step))
    (value, error), (slope, slope_error) = _at(text, at)
    assert slope == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-8)
    assert error <= 1e-14 * abs(value)
    assert slope_error <= 1e-14 * max(1, abs(slope))


def test_cancelled_digits_show_in_the_radius() -> None:
    """Irrational constants cancel in floats, rational ones exactly."""
    middle, radius = _at("x + 10^30*pi - 10^30*pi", 1.5)[0]
    assert abs(middle - 1.5) <= radius
    assert radius > 1e13
    middle, radius = _at("x + 10^30 - 10^30 + (10^30 + 1/3)*(2 - 2)", 1.5)[0]
    assert middle == 1.5
    assert radius <= 1e-15
    middle, radius = balls.multiply((1e-200, 0.0), (1e-200, 0.0))
    assert middle == 0.0
    assert radius > 0


@pytest.mark.parametrize(
    ("function", "ball"),
    [
        (balls.inverse, (1e-9, 1e-8)),
        (balls.log, (1e-9, 1e-8)),
        (balls.sqrt, (1e-9, 1e-8)),
        (balls.asin, (1.0, 1e-9)),
        (balls.acos, (-1.0, 1e-9)),
        (balls.tan, (math.pi / 2, 1e-9)),
        (balls.sign, (1e-9, 1e-8)),
        (balls.exp, (800.0, 0.0)),
        (balls.exp, (1.0, math.inf)),
        (balls.sin, (math.nan, 1.0)),
    ],
)
def test_no_ball_crosses_the_edge_of_the_domain(function: object, ball: balls.Ball) -> None:
    """An error, not a value that holds for some of it only."""
    assert callable(function)
    with pytest.raises((ValueError, ArithmeticError)):
        function(ball)


@given(st.sampled_from(["log", "sqrt", "tan", "asin", "acos", "exp", "sinh", "cosh", "atan", "sin", "cos", "abs"]),
       st.floats(-3, 3), st.floats(1e-6, 0.5), st.floats(-1, 1))  # fmt: skip
def test_wide_balls_hold_every_value(name: str, x: float, radius: float, share: float) -> None:
    """Also those at the ends of the argument's ball."""
    function = balls.FUNCTIONS[name][0]
    try:
        middle, spread = function((x, radius))
    except (ValueError, ArithmeticError):
        return
    inside = x + share * radius * (1 - 1e-12)
    exact = abs(inside) if name == "abs" else getattr(math, name)(inside)
    assert abs(exact - middle) <= spread * (1 + 1e-9)


@given(st.floats(-3, 3), st.floats(0, 0.5), st.floats(-1, 1), st.sampled_from([-3, -1, 0, 1, 2, 5, 0.5, -1.5]))
def test_powers_of_wide_balls(x: float, radius: float, share: float, exponent: float) -> None:
    """Whole exponents for any base, others for a positive one."""
    try:
        middle, spread = balls.power((x, radius), Fraction(exponent))
    except (ValueError, ArithmeticError):
        return
    try:
        exact = math.pow(x + share * radius * (1 - 1e-12), exponent)
    except OverflowError:
        assert not balls.is_finite((middle, spread))
        return
    assert abs(exact - middle) <= spread * (1 + 1e-9)


@pytest.mark.parametrize(
    "text", ["x*(-4)^(1/2)", "x + (-1)**0.5", "x**((-8)**(1/3))", "0*(0)^(-1/2)", "x/0", "2^(10^9)"]
)
def test_a_constant_without_a_value_is_one_kind_of_error(text: str) -> None:
    """It is what graders expect of a model's formula."""
    node = parse(text, ("x",))
    assert node is not None
    with pytest.raises(ArithmeticError):
        compiled(node)


def test_a_root_of_zero_is_zero() -> None:
    assert _at("x + 0^(1/2)", 3.0)[0][0] == 3.0
