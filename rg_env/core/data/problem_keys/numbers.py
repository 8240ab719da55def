"""What the tasks of arithmetic and algebra ask."""

import re
from typing import Any

from rg_env.core.data.problem_keys.forms import Bag, Entry, Key, equation, expression, fields, parts

_LINE_OF_SUM = re.compile(r"^(.*)= *\?$", re.MULTILINE)
_HEX = re.compile(r"\b0x[0-9a-f]+\b")
_COUNT = re.compile(r"(?<!\d)(\d+) (brothers|sisters|male|female)")
_DICE = re.compile(r"(?<!\d)\d+d\d+")


def _complex_arithmetic(entry: Entry) -> Any:
    metadata = entry["metadata"]
    numbers = metadata["num1"], metadata["num2"]
    return (metadata["operation"], Bag(numbers) if metadata["operation"] in "+*" else numbers)


def _decimal_arithmetic(entry: Entry) -> Any:
    return (entry["metadata"]["decimal_places"], *map(expression, parts(_LINE_OF_SUM, entry["question"])))


def _dice(entry: Entry) -> Any:
    puzzle = entry["metadata"]["puzzle"]
    return (Bag(_DICE.findall(puzzle["dice_str"])), puzzle["target"])


def _aiw(entry: Entry) -> Any:
    counts = parts(_COUNT, entry["question"])
    kind = entry["metadata"]["task_type"]
    return (kind, counts if kind == "colleagues" else Bag(counts))


def _gsm_symbolic(entry: Entry) -> Any:
    """The names of a template's variables tell it from others; their texts are names of people and things."""
    metadata = entry["metadata"]
    variables = metadata["variables"]
    numbers = [(name, _numbers(value)) for name, value in variables.items()]
    return (Bag(variables), Bag((name, value) for name, value in numbers if value), metadata["answer_value"])


def _numbers(value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int | float)]


def _calendar_arithmetic(entry: Entry) -> Any:
    hidden = ("source_dataset", "source_index", "difficulty", "is_leap")
    return Bag((name, value) for name, value in entry["metadata"].items() if name not in hidden)


def _power_function(entry: Entry) -> Any:
    return (repr(entry["metadata"]["base"]), entry["metadata"]["exponent"])


def _number_filtering(entry: Entry) -> Any:
    """To keep the larger numbers is to remove the smaller ones."""
    metadata = entry["metadata"]
    smaller = metadata["operation"] in ("keep_smaller", "remove_larger")
    return (Bag(map(float, metadata["original_numbers"])), float(metadata["filter_value"]), smaller)


def _number_sorting(entry: Entry) -> Any:
    return (Bag(map(float, entry["metadata"]["original_numbers"])), entry["metadata"]["direction"])


def _advanced_geometry(entry: Entry) -> Any:
    """An angle is that at B; for the rest the corners may change places."""
    metadata = entry["metadata"]
    ends = Bag([metadata["A"], metadata["C"]])
    triangle = (ends, metadata["B"]) if metadata["task_type"] == "angle_measure" else Bag([*ends, metadata["B"]])
    return (metadata["task_type"], triangle)


def _in_expression(field: str) -> Any:
    return lambda entry: expression(entry["metadata"][field])


def _in_variable(field: str) -> Any:
    return lambda entry: expression(entry["metadata"][field], [entry["metadata"]["variable"]])


_TERMS = "the expression, with the terms of sums and the factors of products in any order"
_UNKNOWN = f"{_TERMS}, whatever the variable is called"

KEYS: dict[str, Key] = {
    "advanced_geometry": Key("the corners in any order and what is wanted, without wording", _advanced_geometry),
    "aiw": Key("the kind of circle and its numbers, without names and wording", _aiw),
    "base_conversion": Key(
        "the number and both bases, without wording", fields("source_repr", "source_base", "target_base")
    ),
    "basic_arithmetic": Key(_TERMS, _in_expression("expression")),
    "bitwise_arithmetic": Key(f"{_TERMS}; and, or and xor too", lambda entry: expression(entry["metadata"]["problem"])),
    "calendar_arithmetic": Key("dates, numbers and what is wanted, without wording", _calendar_arithmetic),
    "chain_sum": Key("the terms with their signs, in any order", _in_expression("expression")),
    "coin_flip": Key(
        "the numbers of flips and heads, without wording", fields("num_trials", "k_heads", "problem_type")
    ),
    "complex_arithmetic": Key("the operation and the numbers, of sums and products in any order", _complex_arithmetic),
    "count_bits": Key("the number", fields("number")),
    "count_primes": Key("both ends of the range", fields("start", "end")),
    "countdown": Key("the numbers in any order, and the target", fields("numbers", "target", any_order=("numbers",))),
    "decimal_arithmetic": Key(f"{_TERMS}, and the number of decimals", _decimal_arithmetic),
    "decimal_chain_sum": Key("the terms with their signs, in any order", _in_expression("expression")),
    "dice": Key("the dice in any order, and the target", _dice),
    "fraction_simplification": Key("the fraction, however it is written", fields("numerator", "denominator")),
    "gcd": Key("the numbers in any order", fields("numbers", any_order=("numbers",))),
    "gsm_symbolic": Key("the story's numbers and their meaning, without the names of people and things", _gsm_symbolic),
    "intermediate_integration": Key(f"the integrand: {_UNKNOWN}", _in_variable("integrand")),
    "lcm": Key("the numbers in any order", fields("numbers", any_order=("numbers",))),
    "leg_counting": Key(
        "the animals with their numbers, in any order", lambda entry: Bag(entry["metadata"]["animals"].items())
    ),
    "number_filtering": Key("the numbers in any order, the bound, and which side of it stays", _number_filtering),
    "number_format": Key(
        "the numbers in any order and however written, and which of them",
        fields("candidates", "size", any_order=("candidates",)),
    ),
    "number_sequence": Key("the numbers shown", fields("sequence")),
    "number_sorting": Key("the numbers in any order, and the direction", _number_sorting),
    "polynomial_equations": Key(_UNKNOWN, _in_variable("polynomial_expr")),
    "polynomial_multiplication": Key(
        f"{_TERMS}, whatever the variables are called",
        lambda entry: expression(entry["metadata"]["polynomial_expr"], entry["metadata"]["variables"]),
    ),
    "power_function": Key("base and exponent", _power_function),
    "prime_factorization": Key("the number", fields("number")),
    "products": Key("the factors in any order", _in_expression("expression")),
    "puzzle24": Key("the numbers in any order", fields("numbers", any_order=("numbers",))),
    "simple_equations": Key(
        f"the equation: {_UNKNOWN}; the sides in any order",
        lambda entry: equation(entry["metadata"]["equation"], [entry["metadata"]["variable"]]),
    ),
    "simple_geometry": Key(
        "the known angles in any order, without wording", fields("n_sides", "known_angles", any_order=("known_angles",))
    ),
    "simple_integration": Key(f"the integrand: {_UNKNOWN}", _in_variable("integrand")),
    "time_intervals": Key("both times, however they are written", fields("start_time", "end_time")),
}
