"""Canonical forms, which ignore irrelevant order and names and are the basis of problem keys.

A form is a JSON value (text, number, list, ...), a tuple of forms whose order matters, a `Bag` of forms whose order
does not matter, or a `Name` (only its occurrences matter, not the name itself):

    canonical((Bag([(Name("Q"), "->", Name("P"))]), Name("P")))     # the same for any two names in place of P and Q

Names are distinguished by where they occur, as in the Weisfeiler-Leman test for graphs. Forms that differ only in names
and in the order within bags always become the same text. Other forms become different texts, except for some highly
regular forms (such as two triangles and one hexagon). Treating different forms as the same is safe for splits because
forms with the same text are always in the same split.

This module also builds forms for arithmetic and algebraic expressions in the library's notation (Python syntax):

    expression("2*x - 1", "x")      # the same canonical text as for "-1 + x*2", or for "2*y - 1" with "y"

Sums and products are unordered, a sign belongs to its term, and variable names do not matter. Nothing is evaluated, so
`2 + 2` and `4` are different problems.
"""

import ast
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_ROUNDS = 8
"""Maximum number of refinement rounds. A name is distinguished by its surroundings up to this many steps away."""


class Name(str):
    """A placeholder that can be consistently replaced with another name without changing the form's meaning."""

    __slots__ = ()


class Bag(tuple[Any, ...]):
    """A multiset of parts."""

    __slots__ = ()


def canonical(form: Any) -> str:
    """Return a string that is the same for forms that differ only in names and in the order within bags."""
    return _text(form, _labels(form))


def _labels(form: Any) -> dict[str, str]:
    """Return a label for each name. A label depends only on where the name occurs."""
    named = [(sorted(set(_names(statement))), statement) for statement in _statements(form)]
    labels = dict.fromkeys(sorted({name for names, _ in named for name in names}), "n")
    classes = 1
    for _ in range(_ROUNDS):
        if classes == len(labels):  # all names are distinguished
            break
        places: dict[str, list[str]] = {name: [] for name in labels}
        for names, statement in named:
            for name in names:
                label = labels[name]
                labels[name] = f"{label}!"
                places[name].append(_text(statement, labels))
                labels[name] = label
        seen = {name: json.dumps([labels[name], sorted(found)]) for name, found in places.items()}
        ranks = {text: f"n{rank}" for rank, text in enumerate(sorted(set(seen.values())))}
        if len(ranks) == classes:  # the labels cannot be refined further
            break
        labels, classes = {name: ranks[text] for name, text in seen.items()}, len(ranks)
    return labels


def _statements(form: Any) -> Iterator[Any]:
    """Yield the members of a bag; the parts of a tuple, each with its position; or any other form itself. A bag in a
    tuple is replaced with its members, each with the bag's position."""
    if isinstance(form, tuple) and not isinstance(form, Bag):
        for place, part in enumerate(form):
            yield from ((place, each) for each in part) if isinstance(part, Bag) else [(place, part)]
    elif isinstance(form, Bag):
        yield from form
    else:
        yield form


def _names(form: Any) -> Iterator[str]:
    if isinstance(form, Name):
        yield form
    elif isinstance(form, tuple):
        for part in form:
            yield from _names(part)


def _text(form: Any, labels: Mapping[str, str]) -> str:
    if isinstance(form, Name):
        return labels[form]
    if isinstance(form, Bag):
        return "{" + ",".join(sorted([_text(part, labels) for part in form])) + "}"
    if isinstance(form, tuple):
        return "[" + ",".join([_text(part, labels) for part in form]) + "]"
    return json.dumps(form, sort_keys=True)


def expression(text: str, variables: Collection[str] = ()) -> Any:
    """Return an expression's form, or the text itself if it is not an expression."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, frozenset(variables))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text.strip()


def equation(text: str, variables: Collection[str] = ()) -> Any:
    """Return an equation's form, in which the sides are unordered."""
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
