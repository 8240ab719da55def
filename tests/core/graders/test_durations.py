"""The grader of time_intervals: durations in other forms, and the right ones that the library does not store."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import gold_answer, grade


def entry(answer: str, expected: str, start: str, end: str, task_type: str, question: str = "") -> dict[str, Any]:
    metadata = {"expected_format": expected, "start_time": start, "end_time": end, "task_type": task_type}
    return {"question": question, "answer": answer, "metadata": metadata}


CLOCK = entry("03:20", "HH:MM", "2026-01-01 09:00:00", "2026-01-01 12:20:00", "time")
SECONDS = entry("03:20:05", "HH:MM:SS", "2026-01-01 09:00:00", "2026-01-01 12:20:05", "time_seconds")
MIDNIGHT = entry("-24:01", "HH:MM", "2026-01-01 23:59:00", "2026-01-01 00:00:00", "time")
SHORT = entry("12:27:12.868", "HH:MM:SS.mmm", "2026-01-01 09:43:58.821000", "2026-01-01 22:11:11.690000", "time_ms")
DATES = entry("59 days", "D days", "2024-01-01 00:00:00", "2024-02-29 00:00:00", "date")
BOTH = entry("1 days, 03:20", "D days, HH:MM", "2024-01-01 09:00:00", "2024-01-02 12:20:30", "datetime")
BACK = entry(
    "-1 days, 22:00:00",
    "D days, HH:MM:SS",
    "2024-01-01 09:00:00+00:00",
    "2024-01-01 09:00:00+02:00",
    "datetime_tz",
)
CUT = entry(
    "23 days, 00:00",
    "D days, HH:MM",
    "2358-04-20 00:00:00",
    "2358-05-13 00:00:00",
    "datetime_tz",
    "A call started at 2358-04-20 (Sunday) 03:51:19 -0100 and ended at 2358-05-13 (Tuesday) 11:44:31 -0900. How long?",
)

RIGHT = [
    (CLOCK, ["03:20", "3:20", "03:20:00", "3 hours 20 minutes", "3h20m", "3 hours and 20 minutes", "200 minutes"]),
    (SECONDS, ["3:20:05", "3 hours, 20 minutes, and 5 seconds", "03:20:05.000", "0 days, 03:20:05"]),
    (MIDNIGHT, ["00:01"]),
    (SHORT, ["12:27:12.869"]),
    (DATES, ["59 days", "59", "59 Days.", "59 day"]),
    (BOTH, ["1 days, 03:20", "1 day, 3:20", "1 day and 3:20", "1 days 03:20:30", "1 day 3 hours 20 minutes", "27:20"]),
    (BACK, ["-1 days, 22:00:00", "-2:00:00", "-0 days, 02:00:00", "−02:00:00", "-1 day, 22:00"]),
    (CUT, ["23 days, 15:53", "23 days, 15:53:12"]),
]
WRONG = [
    (CLOCK, ["03:21", "3", "03:80", "-03:20", "03:20 or 03:21", "3:20:01", "20:03", "", ":", "hours"]),
    (SECONDS, ["03:20", "20:05", "03:20:05.001", "03:20:65"]),
    (MIDNIGHT, ["24:01", "-24:01", "23:59", "-23:59", "00:00"]),
    (SHORT, ["12:27:12.867", "12:27:12.868", "12:27:12.87", "12:27:12"]),
    (DATES, ["58", "59 59", "59 or 60 days", "590", "59 hours", "-59 days", "days", "9" * 5000]),
    (BOTH, ["1 days", "03:20", "2 days, 03:20", "-1 days, 03:20", "1 days, 03:20:31"]),
    (BACK, ["0 days, 02:00:00", "-1 days, 02:00:00", "1 days, 22:00:00", "-46:00:00"]),
    (CUT, ["15:53", "23 days, 00:00", "23 days, 07:53", "24 days, 00:00"]),
]


@pytest.mark.parametrize(("item", "answers"), RIGHT)
def test_the_time_that_elapsed_is_right_in_any_form(item: dict[str, Any], answers: list[str]) -> None:
    """Right durations score 1.0, also where the library's stored answer is another one; that is not paid."""
    assert {text: grade("time_intervals", {}, item, text) for text in answers} == dict.fromkeys(answers, 1.0)


@pytest.mark.parametrize(("item", "answers"), WRONG)
def test_other_durations_are_wrong(item: dict[str, Any], answers: list[str]) -> None:
    """What is no duration, or another one, scores 0.0."""
    scores = {text: grade("time_intervals", {}, item, text, partial_credit=True) for text in answers}
    assert scores == dict.fromkeys(answers, 0.0)


def test_the_gold_answer_is_the_time_that_elapsed() -> None:
    """In the format asked for; a stored answer that is right stays as it is."""
    right = {"MIDNIGHT": "00:01", "SHORT": "12:27:12.869", "CUT": "23 days, 15:53", "BACK": "-1 days, 22:00:00"}
    items = {"MIDNIGHT": MIDNIGHT, "SHORT": SHORT, "CUT": CUT, "BACK": BACK}
    assert {name: gold_answer("time_intervals", item) for name, item in items.items()} == right


@given(st.integers(0, 300), st.integers(0, 86_399), st.integers(0, 300), st.integers(0, 86_399))
def test_two_durations_are_equal_if_their_seconds_are(days: int, rest: int, other_days: int, other: int) -> None:
    """One written out with all parts is right if and only if it is as long as the stored one."""
    gold = f"{days} days, {rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    item = entry(gold, "D days, HH:MM:SS", "2024-01-01 00:00:00", "2024-01-01 00:00:00", "datetime")
    item["metadata"]["end_time"] = _after(days, rest)
    words = f"{other_days} days, {other // 3600} hours, {other // 60 % 60} minutes and {other % 60} seconds"
    assert grade("time_intervals", {}, item, words) == float((days, rest) == (other_days, other))
    assert grade("time_intervals", {}, item, words.replace(str(other_days), str(days), 1)) == float(rest == other)


def _after(days: int, seconds: int) -> str:
    return str(datetime(2024, 1, 1) + timedelta(days=days, seconds=seconds))


@given(st.text(max_size=60))
def test_any_text_is_read_without_an_exception(text: str) -> None:
    """Whatever the text, the grader answers with a number."""
    assert grade("time_intervals", {}, BOTH, text) in (0.0, 1.0)
