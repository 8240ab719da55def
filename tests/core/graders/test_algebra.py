"""Graders of the algebra tasks: right answers in every form, and what must not be paid."""

from typing import Any

import pytest

from rg_env.core.grading.graders.algebra import GRADERS


def _grade(task: str, answer: str, metadata: dict[str, Any], gold: str = "") -> float:
    return GRADERS[task](answer, {"question": "", "answer": gold, "metadata": metadata}, {})


_COMPLEX = {"num1": [-7.0, 2.0], "num2": [1.0, -8.0], "operation": "-", "result": [-8, 10]}


@pytest.mark.parametrize(
    "answer",
    [
        "-8.0 + 10.0i",
        "-8+10i",
        "(-8 + 10i)",
        "((-8.0 + 10.0i ) )",
        "10i - 8",
        "−8 + 10i",
        "-8 + 10j",
        "-8 + 10*I",
        "-8.00+10.00i",
        "-8 +10 i",
    ],
)
def test_complex_value_in_any_form(answer: str) -> None:
    """Both parts, in either order."""
    assert _grade("complex_arithmetic", answer, _COMPLEX) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "nan",
        "nan+nani",
        "inf",
        "-8",
        "10i",
        "-8 - 10i",
        "8 + 10i",
        "10 - 8i",
        "-8 + 10",
        "-8 + 10i + 0i",
        "",
        "i",
        "1e999i",
        "1.7e308 + 1.7e308i",
        "(-7.0 + 2.0i) - (1.0 - 8.0i)",
        "-8 + 10.1i",
        "-8.001 + 10i",
        "-8.0000001 + 10i",
        "-7.9999999999999 + 10i",
        "-8 + 10.0000009i",
        "-8 + 1 0i",
        "((-8 + 10i)",
        "(" * 9_999,
        "(" * 999 + "-8+10i" + ")" * 998,
        "-8+10i" * 999,
        "\ud800",
    ],
)
def test_complex_value_wrong(answer: str) -> None:
    """NaN, the question itself, one part only."""
    assert _grade("complex_arithmetic", answer, _COMPLEX) == 0.0


def test_complex_single_parts_and_inexact_results() -> None:
    """A part that is zero may be left out; where floats made the result inexact, the exact one is right as well."""
    real = {"num1": [1.0, 1.0], "num2": [1.0, -1.0], "operation": "*", "result": [2, 0]}
    assert _grade("complex_arithmetic", "2.00", real) == _grade("complex_arithmetic", "2 + 0i", real) == 1.0
    unit = {"num1": [1.0, 1.0], "num2": [1.0, -1.0], "operation": "/", "result": [0, 1]}
    assert _grade("complex_arithmetic", "i", unit) == _grade("complex_arithmetic", "1.00i", unit) == 1.0
    assert _grade("complex_arithmetic", "-i", unit) == 0.0
    large = {"num1": [99999999.0, 0.0], "num2": [99999999.0, 0.0], "operation": "*", "result": [9999999800000000, 0]}
    assert _grade("complex_arithmetic", "9999999800000001", large) == 1.0
    assert _grade("complex_arithmetic", "9999999800000003", large) == 0.0


_ROOTS = {"polynomial_expr": "15*r**3 - 52*r", "variable": "r", "real_solutions": [-1.8619, 0.0, 1.8619]}


@pytest.mark.parametrize(
    "answer",
    [
        "-1.8619, 0.0, 1.8619",
        "0, 1.8619, -1.8619",
        "[−1.8619; 0; 1.8619]",
        "r = 0, r = 1.8619, r = -1.8619",
        "0\n1.8619\n-1.8619",
        "r = 0 or r = 1.8618 or r = -1.8618",
        "r_1 = -1.8619, r_2 = 0, r_3 = 1.8619",
        "-1.86189867, 0/1, 1.86189867",
    ],
)
def test_all_real_roots(answer: str) -> None:
    """In any order, rounded either way or more exact: the root is 1.861898..."""
    assert _grade("polynomial_equations", answer, _ROOTS) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "0",
        "-1.8619, 1.8619",
        "-1.8619, 0, 1.8619, 1.8619",
        "0, 0, 0",
        "-1.862, 0, 1.862",
        "-1.8617, 0, 1.8619",
        "x = 0, 1.8619, -1.8619",
        "-1.8619, 0.00006, 1.8619",
        "-1.86182, 0, 1.8619",
        "",
        "none",
        "nan, nan, nan",
        "-1e999999999, 0, 1",
        ",,",
        "0," * 999,
        "a" * 9_999,
    ],
)
def test_roots_missing_or_wrong(answer: str) -> None:
    """Each root once, within the rounding."""
    assert _grade("polynomial_equations", answer, _ROOTS) == 0.0


