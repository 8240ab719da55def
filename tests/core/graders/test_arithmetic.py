"""Graders of the arithmetic, probability and geometry tasks: right answers in other forms, and wrong ones that look
right.
"""

import math
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from grader_cases import Row, entry, row, table
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import gold_answer, grade

HALVES = entry("259", expression="601 / 487 - ( 454 - -632 - 972 + -372 )")
FRACTION = entry("$\\frac{3}{4}$", numerator=15, denominator=20, simplified_numerator=3, simplified_denominator=4)
NOT_LOWEST = entry("6/8", numerator=12, denominator=16, simplified_numerator=6, simplified_denominator=8)
DECIMAL = entry("4.4795042958", "Please solve ...\n(1.548/(1.279*0.713)+9.525)-6.743 = ?")
SUM = entry("1.50", expression="2.75 - 1.25")
PICK = entry("947865419.1689999", solution=947865419.1689999, candidates=[947865412.744, 947865419.1689999])
CLOSE_PICK = entry("1000.004", solution=1000.004, candidates=[1000.0, 1000.004])
POWER = entry("897303639322.6414")
TWELVE = entry("2 × 2 × 3", number=12, factors=[2, 2, 3])
PRIME = entry("1999", number=1999, factors=[1999])
YES = entry("Yes", task="is_leap_year")
MONDAY = entry("Monday", task="weekday_of_date")
DAY = entry("19", task="recurring_event_day")


def interval(answer: str, form: str, start: str, end: str, task_type: str, question: str = "") -> dict[str, Any]:
    return entry(answer, question, expected_format=form, start_time=start, end_time=end, task_type=task_type)


CLOCK = interval("03:20", "HH:MM", "2026-01-01 09:00:00", "2026-01-01 12:20:00", "time")
SECONDS = interval("03:20:05", "HH:MM:SS", "2026-01-01 09:00:00", "2026-01-01 12:20:05", "time_seconds")
MIDNIGHT = interval("-24:01", "HH:MM", "2026-01-01 23:59:00", "2026-01-01 00:00:00", "time")
SHORT = interval("12:27:12.868", "HH:MM:SS.mmm", "2026-01-01 09:43:58.821000", "2026-01-01 22:11:11.690000", "time_ms")
DATES = interval("59 days", "D days", "2024-01-01 00:00:00", "2024-02-29 00:00:00", "date")
BOTH = interval("1 days, 03:20", "D days, HH:MM", "2024-01-01 09:00:00", "2024-01-02 12:20:30", "datetime")
BACK = interval(
    *("-1 days, 22:00:00", "D days, HH:MM:SS", "2024-01-01 09:00:00+00:00", "2024-01-01 09:00:00+02:00", "datetime_tz")
)
CUT = interval(
    *("23 days, 00:00", "D days, HH:MM", "2358-04-20 00:00:00", "2358-05-13 00:00:00", "datetime_tz"),
    "A call started at 2358-04-20 (Sunday) 03:51:19 -0100 and ended at 2358-05-13 (Tuesday) 11:44:31 -0900. How long?",
)
POINT = entry("(147.857, -41.000)", task_type="orthocenter", ortho=["1035/7", "-41"])
ANGLE = entry("16.91°", task_type="angle_measure", angle_ABC_degrees=16.905984)
SQUARE = entry("90.00°", task_type="angle_measure", angle_ABC_degrees=89.99999999999999)


def radius(value: float) -> dict[str, Any]:
    return entry(f"{value:.3f}", task_type="incircle_radius", incircle_radius_approx=value)


