"""Graders for the arithmetic, probability and geometry tasks."""

import re
from collections import Counter
from datetime import datetime, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from math import ceil, floor

from rg_env.core.grading.graders import calculus, forms
from rg_env.core.grading.graders.common import Config, Entry, option, word
from rg_env.core.grading.graders.expressions import exact, exact_value, parse
from rg_env.core.grading.graders.forms import Unreadable, attempt

_CONTEXT = Context(prec=1_100)
"""Decimal context for numbers of up to 1,000 digits. The process's own context is not used because the library may
change it."""
_POWER_FIGURES = 3
NEGATIVE_BASE = re.compile(r"Compute (-[\d.]+)\^")
"""The start of a power_function question with a negative base and without brackets."""
_MAX_EXPONENT = 400
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY_UNITS = (
    *("business days", "business day", "weekdays", "weekday", "days", "day", "times", "time"),
    *(name + plural for name in _WEEKDAYS for plural in ("s", "")),
    *("th", "st", "nd", "rd"),
)
_PLAIN_PRODUCT = re.compile(r"\d{1,9}(?: ?[×*] ?\d{1,9})*", re.ASCII)
_CURRENCIES = ("$", "€", "£", "¥", "₹")
_PLACES, _MOST_PLACES = 4, 10
"""Minimum number of decimal places that coin_flip requires, and maximum number checked. The stored answer has ten
significant digits, so it is correct to at least ten decimal places."""
_MAX_FORMS = 20
_DAY = timedelta(days=1)
_COPIED_D = re.compile(r"^\s*D\s*(?:[=:]\s*)?(\d+)|(?<=\d)(\s+)D\s+(?=days?\b)")
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
_MANY_PLACES = 10**2_000
"""Common multiple of the denominators of all decimals that `forms.number` can parse."""
_HALF = Fraction(1, 2)
_HALF_A_THOUSANDTH = Fraction(1, 2000)
_FLOAT_ERROR = Fraction(1, 10**9)
"""Tolerance for rounding errors in the library's floats."""
_DEGREES = ("°", "degrees", r"\degree", "degree", "deg", r"^\circ", r"^{\circ}")
_ROOT = re.compile(r"\\?sqrt(?:\{(\d{1,12})\}|\((\d{1,12})\)|(\d{1,12}))|√(?:\((\d{1,12})\)|\{(\d{1,12})\}|(\d{1,12}))")
_TERMS = r"[+-]?T(?:[+-]T)*".replace("T", r"(?:\d{1,9}(?:\*?√\d{1,12})?|√\d{1,12})(?:/\d{1,9})?")
_SURD = re.compile(rf"{_TERMS}|\({_TERMS}\)(?:/(?:\d{{1,9}}|\(\d{{1,9}}\)))?")


