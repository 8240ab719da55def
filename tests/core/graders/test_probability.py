"""Grader of coin_flip."""

import pytest

from rg_env.core.grading.graders.arithmetic import GRADERS


def _grade(answer: str, gold: str) -> float:
    return GRADERS["coin_flip"](answer, {"question": "", "answer": gold, "metadata": {}}, {})


@pytest.mark.parametrize(
    "answer",
    [
        "0.1527404785",
        "0.1527",
        "5005/32768",
        r"\frac{5005}{32768}",
        "15.274%",
        r"15.274\%",
        "5005/32768 ≈ 0.1527",
        ".15274",
        "1.527e-1",
        "0.15274",
        "0.152740",
        "0.15274047",
        "0.152740479",
        "0.152740478515625",
    ],
)
def test_right_in_any_form(answer: str) -> None:
    """Fraction, decimal, percentage."""
    assert _grade(answer, "0.1527404785") == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "0",
        "0.153",
        "0.1525",
        "0.1528",
        "0.1526",
        "0.152742",
        "0.15275",
        "15.28%",
        "10/65.4",
        "11/72",
        "1/8",
        "15.274",
        "0.1527 = 0.5",
        "0.5 ≈ 0.1527",
        "nan",
        "inf",
        "1e400",
        "1e-400",
        "1e999999999",
        "-1e400",
        "",
        "=",
        "1/0",
        "9" * 9_999,
        "0.15274%",
        "C(15,6)/2^15",
        "\ud800",
    ],
)
def test_wrong(answer: str) -> None:
    """Huge exponents, two forms that differ, a percentage without its sign."""
    assert _grade(answer, "0.1527404785") == 0.0


def test_small_probabilities() -> None:
    """Zero is not right for 1/32768, though it is within 0.0001."""
    gold = "3.051757812e-05"
    assert [_grade(text, gold) for text in ("1/32768", "0.00003052", "3.05e-5", "0", "0.0001", "0.00001")] == [
        1,
        1,
        1,
        0,
        0,
        0,
    ]
    assert [_grade(text, "1") for text in ("1", "1.0", "100%", "0.9999", "0.99999999")] == [1, 1, 1, 0, 0]
