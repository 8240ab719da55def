"""Every regular expression in `rg_env.core` takes linear time, because it reads model output or users' files.

Each pattern is tried on texts made for it: a text that leads to one of its repeats, a long run of what the repeat
matches, and a text that does not match. Patterns with which the code searches are tried with `finditer`, and those that
must match the entire text with `fullmatch`.
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
"""Lengths in characters. Short texts come first, so that an exponential pattern is found before it runs forever."""
GROWTH = 8
IGNORED_S, ENDLESS_S = 2e-3, 0.05
BUILT = {
    ("rg_env.core.grading.graders.expressions", ""): r"exp|x|e|\d+(?:\.\d*)?|\.\d+|\*\*|\S",
    ("rg_env.core.grading.graders.algebra", ""): r"x(?:_?\{?\d\}?)?",
    ("rg_env.core.grading.graders.written_out", ""): r"(?<![\w+*/^(-])(?<![+*/^(-] )1\s*\+\s*2(?!\w|\s*[-+*/^)])",
    ("rg_env.core.config.files", ""): r"system_prompt['\"]?:\s*#",
    ("rg_env.core.data.problem_keys", ""): r"^(.*)= *\?$",  # in `parts`; `uses` finds the patterns passed to it
    ("rg_env.core.data.problem_keys", "pattern"): r"orange\ juice|orange|red",
}
"""Patterns that are built at run time, by module and variable, as they are for a variable named x."""


@dataclass(frozen=True)
class Use:
    """One pattern and the methods that use it."""

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
    """Compiled patterns with the methods called on them, and constants passed to functions of `re`."""
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
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("matched", "forms.matched"):
                methods.setdefault(ast.unparse(node.args[0]), set()).add("fullmatch")
        for key, value in compiled.items():
            called = frozenset(methods.get(key, ())) & (SEARCHING | WHOLE) or frozenset({"search", "fullmatch"})
            text = value.pattern.decode() if isinstance(value.pattern, bytes) else value.pattern
            found.append(Use(f"{name}.{key}", text, value.flags & ~re.UNICODE, called))
        for call in calls:
            if pattern := _pattern_of(call):
                found.append(Use(f"{name}:{call.lineno}", *pattern))
    return found


def _pattern_of(call: ast.Call) -> tuple[str, int, frozenset[str]] | None:
    """Pattern, flags and method of `re.split("...", text)`, and of `parts("...", text)`, which finds all matches."""
    function = call.func
    if isinstance(function, ast.Name) and function.id == "parts" and isinstance(call.args[0], ast.Constant):
        return call.args[0].value, re.MULTILINE, frozenset({"findall"})
    if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"):
        return None
    if function.attr not in FUNCTIONS - {"compile"} or not isinstance(call.args[0], ast.Constant):
        return None
    pattern = call.args[0].value
    return pattern.decode() if isinstance(pattern, bytes) else pattern, 0, frozenset({function.attr})


def built() -> set[tuple[str, str]]:
    """Modules and variables of patterns that are neither constants nor module variables."""
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
    """A short text that the parsed pattern matches, except in complicated cases."""
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
    return ""  # anchors and references


def characters(members: Any) -> str:
    """Some characters that a character class matches."""
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
    """For each long repeat, in every branch of the pattern: the text that leads to it, and one repetition."""
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
    """Tuples (opener, run, closer), where the run is repeated."""
    parsed = _parser.parse(pattern, flags)
    whole = sample(parsed)
    runs = list(dict.fromkeys([*pumps(parsed), ("", whole), ("", whole[:1])] if whole else pumps(parsed)))
    units = list(dict.fromkeys(run for _, run in runs if run))
    runs += [("", unit) for unit in units]
    runs += [("", one + other) for one, other in itertools.permutations(units[:6], 2)]
    return [(opener, run, end) for opener, run in dict.fromkeys(runs) if run for end in ("", "\x00", "!", whole)]


def slow_text(pattern: str, flags: int, methods: frozenset[str]) -> tuple[str, ...]:
    """The first opener, run and closer on which time grows faster than the length; empty if time is linear."""
    compiled = re.compile(pattern, flags)
    calls: list[Callable[[str], object]] = []
    if methods & SEARCHING:
        calls.append(lambda text: sum(1 for _ in compiled.finditer(text)))
    if methods & WHOLE:
        calls.append(compiled.fullmatch)
    return next((shape for shape in texts(pattern, flags) for call in calls if is_slow(call, *shape)), ())


def is_slow(call: Callable[[str], object], opener: str, run: str, closer: str) -> bool:
    """Whether the time grows by more than `GROWTH` from a quarter of the longest text to the whole.

    The time is measured again with more rounds, because other processes may have disturbed the first measurement.
    """

    def seconds(length: int, rounds: int = 1) -> float:
        text = opener + run * (length // len(run)) + closer
        times = []
        for _ in range(rounds):
            start = time.process_time()
            call(text)
            times.append(time.process_time() - start)
        return min(times)

    for length in LENGTHS:
        once = seconds(length)
        if once > ENDLESS_S:
            return True
    return once > IGNORED_S and all(
        seconds(length, rounds) > max(IGNORED_S, GROWTH * seconds(length // 4, rounds)) for rounds in (5, 50)
    )


@pytest.mark.parametrize(
    ("pattern", "flags", "method"),
    [
        (r"```[\w+-]*[ \t]*\n?(.*?)\n?```", re.DOTALL, "fullmatch"),  # quadratic in a fence without an end
        (r"\s*(?:(?:∫|\\int)[^=]*?)\s*=", 0, "match"),
        (r"(?:a+)+b", 0, "match"),
        (r"(?:a|a)*b", 0, "match"),
        (r"(\w+\s?)*=", 0, "fullmatch"),
        (r"\s+$", 0, "search"),
        (r"\d+[.,]?\d+x", 0, "fullmatch"),
        (r"<(.*)>", 0, "search"),
    ],
)
def test_slow_patterns_are_found(pattern: str, flags: int, method: str) -> None:
    """The patterns have nested repeats, overlapping alternatives, overlapping neighbors, or a search that starts
    over."""
    assert slow_text(pattern, flags, frozenset({method}))


@pytest.mark.parametrize("use", uses(), ids=lambda use: use.where)
def test_patterns_take_linear_time(use: Use) -> None:
    assert slow_text(use.pattern, use.flags, use.methods) == (), use.pattern


def test_patterns_built_at_run_time_are_listed() -> None:
    """All other patterns are constants, which `uses` finds."""
    assert built() == set(BUILT)


@pytest.mark.parametrize("pattern", BUILT.values())
def test_patterns_built_at_run_time_take_linear_time(pattern: str) -> None:
    assert slow_text(pattern, 0, frozenset({"fullmatch"})) == ()
