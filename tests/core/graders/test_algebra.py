"""Parsing of polynomials and formulas, and the roots of random polynomials."""

import math
import re
from fractions import Fraction

import pytest
import sympy
from grader_cases import entry
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.grading.graders import grade
from rg_env.core.grading.graders.algebra import parse_expanded
from rg_env.core.grading.graders.calculus import compiled
from rg_env.core.grading.graders.expressions import MAX_DEPTH, MAX_TOKENS, exact, exact_value, parse
from rg_env.core.grading.graders.forms import Unreadable, attempt


@pytest.mark.parametrize(
    "text",
    [
        *("", "+", "x +", "x + (1 + x**2)", "(x + 1)*(x + 2)", "x*(x + 1)", "(x + 1)**2", "x*x", "2*3*x", "x + x"),
        *("x2", "2 3", "x**-1"),
        *("x**y", "x/2", "z", "x**99999", "9" * 999, "x * * y", "x *", "* x", "3*-x", "1,23*x", "x**"),
    ],
)
def test_unexpanded_and_malformed_polynomials_are_refused(text: str) -> None:
    """`parse_expanded` refuses products of sums, uncollected terms and any other syntax."""
    with pytest.raises(Unreadable):
        parse_expanded(text, ("x", "y"))


def test_large_numbers_and_longer_names() -> None:
    """Thousands separators and variables of several letters are accepted."""
    assert parse_expanded("1,234,567*alpha", ("alpha", "a")) == {(("alpha", 1),): 1234567}
    assert parse_expanded("12", ()) == {(): 12}
    assert parse_expanded("0", ("x",)) == {}


@given(st.lists(st.integers(-20, 20).map(lambda n: Fraction(n, 4)), min_size=1, max_size=4), st.booleans())
def test_every_root_is_required_once(roots: list[Fraction], complex_pair: bool) -> None:
    """An answer must list each distinct root of a product of linear factors, possibly with x**2 + 1, exactly once."""
    x = sympy.Symbol("x")
    factors = [x - sympy.Rational(root) for root in roots] + [x**2 + 1] * complex_pair
    expanded = str(sympy.expand(sympy.prod(factors) * 4 ** len(roots)))
    item = entry("", polynomial_expr=expanded, variable="x", real_solutions=[])
    right = [str(root) for root in sorted(set(roots))]
    for values, worth in ((right, 1), (right[1:], 0), ([*right, right[0]], 0), ([*right[1:], "7"], 0)):
        assert grade("polynomial_equations", {}, item, ", ".join(values)) == worth


@settings(max_examples=40)
@given(st.lists(st.integers(-9, 9), min_size=2, max_size=6).filter(any))
def test_irrational_roots_are_required_once(coefficients: list[int]) -> None:
    """The same holds for the roots of random polynomials, which are mostly irrational."""
    polynomial = sympy.Poly(coefficients, sympy.Symbol("x"))
    roots = [root for root, _ in polynomial.real_roots(multiple=False)] if polynomial.degree() > 0 else []
    right = [f"{float(root):.6f}" for root in roots]
    item = entry("", polynomial_expr=str(polynomial.as_expr()), variable="x", real_solutions=[])
    for values, worth in ((right, 1), (right[1:], not right), ([*right, "99"], 0)):
        assert grade("polynomial_equations", {}, item, ", ".join(values) or "none") == worth


VALUES_AT_3 = dict(
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


@pytest.mark.parametrize("text", VALUES_AT_3)
def test_formulas_are_read_as_people_write_them(text: str) -> None:
    """Each formula has the right value for x = 3."""
    middle, radius = compiled(parse(text, ("x",)))({"x": ((3.0, 0.0), (1.0, 0.0))})[0]
    assert middle == pytest.approx(VALUES_AT_3[text])
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
def test_other_text_is_not_a_formula(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(text, ("x",))


def test_nesting_limit_and_a_variable_named_like_a_constant() -> None:
    """Nesting is limited to `MAX_DEPTH`, and a variable named `e` is not the constant."""
    assert exact(parse("(" * (MAX_DEPTH - 1) + "1" + ")" * (MAX_DEPTH - 1))) == 1
    assert exact(parse("2e", ("e",)), {"e": Fraction(5)}) == 10


@given(st.text(alphabet="0123456789xC+-*/^()|. \\{}sincoexpfra²√×", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """For any text, `parse` returns a formula or raises `Unreadable`."""
    attempt(lambda formula: parse(formula, ("x", "C")), text)


SUMS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
    max_leaves=8,
)


@given(SUMS | st.lists(st.integers(0, 10**6).map(str), min_size=1, max_size=5).map(" - ".join))
def test_exact_values_agree_with_fractions(text: str) -> None:
    """`exact_value` agrees with Python's fractions and returns None for a division by zero."""
    try:
        wanted = eval(re.sub(r"\d+", lambda match: f"Fraction({match[0]})", text))
    except ZeroDivisionError:
        wanted = None
    assert exact_value(text) == wanted


def test_exact_values_keep_all_digits_and_have_any_length() -> None:
    """`exact_value` keeps more digits than a float, accepts more than `MAX_TOKENS` terms, and refuses variables."""
    assert exact_value("-( 12345678901.123456789012 - 0.000000000001 )") == -Fraction("12345678901.123456789011")
    assert exact_value(" + ".join(["1"] * 2 * MAX_TOKENS)) == 2 * MAX_TOKENS
    with pytest.raises(Unreadable):
        exact_value("x + 1")
