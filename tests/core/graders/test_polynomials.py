"""Expanded polynomials and the count of their real roots."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.parsing.polynomials import RealRoots, dense, parse_expanded


@pytest.mark.parametrize(
    "text",
    [
        "3*x**2 - x*y + 5",
        "5 - x*y + 3*x**2",
        "3x^2-xy+5",
        "x^{2}*3 - y x + 5",
        "+ 3*x**(2) + -x*y + 5.0",
        r"3 \cdot x^2 - x \times y + 5",
        "3·x² − y·x + 5",
        "3*x**2 - 1*x**1*y + 5*x**0 + 0*y**3",
    ],
)
def test_one_polynomial_in_many_forms(text: str) -> None:
    """The order of terms and factors, signs of multiplication and power are free."""
    assert parse_expanded(text, ("x", "y")) == {
        (("x", 2),): Fraction(3),
        (("x", 1), ("y", 1)): Fraction(-1),
        (): Fraction(5),
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "x +",
        "(x + 1)*(x + 2)",
        "x*(x + 1)",
        "(x + 1)**2",
        "x*x",
        "2*3*x",
        "x + x",
        "x2",
        "2 3",
        "x**-1",
        "x**y",
        "x/2",
        "z",
        "x**99999",
        "9" * 999,
        "x * * y",
        "x *",
        "* x",
        "3*-x",
        "---x",
        "expand((x+1)**2)",
        "1,23*x",
        "x**",
        "\ud800",
    ],
)
def test_what_is_not_expanded_or_no_polynomial_is_refused(text: str) -> None:
    """Products of sums, terms not collected, other signs."""
    assert parse_expanded(text, ("x", "y")) is None


def test_large_numbers_and_longer_names() -> None:
    """Thousands separators, and a variable of several letters."""
    assert parse_expanded("1,234,567*alpha", ("alpha", "a")) == {(("alpha", 1),): Fraction(1234567)}
    assert parse_expanded("12", ()) == {(): Fraction(12)}
    assert parse_expanded("0", ("x",)) == {}


_ROOTS = st.lists(st.integers(-20, 20).map(lambda n: Fraction(n, 4)), min_size=1, max_size=4)


@given(_ROOTS, st.booleans())
def test_the_roots_are_counted(roots: list[Fraction], complex_pair: bool) -> None:
    """Of a product of linear factors, multiple ones too, and perhaps x**2 + 1: each root once, ends included."""
    polynomial = [Fraction(-3)]
    for factor in [[-root, Fraction(1)] for root in roots] + [[Fraction(1), Fraction(0), Fraction(1)]] * complex_pair:
        longer = [Fraction(0)] * (len(polynomial) + len(factor) - 1)
        for i, a in enumerate(polynomial):
            for j, b in enumerate(factor):
                longer[i + j] += a * b
        polynomial = longer
    count = RealRoots(polynomial)
    assert count.total() == len(set(roots))
    assert count.within(min(roots), max(roots)) == len(set(roots))
    for root in roots:
        assert count.within(root, root + Fraction(1, 8)) == 1
        assert count.within(root - Fraction(1, 8), root) == 1
        assert count.within(root + Fraction(1, 16), root + Fraction(1, 8)) == 0


def test_dense_has_every_degree() -> None:
    """From the constant up."""
    polynomial = parse_expanded("2*x**3 - 1", ("x",))
    assert polynomial is not None
    assert dense(polynomial) == [-1, 0, 0, 2]
    assert dense({}) == []
    assert RealRoots([Fraction(7)]).total() == 0
