r"""Parser for formulas in model output, such as `-3*x**2`, `2x(x + 1)`, `\frac{1}{2} e^{2x}` or `ln|x| + C`.

`parse` supports numbers, the caller's variables, `+ - * / ^ **`, brackets of any kind, implicit products (`2x`, but not
`x2` or `2 3`), `|x|`, the functions in `FUNCTIONS`, the constants `e` and `pi`, and some LaTeX. Any other syntax raises
`forms.Unreadable`. Parsing does not evaluate anything. By default, a tree has at most `MAX_TOKENS` leaves and a bounded
depth, so walking it takes bounded time. `exact` evaluates a tree that contains only the four arithmetic operations.
"""

import re
from collections.abc import Collection, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from rg_env.core.grading.graders import forms
from rg_env.core.grading.graders.forms import Unreadable

MAX_CHARS = 4_000
MAX_TOKENS = 600
MAX_DEPTH = 30
MAX_DIGITS = 300
FUNCTIONS = frozenset({"exp", "log", "sin", "cos", "tan", "sqrt", "asin", "acos", "atan", "sinh", "cosh", "abs"})
_ALIASES = {"ln": "log", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "E": "e", "Pi": "pi"}
_INVERSES = {"sin": "asin", "cos": "acos", "tan": "atan"}
_CONSTANTS = frozenset({"e", "pi"})
_KNOWN = FUNCTIONS | _CONSTANTS | _ALIASES.keys() | {"frac"}

_SIGNS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "∕": "/", "π": " pi "})
_BRACKETS = str.maketrans("[]{}", "()()")
_LATEX = {
    "cdot": "*",
    "times": "*",
    "div": "/",
    "dfrac": " frac",
    "tfrac": " frac",
    "left": " ",
    "right": " ",
    "displaystyle": " ",
}
_COMMAND = re.compile(r"\\([A-Za-z]+|[,;:! ])")
_SUPERSCRIPTS = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "+-0123456789")
_ROOT = re.compile(r"√ *(\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z]))")
"""A root of a single number or letter, because `√2x` is the root of 2 times x."""
_RAISED = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
Node = tuple[Any, ...]
"""A node of the tree, consisting of its kind and its parts:

- `("number", text)`: digits as written, possibly with a decimal point
- `("name", text)`: one of the caller's variables
- `("constant", text)`: `e` or `pi`
- `("sum", *terms)`: two or more terms; a subtracted term is a `"negative"` node
- `("product", *factors)`: two or more factors; a divisor is an `"inverse"` node
- `("negative", operand)`, `("inverse", operand)`, `("power", base, exponent)`, `("call", function, argument)`
"""


def parse(text: str, variables: Collection[str] = (), *, bounded: bool = True) -> Node:
    """Parse a formula. A name in `variables` takes precedence over a constant or function with the same name.

    Unless `bounded` is False, text longer than `MAX_CHARS` characters or `MAX_TOKENS` tokens is unreadable. Pass
    `bounded=False` only for text from entries or text whose length is limited elsewhere.
    """
    if bounded and len(text) > MAX_CHARS:
        raise Unreadable
    names = frozenset(variables)
    tokens = _token(names).findall(_plain(text))
    if any(len(token) > MAX_DIGITS for token in tokens) or (bounded and len(tokens) > MAX_TOKENS):
        raise Unreadable
    parser = _Parser(tokens, names)
    node = parser.sum()
    if parser.tokens != [""]:
        raise Unreadable
    return node


def _plain(text: str) -> str:
    """Return `text` with digits, operators and exponents in ASCII, LaTeX commands as plain names or symbols, and
    parentheses for all brackets."""
    text = _ROOT.sub(r" sqrt(\1) ", text).replace("√", " sqrt ")
    text = text.replace("\\*", "*")  # escaped in Markdown
    text = _RAISED.sub(lambda run: f"**{run[0].translate(_SUPERSCRIPTS)}", text)
    text = forms.plain_digits(text).translate(_SIGNS)
    text = _COMMAND.sub(
        lambda command: _LATEX.get(command[1], f" {command[1]} " if command[1].isalpha() else " "), text
    )
    return text.translate(_BRACKETS)


