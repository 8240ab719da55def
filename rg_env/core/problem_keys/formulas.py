"""Forms of arithmetic and algebraic expressions, as the library writes them (Python's syntax).

    expression("2*x - 1", "x")      # the same form as of "-1 + x*2", and of "2*y - 1" with "y"

Sums and products have no order, a sign belongs to its term, and the names of variables do not matter. Nothing is
computed: `2 + 2` and `4` are two problems.
"""

import ast
from collections.abc import Collection, Iterator
from typing import Any

from rg_env.core.problem_keys.forms import Bag, Name


def expression(text: str, variables: Collection[str] = ()) -> Any:
    """The form of an expression; the text itself if it is not one."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, frozenset(variables))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text.strip()


def equation(text: str, variables: Collection[str] = ()) -> Any:
    """The form of an equation: its sides may change places."""
    return Bag(expression(side, variables) for side in text.split("="))


def _value(node: ast.expr, variables: frozenset[str]) -> Any:
    return ("sum", Bag(_terms(node, variables)))


def _terms(node: ast.expr, variables: frozenset[str]) -> Iterator[Any]:
    left = [(node, 1)]
    while left:
        node, sign = left.pop()
        match node:
            case ast.BinOp(op=ast.Add()):
                left += [(node.left, sign), (node.right, sign)]
            case ast.BinOp(op=ast.Sub()):
                left += [(node.left, sign), (node.right, -sign)]
            case ast.UnaryOp(op=ast.USub()):
                left.append((node.operand, -sign))
            case ast.UnaryOp(op=ast.UAdd()):
                left.append((node.operand, sign))
            case _:
                yield _term(node, sign, variables)


def _term(node: ast.expr, sign: int, variables: frozenset[str]) -> Any:
    above: list[Any] = []
    below: list[Any] = []
    left = [(node, True)]
    while left:
        node, up = left.pop()
        match node:
            case ast.BinOp(op=ast.Mult()):
                left += [(node.left, up), (node.right, up)]
            case ast.BinOp(op=ast.Div()):
                left += [(node.left, up), (node.right, not up)]
            case ast.UnaryOp(op=ast.USub()):
                sign = -sign
                left.append((node.operand, up))
            case _:
                (above if up else below).append(_factor(node, variables))
    return (sign, Bag(above), Bag(below))


def _factor(node: ast.expr, variables: frozenset[str]) -> Any:
    match node:
        case ast.Constant():
            return repr(node.value)
        case ast.Name():
            return Name(node.id) if node.id in variables else node.id
        case ast.Call(func=ast.Name(id=function)):
            return (function, *(_value(each, variables) for each in node.args))
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return _value(node, variables)
        case ast.BinOp():
            sides = _value(node.left, variables), _value(node.right, variables)
            any_order = isinstance(node.op, ast.BitAnd | ast.BitOr | ast.BitXor)
            return (type(node.op).__name__, Bag(sides) if any_order else sides)
    return ast.dump(node)
