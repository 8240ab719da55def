"""Graders of the algebra tasks except integrals, and the polynomials and formulas that they parse."""

import math
import re
from fractions import Fraction

import pytest
import sympy
from grader_cases import Row, entry, row, table
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import grade
from rg_env.core.grading.graders.algebra import parse_expanded
from rg_env.core.grading.graders.calculus import compiled
from rg_env.core.grading.graders.expressions import MAX_DEPTH, MAX_TOKENS, exact, exact_value, parse
from rg_env.core.grading.graders.forms import Unreadable, attempt

COMPLEX = entry("-8.0 + 10.0i", num1=[-7.0, 2.0], num2=[1.0, -8.0], operation="-", result=[-8, 10])
REAL = entry("2", num1=[1.0, 1.0], num2=[1.0, -1.0], operation="*", result=[2, 0])
UNIT = entry("i", num1=[1.0, 1.0], num2=[1.0, -1.0], operation="/", result=[0, 1])
LARGE = entry("", num1=[99999999.0, 0.0], num2=[99999999.0, 0.0], operation="*", result=[9999999800000000, 0])
ROOTS = entry("", polynomial_expr="15*r**3 - 52*r", variable="r", real_solutions=[-1.8619, 0.0, 1.8619])
NO_ROOTS = entry("", polynomial_expr="x**2 + 1", variable="x", real_solutions=[])
DOUBLE = entry("1.0", polynomial_expr="x**2 - 2*x + 1", variable="x", real_solutions=[1.0])
CLOSE = entry(  # (10**6*x - 1)*(10**6*x - 2)*(x - 3): roots that four places do not tell apart
    "0.0, 0.0, 3.0",
    polynomial_expr="1000000000000*x**3 - 3000003000000*x**2 + 9000002*x - 6",
    variable="x",
    real_solutions=[0.0, 0.0, 3.0],
)
QUARTIC = entry(  # the library stores one root of four
    "0.0", polynomial_expr="-10*z**4 - 69*z**3 - 94*z**2 + 7*z", variable="z", real_solutions=[0.0]
)
PRODUCT = entry("x**2 + 3*x + 2", variables=["x"])
TWO_VARIABLES = entry("3*x**2 - x*y + 5", variables=["x", "y"])
EQUATION = entry("27", equation="90 - 53*v = -1341", variable="v")


