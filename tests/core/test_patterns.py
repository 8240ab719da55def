"""Every regular expression of `rg_env.core` takes time linear in the text: model output and files of users go through
them.

A pattern is tried on texts made for it: what leads to one of its repeats, a long run of what the repeat takes, and then
something that does not fit. `search` is tried where the code searches, `fullmatch` where it matches the whole.
"""

import ast
import importlib
import importlib.util
import itertools
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]  # the only parser of patterns there is
from typing import Any

import pytest

import rg_env.core

SEARCHING = {"search", "finditer", "findall", "sub", "subn", "split"}
WHOLE = {"match", "fullmatch"}
FUNCTIONS = SEARCHING | WHOLE | {"compile"}
LENGTHS = (24, 400, 6_000)
"""Short ones first: an exponential pattern is found before it takes for ever."""
GROWTH = 8
IGNORED_S = 2e-3
BUILT = {
    ("rg_env.core.grading.graders.expressions", ""): r"\s*(exp|x|e|\d+(?:\.\d*)?|\.\d+|\*\*|[-+*/^()|])",
    ("rg_env.core.grading.graders.algebra", ""): r"x(?:_?\{?\d\}?)?",
    ("rg_env.core.data.problem_keys.tasks", "pattern"): r"orange\ juice|orange|red",
}
"""Patterns that are put together or passed on while the program runs, as they are for the name x, by module and
variable."""


@dataclass(frozen=True)
class Use:
    """One pattern, and the methods it is used by."""

    where: str
    pattern: str
    flags: int
    methods: frozenset[str]


def module_names() -> list[str]:
    return [module.name for module in pkgutil.walk_packages(rg_env.core.__path__, "rg_env.core.")]