def bitwise_arithmetic(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored number in decimal, or in hexadecimal with or without `0x` and in any letter case."""
    gold = int(entry["answer"], 16)
    text = forms.plain_digits(answer.strip().removeprefix("=").lstrip())
    match = re.fullmatch(r"([+-]?)\s*(?:0[xX])?([0-9a-fA-F]+(?:_[0-9a-fA-F]+)*)", text)
    return (match is not None and int(match[1] + match[2], 16) == gold) or forms.integer(text) == gold


def calendar_arithmetic(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored answer: a weekday (in full or abbreviated to at least three letters), a whole number, or yes or
    no."""
    gold = entry["answer"].casefold()
    if gold in _WEEKDAYS:
        text = answer.strip().casefold()
        return len(text) >= 3 and gold.startswith(text)
    if gold in ("yes", "no"):
        return word(answer, entry, config)
    return forms.integer(_without_unit(answer, _DAY_UNITS)) == int(gold)


def decimal_arithmetic(answer: str, entry: Entry, config: Config) -> float:
    """Accept the expression's value, rounded half up to the required number of significant digits or to more.

    The stored answer is also accepted, even though it may be less accurate because the library rounds every
    intermediate result.
    """
    value = forms.number(answer)
    if value == forms.number(entry["answer"]):
        return 1.0
    exact = exact_value(entry["question"].rpartition("\n")[2].removesuffix(" = ?"))
    if not exact:
        return value == exact
    place = _last_place(exact, option("decimal_arithmetic", config, "precision"))
    if abs(value - exact) > place:
        return 0.0
    return floor(abs(value) / place + _HALF) == floor(abs(exact) / place + _HALF)


def _last_place(value: Fraction, digits: int) -> Fraction:
    """Return the place value of the last of the first `digits` significant digits of `value`, which must not be 0."""
    exponent = _CONTEXT.divide(Decimal(value.numerator), Decimal(value.denominator)).adjusted()
    return Fraction(10) ** (exponent - digits + 1)


def decimal_chain_sum(answer: str, entry: Entry, config: Config) -> float:
    """Accept the exact value of the sum, or the stored answer.

    The exact value and the stored answer may differ if decimal_arithmetic was used earlier in the same process, because
    that task lowers the precision of Python's decimals.
    """
    value = forms.number(answer)
    return value == forms.number(entry["answer"]) or value == exact_value(entry["metadata"]["expression"])


def fraction_simplification(answer: str, entry: Entry, config: Config) -> float:
    """Accept the fraction in lowest terms or the stored fraction, either one in plain form or LaTeX.

    With a `min_value` above 1, the library may store an unreduced fraction.
    """
    above, slash, below = forms.plain_fraction(answer).partition("/")
    parts = forms.integer(above), forms.integer(below) if slash else 1
    metadata = entry["metadata"]
    if parts == (metadata["simplified_numerator"], metadata["simplified_denominator"]):
        return 1.0
    return parts == Fraction(metadata["numerator"], metadata["denominator"]).as_integer_ratio()


def gsm_symbolic(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored number. A currency or percent sign is ignored."""
    return forms.rational(_without_currency(answer)) == forms.rational(entry["answer"])


def _without_currency(text: str) -> str:
    text = forms.plain_digits(text.strip())
    sign, text = (text[0], text[1:].strip()) if text[:1] in ("-", "+") else ("", text)
    bare = text.removeprefix("\\")
    if bare.startswith(_CURRENCIES):
        return sign + bare[1:].strip()
    return sign + (text[:-1].removesuffix("\\").strip() if text.endswith((*_CURRENCIES, "%")) else text)


def leg_counting(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored number, with or without the word `legs`."""
    return forms.integer(_without_unit(answer, ("total legs", "legs"))) == int(entry["answer"])


def count_bits(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored number, with or without a unit such as `bits` or `ones`."""
    return forms.integer(_without_unit(answer, ("one bits", "1 bits", "set bits", "bits", "ones", "1s"))) == int(
        entry["answer"]
    )


def _without_unit(text: str, units: tuple[str, ...]) -> str:
    """Return `text` in lowercase and without the unit at its end, if any. If several of `units` match, the first is
    removed. The end of a longer word or number, as in "sundays" or "21 bits", is not a unit."""
    text = text.strip().casefold()
    for unit in units:
        if (rest := text.removesuffix(unit)) != text:
            before = rest[-1:]
            if not before.isalnum() or before.isdigit() != unit[0].isdigit():
                return rest.rstrip()
    return text


def number_format(answer: str, entry: Entry, config: Config) -> float:
    """Accept the requested candidate in any notation, rounded to at least three decimal places. The answer must be
    closer to the requested candidate than to any other."""
    value, metadata = forms.number(answer), entry["metadata"]
    gold = forms.stored_number(str(metadata["solution"]))
    distance = abs(value - gold)
    if distance > _HALF_A_THOUSANDTH:  # candidates have three decimal places, some with floating-point noise
        return 0.0
    others = (forms.stored_number(str(candidate)) for candidate in metadata["candidates"])
    return not distance or all(other == gold or distance < abs(value - other) for other in others)


def power_function(answer: str, entry: Entry, config: Config) -> float:
    """Accept any number that equals the stored answer when both are rounded to three significant figures.

    The library's questions write a negative base without brackets. `-3^2` is -9 by the usual precedence, but the
    library expects 9, so both are accepted. The questions of rg_env's rows have brackets.
    """
    if "\\" in answer:
        answer = re.sub(r"\\(?:text|mathrm)\{([eE][+-]?)\}", r"\1", answer)
    value, gold = attempt(forms.number, answer), forms.stored_number(entry["answer"])
    if value is None:
        value = _scientific(answer)
    if value < 0 < gold and NEGATIVE_BASE.search(entry["question"]):
        value = -value
    (a, b), (c, d) = value.as_integer_ratio(), gold.as_integer_ratio()
    if a * d == b * c or 50 * abs(a * d - b * c) > b * abs(c):  # differs by more than 2%; rounding takes much longer
        return value == gold
    return not _rounded(value, _POWER_FIGURES).isdisjoint(_rounded(gold, _POWER_FIGURES))


def _rounded(value: Fraction, digits: int) -> set[Fraction]:
    """Round `value` to `digits` significant digits. If `value` is exactly halfway between two candidates, return
    both."""
    if value == 0:
        return {value}
    place = _last_place(value, digits)
    return {floor(value / place + _HALF) * place, ceil(value / place - _HALF) * place}


def _scientific(text: str) -> Fraction:
    r"""Parse a number written as `1.23 × 10^4`, `1.23 \times 10^{4}`, `1.23*10**4` or `10⁴`."""
    factors = [(Fraction(1), 1), *_factors(text)]
    (mantissa, one), (ten, exponent) = factors[-2:]
    if len(factors) > 3 or one != 1 or ten != 10 or abs(exponent) > _MAX_EXPONENT:
        raise Unreadable
    return mantissa * Fraction(10) ** exponent


def _factors(text: str) -> list[tuple[Fraction, int]]:
    """Return the base and exponent of each factor in a product such as `2^2 × 3`."""
    node = parse(re.sub("[xX]", "*", forms.ungrouped(text)))
    found: list[tuple[Fraction, int]] = []
    for factor in node[1:] if node[0] == "product" else (node,):
        base, exponent = factor, 1
        match factor:
            case ("power", base, ("number", digits)) if digits.isdigit():
                exponent = int(digits)
            case ("power", base, ("negative", ("number", digits))) if digits.isdigit():
                exponent = -int(digits)
        if base[0] != "number" and (base[0] != "negative" or base[1][0] != "number"):
            raise Unreadable
        found.append((exact(base), exponent))
    return found


def prime_factorization(answer: str, entry: Entry, config: Config) -> float:
    """Accept the prime factors in any order, as a product or a list. Repeated factors may be written as powers."""
    number, wanted = entry["metadata"]["number"], entry["metadata"]["factors"]
    answer = re.sub(r"(?i)^\s*the prime factorization of (\d{1,9}) is", r"\1 =", answer)
    if len(wanted) == 1:
        answer = re.sub(r" (?:\(prime\)|is (?:a )?prime(?: number)?)$", "", answer.strip())
    left, equals, right = answer.partition("=")
    if equals and forms.integer(left) != number:
        return 0.0
    product = (right if equals else answer).strip().rstrip("×*·⋅")
    if _PLAIN_PRODUCT.fullmatch(product):  # a fast path for the usual notation
        return sorted(map(int, re.findall(r"\d+", product))) == sorted(wanted)
    whole = attempt(forms.integer, product)
    if whole == number or (whole is not None and "," not in product):  # a product of one factor
        return wanted == [whole]
    if "," in product and (listed := attempt(forms.numbers, product)):
        return len(listed) == len(wanted) and sorted(listed) == sorted(wanted)
    given: Counter[Fraction] = Counter()
    for base, exponent in _factors(product):
        if exponent < 1:
            return 0.0
        given[base] += exponent
    return given == Counter(wanted)


def coin_flip(answer: str, entry: Entry, config: Config) -> float:
    """Accept the probability as a fraction, a decimal that is correct to at least four places, or a percentage. If the
    answer gives several forms (`1/8 = 0.125`), of which there may be at most `_MAX_FORMS`, all must be right.

    A decimal may be rounded or truncated, and must be right in every given place up to the tenth. The answer must
    also be within 5% of the right value, so that zero is not accepted for very small probabilities.
    """
    gold = forms.rational(str(entry["answer"]))
    values = re.split(r",?\sor\s*=|,?\sor\s|=", re.sub(r"\s\((?:or )?([^()]*)\)\s*\Z", r"=\1", answer))
    return len(values) <= _MAX_FORMS and all(_close(_probability(value), gold) for value in values)


def _close(value: Fraction, gold: Fraction) -> bool:
    if abs(value - gold) > gold * Fraction(1, 20):
        return False
    shown = next((n for n in range(_PLACES, _MOST_PLACES) if 10**n % value.denominator == 0), _MOST_PLACES)
    unit = Fraction(1, 10**shown)
    return -unit / 2 <= value - gold <= unit / 2 or -unit < value - gold < 0


def _probability(text: str) -> Fraction:
    text = text.strip()
    if text.endswith("%"):
        return forms.number(text.removesuffix("%").removesuffix("\\")) / 100
    return forms.rational(text)


def time_intervals(answer: str, entry: Entry, config: Config) -> float:
    """Accept the elapsed time in any format. If the requested format does not include seconds, they are optional, and
    the minutes may be rounded or, as in the stored answer, truncated. The `D` of a format such as `D days` may be
    copied, as in `11 D days` and `D = 11`."""
    metadata = entry["metadata"]
    if metadata["expected_format"].startswith("D"):
        answer = _COPIED_D.sub(r"\1\2", answer)
    right = _right(entry)
    text = f"{answer.strip()} days" if metadata["expected_format"] == "D days" else answer
    readings = _readings(text) or _readings(answer)
    return not right.isdisjoint(readings) or word(answer, entry, config) == 1.0


def _right(entry: Entry) -> set[timedelta]:
    elapsed = _elapsed(entry)
    if not entry["metadata"]["expected_format"].endswith("HH:MM"):
        return {elapsed}
    minute = timedelta(minutes=1)
    return {elapsed, *(time - time % minute for time in (elapsed, elapsed + minute / 2))}


def elapsed_time(entry: Entry) -> str:
    """Return the stored duration or, if it is wrong, the right duration in the same format. The stored duration may be
    a millisecond short, ignore times of day that follow a weekday (as in `(Monday) 10:30:00`), or be negative if
    midnight falls between the two times."""
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
    """Return the time from start to end. If weekdays precede the times of day (as in `(Monday) 10:30:00`), the library
    drops the times, so the duration is computed from the question."""
    found = re.findall(r"(\d{4}-\d\d-\d\d) \(\w+\) (\d\d:\d\d:\d\d [+-]\d{4})", entry["question"])
    if len(found) == 2:
        start, end = (datetime.strptime(f"{day} {time}", "%Y-%m-%d %H:%M:%S %z") for day, time in found)
        return end - start
    metadata = entry["metadata"]
    elapsed = datetime.fromisoformat(metadata["end_time"]) - datetime.fromisoformat(metadata["start_time"])
    if metadata["task_type"].startswith("time") and elapsed < timedelta(0):
        elapsed += _DAY  # two times of day with midnight between them
    return elapsed


def _readings(text: str) -> list[timedelta]:
    """Return the durations that `text` may mean, or an empty list if `text` is not a duration.

    A text that starts with a negative number of days may mean two durations. For example, `-1 days, 22:00` means minus
    two hours to the library and Python, but minus 46 hours to other readers.
    """
    text = " ".join(forms.plain_digits(text).casefold().split())
    match = _CLOCK.fullmatch(text) or _WORDS.fullmatch(text)
    if match is None or not any(match.group("days", "hours", "minutes", "seconds")):
        return []
    part = match.groupdict(default="0")
    days = int(part["days"]) * _DAY
    rest = timedelta(hours=int(part["hours"]), minutes=int(part["minutes"]), seconds=float(part["seconds"]))
    if not part["sign"]:
        return [days + rest]
    return [rest - days, -days - rest] if days else [-rest]


def advanced_geometry(answer: str, entry: Entry, config: Config) -> float:
    """Accept the coordinates, radius or angle, either correct to three decimal places or in exact form (fractions and,
    for a radius, square roots).

    Two decimal places are enough for an angle, as in the stored answer. A fraction without a terminating decimal form
    must be exact.
    """
    metadata = entry["metadata"]
    if metadata["task_type"] == "orthocenter":
        answer = re.sub(r"\\left|\\right|^\s*H\b|^\s*H(?=\()|^\s*(?:at|x\s*=)|(?<=,)\s*y\s*=", "", answer)
        parts = forms.unbracketed(answer).split(",")
        return len(parts) == 2 and all(map(_is_near, map(forms.rational, parts), map(Fraction, metadata["ortho"])))
    if metadata["task_type"] == "incircle_radius":
        answer = _without_unit(answer, ("units", "unit"))
        radius, surd = metadata["incircle_radius_approx"], attempt(_surd, answer)
        is_exact = surd is not None and abs(surd[0] - radius) + surd[1] <= _FLOAT_ERROR
        return is_exact or _is_near(forms.rational(answer), radius)
    number = _without_unit(answer, _DEGREES)
    tolerance = _HALF_A_THOUSANDTH if len(number.partition(".")[2]) > 2 else Fraction(1, 200)
    return _is_near(forms.rational(number), metadata["angle_ABC_degrees"], tolerance)


def _is_near(value: Fraction, right: Fraction | float, tolerance: Fraction = _HALF_A_THOUSANDTH) -> bool:
    """Whether `value` is within the tolerance of `right`. A fraction without a terminating decimal form must be
    exact."""
    is_decimal = _MANY_PLACES % value.denominator == 0
    return abs(value - Fraction(right)) <= (tolerance if is_decimal else 0) + _FLOAT_ERROR


def _surd(text: str) -> calculus.Ball:
    r"""Parse a sum of whole numbers and square roots of whole numbers, divided by whole numbers, such as `3√5/2` or
    `\frac{\sqrt{5} - 1}{2}`.

    Any other form, including a root in a denominator, is rejected because an unevaluated formula with the question's
    numbers does not count as an answer.
    """
    text = re.sub(r"\s|\\left|\\right|\\,", "", forms.plain_digits(text))
    text = re.sub(r"\\cdot|\\times|[×·⋅]", "*", text)
    text = _ROOT.sub(lambda root: f"√{next(filter(None, root.groups()))}", text)
    text = re.sub(r"\\[dt]?frac\{([^{}]*)\}\{(\d{1,9})\}", r"(\1)/\2", text)
    text = forms.matched(_SURD, text)[0]
    try:
        return calculus.compiled(parse(re.sub(r"√(\d+)", r"sqrt(\1)", text)))({})[0]
    except ArithmeticError:  # division by zero
        raise Unreadable from None


def simple_geometry(answer: str, entry: Entry, config: Config) -> float:
    """Accept the angle, with or without a unit."""
    return forms.number(_without_unit(answer, _DEGREES)) == forms.number(entry["answer"])
