"""Graders of the arithmetic tasks: right answers in other forms, and wrong ones that look right."""

import math
from fractions import Fraction
from typing import Any

import pytest
from grader_cases import assert_scores
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import grade
from rg_env.core.grading.graders.arithmetic import _last_place as last_place
from rg_env.core.grading.graders.arithmetic import _rounded as rounded
from rg_env.core.grading.parsing.expressions import exact_value


def entry(answer: str, question: str = "", **metadata: Any) -> dict[str, Any]:
    return {"question": question, "answer": answer, "metadata": metadata}


HALVES = entry("259", expression="601 / 487 - ( 454 - -632 - 972 + -372 )")
FRACTION = entry("$\\frac{3}{4}$", numerator=15, denominator=20, simplified_numerator=3, simplified_denominator=4)
NOT_LOWEST = entry("6/8", numerator=12, denominator=16, simplified_numerator=6, simplified_denominator=8)
DECIMAL = entry("4.4795042958", "Please solve ...\n(1.548/(1.279*0.713)+9.525)-6.743 = ?")
PICK = entry("947865419.1689999", solution=947865419.1689999, candidates=[947865412.744, 947865419.1689999])
CLOSE_PICK = entry("1000.004", solution=1000.004, candidates=[1000.0, 1000.004])
POWER = entry("897303639322.6414")
TWELVE = entry("2 × 2 × 3", number=12, factors=[2, 2, 3])
PRIME = entry("1999", number=1999, factors=[1999])
YES = entry("Yes", task="is_leap_year")
MONDAY = entry("Monday", task="weekday_of_date")
DAY = entry("19", task="recurring_event_day")

RIGHT = [
    ("basic_arithmetic", HALVES, ["126247/487", "-126247/-487"]),
    ("bitwise_arithmetic", entry("-0x94b47bf"), ["-0x94b47bf", "-94B47BF", "-0X94B47BF", "−0x94b47bf", "-155928511"]),
    ("bitwise_arithmetic", entry("0x1234"), ["1234", "4660", "0x1234.", "`0x1234`"]),
    ("calendar_arithmetic", MONDAY, ["Monday", "monday", " MONDAY. ", "Mon"]),
    ("calendar_arithmetic", YES, ["yes", "YES."]),
    ("calendar_arithmetic", DAY, ["19", "19th", "19.0", "19 days"]),
    ("chain_sum", entry("-1234"), ["-1,234", "−1234", "-1234.00", "$-1234$"]),
    ("count_bits", entry("13"), ["13", "13 bits", "13 ones"]),
    ("decimal_arithmetic", DECIMAL, ["4.4795042958", "4.47950429585", "4.479504295848242"]),
    ("decimal_chain_sum", entry("1.50", expression="2.75 - 1.25"), ["1.5", "1.500"]),
    ("dice", entry("3/4"), ["3/4", "3 / 4", "\\frac{3}{4}", "6/8", "0.75"]),
    ("fraction_simplification", FRACTION, ["3/4", "\\dfrac{3}{4}", "$3/4$", " 3 / 4 ", "3⁄4"]),
    ("fraction_simplification", NOT_LOWEST, ["3/4", "6/8"]),
    ("gsm_symbolic", entry("7087.5"), ["7087.50", "$7,087.50", "£7087.5", "\\$7087.5", "7087.5%", "7087.5 €"]),
    ("gsm_symbolic", entry("-5"), ["-$5", "-5", "−5"]),
    ("leg_counting", entry("120"), ["120", "120 legs", "120 Legs."]),
    ("number_format", PICK, ["947,865,419.169", "9.47865419169e8", "947865419.1689999"]),
    ("number_format", CLOSE_PICK, ["1000.004", "1,000.0041"]),
    ("power_function", POWER, ["8.97e+11", "8.97E11", "8.973e11", "897303639322.6414", "8.97 × 10^11"]),
    ("power_function", POWER, ["8.97 \\times 10^{11}", "8.97*10**11", "8.97x10¹¹", "89.7e10"]),
    ("power_function", entry("1e-05"), ["10⁻⁵", "10^-5", "1.00e-5", "1.00 · 10^(-5)"]),
    ("power_function", entry("0.0"), ["0", "0.00", "0.00e+00"]),
    ("power_function", entry("100.5"), ["1.00e2", "1.01e2"]),
    ("power_function", entry("896.48"), ["8.965e2", "8.96e2"]),
    ("prime_factorization", TWELVE, ["2×2×3", "3 × 2 × 2", "2*2*3", "2 x 2 x 3", "2^2 × 3", "2**2*3", "2² · 3"]),
    ("prime_factorization", TWELVE, ["2^{2} \\times 3", "[2, 2, 3]", "2, 2, 3", "12 = 2 × 2 × 3", "2 × 2 × 3 ×"]),
    ("prime_factorization", PRIME, ["1999", "1,999", "1999^1"]),
]
WRONG = [
    ("basic_arithmetic", HALVES, ["260", "259", "259.0", "259 or 260", "601 / 487", ""]),
    ("bitwise_arithmetic", entry("-0x94b47bf"), ["0x94b47bf", "-0x94b47be", "-0x", "0b1", "-(0x94b47bf)"]),
    ("calendar_arithmetic", MONDAY, ["M", "Mo", "Tuesday", "Monday or Tuesday", "on", ""]),
    ("calendar_arithmetic", YES, ["no", "yes no", "True", ""]),
    ("calendar_arithmetic", DAY, ["18", "191", "18 19", "9" * 5000]),
    ("chain_sum", entry("12"), ["the result is 12", "10 + 2", "0xc", "12 12"]),
    ("count_bits", entry("13"), ["bits", "1", "0b1101"]),
    ("decimal_arithmetic", DECIMAL, ["4.480", "4.47951429584", "4.5", "nan", "(1.548/(1.279*0.713)+9.525)-6.743"]),
    ("decimal_chain_sum", entry("1.50", expression="2.75 - 1.25"), ["1.49", "1.5000001", "2.75 - 1.25"]),
    ("dice", entry("3/4"), ["4/3", "0.7500001", "1/0", "3/4/1"]),
    ("fraction_simplification", FRACTION, ["15/20", "6/8", "0.75", "4/3", "-3/-4", "\\frac{15}{20}", "3"]),
    ("gsm_symbolic", entry("12"), ["12 or 13", "12/2", "$$12 13", "5 + 7", "twelve", "€€12"]),
    ("leg_counting", entry("120"), ["legs", "12 legs", "120 120"]),
    ("number_format", PICK, ["947865412.744", "947865419.2", "947865419.16", "947865419.17", "inf"]),
    ("number_format", CLOSE_PICK, ["1000", "1000.002", "999.999", "1000.0046", "1000.003"]),
    ("power_function", POWER, ["8.98e+11", "9e11", "-8.97e11", "8.97e12", "1e999999999", "245.8034^5", "8.97 × 11^11"]),
    ("prime_factorization", TWELVE, ["12", "4 × 3", "2 × 6", "1 × 2 × 2 × 3", "2 × 3", "2^999999999 × 3", "2^0 × 12"]),
    ("prime_factorization", TWELVE, ["", "×", "-2 × -2 × 3", "13 = 2 × 2 × 3", "2.5 × 3", "[2, 2, 3, 1]"]),
    ("prime_factorization", PRIME, ["1 × 1999", "1, 1999", "1, 999"]),
]