@lru_cache(maxsize=256)
def _token(variables: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern that matches a number, name, operator or bracket, or any other character, which the parser
    rejects. In a run of letters, each token is the longest name that matches, so `xsin` becomes `x` and `sin`."""
    names = sorted(variables | _KNOWN, key=lambda name: (-len(name), name))
    return re.compile(rf"{'|'.join(map(re.escape, names))}|\d+(?:\.\d*)?|\.\d+|\*\*|\S")


class _Parser:
    """Recursive-descent parser with Python's precedence. Implicit and explicit products have the same precedence."""

    def __init__(self, tokens: list[str], variables: frozenset[str]) -> None:
        self.tokens = ["", *reversed(tokens)]  # the next token is the last item
        self.variables = variables
        self.depth = 0

    def take(self, *wanted: str) -> str:
        """Consume and return the next token if it is one of `wanted`, or return the empty string."""
        return self.tokens.pop() if self.tokens[-1] in wanted else ""

    def need(self, token: str) -> None:
        if not self.take(token):
            raise Unreadable

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable

    def sum(self) -> Node:
        self.deeper()
        terms = [self.product()]
        while sign := self.take("+", "-"):
            term = self.product()
            terms.append(("negative", term) if sign == "-" else term)
        self.depth -= 1
        return _joined("sum", terms)

    def product(self) -> Node:
        factors = [self.signed()]
        while True:
            if sign := self.take("*", "/"):
                factor = self.signed()
                factors.append(("inverse", factor) if sign == "/" else factor)
            elif self.tokens[-1] == "(" or self.tokens[-1].isalpha():
                factors.append(self.power())
            else:
                return _joined("product", factors)

    def signed(self) -> Node:
        signs = ""
        while sign := self.take("+", "-"):
            signs += sign
        if len(signs) > MAX_DEPTH:
            raise Unreadable
        node = self.power()
        return ("negative", node) if signs.count("-") % 2 else node

    def power(self) -> Node:
        base = self.primary()
        if not self.take("**", "^"):
            return base
        self.deeper()
        exponent = self.signed()
        self.depth -= 1
        return ("power", base, exponent)

    def primary(self) -> Node:
        token = self.tokens.pop()
        if token in self.variables:
            return ("name", token)
        token = _ALIASES.get(token, token)
        if token in ("(", "|"):
            node = self.sum()
            self.need({"(": ")", "|": "|"}[token])
            return node if token == "(" else ("call", "abs", node)
        if token == "frac":
            return ("product", self.group(), ("inverse", self.group()))
        if token in FUNCTIONS:
            return self.call(token)
        if token in _CONSTANTS:
            return ("constant", token)
        if re.match(r"\.?\d", token):
            return ("number", token)
        raise Unreadable

    def group(self) -> Node:
        if self.tokens[-1] != "(":
            raise Unreadable
        return self.primary()

    def call(self, function: str) -> Node:
        """Parse the tokens that follow a function's name: `(x)`, `|x|`, `^2(x)`, `^{-1}(x)`, ` x`, ` 2x`."""
        exponent: Node | None = None
        if self.take("^", "**"):
            exponent = self.primary()
            if exponent == ("negative", ("number", "1")) and function in _INVERSES:
                function, exponent = _INVERSES[function], None
            elif exponent[0] != "number":
                raise Unreadable
        node = ("call", function, self.argument())
        return node if exponent is None else ("power", node, exponent)

    def argument(self) -> Node:
        if self.tokens[-1] in ("(", "|"):
            return self.primary()
        factors = []
        if self.tokens[-1][:1].isdigit():
            factors.append(self.primary())
        if self.tokens[-1] in self.variables:
            factors.append(self.power())
        if not factors:
            raise Unreadable
        return _joined("product", factors)


def _joined(kind: str, parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else (kind, *parts)


def fraction(digits: str) -> Fraction:
    """Return the value of a number's digits, which may have a decimal point."""
    return Fraction(int(digits) if digits.isdecimal() else digits)


def exact(node: Node, values: Mapping[str, Fraction] | None = None) -> Fraction:
    """Evaluate a tree of numbers, names in `values` and the four arithmetic operations. Raises ValueError for any other
    node."""
    match node:
        case ("number", text):
            return fraction(text)
        case ("name", name) if values and name in values:
            return values[name]
        case ("negative", operand):
            return -exact(operand, values)
        case ("inverse", operand):
            return 1 / exact(operand, values)
        case ("sum", *terms):
            return sum((exact(term, values) for term in terms), Fraction(0))
        case ("product", *factors):
            value = Fraction(1)
            for factor in factors:
                value *= exact(factor, values)
            return value
        case _:
            raise ValueError("only the four arithmetic operations are supported")


@lru_cache(maxsize=256)
def exact_value(text: str) -> Fraction | None:
    """Evaluate an expression of any length from the library. Returns None if the expression divides by zero.

    Raises ValueError if the expression contains anything but numbers, brackets and the four arithmetic operations.
    """
    try:
        return exact(parse(text, bounded=False))
    except ZeroDivisionError:
        return None
