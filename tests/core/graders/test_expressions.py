"""Formulas of models: what is read, how it is computed and differentiated, what is refused."""

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.parsing.calculus import compiled
from rg_env.core.grading.parsing.expressions import MAX_DEPTH, MAX_TOKENS, exact, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2*3", 7),
        ("-2**2", -4),
        ("2**-1", 0.5),
        ("2^3^2", 512),
        ("7 - 2 - 1", 4),
        ("8/4/2", 1),
        ("1/2*4", 2),
        ("2 × 3 ÷ 4 − 1·5", -3.5),
        (r"\frac{3}{4} \cdot 2 \times \left(1 + 1\right)", 3),
        ("2(3 + 1)(1 + 1)", 16),
        ("[(1 + 2) * 3]", 9),
        (".5 + 1.", 1.5),
        ("2x", 6),
        ("x(x + 1)", 12),
        ("2xx", 18),
        ("x²", 9),
        ("x¹⁰", 59049),
        ("1/2x", 1.5),
        ("|1 - x|", 2),
        ("ln|-x|", math.log(3)),
        (r"e^{2x}", math.exp(6)),
        ("E**(x)", math.exp(3)),
        ("xexp(x)", 3 * math.exp(3)),
        ("xsin(x)cos(x)", 3 * math.sin(3) * math.cos(3)),
        ("sin x cos 2x", math.sin(3) * math.cos(6)),
        ("sin x^2", math.sin(9)),
        ("sin^2(x)", math.sin(3) ** 2),
        (r"\sin^{2}(x)", math.sin(3) ** 2),
        (r"\tan^{-1}(x)", math.atan(3)),
        ("arctan(x) + pi", math.atan(3) + math.pi),
        (r"\sqrt{x}", math.sqrt(3)),
    ],
)
def test_what_a_user_would_write_is_read(text: str, value: float) -> None:
    """The value of each form, for x = 3."""
    node = parse(text, ("x",))
    assert node is not None
    middle, radius = compiled(node)({"x": ((3.0, 0.0), (1.0, 0.0))})[0]
    assert middle == pytest.approx(value)
    assert radius <= 1e-12 * abs(middle)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x2",
        "2 3",
        "y",
        "1 +",
        "(1",
        "1)",
        "1,2",
        "0x10",
        "1e5",
        "x = 1",
        "f(x)",
        "Integral(x, x)",
        "__import__('os')",
        "factorial(3)",
        "x.real",
        "lambda: 0",
        "1//2",
        "1%2",
        "sin",
        "sin()",
        "sin^-1(x)",
        r"\frac12",
        "\ud800",
        "\0",
        "|",
        "||",
        "(" * 9_999,
        "-" * 9_999,
        "x^" * 999 + "x",
        "9" * 999,
        "1" + "+1" * MAX_TOKENS,
        "x" * 9_999,
        "sin(" * 99 + "x" + ")" * 99,
    ],
)
def test_all_else_is_refused(text: str) -> None:
    """None, and no exception."""
    assert parse(text, ("x",)) is None


def test_a_variable_goes_before_a_constant() -> None:
    """`e` is what the caller says it is."""
    node = parse("2e", ("e",))
    assert node is not None
    assert exact(node, {"e": Fraction(5)}) == 10


@given(st.text(alphabet="0123456789xC+-*/^()|. \\{}sincoexpfra²√×", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No exception leaves the parser."""
    parse(text, ("x", "C"))


_FORMULAS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
    max_leaves=8,
)


@given(_FORMULAS)
def test_exact_is_exact(text: str) -> None:
    """As Python computes the same text with fractions (the text is the test's own)."""
    node = parse(text)
    assert node is not None
    try:
        wanted = eval(_as_fractions(text))
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            exact(node)
    else:
        assert exact(node) == wanted


def _as_fractions(text: str) -> str:
    return re.sub(r"\d+", lambda match: f"Fraction({match[0]})", text)


def test_the_depth_is_bounded() -> None:
    """As deep as said and no deeper, so that no recursion overflows."""
    assert parse("(" * (MAX_DEPTH - 1) + "1" + ")" * (MAX_DEPTH - 1)) is not None
    assert parse("(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH) is None
