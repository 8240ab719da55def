"""Graders of the integration tasks: every antiderivative is right, and no trick with floats makes another one right.

The ball arithmetic that decides is compared with 60-digit results, and tested in cases that floats miss.
"""

import json
import math
import os
import random
import re
import time
from collections.abc import Iterator
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import sympy
from grader_cases import entry
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sympy.simplify.fu import TR8

from rg_env.core.data.dataset import build_rows
from rg_env.core.grading.graders import calculus, grade
from rg_env.core.grading.graders.calculus import Dual, compiled
from rg_env.core.grading.graders.expressions import FUNCTIONS, parse


def integral(answer: str, integrand: str, variable: str = "x", task: str = "intermediate_integration") -> float:
    return grade(task, {}, entry("", integrand=integrand, variable=variable), answer)


def test_the_variable_in_the_other_case_and_truncated_coefficients() -> None:
    """The variable may be in the other case, but not in both; a decimal coefficient needs all digits of a float."""
    assert integral("x**2", "2*X", "X") == integral("X**2 + C", "2*X", "X") == integral("exp(X)", "exp(x)") == 1.0
    assert integral("X*x", "2*X", "X") == integral("exp(x) + x", "exp(x)") == 0.0
    for answer in ("0.333333*x**3", "0.33333333333*x**3", "0.3333333333334*x**3"):
        assert integral(answer, "x**2") == 0.0
    assert integral("x**2 + C", "2*x", task="simple_integration") == 1.0


INTEGRANDS = [
    *("2*x", "10*x**9 - 7*x**4/3 + 5", "3*(4*x - 10)**4", "27*sqrt(9*x - 3)", "-24*sin(8*x + 7)*cos(8*x + 7)"),
    *("3*asin(3*x)", "-2*log(x**3)", "atan(2*x)", "x**3*exp(x)", "2*exp(x)*cos(x)", "1/x"),
    "(-10*x - 2)*exp(-5*x**2 - 2*x - 8)",
]
# in floats, each has slope 1 and a value of (nearly) 0, because of rounding or a fine sawtooth
ABSORBED = [
    *("(x + 10^30 - 10^30)", "((x + 10^30) - 10^30)", "(x - (10^30 - 10^30))", "(-(10^30 - x) + 10^30)"),
    *("(x + 10^30*pi - 10^30*pi)", "(x + e^70 - e^70)", "(x + sqrt(10^60 + 1) - 10^30)", "(x - 1/10^-30 + 1/10^-30)"),
    *("(10^-30*(10^30*x + 10^60) - 10^30)", "(x + 10^18*sin(1)^2 + 10^18*cos(1)^2 - 10^18)", "(|x + 10^17| - 10^17)"),
    *("(sqrt((x + 10^20)^2) - 10^20)", "(exp(ln(x^2)/2 + 40)/exp(40) + 10^20 - sqrt(10^40))"),
    *("(log(exp(x + 700)) - 700 + 10^16*sqrt(2) - sqrt(2)*10^16)", "(10^17*(exp(x/10^17) - 1))"),
    *("(10^18*log(1 + x/10^18))", "(10^9*sin(x/10^9 + 10^9*pi))", "(10^200*(x*10^-200 + 10^-100) - 10^100)"),
    *("((x*10^-160*10^-160*10^-10)*10^330)", "(x + C*10^30 - C*10^30)"),
    *("(x + 0*exp(700) + 10^30*cosh(1) - 10^30*cosh(1))", "(atan(tan(10^4*atan(tan(10^4*x))))/10^8)"),
    *(f"(atan(tan(10^{k}*x))/10^{k})" for k in range(1, 20)),
    *(*(f"(asin(sin(10^{k}*x))/10^{k})" for k in range(1, 20)), "(2*asin(sin(10^8*x/2)*cos(10^8*x/2)*2)/10^8)", "x"),
    *("(x - 10^-9)", "C", "0", "1"),
]