@table(
    row(
        "complex_arithmetic",
        COMPLEX,
        "-8.0 + 10.0i | -8+10i | (-8 + 10i) | ((-8.0 + 10.0i ) ) | 10i - 8 | −8 + 10i | -8 + 10j | -8 + 10*I",
        "-8 | 10i | -8 - 10i | 8 + 10i | 10 - 8i | -8 + 10 | -8 + 10i + 0i | i | 1e999i | (-7.0 + 2.0i) - (1.0 - 8.0i)",
    ),
    row(
        "complex_arithmetic",
        COMPLEX,
        wrong="-8.0000001 + 10i | -7.9999999999999 + 10i | -8 + 10.0000009i | -8 + 1 0i | ((-8 + 10i) | (-8)(10i)",
    ),
    row("complex_arithmetic", REAL, "2.00 | 2 + 0i", "2i"),
    row("complex_arithmetic", UNIT, "i | 1.00i", "-i | 1"),
    row("complex_arithmetic", LARGE, "9999999800000001 | 9999999800000000", "9999999800000003"),
    row(
        "polynomial_equations",
        ROOTS,
        [
            *("-1.8619, 0.0, 1.8619", "0, 1.8619, -1.8619", "[−1.8619; 0; 1.8619]", "r = 0, r = 1.8619, r = -1.8619"),
            *("0\n1.8619\n-1.8619", "r = 0 or r = 1.8618 or r = -1.8618", "r_1 = -1.8619, r_2 = 0, r_3 = 1.8619"),
            "-1.86189867, 0/1, 1.86189867",  # the root is 1.861898...
        ],
        "0 | -1.8619, 1.8619 | -1.8619, 0, 1.8619, 1.8619 | 0, 0, 0 | -1.862, 0, 1.862 | -1.8617, 0, 1.8619 | none",
    ),
    row("polynomial_equations", ROOTS, wrong="x = 0, 1.8619, -1.8619 | -1.8619, 0.00006, 1.8619 | -1.86182, 0, 1.8619"),
    row("polynomial_equations", NO_ROOTS, ["", '""', "None"], "0 | i"),
    row("polynomial_equations", DOUBLE, "1 | 1.0 | 1.00005", "1, 1"),
    row("polynomial_equations", CLOSE, ["0.0, 0.0, 3.0"], ["0.0, 3.0, 3.0", "0.0, 3.0"]),
    row("polynomial_equations", QUARTIC, ["-4.9869, -1.9838, 0.0, 0.0708"], "0.0"),
    row(
        "polynomial_multiplication",
        PRODUCT,
        "x**2 + 3*x + 2 | 2 + 3x + x² | x^2+3·x+2",
        "(x + 1)*(x + 2) | expand((x + 1)*(x + 2)) | x**2 + 2*x + x + 2 | x*x + 3*x + 2 | x*(x + 3) + 2 | x**2 + 3*x",
    ),
    row(  # the order of terms and factors, signs of multiplication and power are free
        "polynomial_multiplication",
        TWO_VARIABLES,
        [
            *("3*x**2 - x*y + 5", "5 - x*y + 3*x**2", "3x^2-xy+5", "x^{2}*3 - y x + 5", "+ 3*x**(2) + -x*y + 5.0"),
            *(r"3 \cdot x^2 - x \times y + 5", "3·x² − y·x + 5", "3*x**2 - 1*x**1*y + 5*x**0 + 0*y**3"),
        ],
    ),
    row("polynomial_multiplication", PRODUCT, wrong=["x**2 + 3*x + 2 + y", "X**2 + 3*X + 2", "x**2+" * 2_000 + "1"]),
    row(
        "simple_equations",
        EQUATION,
        "27 | 27.0 | v = 27 | v=54/2",
        "−27 | 28 | w = 27 | 90 - 53*v = -1341 | v | v = v = 27 | 20 + 7",
    ),
    row("simple_equations", entry("5", equation="2*e + 1 = 11", variable="e"), "5", "e"),  # a constant's name
)
def test_answers_score_what_they_are_worth(row: Row) -> None:
    row.check()


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "+",
            "x +",
            "x + (1 + x**2)",
            "(x + 1)*(x + 2)",
            "x*(x + 1)",
            "(x + 1)**2",
            "x*x",
            "2*3*x",
            "x + x",
            "x2",
            "2 3",
            "x**-1",
        ),
        *("x**y", "x/2", "z", "x**99999", "9" * 999, "x * * y", "x *", "* x", "3*-x", "1,23*x", "x**"),
    ],
)
def test_what_is_not_expanded_or_no_polynomial_is_refused(text: str) -> None:
    """Products of sums, terms not collected, other signs."""
    with pytest.raises(Unreadable):
        parse_expanded(text, ("x", "y"))


def test_large_numbers_and_longer_names() -> None:
    """Thousands separators, and a variable of several letters."""
    assert parse_expanded("1,234,567*alpha", ("alpha", "a")) == {(("alpha", 1),): 1234567}
    assert parse_expanded("12", ()) == {(): 12}
    assert parse_expanded("0", ("x",)) == {}


@given(st.lists(st.integers(-20, 20).map(lambda n: Fraction(n, 4)), min_size=1, max_size=4), st.booleans())
def test_every_root_is_required_once(roots: list[Fraction], complex_pair: bool) -> None:
    """Roots of a product of linear factors, possibly repeated, and possibly x**2 + 1."""
    x = sympy.Symbol("x")
    factors = [x - sympy.Rational(root) for root in roots] + [x**2 + 1] * complex_pair
    expanded = str(sympy.expand(sympy.prod(factors) * 4 ** len(roots)))
    item = entry("", polynomial_expr=expanded, variable="x", real_solutions=[])
    right = [str(root) for root in sorted(set(roots))]
    for values, worth in ((right, 1), (right[1:], 0), ([*right, right[0]], 0), ([*right[1:], "7"], 0)):
        assert grade("polynomial_equations", {}, item, ", ".join(values)) == worth


