"""The exact value of an arithmetic expression that an entry holds.

For text of the library's only, never for an answer: of an answer, the value alone is read (see `forms.number`).
"""

import ast
from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor, log10

_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
}


def exact_value(expression: str) -> Fraction | None:
    """The value of `expression`: numbers, `+ - * /`, brackets. None where it divides by zero."""
    expression = expression.strip()

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp):
            inner = value(node.operand)
            return -inner if isinstance(node.op, ast.USub) else inner
        # From the text: Python has read the number as a float already, which may have fewer digits.
        return Fraction(expression[node.col_offset : node.end_col_offset])

    try:
        return value(ast.parse(expression, mode="eval").body)
    except ZeroDivisionError:
        return None


def last_place(value: Fraction, digits: int) -> Fraction:
    """What a one in the last of `digits` significant digits of `value` (not 0) is worth."""
    exponent = floor(log10(abs(value.numerator)) - log10(value.denominator))
    if abs(value) >= Fraction(10) ** (exponent + 1):  # the logarithms are a little off near powers of ten
        exponent += 1
    elif abs(value) < Fraction(10) ** exponent:
        exponent -= 1
    return Fraction(10) ** (exponent - digits + 1)


def rounded(value: Fraction, digits: int) -> set[Fraction]:
    """`value` to `digits` significant digits; two values where it lies exactly between them."""
    if value == 0:
        return {value}
    place = last_place(value, digits)
    half = Fraction(1, 2)
    return {floor(value / place + half) * place, ceil(value / place - half) * place}