@pytest.mark.parametrize(
    ("task", "item", "answers", "value"), [(*case, 1.0) for case in RIGHT] + [(*case, 0.0) for case in WRONG]
)
def test_answers_score_what_they_are_worth(task: str, item: dict[str, Any], answers: list[str], value: float) -> None:
    """Other ways of writing what is right score 1.0; what is wrong scores 0.0."""
    assert_scores(task, item, answers, value)


def test_decimal_precision_is_that_of_the_question() -> None:
    """With `precision=6` six digits are enough, five are not."""
    item = entry("4.47950", DECIMAL["question"])
    assert grade("decimal_arithmetic", {"precision": 6}, item, "4.47951") == 1.0
    assert grade("decimal_arithmetic", {"precision": 6}, item, "4.4796") == 0.0


def test_division_by_zero_leaves_the_stored_answer() -> None:
    """An expression without a value is right by its stored answer alone."""
    item = entry("7", expression="7 / 0")
    assert grade("basic_arithmetic", {}, item, "7") == 1.0
    assert grade("basic_arithmetic", {}, item, "0") == 0.0


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**9), st.integers(1, 12))
def test_rounding_is_to_the_nearest(above: int, below: int, digits: int) -> None:
    """A rounded value has the digits asked for and lies half a unit off at most."""
    value = Fraction(above, below)
    for found in rounded(value, digits):
        place = last_place(value, digits) if value else Fraction(1)
        assert abs(found - value) <= place / 2
        assert (found / place).denominator == 1
        assert not value or 10 ** (digits - 1) <= abs(value / place) < 10**digits


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5), st.data())
def test_exact_value_follows_precedence(numbers: list[int], data: st.DataObject) -> None:
    """Products come before sums."""
    signs = [data.draw(st.sampled_from("+-*")) for _ in numbers[1:]]
    expression = str(numbers[0]) + "".join(f" {sign} {n}" for sign, n in zip(signs, numbers[1:], strict=True))
    products = [math.prod(map(int, part.split("*"))) for part in expression.replace("-", "+ -1 *").split("+")]
    assert exact_value(expression) == sum(products)


def test_exact_value_keeps_all_digits() -> None:
    """More digits than a float has are kept."""
    assert exact_value("-( 12345678901.123456789012 - 0.000000000001 )") == -Fraction("12345678901.123456789011")


@given(st.integers(2, 10**5), st.randoms())
def test_any_factorization_in_any_order_is_right(number: int, rng: Any) -> None:
    """Powers, order and signs do not matter; a factor more or less does."""
    factors = [p for p in range(2, number + 1) if _is_prime_power_step(number, p) for _ in range(_times(number, p))]
    item = entry(" × ".join(map(str, factors)), number=number, factors=factors)
    powers = [f"{p}^{factors.count(p)}" for p in set(factors)]
    rng.shuffle(powers)
    assert grade("prime_factorization", {}, item, rng.choice([" × ", "*", " \\cdot "]).join(powers)) == 1.0
    assert grade("prime_factorization", {}, item, " × ".join([*powers, powers[0]])) == 0.0


def _is_prime_power_step(number: int, p: int) -> bool:
    return number % p == 0 and all(p % d for d in range(2, math.isqrt(p) + 1))


def _times(number: int, p: int) -> int:
    count = 0
    while number % p == 0:
        number //= p
        count += 1
    return count