@table(
    row("basic_arithmetic", HALVES, "126247/487 | -126247/-487", "260 | 259 | 259.0 | 259 or 260 | 601 / 487"),
    row("basic_arithmetic", entry("7", expression="7 / 0"), "7", "0"),  # without a value, the stored answer is right
    row(
        "bitwise_arithmetic",
        entry("-0x94b47bf"),
        "-0x94b47bf | -94B47BF | -0X94B47BF | −0x94b47bf | -155928511",
        "0x94b47bf | -0x94b47be | -0x | 0b1 | -(0x94b47bf)",
    ),
    row("bitwise_arithmetic", entry("0x1234"), "1234 | 4660 | 0x1234. | `0x1234`"),
    row("calendar_arithmetic", MONDAY, "Monday | monday |  MONDAY.  | Mon", "M | Mo | Tuesday | Mon or Tue | on"),
    row("calendar_arithmetic", YES, "yes | YES.", "no | yes no | True"),
    row(
        "calendar_arithmetic",
        DAY,
        "19 | 19th | 19.0 | 19 days | 19 Tuesdays | 19 weekdays | 19 business days",
        "18 | 191 | 18 19 | 19 weeks",
    ),
    row("chain_sum", entry("-1234"), "-1,234 | −1234 | -1234.00 | $-1234$", "1234 | -1,23,4"),
    row("chain_sum", entry("12"), "12", "the result is 12 | 10 + 2 | 0xc | 12 12"),
    row("count_bits", entry("13"), "13 | 13 bits | 13 ones | 13 1 bits", "bits | 1 | 0b1101 | 131 bits"),
    row("count_bits", entry("21"), "21 bits | 21 one bits", "2 | 2 bits | 211 bits | 21 bytes"),
    row(
        "decimal_arithmetic",
        DECIMAL,
        "4.4795042958 | 4.47950429585 | 4.479504295848242",
        "4.480 | 4.47951429584 | 4.5 | nan | (1.548/(1.279*0.713)+9.525)-6.743",
    ),
    row("decimal_arithmetic", {**DECIMAL, "answer": "4.47950"}, "4.47951", "4.4796", config={"precision": 6}),
    row("decimal_chain_sum", SUM, "1.5 | 1.500", "1.49 | 1.5000001 | 2.75 - 1.25"),
    row("dice", entry("3/4"), "3/4 | 3 / 4 | \\frac{3}{4} | 6/8 | 0.75", "4/3 | 0.7500001 | 1/0 | 3/4/1"),
    row(
        "fraction_simplification",
        FRACTION,
        "3/4 | \\dfrac{3}{4} | $3/4$ |  3 / 4  | 3⁄4",
        "15/20 | 6/8 | 0.75 | 4/3 | -3/-4 | \\frac{15}{20} | 3",
    ),
    row("fraction_simplification", NOT_LOWEST, "3/4 | 6/8", "12/16"),
    row(
        "gsm_symbolic",
        entry("7087.5"),
        "7087.50 | $7,087.50 | £7087.5 | \\$7087.5 | $\\$7087.5$ | $\\boxed{\\$7087.5}$ | 7087.5% | 7087.5 €",
    ),
    row("gsm_symbolic", entry("-5"), "-$5 | -5 | −5", "5 | $5"),
    row("gsm_symbolic", entry("12"), "12", "12 or 13 | 12/2 | $$12 13 | 5 + 7 | twelve | €€12"),
    row("leg_counting", entry("120"), "120 | 120 legs | 120 Legs.", "legs | 12 legs | 120 120"),
    row(
        "number_format",
        PICK,
        "947,865,419.169 | 9.47865419169e8 | 947865419.1689999",
        "947865412.744 | 947865419.2 | 947865419.16 | 947865419.17 | inf",
    ),
    row("number_format", CLOSE_PICK, "1000.004 | 1,000.0041", "1000 | 1000.002 | 999.999 | 1000.0046 | 1000.003"),
    row(
        "power_function",
        POWER,
        "8.97e+11 | 8.97E11 | 8.973e11 | 897303639322.6414 | 8.97 × 10^11 | 8.97 \\times 10^{11} | 89.7*10**10",
        "8.98e+11 | 9e11 | -8.97e11 | 8.97e12 | 1e999999999 | 245.8034^5 | 8.97 × 11^11",
    ),
    row("power_function", entry("1e-05"), "10⁻⁵ | 10^-5 | 1.00e-5 | 1.00 · 10^(-5)", "10⁵"),
    row("power_function", entry("0.0"), "0 | 0.00 | 0.00e+00", "0.01"),
    row("power_function", entry("100.5"), "1.00e2 | 1.01e2", "1.02e2"),
    row("power_function", entry("896.48"), "8.965e2 | 8.96e2", "8.97e2"),
    row(
        "prime_factorization",
        TWELVE,
        "2×2×3 | 3 × 2 × 2 | 2*2*3 | 2 x 2 x 3 | 2^2 × 3 | 2**2*3 | 2² · 3 | 2^{2} \\times 3 | [2, 2, 3] | 2, 2, 3",
        "12 | 4 × 3 | 2 × 6 | 1 × 2 × 2 × 3 | 2 × 3 | 2^999999999 × 3 | 2^0 × 12 | × | -2 × -2 × 3 | 13 = 2 × 2 × 3",
    ),
    row("prime_factorization", TWELVE, "12 = 2 × 2 × 3 | 2 × 2 × 3 ×", "2.5 × 3 | [2, 2, 3, 1]"),
    row("prime_factorization", PRIME, "1999 | 1,999 | 1999^1", "1 × 1999 | 1, 1999 | 1, 999"),
    row(
        "coin_flip",
        entry("0.1527404785"),
        "0.1527404785 | 0.1527 | 5005/32768 | \\frac{5005}{32768} | 15.274% | 15.274\\% | 5005/32768 ≈ 0.1527 | "
        "1.527e-1 | 0.152740 | 0.15274047 | 0.152740479 | 0.152740478515625",
        "0.153 | 0.1525 | 0.1528 | 0.1526 | 0.152742 | 0.15275 | 15.28% | 10/65.4 | 11/72 | 1/8 | 15.274 | "
        "0.1527 = 0.5 | 0.5 ≈ 0.1527 | = | C(15,6)/2^15",
    ),
    row("coin_flip", entry("3.051757812e-05"), "1/32768 | 0.00003052 | 3.05e-5", "0 | 0.0001 | 0.00001"),
    row("coin_flip", entry("1"), "1 | 1.0 | 100%", "0.9999 | 0.99999999"),
    row(
        "time_intervals",
        CLOCK,
        "03:20 | 3:20 | 03:20:00 | 3 hours 20 minutes | 3h20m | 3 hours and 20 minutes | 200 minutes",
        "03:21 | 3 | 03:80 | -03:20 | 03:20 or 03:21 | 3:20:01 | 20:03 | : | hours",
    ),
    row(
        "time_intervals",
        SECONDS,
        "3:20:05 | 3 hours, 20 minutes, and 5 seconds | 03:20:05.000 | 0 days, 03:20:05",
        "03:20 | 20:05 | 03:20:05.001 | 03:20:65",
    ),
    row("time_intervals", MIDNIGHT, "00:01", "24:01 | -24:01 | 23:59 | -23:59 | 00:00"),
    row("time_intervals", SHORT, "12:27:12.869", "12:27:12.867 | 12:27:12.868 | 12:27:12.87 | 12:27:12"),
    row(
        "time_intervals", DATES, "59 days | 59 | 59 Days. | 59 day", "58 | 59 59 | 59 or 60 days | 59 hours | -59 days"
    ),
    row(
        "time_intervals",
        BOTH,
        "1 days, 03:20 | 1 day, 3:20 | 1 day and 3:20 | 1 days 03:20:30 | 1 day 3 hours 20 minutes | 27:20",
        "1 days | 03:20 | 2 days, 03:20 | -1 days, 03:20 | 1 days, 03:20:31",
    ),
    row(
        "time_intervals",
        BACK,
        "-1 days, 22:00:00 | -2:00:00 | -0 days, 02:00:00 | −02:00:00 | -1 day, 22:00",
        "0 days, 02:00:00 | -1 days, 02:00:00 | 1 days, 22:00:00 | -46:00:00",
    ),
    row(
        *("time_intervals", CUT, "23 days, 15:53 | 23 days, 15:53:12"),
        "15:53 | 23 days, 00:00 | 23 days, 07:53 | 24 days, 00:00",
    ),
    row(
        "advanced_geometry",
        POINT,
        "(147.857, -41.000) | (147.857,-41) | 147.857, -41 | (1035/7, −41) | $\\left(\\frac{1035}{7}, -41\\right)$",
        "(147.858, -41) | (147.86, -41) | (-41, 147.857) | 147.857 | (147.857, -41, 0) | (7245/49.0001, -41) | (,)",
    ),
    row(
        "advanced_geometry",
        POINT,
        "(147.857143, -41.0) | [147.857, -41]",
        "(2957.14/20.0001, -41) | (1035/7, -41.0003/1.00001) | () | (nan, nan) | (1035/0, -41)",
    ),
    row(
        "advanced_geometry",
        ANGLE,
        "16.91° | 16.906° | 16.906 | 16.91 degrees | 16.91^\\circ | $16.906^{\\circ}$",
        "16.9° | 17 | 16.909° | 16.905° | -16.91 | ° | 12°49 | nan",
    ),
    row("advanced_geometry", SQUARE, "90 | 90° | 90.000° | 90.00 deg.", "89.9"),
    row(
        "advanced_geometry",
        radius(1.186461853),
        "1.186 | 1.1865 | 1.18646 | 1.1860",
        "1.19 | 1.187 | 1 | inf | √ | √2 | 1.186√1",
    ),
    row("advanced_geometry", radius(1.5), "3/2 | 1.5 | \\frac{3}{2} | 1.500", "1.51"),
    row("advanced_geometry", radius((math.sqrt(5) - 1) / 2), "\\frac{\\sqrt{5} - 1}{2} | (√5-1)/2 | sqrt(5)/2 - 1/2"),
    row(
        "advanced_geometry",
        radius(3 * math.sqrt(2)),
        "3√2 | 3*sqrt(2) | 3 \\cdot \\sqrt{2} | \\sqrt{18} | √(18)",
        "3√3 | √2 | 6/√2 | sqrt(9+9) | 3*√2/0 | (3√2)/0 | 3 or √18",
    ),
    row("simple_geometry", entry("60"), "60 | 60.0 | 60° | 60 degrees | $60^\\circ$", "61 | 60 61 | 180 - 120 | °"),
)
def test_answers_score_what_they_are_worth(row: Row) -> None:
    """Form does not matter; another value, or another type, scores 0.0."""
    row.check()


