"""Graders of games whose answer is an arithmetic expression."""

import re
from collections.abc import Collection, Iterator

from rg_env.core.graders import forms
from rg_env.core.graders.expressions import Inverse, Negative, Node, Number, Product, Sum, exact, parse
from rg_env.core.graders.types import Config, Entry, Grader

_TARGET_24 = 24
_OPERATORS = re.compile(r"operators ([-+*/, ]+)\.")


def _made_of(answer: str, numbers: Collection[int], target: int) -> Node | None:
    """The expression, if it uses each of the numbers exactly once and nothing else, and has the value of the target.

    The numbers are compared before anything is computed, so the arithmetic is no larger than the puzzle's.
    """
    left, equals, right = answer.partition("=")
    if equals and forms.integer(right) != target:
        return None
    node = parse(left)
    if node is None:
        return None
    used = list(_numbers(node))
    if None in used or sorted(number for number in used if number is not None) != sorted(numbers):
        return None
    try:
        return node if exact(node) == target else None
    except ZeroDivisionError:
        return None


def _numbers(node: Node) -> Iterator[int | None]:
    """The whole numbers of the expression; None for what is neither that nor one of the four operations."""
    match node:
        case Number(text):
            yield int(text) if text.isdecimal() and text == str(int(text)) else None
        case Negative(operand) | Inverse(operand):
            yield from _numbers(operand)
        case Sum(nodes) | Product(nodes):
            for part in nodes:
                yield from _numbers(part)
        case _:
            yield None


def _operators(node: Node) -> set[str]:
    """The operations that the expression needs."""
    match node:
        case Negative(operand):
            return {"-"} | _operators(operand)
        case Inverse(operand):
            return {"/"} | _operators(operand)
        case Sum(nodes):
            used = {"+"} if any(not isinstance(part, Negative) for part in nodes[1:]) else set()
            return used.union(*map(_operators, nodes))
        case Product(nodes):
            used = {"*"} if any(not isinstance(part, Inverse) for part in nodes[1:]) else set()
            return used.union(*map(_operators, nodes))
        case _:
            return set()


def countdown(answer: str, entry: Entry, config: Config) -> float:
    """An expression of all the given numbers, each used once, that equals the target; `= target` after it is forgiven.

    Every form of the question says "all the numbers" or "all of these numbers".
    """
    metadata = entry["metadata"]
    return float(_made_of(answer, metadata["numbers"], int(metadata["target"])) is not None)


def puzzle24(answer: str, entry: Entry, config: Config) -> float:
    """An expression of all the given numbers, each used once, and the allowed operators, that equals 24."""
    node = _made_of(answer, entry["metadata"]["numbers"], _TARGET_24)
    if node is None:
        return 0.0
    named = _OPERATORS.search(str(entry["question"]))
    allowed = set(named[1].replace(",", "").split() if named else "+-*/")
    stored = parse(str(entry["answer"]))  # the generator takes `-` where no division comes out even
    return float(_operators(node) <= allowed | (_operators(stored) if stored else set()))


GRADERS: dict[str, Grader] = {"countdown": countdown, "puzzle24": puzzle24}
