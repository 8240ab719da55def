"""Graders of the arithmetic and geometry tasks on random numbers, factors, durations and surds."""

import math
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from grader_cases import entry, row
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import gold_answer, grade


def interval(answer: str, form: str, start: str, end: str, task_type: str, question: str = "") -> dict[str, Any]:
    return entry(answer, question, expected_format=form, start_time=start, end_time=end, task_type=task_type)


MIDNIGHT = interval("-24:01", "HH:MM", "2026-01-01 23:59:00", "2026-01-01 00:00:00", "time")
SHORT = interval("12:27:12.868", "HH:MM:SS.mmm", "2026-01-01 09:43:58.821000", "2026-01-01 22:11:11.690000", "time_ms")
BACK = interval(
    *("-1 days, 22:00:00", "D days, HH:MM:SS", "2024-01-01 09:00:00+00:00", "2024-01-01 09:00:00+02:00", "datetime_tz")
)
CUT = interval(
    *("23 days, 00:00", "D days, HH:MM", "2358-04-20 00:00:00", "2358-05-13 00:00:00", "datetime_tz"),
    "A call started at 2358-04-20 (Sunday) 03:51:19 -0100 and ended at 2358-05-13 (Tuesday) 11:44:31 -0900. How long?",
)


def radius(value: float) -> dict[str, Any]:
    return entry(f"{value:.3f}", task_type="incircle_radius", incircle_radius_approx=value)


@given(st.integers(100, 10**12), st.integers(1, 10**9))
def test_rounding_is_to_three_figures(above: int, below: int) -> None:
    """A value rounded to three significant figures is correct; one that is off by 2 in the last figure is wrong."""
    value = Fraction(above, below)
    near = f"{float(value):.2e}"
    mantissa, _, exponent = near.partition("e")
    off = f"{float(mantissa) + 0.02:.2f}e{exponent}"
    item = entry(f"{above}e0" if below == 1 else repr(float(value)))
    assert grade("power_function", {}, item, near) == 1.0
    assert grade("power_function", {}, item, off) == 0.0


@given(st.integers(2, 10**5), st.randoms())
def test_any_factorization_in_any_order_is_right(number: int, rng: Any) -> None:
    """Factors may be written as powers, in any order and with any multiplication sign; an extra factor is wrong."""
    factors, rest = [], number
    for p in range(2, number + 1):
        while rest % p == 0:
            factors.append(p)
            rest //= p
    powers = [f"{p}^{factors.count(p)}" for p in set(factors)]
    rng.shuffle(powers)
    item = entry(" × ".join(map(str, factors)), number=number, factors=factors)
    assert math.prod(factors) == number
    assert grade("prime_factorization", {}, item, rng.choice([" × ", "*", " \\cdot "]).join(powers)) == 1.0
    assert grade("prime_factorization", {}, item, " × ".join([*powers, powers[0]])) == 0.0


def test_the_gold_answer_is_the_time_that_elapsed() -> None:
    """Gold answers are the elapsed time in the expected format; a correct stored answer is unchanged."""
    right = ["00:01", "12:27:12.869", "23 days, 15:53", "-1 days, 22:00:00"]
    assert [gold_answer("time_intervals", item) for item in (MIDNIGHT, SHORT, CUT, BACK)] == right


@given(st.integers(0, 300), st.integers(0, 86_399), st.integers(0, 300), st.integers(0, 86_399))
def test_two_durations_are_equal_if_their_seconds_are(days: int, rest: int, other_days: int, other: int) -> None:
    """A duration in words is correct if and only if it equals the stored one."""
    gold = f"{days} days, {rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    end = str(datetime(2024, 1, 1) + timedelta(days=days, seconds=rest))
    item = interval(gold, "D days, HH:MM:SS", "2024-01-01 00:00:00", end, "datetime")
    words = f"{other_days} days, {other // 3600} hours, {other // 60 % 60} minutes and {other % 60} seconds"
    assert grade("time_intervals", {}, item, words) == float((days, rest) == (other_days, other))
    assert grade("time_intervals", {}, item, words.replace(str(other_days), str(days), 1)) == float(rest == other)


def test_rounding_does_not_decide_a_surd() -> None:
    """The difference of two large roots does not equal its inaccurate value in floats."""
    text = "777777777√999999999999 - 777777777√999999999998"
    in_floats = 777777777 * math.sqrt(999999999999) - 777777777 * math.sqrt(999999999998)
    exact = 777777777 / (math.sqrt(999999999999) + math.sqrt(999999999998))
    assert abs(in_floats - exact) > 1e-3
    assert grade("advanced_geometry", {}, radius(in_floats), text) == 0.0
    item = radius(3 * math.sqrt(2))
    assert grade("advanced_geometry", {}, item, "3√2 + 5√7 - 5√7") == 1.0
    # Terms so large that rounding could hide a wrong digit are rejected, even though they cancel exactly.
    canceled = "777777777√999999999998 - 777777777√999999999999"
    assert grade("advanced_geometry", {}, item, f"3√2 + {text} + {canceled}") == 0.0


@given(st.integers(1, 999), st.integers(1, 999), st.integers(1, 99), st.integers(0, 99))
def test_surds_are_read_in_plain_text_and_latex(factor: int, root: int, below: int, more: int) -> None:
    """`(a√b + c)/d` is graded by its value, in plain text and in LaTeX."""
    item = radius((factor * math.sqrt(root) + more) / below)
    for text in (f"({factor}√{root} + {more})/{below}", f"\\frac{{{factor}\\sqrt{{{root}}} + {more}}}{{{below}}}"):
        row("advanced_geometry", item, [text], [f"-{text}"]).check()
