"""Solvers of questions about the calendar."""

import re
from datetime import date, timedelta

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")  # fmt: skip
ORDINALS = {"first": 0, "second": 1, "third": 2, "fourth": 3, "fifth": 4, "last": -1}
_DATE = re.compile(rf"({'|'.join(MONTHS)}) (\d{{1,2}})(?:st|nd|rd|th)?\b(?:, (\d{{4}}))?")
_DAY = re.compile(rf"\b({'|'.join(DAYS)})")


def _dates(text: str) -> list[date]:
    """Return dates in order; a date without a year has the year of the other date.

    The library writes the year of the first date after both dates, even if the second date is in the next year; the
    weekday before the second date shows this.
    """
    if numbers := re.search(r"(\d\d)/(\d\d)/(\d{4})", text):
        return [date(int(numbers[3]), int(numbers[1]), int(numbers[2]))]
    if iso := re.search(r"\d{4}-\d\d-\d\d", text):
        return [date.fromisoformat(iso[0])]
    found = _DATE.findall(text)
    year = next((year for *_, year in found if year), "2023")
    dates = [date(int(own or year), MONTHS.index(month) + 1, int(day)) for month, day, own in found]
    if len(dates) == 2 and dates[1] < dates[0]:
        dates[1] = dates[1].replace(year=dates[1].year + 1)
        assert f"{DAYS[dates[1].weekday()]}, {found[1][0]}" in text
    return dates


def _between(first: date, last: date) -> list[date]:
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


def calendar_arithmetic(question: str) -> str:
    text = re.split(r"(?<=[.?]) (?=[A-Z])", question)[0]
    if "leap year" in text:
        year = int(re.findall(r"\d{4}", text)[0])
        return "Yes" if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else "No"
    if "business days" in text or "weekdays" in text:
        return str(sum(day.weekday() < 5 for day in _between(*_dates(text))))
    text = text.replace("the first day of the year", "January 1")
    if "January 1" in text and not re.search(r"\d{4}", text):  # no year is given, so use one that is not a leap year
        known, day = DAYS.index(_DAY.findall(text)[0]), [each for each in _dates(text) if each != date(2023, 1, 1)]
        return DAYS[(known + ((day or [date(2023, 1, 1)])[0] - date(2023, 1, 1)).days) % 7]
    if ordinal := re.search(r"\b(first|second|third|fourth|fifth|last) (\w+day)\b", text):
        month, year = re.findall(rf"({'|'.join(MONTHS)}),? (\d{{4}})", text)[0]
        first = date(int(year), MONTHS.index(month) + 1, 1)
        days = [day for day in _between(first, first + timedelta(days=30)) if day.month == first.month]
        right = [day.day for day in days if DAYS[day.weekday()] == ordinal[2]]
        place = ORDINALS[ordinal[1]]
        return str(right[place]) if place < len(right) else "-1"
    dates = _dates(text)
    if len(dates) == 2:
        wanted = next(name for name in _DAY.findall(re.sub(rf"\w+day, (?={'|'.join(MONTHS)})", "", text)))
        return str(sum(DAYS[day.weekday()] == wanted for day in _between(*dates)))
    offset = re.search(r"(\d+)[ -]days?\b", text)
    days = int(offset[1]) if offset else 0
    back = re.search(r"\b(ago|before|prior|back|backward|earlier|preceding)\b", text)
    return DAYS[(dates[0] + timedelta(days=-days if back else days)).weekday()]