def tree_of(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    return ast.parse(Path(str(spec.origin)).read_text(encoding="utf-8"))


def uses() -> list[Use]:
    """Compiled patterns with the methods called on their names, and constants given to functions of `re`."""
    found = []
    for name in module_names():
        tree = tree_of(name)
        module = importlib.import_module(name)
        compiled = {key: value for key, value in vars(module).items() if isinstance(value, re.Pattern)}
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        methods: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                methods.setdefault(node.value.id, set()).add(node.attr)
        for key, value in compiled.items():
            called = frozenset(methods.get(key, ())) & (SEARCHING | WHOLE) or frozenset({"search", "fullmatch"})
            found.append(Use(f"{name}.{key}", str(value.pattern), value.flags & ~re.UNICODE, called))
        for call in calls:
            if pattern := _pattern_of(call):
                found.append(Use(f"{name}:{call.lineno}", *pattern))
    return found


def _pattern_of(call: ast.Call) -> tuple[str, int, frozenset[str]] | None:
    """Pattern, flags and method of `re.split("...", text)`."""
    function = call.func
    if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"):
        return None
    if function.attr not in FUNCTIONS - {"compile"} or not isinstance(call.args[0], ast.Constant):
        return None
    pattern = call.args[0].value
    return pattern.decode() if isinstance(pattern, bytes) else pattern, 0, frozenset({function.attr})


def built() -> set[tuple[str, str]]:
    """Modules and variables of the patterns that neither a module's variable nor a constant has."""
    found = set()
    for name in module_names():
        tree = tree_of(name)
        top = {id(node) for statement in tree.body for node in _outside_functions(statement)}
        targets = {id(node.value): node.targets[0] for node in ast.walk(tree) if isinstance(node, ast.Assign)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or id(node) in top:
                continue
            is_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            if is_re and node.func.attr in FUNCTIONS and not isinstance(node.args[0], ast.Constant):
                target = targets.get(id(node))
                found.add((name, target.id if isinstance(target, ast.Name) else ""))
    return found


def _outside_functions(statement: ast.stmt) -> Iterator[ast.AST]:
    return iter(()) if isinstance(statement, ast.FunctionDef | ast.ClassDef) else ast.walk(statement)


ITEMS = _constants
ALPHABET = " \n\ta1A_-.,;:!é٣(){}[]<>/\\|+*^=\"'`$%#x0"


def sample(items: Any) -> str:
    """A short text that the parsed pattern takes, as far as it is easy to tell."""
    return "".join(_sample(*item) for item in items)


def _sample(op: Any, value: Any) -> str:
    if op is ITEMS.LITERAL:
        return chr(value)
    if op is ITEMS.NOT_LITERAL:
        return next(c for c in ALPHABET if c != chr(value))
    if op is ITEMS.ANY:
        return "a"
    if op is ITEMS.IN:
        return characters(value)[0]
    if op in (ITEMS.MAX_REPEAT, ITEMS.MIN_REPEAT, ITEMS.POSSESSIVE_REPEAT):
        return sample(value[2]) * max(1, value[0])
    if op is ITEMS.SUBPATTERN:
        return sample(value[3])
    if op is ITEMS.ATOMIC_GROUP:
        return sample(value)
    if op is ITEMS.BRANCH:
        return sample(value[1][0])
    return ""  # places, and what is referred to


def characters(members: Any) -> str:
    """Some characters of a class."""
    found = "".join(chr(m[1]) for m in members if m[0] is ITEMS.LITERAL)
    found += "".join(chr(m[1][0]) + chr(m[1][1]) for m in members if m[0] is ITEMS.RANGE)
    if any(m[0] is ITEMS.NEGATE for m in members):
        return "".join(c for c in ALPHABET + "zq~" if c not in found) or "\x00"
    kinds = {
        ITEMS.CATEGORY_SPACE: " \n",
        ITEMS.CATEGORY_DIGIT: "1٣",
        ITEMS.CATEGORY_WORD: "a1_",
        ITEMS.CATEGORY_NOT_SPACE: "a1!",
        ITEMS.CATEGORY_NOT_DIGIT: "a ",
        ITEMS.CATEGORY_NOT_WORD: " !",
    }
    return found + "".join(kinds[m[1]] for m in members if m[0] is ITEMS.CATEGORY)


def pumps(items: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """What leads to each long repeat, and what it takes once, each way through the alternatives of the pattern."""
    for op, value in items:
        if op in (ITEMS.MAX_REPEAT, ITEMS.MIN_REPEAT, ITEMS.POSSESSIVE_REPEAT):
            body = value[2]
            if value[1] > 50:
                yield before, sample(body)
                for kind, members in body:
                    if kind is ITEMS.IN and len(body) == 1:
                        yield from ((before, character) for character in characters(members)[:6])
                    elif kind is ITEMS.ANY:
                        yield from ((before, character) for character in " 1`")
            yield from pumps(body, before)
        elif op is ITEMS.SUBPATTERN:
            yield from pumps(value[3], before)
        elif op is ITEMS.ATOMIC_GROUP:
            yield from pumps(value, before)
        elif op is ITEMS.BRANCH:
            for branch in value[1]:
                yield from pumps(branch, before)
        before += _sample(op, value)


def texts(pattern: str, flags: int) -> list[tuple[str, str, str]]:
    """(opener, run, closer): the run is to be repeated."""
    parsed = _parser.parse(pattern, flags)
    whole = sample(parsed)
    runs = list(dict.fromkeys([*pumps(parsed), ("", whole), ("", whole[:1])] if whole else pumps(parsed)))
    units = list(dict.fromkeys(run for _, run in runs if run))
    runs += [("", unit) for unit in units]
    runs += [("", one + other) for one, other in itertools.permutations(units[:6], 2)]
    return [(opener, run, end) for opener, run in dict.fromkeys(runs) if run for end in ("", "\x00", "!", whole)]


def worst_growth(pattern: str, flags: int, methods: frozenset[str]) -> tuple[float, str]:
    """How much longer the worst text of `LENGTHS[-1]` characters takes than one of a quarter of it, and that text."""
    compiled = re.compile(pattern.decode() if isinstance(pattern, bytes) else pattern, flags)
    runs: list[Callable[[str], object]] = []
    if methods & SEARCHING:
        runs.append(lambda text: sum(1 for _ in compiled.finditer(text)))
    if methods & WHOLE:
        runs.append(compiled.fullmatch)
    worst = (0.0, "")
    for opener, run, closer in texts(pattern, flags):
        for call in runs:
            for length in LENGTHS:
                seconds = best_s(call, opener + run * (length // len(run)) + closer, 1)
                if seconds > 0.05:
                    return float("inf"), f"{opener!r} + {run!r} * {length // len(run)} + {closer!r}: {seconds:.3f} s"
            if seconds > IGNORED_S:
                times = LENGTHS[-1] // len(run)
                for rounds in (5, 50):  # again and longer, because another process may have disturbed the first
                    large = best_s(call, opener + run * times + closer, rounds)
                    small = best_s(call, opener + run * (times // 4) + closer, rounds)
                    if large <= IGNORED_S or large / small < GROWTH:
                        break
                if large > IGNORED_S:
                    worst = max(worst, (large / small, f"{opener!r} + {run!r} * {times} + {closer!r}: {large:.3f} s"))
    return worst


def best_s(call: Callable[[str], object], text: str, rounds: int) -> float:
    """CPU seconds of the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        call(text)
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize(
    ("pattern", "flags", "method"),
    [
        (r"```[\w+-]*[ \t]*\n?(.*?)\n?```", re.DOTALL, "fullmatch"),  # took seconds, before any grader
        (r"\s*(?:°|degrees?)\s*", 0, "finditer"),
        (r"\s*(?:(?:∫|\\int)[^=]*?)\s*=", 0, "match"),
        (r"[FGf]\s*(?:\(\s*x\s*\))?\s*=", 0, "match"),
        (r"(?:a+)+b", 0, "match"),
        (r"(?:a|a)*b", 0, "match"),
        (r"(\w+\s?)*=", 0, "fullmatch"),
        (r"\s+$", 0, "search"),
        (r"\d+[.,]?\d+x", 0, "fullmatch"),
        (r"<(.*)>", 0, "search"),
        (r"a.*?b.*?c", re.DOTALL, "search"),
    ],
)
def test_slow_patterns_are_found(pattern: str, flags: int, method: str) -> None:
    """Of each kind: nested, alternatives that overlap, neighbours that overlap, and a search that starts over."""
    growth, text = worst_growth(pattern, flags, frozenset({method}))
    assert growth > GROWTH, text


@pytest.mark.parametrize("use", uses(), ids=lambda use: use.where)
def test_patterns_take_linear_time(use: Use) -> None:
    growth, text = worst_growth(use.pattern, use.flags, use.methods)
    assert growth < GROWTH, f"{use.pattern!r} on {text}"


def test_patterns_built_while_running_are_listed() -> None:
    """Others are constants, which the test above finds."""
    assert built() == set(BUILT)


@pytest.mark.parametrize("pattern", BUILT.values())
def test_patterns_built_while_running_take_linear_time(pattern: str) -> None:
    growth, text = worst_growth(pattern, 0, frozenset({"fullmatch"}))
    assert growth < GROWTH, text