@given(st.integers(100, 10**12), st.integers(1, 10**9))
def test_rounding_is_to_three_figures(above: int, below: int) -> None:
    """The nearest number of three figures is right, the next one is not."""
    value = Fraction(above, below)
    near = f"{float(value):.2e}"
    mantissa, _, exponent = near.partition("e")
    off = f"{float(mantissa) + 0.02:.2f}e{exponent}"
    item = entry(f"{above}e0" if below == 1 else repr(float(value)))
    assert grade("power_function", {}, item, near) == 1.0
    assert grade("power_function", {}, item, off) == 0.0


@given(st.integers(2, 10**5), st.randoms())
def test_any_factorization_in_any_order_is_right(number: int, rng: Any) -> None:
    """Powers, order and signs do not matter; a factor more or less does."""
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
    """The answer has the required format; a stored answer that is right is unchanged."""
    right = ["00:01", "12:27:12.869", "23 days, 15:53", "-1 days, 22:00:00"]
    assert [gold_answer("time_intervals", item) for item in (MIDNIGHT, SHORT, CUT, BACK)] == right


@given(st.integers(0, 300), st.integers(0, 86_399), st.integers(0, 300), st.integers(0, 86_399))
def test_two_durations_are_equal_if_their_seconds_are(days: int, rest: int, other_days: int, other: int) -> None:
    """One written out with all parts is right if and only if it is as long as the stored one."""
    gold = f"{days} days, {rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    end = str(datetime(2024, 1, 1) + timedelta(days=days, seconds=rest))
    item = interval(gold, "D days, HH:MM:SS", "2024-01-01 00:00:00", end, "datetime")
    words = f"{other_days} days, {other // 3600} hours, {other // 60 % 60} minutes and {other % 60} seconds"
    assert grade("time_intervals", {}, item, words) == float((days, rest) == (other_days, other))
    assert grade("time_intervals", {}, item, words.replace(str(other_days), str(days), 1)) == float(rest == other)


def test_rounding_does_not_decide_a_surd() -> None:
    """The difference of two large roots, in floats a multiple of 0.125, is not that."""
    text = "777777777√999999999999 - 777777777√999999999998"
    in_floats = 777777777 * math.sqrt(999999999999) - 777777777 * math.sqrt(999999999998)
    exact = 777777777 / (math.sqrt(999999999999) + math.sqrt(999999999998))
    assert abs(in_floats - exact) > 1e-3
    assert grade("advanced_geometry", {}, radius(in_floats), text) == 0.0
    assert grade("advanced_geometry", {}, radius(3 * math.sqrt(2)), f"3√2 + {text} - {text}") == 0.0


@given(st.integers(1, 999), st.integers(1, 999), st.integers(1, 99), st.integers(0, 99))
def test_surds_have_the_value_that_they_write(factor: int, root: int, below: int, more: int) -> None:
    """A sum of a square root and a number, over a number, in plain text and in LaTeX."""
    item = radius((factor * math.sqrt(root) + more) / below)
    for text in (f"({factor}√{root} + {more})/{below}", f"\\frac{{{factor}\\sqrt{{{root}}} + {more}}}{{{below}}}"):
        row("advanced_geometry", item, [text], [f"-{text}"]).check()
