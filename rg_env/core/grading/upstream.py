"""The library's own score formulas, for comparison with published numbers, and the graders for the user's own tasks.
The formulas and graders run in a worker process (`core.grading.workers`).

For nine tasks, the library's graders execute the answer as code. For these tasks, this module parses the answer itself,
as a literal or expression, and applies the library's formula. The library's other graders are called on a dataset that
is cached for each (task, config) because some use its state, such as word lists or tolerances.
"""

import ast
import importlib
import json
import operator
import re
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from functools import cache
from typing import Any

from rg_env.core.grading.graders.common import option
from rg_env.core.grading.graders.expressions import exact, parse
from rg_env.core.grading.graders.forms import Unreadable, attempt, literal
from rg_env.core.tasks import library
from rg_env.core.user_code import import_same

_Formula = Callable[[str, Mapping[str, Any], Mapping[str, Any]], float]
_TUPLES_WANTED = ("arc_agi", "rearc")
"""Tasks graded by comparing the parsed board, a tuple of tuples, with `metadata["output"]`."""


def prepare(sources: Mapping[str, str]) -> None:
    """Prepare a process for grading: import the library and the user's code (see `core.user_code.import_same`)."""
    library.factory()
    import_same(sources)


def grade(task: str, config: Mapping[str, Any], entry: Mapping[str, Any], answer: str | None) -> float:
    """Return the library's score, computed by `_FORMULAS` if the library's own grader is unsafe. Errors in the grader
    propagate. If `answer` is None, only create the dataset that grades later answers."""
    formula = _FORMULAS.get(task)
    if answer is None:
        if formula is None:
            _dataset(task, json.dumps(config, sort_keys=True))
        return 0.0
    if formula is None:
        return library_grade(task, config, entry, answer)
    return float(attempt(lambda text: formula(text, entry, config), answer) or 0.0)


def library_grade(task: str, config: Mapping[str, Any], entry: Mapping[str, Any], answer: str) -> float:
    """Return the library's unmodified score for `answer`. Errors in the library propagate."""
    if task in _TUPLES_WANTED:
        output = tuple(tuple(row) for row in entry["metadata"]["output"])
        entry = {**entry, "metadata": {**entry["metadata"], "output": output}}
    gold = entry["answer"]
    if isinstance(gold, str) and answer == gold.strip():
        # Extraction strips answers, but some gold answers begin or end with whitespace.
        answer = gold
    return float(_dataset(task, json.dumps(config, sort_keys=True)).score_answer(answer, entry=entry))


@cache
def _dataset(task: str, config_json: str) -> Any:
    return library.create(task, json.loads(config_json), seed=0, size=1)


def _listed(right: Callable[[Mapping[str, Any]], list[str]], as_text: Callable[[Any], str], share: float) -> _Formula:
    """Return a formula that gives 1.0 for any of the `right` texts, and `share` for a Python literal that `as_text`
    converts to one of these texts."""

    def formula(answer: str, entry: Mapping[str, Any], config: Mapping[str, Any]) -> float:
        texts = right(entry)
        if answer in texts:
            return 1.0
        try:
            return share if as_text(literal(answer)) in texts else 0.0
        except TypeError:  # the answer is another kind of literal
            return 0.0

    return formula


def _gold(entry: Mapping[str, Any]) -> list[str]:
    return [entry["answer"].strip()]


def _lines(rows: Any) -> str:
    return "\n".join(" ".join(str(cell) for cell in row) for row in rows)


def _value(answer: str) -> Fraction | None:
    try:
        return exact(parse(answer))
    except (ZeroDivisionError, ValueError, OverflowError):
        return None


def _countdown(answer: str, entry: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    value = _value(answer)
    if value is None:
        return 0.01
    metadata = entry["metadata"]
    used = sorted(int(number) for number in re.findall(r"\b\d+\b", answer))
    right = used == sorted(metadata["numbers"]) and abs(value - metadata["target"]) <= Fraction(1, 10**6)
    return 1.0 if right else 0.05


def _puzzle24(answer: str, entry: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    value = _value(answer)
    used = [int(number) for number in re.findall(r"\b\d+\b", answer)]
    low, high = (option("puzzle24", config, name) for name in ("min_value", "max_value"))
    right = value is not None and int(value) == 24 and len(used) == 4 and all(low <= n <= high for n in used)
    return 1.0 if right else 0.01


def _integral(answer: str, entry: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    sympy = importlib.import_module("sympy")
    variable, integrand = (str(entry["metadata"][key]) for key in ("variable", "integrand"))
    try:
        slope = sympy.diff(_symbolic(answer, {variable, "C"}), sympy.Symbol(variable))
        return float(sympy.simplify(slope - _symbolic(integrand, {variable})) == 0)
    except Exception:  # SymPy raises errors of many kinds, and the library scores all of them 0
        return 0.0


def _product(answer: str, entry: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    try:
        return float(_symbolic(answer) == _symbolic(str(entry["answer"])))
    except Exception:  # see `_integral`
        return 0.0


def _symbolic(text: str, symbols: Collection[str] = ()) -> Any:
    """Return the SymPy expression that `sympy.parse_expr` would evaluate `text` to, without evaluating it as code.

    Arithmetic, numbers, names and calls of functions are supported. Names that SymPy does not define, and those in
    `symbols`, are symbols or unknown functions. Raises an error for anything else.
    """
    sympy = importlib.import_module("sympy")
    source = text.strip()

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int()) if not isinstance(node.value, bool):
                return sympy.Integer(node.value)
            case ast.Constant(value=float()):
                return sympy.Float(ast.get_source_segment(source, node))
            case ast.Name(id=name):
                known = None if name in symbols else getattr(sympy, name, None)
                if known is None:
                    return sympy.Symbol(name)
                if isinstance(known, sympy.Expr):  # E, I, pi, ...
                    return known
            case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
                return value(operand) if isinstance(sign, ast.UAdd) else -value(operand)
            case ast.BinOp(left=left, op=operator_, right=right) if type(operator_) in _OPERATORS:
                return _OPERATORS[type(operator_)](value(left), value(right))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name not in symbols:
                known = sympy.Abs if name == "abs" else getattr(sympy, name, None)
                if known is None:
                    known = sympy.Function(name)
                elif not isinstance(known, sympy.core.function.FunctionClass) and name not in ("sqrt", "cbrt", "root"):
                    raise Unreadable
                return known(*map(value, args))
        raise Unreadable

    return value(ast.parse(source, mode="eval").body)


_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
SYMBOLIC = frozenset({"intermediate_integration", "polynomial_multiplication", "simple_integration"})
"""Tasks whose formula uses SymPy, which takes up to two seconds for some answers."""
_FORMULAS: dict[str, _Formula] = {
    "binary_matrix": _listed(_gold, _lines, 0.1),
    "countdown": _countdown,
    "intermediate_integration": _integral,
    "n_queens": _listed(lambda entry: entry["metadata"]["valid_answers"], _lines, 0.5),
    "polynomial_multiplication": _product,
    "puzzle24": _puzzle24,
    "simple_integration": _integral,
    "spiral_matrix": _listed(_gold, lambda row: " ".join(str(cell) for cell in row), 0.1),
    "string_insertion": _listed(_gold, "".join, 0.1),
}
"""Formulas for the tasks whose answers the library's grader executes as code."""
