"""Training completions for the tiny policy: worked solutions and blurted guesses.

The functions map a Reasoning Gym entry (`question`, `answer`, `metadata`) to a completion's text. Every number in a
worked solution is computed from the metadata, not taken from the entry's answer; a test checks that the results agree
with the answers.

    >>> print(worked_solution("chain_sum", {"metadata": {"expression": "4 + 23 - 7"}, ...}))
    4 + 20 = 24
    24 + 3 = 27
    27 - 7 = 20
    <answer>20</answer>
"""

import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from reasoning_gym.arithmetic.leg_counting import ANIMALS

Entry = Mapping[str, Any]


def worked_solution(task: str, entry: Entry) -> str:
    """Return the steps of a solution and, on the last line, the answer in the tags that the system prompt requires."""
    lines, answer = _WORK[task](entry)
    return "\n".join([*lines, f"<answer>{answer}</answer>"])


def blurted_guess(task: str, entry: Entry, rng: Random) -> str:
    """Return an answer without work, drawn from plausible values that include the right one."""
    return f"<answer>{rng.choice(_GUESSES[task](int(entry['answer'])))}</answer>"


def _count_legs(entry: Entry) -> tuple[list[str], int]:
    lines, products = [], []
    for animal, count in entry["metadata"]["animals"].items():
        legs = ANIMALS[animal]
        products.append(count * legs)
        # Same wording as in the question ("3 cats"), so that each line begins with a copy.
        lines.append(f"{count} {animal}{'s' if count > 1 else ''}: {count} x {legs} = {count * legs}")
    total = products[0]
    for product in products[1:]:
        lines.append(f"{total} + {product} = {total + product}")
        total += product
    return lines, total


def _sum_chain(entry: Entry) -> tuple[list[str], int]:
    first, *rest = entry["metadata"]["expression"].split()
    lines, total = [], int(first)
    for operator, term in zip(rest[::2], rest[1::2], strict=True):
        tens, ones = int(term) // 10 * 10, int(term) % 10
        # Tens first, then ones: steps that a small model can make reliably.
        for part in [part for part in (tens, ones) if part] or [0]:
            result = total + part if operator == "+" else total - part
            lines.append(f"{total} {operator} {part} = {result}")
            total = result
    return lines, total


_VARIABLE_FIRST = re.compile(r"(?:(\d+)\*)?([a-z]) ([+-]) (\d+) = (-?\d+)")
_VARIABLE_LAST = re.compile(r"(\d+) - (?:(\d+)\*)?([a-z]) = (-?\d+)")


def _solve_equation(entry: Entry) -> tuple[list[str], int]:
    """Solve an equation whose left side SymPy prints as `a*x + b`, `a*x - b` or `b - a*x`."""
    equation = entry["metadata"]["equation"]
    if found := _VARIABLE_FIRST.fullmatch(equation):
        factor, variable, sign, constant, right = found.groups()
        left, step = int(right), -int(constant) if sign == "+" else int(constant)
    elif found := _VARIABLE_LAST.fullmatch(equation):
        constant, factor, variable, right = found.groups()
        left, step = int(constant), -int(right)
    else:
        raise ValueError(f"no worked solution for the equation {equation!r}")
    multiple = left + step
    if left < 0:  # "5 - 2" is easier to learn than "-2 + 5"
        left, step = step, left
    operator = "+" if step >= 0 else "-"
    work = f"{left} {operator} {abs(step)} = {multiple}"
    if factor is None:
        return [f"{variable} = {work}"], multiple
    solution = multiple // int(factor)
    return [f"{factor}*{variable} = {work}", f"{variable} = {multiple} / {factor} = {solution}"], solution


_WORK: dict[str, Callable[[Entry], tuple[list[str], int]]] = {
    "leg_counting": _count_legs,
    "chain_sum": _sum_chain,
    "simple_equations": _solve_equation,
}

_GUESSES: dict[str, Callable[[int], list[int]]] = {
    "leg_counting": lambda answer: [max(0, answer + offset) for offset in range(-8, 9, 2)],
    "chain_sum": lambda answer: [answer + offset for offset in range(-6, 7)],
    "simple_equations": lambda answer: list(range(1, 10)),
}
