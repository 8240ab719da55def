"""The grader of time_intervals, and the durations that it reads."""

import re
from datetime import datetime, timedelta

from rg_env.core.grading.graders.common import Config, Entry, word
from rg_env.core.grading.parsing import forms

_MAX_TEXT = 100
_DAY = timedelta(days=1)
_ZERO = timedelta(0)
_CLOCK = re.compile(
    r"(?P<sign>-?)(?:(?P<days>\d{1,7}) ?(?:days?|d)(?:$|,? (?:and )?))?"
    r"(?:(?P<hours>\d{1,7}):(?P<minutes>[0-5]?\d)(?::(?P<seconds>[0-5]?\d(?:\.\d{1,6})?))?)?"
)
_WORDS = re.compile(
    r"(?P<sign>-?)(?:(?P<days>\d{1,7}) ?(?:days?|d)(?:,? and|,)? ?)?"
    r"(?:(?P<hours>\d{1,7}) ?(?:hours?|hrs?|h)(?:,? and|,)? ?)?"
    r"(?:(?P<minutes>\d{1,7}) ?(?:minutes?|mins?|m)(?:,? and|,)? ?)?"
    r"(?:(?P<seconds>\d{1,7}(?:\.\d{1,6})?) ?(?:seconds?|secs?|s))?"
)
_DATE_WITH_WEEKDAY = re.compile(r"(\d{4}-\d\d-\d\d) \(\w+\) (\d\d:\d\d:\d\d [+-]\d{4})")


def time_intervals(answer: str, entry: Entry, config: Config) -> float:
    """The time that elapsed, in the format asked for or another.

    Where the format has no seconds, they may be left out or given.
    """
    metadata = entry["metadata"]
    right = _right(entry)
    text = f"{answer.strip()} days" if metadata["expected_format"] == "D days" else answer
    readings = _readings(text) or _readings(answer)
    return float(not right.isdisjoint(readings) or word(answer, entry, config) == 1.0)


def _right(entry: Entry) -> set[timedelta]:
    elapsed = _elapsed(entry)
    whole_minutes = entry["metadata"]["expected_format"].endswith("HH:MM")
    return {elapsed, elapsed - elapsed % timedelta(minutes=1)} if whole_minutes else {elapsed}


def elapsed_time(entry: Entry) -> str:
    """The stored duration, or the right one in its format: the library's is a millisecond short now and then, lacks
    the time of day behind `(Monday)`, and is negative after midnight."""
    stored = str(entry["answer"])
    if not _right(entry).isdisjoint(_readings(stored)[:1]):
        return stored
    elapsed, form = _elapsed(entry), entry["metadata"]["expected_format"]
    if form == "D days":
        return f"{elapsed.days} days"
    clock = f"{elapsed.seconds // 3600:02}:{elapsed.seconds // 60 % 60:02}"
    clock += f":{elapsed.seconds % 60:02}" if ":SS" in form else ""
    clock += f".{elapsed.microseconds // 1000:03}" if form.endswith("mmm") else ""
    return f"{elapsed.days} days, {clock}" if form.startswith("D") else clock


def _elapsed(entry: Entry) -> timedelta:
    """From start to end, read from the question where the library drops the time of day behind `(Monday)`."""
    found = _DATE_WITH_WEEKDAY.findall(entry["question"])
    if len(found) == 2:
        start, end = (datetime.strptime(f"{day} {time}", "%Y-%m-%d %H:%M:%S %z") for day, time in found)
        return end - start
    metadata = entry["metadata"]
    elapsed = datetime.fromisoformat(metadata["end_time"]) - datetime.fromisoformat(metadata["start_time"])
    if metadata["task_type"].startswith("time") and elapsed < _ZERO:
        elapsed += _DAY  # times of day: past midnight
    return elapsed


def _readings(text: str) -> list[timedelta]:
    """The durations that `text` may mean, none if it is no duration.

    Two if it starts with a minus sign and days: `-1 days, 22:00` is minus two hours for the library and Python, and
    minus 46 hours for others.
    """
    text = " ".join(forms.plain_digits(text).casefold().split()) if len(text) <= _MAX_TEXT else ""
    match = _CLOCK.fullmatch(text) or _WORDS.fullmatch(text)
    if match is None or not any(match.group("days", "hours", "minutes", "seconds")):
        return []
    part = match.groupdict(default="0")
    days = int(part["days"]) * _DAY
    rest = timedelta(hours=int(part["hours"]), minutes=int(part["minutes"]), seconds=float(part["seconds"]))
    if not part["sign"]:
        return [days + rest]
    return [rest - days, -days - rest] if days else [-rest]