@pytest.mark.parametrize("absorbed", ABSORBED)
def test_terms_that_vanish_in_floats_are_wrong(absorbed: str) -> None:
    """The integrand times a term is wrong, even if rounding or a fine sawtooth makes the term look like 0 with slope
    1."""
    assert [integrand for integrand in INTEGRANDS if integral(f"({integrand})*{absorbed} + C", integrand)] == []


@pytest.mark.parametrize(
    "constant",
    [
        *("C", "c", "D", "K", "k", "A", "C_1", "C1", "c_{0}", "C₁", "C_{1}", "C_{10}", "c_n", "constant", "Constant"),
        *("const", "const.", "Const", "constant of integration", r"\text{const}", r"\text{constant}", r"\mathrm{C}"),
        *("C + D", "C_1 + C_2", "C1 - 2*C2", "C/3", "2C", "C^2", "ln(C)", "e^C", "C*D", "C + c", "-C"),
    ],
)
def test_constants_of_any_name(constant: str) -> None:
    """Constants may be letters with or without a number, or words; there may be several."""
    assert integral(f"x**2 + {constant}", "2*x") == integral(f"{constant} + x**2", "2*x") == 1.0
    assert integral(f"X**2 + {constant}", "2*X", "X") == integral(f"x**2 + {constant}", "2*X", "X") == 1.0
    assert integral(f"x + {constant}", "2*x") == 0.0


@pytest.mark.parametrize(
    "constant",
    [
        *("x", "X", "y", "t", "f(x)", "C(x)", "C C", "C_1 C_2", "C x", "x C", "C_1*x", "C1x", "C_x*x", "const*x"),
        *("x_1", "x1", "e_1*x", "unknown", "constants", "Constance", "C_", "C_{", "C_1(x)", "C(1)", "|C|*x", "x^C"),
        *("C^x", "exp(C*x)", "C1_2", "int(C, x)", "Integral(0, x)", "+".join(f"C_{i}" for i in range(1, 30))),
    ],
)
def test_what_is_not_a_constant(constant: str) -> None:
    """The variable, unknown names and constants that change the derivative are refused."""
    assert integral(f"x**2 + {constant}", "2*x") == 0.0


