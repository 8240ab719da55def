"""Lists, dictionaries, texts and numbers as JSON or Python write them, read in one pass, without recursion.

Python's own `ast.literal_eval` takes a quarter of a second for some texts of 10,000 characters, and recurses.
"""

import re
from typing import Any

_MAX_DEPTH = 20
_MAX_DIGITS = 1_000
_TOKEN = re.compile(
    r"""\s*(?:
        (\d+)(?![\d.eE])
      | ([,:])
      | ([\[({])
      | ([\])}])
      | ('(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
      | ([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?)
      | (True|False|true|false)\b
      | (\S)
      | \Z
    )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_DIGITS, _SIGN, _OPEN, _CLOSE, _TEXT, _NUMBER, _WORD, _OTHER = range(1, 9)
"""Which group of `_TOKEN` matched."""
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_CLOSED_BY = {"[": "]", "(": ")", "{": "}"}


class _Malformed(Exception):
    pass


class _Open:
    """A bracket that is not closed yet."""

    __slots__ = ("bracket", "items", "keys", "wants_item")

    def __init__(self, bracket: str) -> None:
        self.bracket = bracket
        self.items: list[Any] = []
        self.keys: list[Any] = []
        self.wants_item = True
        """Whether a value may come next; else a sign or the closing bracket."""

    def add(self, value: Any) -> None:
        if not self.wants_item:
            raise _Malformed
        self.items.append(value)
        self.wants_item = False

    def sign(self, sign: str) -> None:
        if self.wants_item or not self.bracket:
            raise _Malformed
        is_key = self.bracket == "{" and len(self.keys) == len(self.items) - 1
        if (sign == ":") != is_key:
            raise _Malformed
        if is_key:
            key = self.items.pop()
            if not isinstance(key, str | int):
                raise _Malformed
            self.keys.append(key)
        self.wants_item = True

    def closed(self) -> Any:
        if self.bracket == "{":
            if len(self.keys) != len(self.items):
                raise _Malformed
            return dict(zip(self.keys, self.items, strict=True))
        if self.bracket == "(" and len(self.items) == 1 and not self.wants_item:
            return self.items[0]  # plain parentheses
        return self.items if self.bracket == "[" else tuple(self.items)


def parse(text: str) -> Any:
    """The value of one JSON or Python literal: list, tuple, dict with text or whole-number keys, text, number, boolean.

    None for all else: other syntax, NaN and infinities, `null`, brackets more than 20 deep, numbers of over 1,000
    digits. Takes time linear in the text.
    """
    try:
        return _parse(text)
    except (_Malformed, ValueError, OverflowError):
        return None


def _parse(text: str) -> Any:
    top = _Open("")
    stack = [top]
    for token in _TOKEN.finditer(text.strip()):
        kind = token.lastindex
        if kind is None:  # the end
            break
        found = token[kind]
        if kind == _DIGITS:
            top.add(int(found) if len(found) <= _MAX_DIGITS else _number(found))
        elif kind == _SIGN:
            top.sign(found)
        elif kind == _OPEN:
            if not top.wants_item or len(stack) > _MAX_DEPTH:
                raise _Malformed
            top = _Open(found)
            stack.append(top)
        elif kind == _CLOSE:
            if found != _CLOSED_BY.get(top.bracket):
                raise _Malformed
            value = stack.pop().closed()
            top = stack[-1]
            top.add(value)
        elif kind == _TEXT:
            top.add(_text(found[1:-1]))
        elif kind == _NUMBER:
            top.add(_number(found))
        elif kind == _WORD:
            top.add(found.lower() == "true")
        else:
            raise _Malformed
    (whole,) = stack
    (value,) = whole.items
    return value


def _number(text: str) -> int | float:
    if len(text) > _MAX_DIGITS:
        raise _Malformed
    if text.lstrip("+-").isdigit():
        return int(text)
    value = float(text)
    if abs(value) == float("inf"):
        raise _Malformed
    return value


def _text(text: str) -> str:
    if "\\" not in text:
        return text
    text = _ESCAPE.sub(_unescaped, text)
    # JSON writes what is beyond 16 bits as two surrogates. Lone ones stay what they are.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _unescaped(escape: re.Match[str]) -> str:
    name = escape[1]
    return chr(int(name[1:], 16)) if len(name) > 1 else _PLAIN.get(name, name)
