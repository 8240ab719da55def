"""What the tasks of arithmetic, algebra and geometry ask."""

import re
from typing import Any

from rg_env.core.data.problem_keys.forms import Bag, Entry, Key, equation, expression, fields, of, parts

_LINE_OF_SUM = re.compile(r"^(.*)= *\?$", re.MULTILINE)
_COUNT = re.compile(r"(?<!\d)(\d+) (brothers|sisters|male|female)")
_DICE = re.compile(r"(?<!\d)\d+d\d+")


def _operation(metadata: Any) -> Any:
    numbers = metadata["num1"], metadata["num2"]
    return (metadata["operation"], Bag(numbers) if metadata["operation"] in "+*" else numbers)


def _decimal_arithmetic(entry: Entry) -> Any:
    return (entry["metadata"]["decimal_places"], *map(expression, parts(_LINE_OF_SUM, entry["question"])))


def _aiw(entry: Entry) -> Any:
    counts = parts(_COUNT, entry["question"])
    kind = entry["metadata"]["task_type"]
    return (kind, counts if kind == "colleagues" else Bag(counts))


def _gsm_symbolic(metadata: Any) -> Any:
    """The names of a template's variables tell it from others; their texts are names of people and things."""
    variables = metadata["variables"]
    numbers = [(name, _numbers(value)) for name, value in variables.items()]
    return (Bag(variables), Bag((name, value) for name, value in numbers if value), metadata["answer_value"])


def _numbers(value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int | float)]


def _calendar_arithmetic(metadata: Any) -> Any:
    hidden = ("source_dataset", "source_index", "difficulty", "is_leap")
    return Bag((name, value) for name, value in metadata.items() if name not in hidden)


def _number_filtering(metadata: Any) -> Any:
    """To keep the larger numbers is to remove the smaller ones."""
    smaller = metadata["operation"] in ("keep_smaller", "remove_larger")
    return (Bag(map(float, metadata["original_numbers"])), float(metadata["filter_value"]), smaller)


def _triangle(metadata: Any) -> Any:
    """An angle is that at B; for the rest the corners may change places."""
    ends = Bag([metadata["A"], metadata["C"]])
    triangle = (ends, metadata["B"]) if metadata["task_type"] == "angle_measure" else Bag([*ends, metadata["B"]])
    return (metadata["task_type"], triangle)


def _expression(field: str) -> Any:
    """The form of an expression, whatever its variables, if any, are called."""

    def form(metadata: Any) -> Any:
        return expression(metadata[field], metadata.get("variables") or metadata.get("variable", ""))

    return of(form)


_TERMS = "the expression, with the terms of sums and the factors of products in any order"
_UNKNOWN = f"{_TERMS}, whatever the variable is called"
_ANY_ORDER = Key("the numbers in any order", fields("numbers*"))
_NUMBER = Key("the number", fields("number"))
_SIGNED_TERMS = Key("the terms with their signs, in any order", _expression("expression"))
_INTEGRAND = Key(f"the integrand: {_UNKNOWN}", _expression("integrand"))

KEYS: dict[str, Key] = {
    "advanced_geometry": Key("the corners in any order and what is wanted, without wording", of(_triangle)),
    "aiw": Key("the kind of circle and its numbers, without names and wording", _aiw),
    "base_conversion": Key("the number and both bases", fields("source_repr", "source_base", "target_base")),
    "basic_arithmetic": Key(_TERMS, _expression("expression")),
    "bitwise_arithmetic": Key(f"{_TERMS}; and, or and xor too", _expression("problem")),
    "calendar_arithmetic": Key("dates, numbers and what is wanted, without wording", of(_calendar_arithmetic)),
    "chain_sum": _SIGNED_TERMS,
    "coin_flip": Key("flips and heads, without wording", fields("num_trials", "k_heads", "problem_type")),
    "complex_arithmetic": Key("the operation and the numbers, of sums and products in any order", of(_operation)),
    "count_bits": _NUMBER,
    "count_primes": Key("both ends of the range", fields("start", "end")),
    "countdown": Key("the numbers in any order, and the target", fields("numbers*", "target")),
    "decimal_arithmetic": Key(f"{_TERMS}, and the number of decimals", _decimal_arithmetic),
    "decimal_chain_sum": _SIGNED_TERMS,
    "dice": Key(
        "the dice in any order, and the target",
        of(lambda data: (Bag(_DICE.findall(data["puzzle"]["dice_str"])), data["puzzle"]["target"])),
    ),
    "fraction_simplification": Key("the fraction, however it is written", fields("numerator", "denominator")),
    "gcd": _ANY_ORDER,
    "gsm_symbolic": Key(
        "the story's numbers and their meaning, without the names of people and things", of(_gsm_symbolic)
    ),
    "intermediate_integration": _INTEGRAND,
    "lcm": _ANY_ORDER,
    "leg_counting": Key("the animals with their numbers, in any order", of(lambda data: Bag(data["animals"].items()))),
    "number_filtering": Key("the numbers in any order, the bound, and which side of it stays", of(_number_filtering)),
    "number_format": Key(
        "the numbers in any order and however written, and which of them", fields("candidates*", "size")
    ),
    "number_sequence": Key("the numbers shown", fields("sequence")),
    "number_sorting": Key(
        "the numbers in any order, and the direction",
        of(lambda data: (Bag(map(float, data["original_numbers"])), data["direction"])),
    ),
    "polynomial_equations": Key(_UNKNOWN, _expression("polynomial_expr")),
    "polynomial_multiplication": Key(f"{_TERMS}, whatever the variables are called", _expression("polynomial_expr")),
    "power_function": Key("base and exponent", of(lambda data: (repr(data["base"]), data["exponent"]))),
    "prime_factorization": _NUMBER,
    "products": Key("the factors in any order", _expression("expression")),
    "puzzle24": _ANY_ORDER,
    "simple_equations": Key(
        f"the equation: {_UNKNOWN}; the sides in any order",
        of(lambda data: equation(data["equation"], [data["variable"]])),
    ),
    "simple_geometry": Key("the known angles in any order, without wording", fields("n_sides", "known_angles*")),
    "simple_integration": _INTEGRAND,
    "time_intervals": Key("both times, however they are written", fields("start_time", "end_time")),
}