def test_an_answer_cannot_be_tuned_to_the_points() -> None:
    """Answers tuned to fixed points, or to the points of another answer, are wrong. Points depend only on the seed,
    alternate in sign, and include small and large magnitudes."""
    points = list(calculus._points(random.Random("2*x\nx**2")))
    assert points == list(calculus._points(random.Random("2*x\nx**2"))) != list(calculus._points(random.Random("2")))
    assert [point > 0 for point in points] == [True, False] * (len(points) // 2)
    assert min(sum(abs(point) > 10 for point in points[:12]), sum(abs(point) < 1 for point in points[:12])) >= 2
    fixed = (0.2371, -0.1893, 0.1117, -0.2839, 0.7319, -0.8627, 1.4173, -1.6361, 2.7689, -2.3917)
    for tuned in (fixed, points[:12]):
        added = "*".join(f"(x - ({point:.17f}))^2" for point in tuned)
        assert integral(f"x**2 + {added}", "2*x") == integral(f"x**2 + {added}/10^6", "2*x") == 0.0


COEFFICIENTS = st.fractions(-50, 50, max_denominator=30).filter(bool)
POWERS = st.integers(-6, 12).filter(bool)


def text_of(polynomial: dict[int, object]) -> str:
    return " + ".join(f"({value})*x**({power})" for power, value in polynomial.items())


@given(st.dictionaries(POWERS, COEFFICIENTS, min_size=1, max_size=6), COEFFICIENTS, st.integers(0, 60), POWERS)
def test_polynomials_and_their_neighbours(polynomial: dict[int, object], factor: object, tiny: int, power: int) -> None:
    """The antiderivative is right; with an additional term, even one with a tiny coefficient, it is wrong."""
    values = {key: sympy.Rational(str(value)) for key, value in polynomial.items()}
    derivative = text_of({key - 1: key * value for key, value in values.items()})
    assert integral(text_of(polynomial), derivative) == 1.0
    rules = power > max(polynomial) or power < min(polynomial) <= 8  # dominates at the largest or the smallest points
    if power not in polynomial and tiny <= (20 if rules else 5):
        assert integral(f"{text_of(polynomial)} + ({factor})*10**(-{tiny})*x**({power})", derivative) == 0.0


@pytest.mark.parametrize("nodes", [5, 10, 20, 30])
@pytest.mark.parametrize(
    "integrand", ["exp(x)*cos(x)", "x**3*exp(x)", "sin(x)*cos(x)", "asin(3*x)", "acos(5*x)", "atan(2*x)"]
)
def test_a_quadrature_is_not_an_antiderivative(integrand: str, nodes: int) -> None:
    """Gauss-Legendre quadrature from 0 to x, which needs only copies of the integrand, is wrong."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    terms = [
        f"{float(weight) / 2!r}*" + re.sub(r"\bx\b", f"({float(1 + point) / 2!r}*x)", integrand)
        for point, weight in zip(points, weights, strict=True)
    ]
    assert integral(f"x*({'+'.join(terms)})", integrand) == 0.0


def rewritten(gold: sympy.Expr, x: sympy.Symbol) -> Iterator[sympy.Expr]:
    yield from (sympy.expand(gold), sympy.factor(gold), sympy.together(gold), TR8(gold), gold.rewrite(sympy.tan))
    yield sympy.expand_log(sympy.expand_power_exp(gold), force=False)
    # `exp` would be rewritten as sinh(x) - cosh(x), whose digits cancel
    yield gold if gold.has(sympy.exp) else gold.rewrite(sympy.sin)
    yield gold.subs(sympy.exp(x), sympy.sinh(x) + sympy.cosh(x))
    yield sympy.horner(gold) if gold.is_polynomial(x) else gold + 7
    yield gold.subs(x, x + 0) - sympy.Rational(22, 7) + sympy.pi


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("task", ["simple_integration", "intermediate_integration"])
def test_gold_answers_their_rewritings_and_the_tricks(task: str) -> None:
    """Gold answers are right in every form into which sympy rewrites them; the integrand times an absorbed term is
    wrong.

    Uses 300 questions with RG_ENV_MANY set, and 60 otherwise.
    """
    refused, accepted = [], []
    for row in build_rows(task, "train", 300 if "RG_ENV_MANY" in os.environ else 60, 0):
        metadata = json.loads(row["info"]["entry"])["metadata"]
        variable, integrand = metadata["variable"], metadata["integrand"]
        x = sympy.Symbol(variable)
        slope = sympy.diff(sympy.sympify(integrand, locals={variable: x}), x)
        if slope == 0 or sympy.simplify(slope - sympy.sympify(integrand, locals={variable: x})) == 0:
            tricks = []  # such an integrand is its own antiderivative, as it is or times x
        else:
            tricks = random.Random(integrand).sample(ABSORBED, 12)
        for absorbed in tricks:
            trick = f"({integrand})*{absorbed.replace('exp', 'EXP').replace('x', variable).replace('EXP', 'exp')}"
            accepted += [trick] * int(integral(trick, integrand, variable))
        if row["answer"]:
            gold = sympy.sympify(row["answer"].removesuffix(" + C"), locals={variable: x})
            answers = [row["answer"], *(f"{form} + C_1" for form in rewritten(gold, x))]
            refused += [answer for answer in answers if integral(answer, integrand, variable) != 1.0]
    assert accepted == []
    assert refused == []


@pytest.mark.parametrize(
    "answer",
    [
        *("x**2" + "+0*sin(x)" * 80, "x**2" + "+0*|x|^x" * 60, "F" + " " * 1_990 + "x", "C_{" + " " * 3_900),
        "x**2" + "".join(f"+0*1/{10**60 + i}" for i in range(60)),
        *("x**2" + "".join(f"+C_{i % 8}" for i in range(150)), "x**2+" + "+".join(["7^1400"] * 190)),
        "(x**2)*(x + pi*10^30 - pi*10^30)" + "+0*sin(x)" * 80,
        "[10^300 pi x-10^300 pi x+x" + " pi^.01234567" * 193 + "+1+2.]",
    ],
)
def test_long_answers_take_milliseconds(answer: str) -> None:
    """Grading the longest formulas, which are evaluated at every point, takes less than 50 ms, the limit for any
    answer."""
    times = []
    for _ in range(5):
        begin = time.process_time()
        integral(answer, "2*x")
        times.append(time.process_time() - begin)
    assert min(times) < 0.05


ONE = (1.0, 0.0)


def at(text: str, x: float) -> Dual:
    return compiled(parse(text, ("x",)))({"x": ((x, 0.0), ONE)})


FORMULAS = st.recursive(
    st.sampled_from(["x", "x", "x", "3", "(7/5)", "(1/8)", "pi", "e", "10^12"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"(({t[0]}) {t[1]} ({t[2]}))"),
        st.tuples(st.sampled_from(sorted(FUNCTIONS)), inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(inner, st.sampled_from(["2", "3", "-1", "(1/2)", "(-5/2)"])).map(lambda t: f"({t[0]})**{t[1]}"),
    ),
    max_leaves=7,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(FORMULAS, st.floats(0.01, 30) | st.floats(-30, -0.01))
def test_no_value_or_derivative_leaves_its_ball(text: str, x: float) -> None:
    """Balls contain the values computed by sympy and mpmath with 60 digits, even if digits cancel."""
    try:
        value, slope = at(text, x)
    except (ValueError, ArithmeticError):
        assume(False)
    assume(calculus.is_finite(value) and calculus.is_finite(slope))
    names = {"x": sympy.Symbol("x", real=True), "e": sympy.E, "abs": sympy.Abs}
    formula = sympy.sympify(text.replace("^", "**"), locals=names)
    with mpmath.workdps(60):
        for ball, wanted in ((value, formula), (slope, formula.diff(names["x"]))):
            right = mpmath.mpmathify(sympy.lambdify(names["x"], wanted, "mpmath")(mpmath.mpf(x)))
            if mpmath.isfinite(right):
                assert abs(right - ball[0]) <= ball[1]


@pytest.mark.parametrize(
    ("name", "ball"),
    [
        *(("inverse", (1e-9, 1e-8)), ("log", (1e-9, 1e-8)), ("sqrt", (1e-9, 1e-8)), ("sign", (1e-9, 1e-8))),
        *(("asin", (1.0, 1e-9)), ("acos", (-1.0, 1e-9)), ("tan", (math.pi / 2, 1e-9)), ("exp", (800.0, 0.0))),
        *(("exp", (1.0, math.inf)), ("sin", (math.nan, 1.0))),
    ],
)
def test_no_ball_crosses_the_edge_of_the_domain(name: str, ball: calculus.Ball) -> None:
    """A ball that is not entirely inside the domain raises an error."""
    with pytest.raises((ValueError, ArithmeticError)):
        getattr(calculus, name)(ball)


POWERS_OF = [Fraction(power) for power in (-3, -1, 0, 1, 2, 5, 0.5, -1.5)]


@given(st.sampled_from([*sorted(FUNCTIONS), *POWERS_OF]), st.floats(-3, 3), st.floats(1e-6, 0.5), st.floats(-1, 1))
def test_wide_balls_hold_every_value(of: str | Fraction, x: float, radius: float, share: float) -> None:
    """Balls of functions and powers contain all values, including those at the ends of the argument's ball."""
    inside = x + share * radius * (1 - 1e-12)
    try:
        middle, spread = (
            calculus.power((x, radius), of) if isinstance(of, Fraction) else calculus.DIFFERENTIABLE[of][0]((x, radius))
        )
        exact = math.pow(inside, of) if isinstance(of, Fraction) else getattr(math, of, abs)(inside)
    except (ValueError, ArithmeticError):
        return
    assert abs(exact - middle) <= spread * (1 + 1e-9)
