"""Formulas of propositional logic: read from text, and their truth table.

A formula is a tuple: `("var", name)`, `("not", f)`, or `(operator, left, right)` with `and`, `or`, `implies`, `iff`.
Negation binds most tightly, then and, or, implies, iff, as in the library; a chain of implications reads from the
right, as is the custom. Reading is bounded: by default `MAX_TOKENS` signs, and always `MAX_DEPTH` levels.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Formula = tuple[Any, ...]
MAX_TOKENS = 400
MAX_DEPTH = 40
MAX_VARIABLES = 16
_WORDS = {
    "∧": "and", "&": "and", "&&": "and", "/\\": "and", "and": "and", "land": "and", "wedge": "and",
    "∨": "or", "|": "or", "||": "or", "\\/": "or", "or": "or", "lor": "or", "vee": "or",
    "¬": "not", "~": "not", "!": "not", "not": "not", "neg": "not", "lnot": "not",
    "→": "implies", "⇒": "implies", "⟹": "implies", "⊃": "implies", "->": "implies", "=>": "implies", "-->": "implies",
    "==>": "implies", "implies": "implies", "to": "implies", "rightarrow": "implies",
    "↔": "iff", "⇔": "iff", "⟺": "iff", "≡": "iff", "<->": "iff", "<=>": "iff", "<-->": "iff", "<==>": "iff",
    "iff": "iff", "leftrightarrow": "iff",
    "(": "(", "[": "(", ")": ")", "]": ")",
}  # fmt: skip
_TOKEN = re.compile(r"\s*(<-{1,2}>|<={1,2}>|-{1,2}>|={1,2}>|&&|\|\||\\/|/\\|\\?[A-Za-z]+|\S)")
_BINDING = {"iff": 1, "implies": 2, "or": 3, "and": 4}


class _Unreadable(ValueError):
    """The text is no formula."""


def parse(text: str, variables: Collection[str], max_tokens: int = MAX_TOKENS) -> Formula | None:
    """The formula that `text` writes in these variables, or None."""
    text = text.strip()
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or len(tokens) == max_tokens:
            return None
        word, position = match[1], match.end()
        if word in variables:
            tokens.append(("var", word))
        elif sign := _WORDS.get(word.removeprefix("\\").lower() if word[1:].isalpha() else word):
            tokens.append((sign, ""))
        else:
            return None
    try:
        formula, end = _binary(tokens, 0, 1, 0)
    except _Unreadable:
        return None
    return formula if end == len(tokens) else None


def _binary(tokens: Sequence[tuple[str, str]], at: int, weakest: int, depth: int) -> tuple[Formula, int]:
    """The longest formula from `at` whose operators bind at least as tightly as `weakest`, and where it ends."""
    left, at = _unary(tokens, at, depth)
    while at < len(tokens) and _BINDING.get(tokens[at][0], 0) >= weakest:
        operator = tokens[at][0]
        binding = _BINDING[operator]
        right, at = _binary(tokens, at + 1, binding + (operator != "implies"), depth + 1)
        left = (operator, left, right)
    return left, at


def _unary(tokens: Sequence[tuple[str, str]], at: int, depth: int) -> tuple[Formula, int]:
    if at >= len(tokens) or depth > MAX_DEPTH:
        raise _Unreadable
    kind, name = tokens[at]
    if kind == "var":
        return ("var", name), at + 1
    if kind == "not":
        inner, at = _unary(tokens, at + 1, depth + 1)
        return ("not", inner), at
    if kind == "(":
        inner, at = _binary(tokens, at + 1, 1, depth + 1)
        if at < len(tokens) and tokens[at][0] == ")":
            return inner, at + 1
    raise _Unreadable


def columns(variables: Collection[str]) -> dict[str, int]:
    """Each variable's column of the truth table: bit i is its value in row i of 2^n; the first one's alternates."""
    if len(variables) > MAX_VARIABLES:
        raise ValueError(f"{len(variables)} variables: a truth table has at most {MAX_VARIABLES}")
    rows = 1 << len(variables)
    found = {}
    for index, name in enumerate(variables):
        width = 1 << index
        block, length = ((1 << width) - 1) << width, 2 * width  # 0 in `width` rows, then 1 in as many
        while length < rows:
            block |= block << length
            length *= 2
        found[name] = block
    return found


def always(table: Mapping[str, int]) -> int:
    """The column of a tautology."""
    return (1 << (1 << len(table))) - 1


def truth(formula: Formula, table: Mapping[str, int]) -> int:
    """The formula's column of the truth table: bit i is whether it holds in row i."""
    return _fill(formula, table, always(table))


def flipped(column: int, variable: int) -> int:
    """The column with the rows exchanged in which a variable, given by its own column, is true and false."""
    width = (variable & -variable).bit_length() - 1
    return (column & variable) >> width | (column << width & variable)


def _fill(formula: Formula, table: Mapping[str, int], every: int) -> int:
    kind, *parts = formula
    if kind == "var":
        return table[parts[0]]
    values = [_fill(part, table, every) for part in parts]
    if kind == "not":
        return every ^ values[0]
    if kind == "and":
        return values[0] & values[1]
    if kind == "or":
        return values[0] | values[1]
    if kind == "implies":
        return (every ^ values[0]) | values[1]
    return every ^ values[0] ^ values[1]