def test_roots_none_double_and_close() -> None:
    """No root is said by the empty text; a double root counts once; two roots with one rounding count twice."""
    none = {"polynomial_expr": "x**2 + 1", "variable": "x", "real_solutions": []}
    assert [_grade("polynomial_equations", text, none) for text in ("", '""', "None", "0", "i")] == [1, 1, 1, 0, 0]
    double = {"polynomial_expr": "x**2 - 2*x + 1", "variable": "x", "real_solutions": [1.0]}
    assert [_grade("polynomial_equations", text, double) for text in ("1", "1.0", "1, 1", "1.00005")] == [1, 1, 0, 1]
    # (10**6*x - 1)*(10**6*x - 2)*(x - 3): roots that four places do not tell apart
    close = {
        "polynomial_expr": "1000000000000*x**3 - 3000003000000*x**2 + 9000002*x - 6",
        "variable": "x",
        "real_solutions": [0.0, 0.0, 3.0],
    }
    assert _grade("polynomial_equations", "0.0, 0.0, 3.0", close) == 1.0
    assert _grade("polynomial_equations", "0.0, 3.0, 3.0", close) == 0.0
    assert _grade("polynomial_equations", "0.0, 3.0", close) == 0.0


def test_roots_that_the_library_misses() -> None:
    """All four of a quartic whose stored answer is `0.0`."""
    quartic = {"polynomial_expr": "-10*z**4 - 69*z**3 - 94*z**2 + 7*z", "variable": "z", "real_solutions": [0.0]}
    assert _grade("polynomial_equations", "-4.9869, -1.9838, 0.0, 0.0708", quartic) == 1.0
    assert _grade("polynomial_equations", "0.0", quartic) == 0.0


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("x**2 + 3*x + 2", 1.0),
        ("2 + 3x + x²", 1.0),
        ("x^2+3·x+2", 1.0),
        ("(x + 1)*(x + 2)", 0.0),
        ("expand((x + 1)*(x + 2))", 0.0),
        ("x**2 + 2*x + x + 2", 0.0),
        ("x*x + 3*x + 2", 0.0),
        ("x*(x + 3) + 2", 0.0),
        ("x**2 + 3*x", 0.0),
        ("x**2 + 3*x + 2 + y", 0.0),
        ("X**2 + 3*X + 2", 0.0),
        ("", 0.0),
        ("+".join("x**2" for _ in range(2_000)), 0.0),
    ],
)
def test_the_product_must_be_expanded(answer: str, value: float) -> None:
    """The form of the question is not an answer; order and spacing are free."""
    metadata = {"variables": ["x"]}
    assert _grade("polynomial_multiplication", answer, metadata, "x**2 + 3*x + 2") == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("27", 1.0),
        ("27.0", 1.0),
        ("v = 27", 1.0),
        ("v=54/2", 1.0),
        ("−27", 0.0),
        ("28", 0.0),
        ("w = 27", 0.0),
        ("90 - 53*v = -1341", 0.0),
        ("v", 0.0),
        ("", 0.0),
        ("nan", 0.0),
        ("1e999999999", 0.0),
        ("v = v = 27", 0.0),
    ],
)
def test_the_solution_of_an_equation(answer: str, value: float) -> None:
    """A number, not the equation again."""
    assert _grade("simple_equations", answer, {"equation": "90 - 53*v = -1341", "variable": "v"}) == value


def test_an_equation_in_e() -> None:
    """The variable may have the name of a constant."""
    assert _grade("simple_equations", "5", {"equation": "2*e + 1 = 11", "variable": "e"}) == 1.0