READ = dict(
    [
        *(("1 + 2*3", 7), ("-2**2", -4), ("2**-1", 0.5), ("2^3^2", 512), ("7 - 2 - 1", 4), ("8/4/2", 1), ("1/2*4", 2)),
        *((r"\frac{3}{4} \cdot 2 \times \left(1 + 1\right)", 3), ("2 × 3 ÷ 4 − 1·5", -3.5), ("[(1 + 2) * 3]", 9)),
        *(("x²", 9), (".5 + 1.", 1.5), ("2x", 6), ("x(x + 1)", 12), ("2xx", 18), ("x¹⁰", 59049), ("1/2x", 1.5)),
        *(("|1 - x|", 2), ("ln|-x|", math.log(3)), ("e^{2x}", math.exp(6)), ("E**(x)", math.exp(3))),
        *(("xexp(x)", 3 * math.exp(3)), ("xsin(x)cos(x)", 3 * math.sin(3) * math.cos(3))),
        *(("sin x cos 2x", math.sin(3) * math.cos(6)), ("sin x^2", math.sin(9)), ("sin^2(x)", math.sin(3) ** 2)),
        *((r"\sin^{2}(x)", math.sin(3) ** 2), (r"\tan^{-1}(x)", math.atan(3)), ("x⁻²", 1 / 9)),
        *(("arctan(x) + pi", math.atan(3) + math.pi), (r"\sqrt{x}", math.sqrt(3)), ("2(3 + 1)(1 + 1)", 16)),
    ]
)


@pytest.mark.parametrize("text", READ)
def test_a_formula_as_people_write_it_is_read(text: str) -> None:
    """The value of each form, for x = 3."""
    middle, radius = compiled(parse(text, ("x",)))({"x": ((3.0, 0.0), (1.0, 0.0))})[0]
    assert middle == pytest.approx(READ[text])
    assert radius <= 1e-12 * abs(middle)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x2", "2 3", "y", "1 +", "(1", "1)", "1,2", "0x10", "1e5", "x = 1", "f(x)", "Integral(x, x)", "|", "||"),
        *("__import__('os')", "factorial(3)", "x.real", "lambda: 0", "1//2", "1%2", "sin", "sin()", "sin^-1(x)"),
        *(r"\frac12", "\ud800", "\0", "-" * 9_999, "x^" * 999 + "x", "9" * 999, "1" + "+1" * MAX_TOKENS, "x" * 9_999),
        *("sin(" * 99 + "x" + ")" * 99, "(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH),
    ],
)
def test_all_else_is_no_formula(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(text, ("x",))


def test_the_depth_is_as_documented_and_a_variable_goes_before_a_constant() -> None:
    """The caller decides what `e` means."""
    assert exact(parse("(" * (MAX_DEPTH - 1) + "1" + ")" * (MAX_DEPTH - 1))) == 1
    assert exact(parse("2e", ("e",)), {"e": Fraction(5)}) == 10


@given(st.text(alphabet="0123456789xC+-*/^()|. \\{}sincoexpfra²√×", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No other exception leaves the parser."""
    attempt(lambda formula: parse(formula, ("x", "C")), text)


SUMS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
    max_leaves=8,
)


@given(SUMS | st.lists(st.integers(0, 10**6).map(str), min_size=1, max_size=5).map(" - ".join))
def test_exact_is_exact(text: str) -> None:
    """As Python computes the same text with fractions (the text is the test's own); None for a division by zero."""
    try:
        wanted = eval(re.sub(r"\d+", lambda match: f"Fraction({match[0]})", text))
    except ZeroDivisionError:
        wanted = None
    assert exact_value(text) == wanted


def test_exact_values_keep_all_digits_and_have_any_length() -> None:
    """More digits than a float has, more terms than an answer may have; anything else is an error."""
    assert exact_value("-( 12345678901.123456789012 - 0.000000000001 )") == -Fraction("12345678901.123456789011")
    assert exact_value(" + ".join(["1"] * 2 * MAX_TOKENS)) == 2 * MAX_TOKENS
    with pytest.raises(ValueError, match="cannot read the formula"):
        exact_value("x + 1")
