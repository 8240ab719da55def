"""Graders of countdown and puzzle24."""

from typing import Any

import pytest

from rg_env.core.grading.graders.games import GRADERS

_COUNTDOWN: dict[str, Any] = {
    "question": "",
    "answer": "44*(48 - 44) - 5",
    "metadata": {"numbers": [44, 5, 48, 44], "target": 171},
}


@pytest.mark.parametrize(
    "answer",
    [
        "44*(48 - 44) - 5",
        "(48-44)*44-5",
        "-5 + 44 × (48 − 44)",
        "44*[48 - 44] - 5 = 171",
        r"44 \cdot (48 - 44) - 5",
        "44(48 - 44) - 5",
    ],
)
def test_countdown_right(answer: str) -> None:
    """Any expression of all the numbers with that value."""
    assert GRADERS["countdown"](answer, _COUNTDOWN, {}) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "171",
        "171 = 171",
        "44*(48 - 44) - 5 = 172",
        "44*(48 - 44) - 5 = 171 = 171",
        "171 = 44*(48 - 44) - 5",
        "44*48 - 44*44 - 5",
        "0x0*(44+5+48+44)+0xab",
        "44*(48 - 44) - 5 + 0",
        "44*(48 - 44) - 05",
        "44*(48 - 44) - 5.0",
        "44*4+(8-44)-5",
        "44 5 48 44",
        "44*(48 - 44) + 5",
        "44 + 48 + 44 + 5",
        "44*(48 - 44) - 5 # ",
        "171 + 0*44*5*48*44",
        "44**48**44**5",
        "44/(44 - 44) + 5*48",
        "4*4*(48 - 44) - 5",
        "factorial(44)",
        "sqrt(44*44)*(48-44)",
        "44//5",
        "",
        "(" * 9_999,
        "44" * 4_999,
        "44*(48 - 44) - e5",
    ],
)
def test_countdown_wrong(answer: str) -> None:
    """Other numbers or notations, other operations, the target itself."""
    assert GRADERS["countdown"](answer, _COUNTDOWN, {}) == 0.0


def test_fractions_on_the_way() -> None:
    """8/(3 - 8/3) is 24 exactly; 3*(8 - 1/9999) is not."""
    entry = {"question": "", "answer": "", "metadata": {"numbers": [8, 3, 8, 3]}}
    assert GRADERS["puzzle24"]("8/(3 - 8/3)", entry, {}) == 1.0
    entry = {"question": "", "answer": "", "metadata": {"numbers": [10, 10, 4, 1]}}
    assert GRADERS["puzzle24"]("10*10/4 - 1", entry, {}) == 1.0
    assert GRADERS["puzzle24"]("(10*10 - 1)/4", entry, {}) == 0.0  # 24.75, which the library cuts to 24


def _puzzle(answer: str, operators: str = "+, -, *, /", gold: str = "10*2 + 6 - 2") -> float:
    question = f"Make 24 using 10, 2, 6, 2. You can only use each number once. You can use the operators {operators}.\n"
    return GRADERS["puzzle24"](
        answer, {"question": question, "answer": gold, "metadata": {"numbers": [10, 2, 6, 2]}}, {}
    )


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("10*2 + 6 - 2", 1.0),
        ("2*(10 - 2) + 6 = 24", 0.0),
        ("6*(10 + 2)/(2+1)", 0.0),
        ("6*4*1*1", 0.0),
        ("24", 0.0),
        ("10 + 6*2 + 2", 1.0),
        ("12*2", 0.0),
        ("10 + 6 + 2*2 + 2*2", 0.0),
        ("10*2 + 6 - 2 + 0", 0.0),
        ("2*6*2", 0.0),
        ("-2 + 6 + 2*10 = 24", 1.0),
    ],
)
def test_puzzle24_uses_the_given_numbers(answer: str, value: float) -> None:
    """Each exactly once."""
    assert _puzzle(answer) == value


def test_puzzle24_uses_the_allowed_operators() -> None:
    """Those that the question lists, and those of the stored answer, which does not keep to the list."""
    assert _puzzle("10*2 + 6 - 2", "+, *", gold="10 + 6*2 + 2") == 0.0
    assert _puzzle("10 + 6*2 + 2", "+, *", gold="10 + 6*2 + 2") == 1.0
    assert _puzzle("10*2 + 6 - 2", "+, *", gold="10*2 + 6 - 2") == 1.0
