"""Helpers that ignore harmless differences in form, such as the wrapping around an answer or the notation of numbers
and lists.

The text comes from a model and is never evaluated as code. Every function runs in time linear in the text's length,
which callers limit. A function that cannot parse the text raises `Unreadable`, which `graders.grade` counts as a wrong
answer.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, TypeVar

_T = TypeVar("_T")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_MAX_DIGITS = 1_000
_MAX_DEPTH = 100
_MAX_EXPONENT = 400
_MAX_LAYERS = 8  # enough for `**$\boxed{\text{"5"}}$**.`
_MAX_GUESSES = 3
_MAX_BRACES = 2_000
_MAX_SIGNS = 30
_FENCE = "```"
_LANGUAGE = re.compile(r"(?:[A-Za-z][\w+-]*)?[ \t]*")
_COMMAND = re.compile(
    r"\\(?:boxed|fbox|mbox|emph|operatorname|text(?:bf|it|rm|sf|sc|tt|normal)?|math(?:bf|it|rm|sf|tt|normal))\s*\{"
)
_BOLD = "**"
_MARKS = [
    *(("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")),
    *((mark, mark) for mark in (_BOLD, "__", "*", "_", "`")),  # longer marks come first
]
_INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
"""Zero-width characters, which may surround copied text."""
_POWER = re.compile(r"(?<=[\w)\]}])\*\*(?=[\w({+-])")
_QUOTES = [('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"), ("„", "“"), ("«", "»")]
_OPENING = frozenset("`\\$*_[" + "".join(start for start, _ in _QUOTES))
"""First characters of everything that can be wrapped around an answer (quotes, markup, a box, ...)."""
_LABEL = re.compile(
    r"\*{0,2}(?P<lead>(?:so|thus|hence|therefore|return|we can conclude(?: that)?|there (?:are|is)"
    r"|it (?:(?:say|appear)s|(?:is|was|will be)(?: an?)?)),?\s+)?"
    r"(?:(?P<name>[A-Za-z][A-Za-z()-]*(?: [A-Za-z()-]+){0,9}?)\*{0,2}"
    r"(?:\s+(?:is|are)\b:?|\s*[:=]|[ \t]*\n)\*{0,2}\s*)?",
    re.IGNORECASE,
)
_ARTICLES = frozenset({"the", "a", "an", "of", "are", "thi", "these"})
_NAMES = _ARTICLES | {
    "final", "correct", "answer", "result", "resulting", "solution", "output", "value", "total", "completed",
    "count", "number", "list", "sorted", "filtered", "matrix", "grid", "board", "string", "text", "word",
    "sentence", "path", "mapping", "coloring", "plan", "move", "sequence", "order", "expression", "fraction",
    "conclusion", "decrypted", "secret", "transformed", "next", "hexadecimal", "simplified", "remaining",
    "interior", "antiderivative", "integral", "time", "duration", "difference", "elapsed",
}  # fmt: skip
"""Words, without a plural's `s`, that may name any answer."""
_NAMES_IF_ASKED = frozenset({
    "minimum", "maximum", "possible", "leg", "swap", "step", "minute", "rectangle", "prime", "bit", "area",
    "island", "greatest", "least", "common", "divisor", "multiple", "gcd", "lcm", "light", "statu", "detector",
    "out", "angle", "measure", "abc", "radiu", "incircle", "orthocenter", "coordinate", "probability", "odd",
    "color", "shortest", "round",
})  # fmt: skip
"""Words that may name an answer if the question contains them."""
_MAX_LABELLED_CHARS = 100_000  # longer answers (moves of many disks) would take too long to grade several times
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\,)(?=\d{3}(?!\d))")
_GROUPS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_MINUS = {"−": "-", "–": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "＋": "+"}
# Digits may be in groups of three, with a single kind of separator: a comma, an underscore or a (narrow) space.
_NUMBER = re.compile(
    r"[+-]?(?=\.?\d)(?:\d+|\d{1,3}(?:,\d{3})+|\d{1,3}(?:_\d{3})+|\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+)?"
    r"(?:\.\d*)?(?:[eE]([+-]?\d{1,4}))?"
)
_PLAIN_NUMBER = re.compile(r"(-?[0-9]+)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,4}))?")
_LITERAL_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?"""
    r"|(?:True|False|None|true|false|null)\b|\S",
    re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_SEPARATORS = str.maketrans(dict.fromkeys("→⟶⇒>,;|[](){}'\"`‘’“”*", " "))
_ARROW = re.compile(r"-{1,2}>|={1,2}>|\\(?:(?:long)?rightarrow|to|text)(?![A-Za-z])", re.IGNORECASE)
_ITEM = re.compile(r"^[ \t]*(?:\d{1,4}[.)]|[-*•])[ \t]+", re.MULTILINE)
"""A number or bullet before an item of a list."""
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_FRACTION = re.compile(r"([+-]?)\s*\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")


class Unreadable(ValueError):
    """The text is not in the form that a function expects, so it does not count as an answer."""


def attempt(read: Callable[[str], _T], text: str) -> _T | None:
    """Return `read(text)`, or None if the text is unreadable."""
    try:
        return read(text)
    except Unreadable:
        return None


def matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    """Match the pattern against the entire text. Raises `Unreadable` if it does not match."""
    match = pattern.fullmatch(text)
    if match is None:
        raise Unreadable
    return match


def candidates(answer: str, question: str = "", *, quotes: bool = True, brackets: bool = True) -> list[str]:
    """Return the distinct texts for a grader to try: the original answer, the answer without its wrapping, and the
    answer without optional parts.

    The optional parts are a final period, a label such as `The answer is` or `Total legs:` if `question` is given, and,
    depending on the options, quotes around the whole answer (`quotes`) and the brackets of a one-element list
    (`brackets`).
    """
    text = _stripped(answer)
    question = question if len(text) <= _MAX_LABELLED_CHARS else ""
    is_plain = text and text[0] not in _OPENING and text[-1] != "."
    if is_plain and not (question and text[0].isalpha() and _label_end(text, question) < len(text)):  # nearly all
        return [answer] if text == answer else [answer, text]
    optional: list[Callable[[str], str | None]] = [_without_period]
    optional += [_without_quotes] * quotes + [_without_brackets] * brackets
    if question:
        optional.insert(0, lambda text: text[_label_end(text, question, named=True) :] or None)
        optional.append(lambda text: text[_label_end(text, question) :] or None)  # a sentence may begin with `It is`
    found = [answer]
    for _ in range(_MAX_LAYERS):
        inner = _unwrapped(text)
        if inner is None and len(found) <= _MAX_GUESSES:
            found.append(text)
            inner = next(filter(None, (remove(text) for remove in optional)), None)
        if inner is None:
            break
        text = inner
    return list(dict.fromkeys([*found, text]))


def unwrap(text: str) -> str:
    r"""Return `text` without surrounding whitespace, code fences, `\boxed{}`, `\text{}`, `$...$`, or bold or italic
    marks."""
    text = _stripped(text)
    for _ in range(_MAX_LAYERS):
        text = _unwrapped(text) or text
    return text


def _stripped(text: str) -> str:
    return text.strip().strip(_INVISIBLE).strip()


def _unwrapped(text: str) -> str | None:
    """Return `text` without its outermost wrapping and whitespace, or None if it is not wrapped."""
    if text.startswith(_FENCE) and text.endswith(_FENCE) and len(text) > 2 * len(_FENCE):
        return _unfenced(text[len(_FENCE) : -len(_FENCE)]) or None
    if (command := _COMMAND.match(text)) and text.endswith("}"):
        inner = text[command.end() : -1].strip()
        return inner if inner and _balanced(inner) else None
    return _inside(text, _MARKS)


def _inside(text: str, marks: Sequence[tuple[str, str]]) -> str | None:
    """Return `text` without the first of `marks` that surrounds it. Return None if no mark surrounds the text, or if
    the mark also occurs inside, because the text then has several marked parts."""
    for start, end in marks:
        if len(text) > len(start + end) and text.startswith(start) and text.endswith(end):
            inner = text[len(start) : -len(end)].strip()
            # the inner `**` is an operator in `**x**2 + C**`, but marks bold text in `**5** or **6**`
            bare = _POWER.sub("", inner) if start == _BOLD else inner.replace(r"\$", "")
            return inner or None if start not in bare and end not in bare else None
    return None


def _without_period(text: str) -> str | None:
    """Return `text` without its final period, or None if it does not have one or ends in an ellipsis, which marks an
    incomplete answer."""
    return text[:-1].rstrip() if text.endswith(".") and not text.endswith("...") and text.strip(".") else None


def _label_end(text: str, question: str, *, named: bool = False) -> int:
    """Return the length of a leading `Answer:`, `The final answer is`, `There are` or similar label, or the length of
    `text` if it has no label, or with `named` if its label does not name the answer.

    A label consists of words that cannot change the answer's meaning: those in `_NAMES`, and those in
    `_NAMES_IF_ASKED` that are in the question.
    """
    label = _LABEL.match(text)
    if label is None or not (label["name"] or (label["lead"] and not named)):
        return len(text)
    words = _singular_words(label["name"] or "")
    unknown = words - _NAMES
    known = unknown <= _NAMES_IF_ASKED and (not unknown or unknown <= _singular_words(question))
    return label.end() if known and (label["lead"] or words - _ARTICLES) else len(text)


def _singular_words(text: str) -> set[str]:
    return {word.removesuffix("s") for word in re.findall("[a-z]+", text.casefold())}


def _without_quotes(text: str) -> str | None:
    """Return `text` without surrounding quotes, or None if it is not quoted or the same quotes also occur inside. A
    quoted list or dictionary may contain the same quotes."""
    inner = text[1:-1].strip()
    if inner[:1] + inner[-1:] in ("[]", "{}") and (text[0], text[-1]) in _QUOTES:
        return inner
    return _inside(text, _QUOTES)


def _without_brackets(text: str) -> str | None:
    """Return the only element of a one-element list, or None for other text."""
    inner = text[1:-1].strip() if text[:1] + text[-1:] == "[]" else ""
    return None if not inner or re.search(r"[\[\],;\n]", inner) else inner


def _unfenced(inner: str) -> str:
    """Return the content of a code block without the language name, or "" if the content is blank or there are several
    blocks."""
    if _FENCE in inner:
        return ""
    first, _, rest = inner.partition("\n")
    return (rest if rest.strip() and _LANGUAGE.fullmatch(first) else inner).strip()


def _balanced(text: str) -> bool:
    """Whether the braces are balanced."""
    if not text.count("{") == text.count("}") <= _MAX_BRACES:
        return False
    return min(accumulate(1 if brace == "{" else -1 for brace in re.findall(r"[{}]", text)), default=0) >= 0


def same_value(answer: str, gold: str) -> bool:
    """Whether the answer equals `gold` as a number (`1,000`, `0.5`, `1/2`, `$5`), or as text, ignoring case, spacing
    (also at commas) and wrapping (see `candidates` and `unwrap`)."""
    value, wanted = attempt(rational, gold.strip().removeprefix("$")), _words(unwrap(gold))
    return any(
        (value is not None and attempt(rational, text.removeprefix("$")) == value) or _words(text) == wanted
        for text in candidates(answer)
    )


def _words(text: str) -> list[str]:
    return text.casefold().replace(",", " , ").split()


def same_text(answer: str, gold: str) -> bool:
    """Whether the texts are equal except for whitespace at line ends and around the text."""
    return _lines(answer) == _lines(gold)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def plain_digits(text: str) -> str:
    """Return `text` with decimal digits from any script and all plus and minus signs converted to ASCII. Superscripts
    are kept.

    Text with more than `_MAX_SIGNS` distinct non-ASCII digits and signs is returned unchanged because no real answer
    contains that many.
    """
    if text.isascii():
        return text
    foreign = {c for c in set(text) if c in _MINUS or (c.isdecimal() and not c.isascii())}
    signs = {c: _MINUS.get(c) or str(unicodedata.decimal(c)) for c in foreign}
    if len(signs) <= _MAX_SIGNS:
        for sign, plain in signs.items():  # this is much faster than `translate` for non-ASCII text
            text = text.replace(sign, plain)
    return text


def plain_thousands(text: str) -> str:
    r"""Return `text` with LaTeX thousands separators (`1{,}234`, `1\,234`) replaced by plain commas."""
    return _THOUSANDS.sub(",", text) if "\\" in text or "{" in text else text


def ungrouped(text: str) -> str:
    """Return `text` without thousands separators, so that `1,234` and `1{,}234` become `1234`."""
    return _GROUPS.sub(lambda number: number[0].replace(",", ""), plain_thousands(text))


def number(text: str) -> Fraction:
    """Parse a decimal number such as `-1,234.50`, `.5` or `2e3`, with at most 1,000 characters."""
    text = text.strip()
    if len(text) > _MAX_DIGITS:
        raise Unreadable
    if plain := _PLAIN_NUMBER.fullmatch(text):  # matches nearly all answers, ten times as fast as `_NUMBER`
        whole, decimals, exponent = plain.groups("")
        if not decimals and not exponent:
            return Fraction(int(whole))
        shift = int(exponent or 0) - len(decimals)
        if abs(shift + len(decimals)) > _MAX_EXPONENT:
            raise Unreadable
        return Fraction(int(whole + decimals) * 10 ** max(0, shift), 10 ** max(0, -shift))
    text = plain_thousands(plain_digits(text))
    if abs(int(matched(_NUMBER, text)[1] or 0)) > _MAX_EXPONENT:
        raise Unreadable
    return Fraction(re.sub(r"[,_\s]", "", text))


@lru_cache(maxsize=1024)
def stored_number(text: str) -> Fraction:
    """Parse a number from an entry, like `number`. The result is cached for all answers to the same question."""
    return number(text)


def integer(text: str) -> int:
    """Parse a whole number such as `4` or `4.0`."""
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:  # a fast path for the cells of grids
        return int(text)
    value = number(text)
    if value.denominator != 1:
        raise Unreadable
    return int(value)


def plain_fraction(text: str) -> str:
    r"""Return `text` with a LaTeX fraction (`\frac{3}{4}`), or a fraction with a Unicode slash, rewritten as `3/4`."""
    text = text.strip().replace("\N{FRACTION SLASH}", "/").replace("\N{DIVISION SLASH}", "/")
    latex = _FRACTION.fullmatch(text) if "\\" in text else None
    return "{}{}/{}".format(*latex.groups()) if latex else text


def rational(text: str) -> Fraction:
    r"""Parse a decimal number or a fraction, such as `3/4`, `-6 / 8` or `\frac{3}{4}`."""
    above, slash, below = plain_fraction(text).partition("/")
    divisor = number(below) if slash else 1
    if not divisor:
        raise Unreadable
    return number(above) / divisor


def literal(text: str) -> Any:
    """Parse a single JSON or Python literal, which can be a list, a tuple, a dictionary with string or integer keys, a
    string, a number, a boolean or None. Digits may be in any script.

    Any other text is unreadable, including NaN, infinity, duplicate keys, brackets nested more than `_MAX_DEPTH` deep,
    and numbers with more than 1,000 digits.

    `ast.literal_eval` is not used because it takes 0.25 s for some texts of 10,000 characters.
    """
    # Tokens are matched one at a time because matching the rest of the text after an unreadable token would take
    # quadratic time.
    tokens = chain((match[0] for match in _LITERAL_TOKEN.finditer(plain_digits(text).strip())), [""])
    value = _literal(next(tokens), tokens, 0)
    if next(tokens):
        raise Unreadable
    return value


def _literal(token: str, tokens: Iterator[str], depth: int) -> Any:
    """Parse the value that starts with `token`."""
    if token.isdigit() and token.isascii() and len(token) <= _MAX_DIGITS:  # true for most values in lists and grids
        return int(token)
    if token in _WORDS:
        return _WORDS[token]
    if token in ("[", "(", "{"):
        return _group(token, tokens, depth + 1)
    if len(token) > 1 and token[0] in "\"'":
        return _unescaped(token[1:-1])
    if len(token) > _MAX_DIGITS or not token.isascii():
        raise Unreadable
    try:
        value = int(token) if token.lstrip("+-").isdigit() else float(token)
    except ValueError:
        raise Unreadable from None
    if abs(value) == math.inf:
        raise Unreadable
    return value


def _group(bracket: str, tokens: Iterator[str], depth: int) -> Any:
    """Parse the rest of a list, tuple or dictionary after its opening bracket. Parentheses around a single item yield
    the item itself."""
    if depth > _MAX_DEPTH:
        raise Unreadable
    keys: list[Any] = []
    items: list[Any] = []
    token, comma = next(tokens), True
    while token not in ("]", ")", "}"):
        if not comma:
            raise Unreadable
        item, token = _literal(token, tokens, depth), next(tokens)
        if bracket == "{":
            if token != ":" or not isinstance(item, str | int):
                raise Unreadable
            keys.append(item)
            item, token = _literal(next(tokens), tokens, depth), next(tokens)
        items.append(item)
        comma = token == ","
        if comma:
            token = next(tokens)
    # An answer with two values for a key is ambiguous.
    if bracket + token not in ("[]", "()", "{}") or len(set(keys)) < len(keys):
        raise Unreadable
    if bracket == "{":
        return dict(zip(keys, items, strict=True))
    return items if bracket == "[" else tuple(items) if comma or len(items) != 1 else items[0]


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    text = _ESCAPE.sub(lambda escape: _character(escape[1]), text)
    # JSON escapes characters above U+FFFF as surrogate pairs. Lone surrogates are kept.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _character(name: str) -> str:
    if len(name) == 1:
        return _PLAIN.get(name, name)
    try:
        return chr(int(name[1:], 16))
    except (ValueError, OverflowError):
        raise Unreadable from None


def numbers(text: str) -> list[Fraction]:
    """Parse a list of numbers separated by commas, semicolons or whitespace, with or without brackets, such as
    `[1, 2.5]` or `1 2`."""
    return [number(part.strip("'\"")) for part in re.split(r"[\s,;]+", unbracketed(plain_digits(text))) if part]


def parts(text: str) -> list[str]:
    """Split a sequence at whitespace, commas, semicolons, bars and arrows. Brackets, quotes, bold marks, and numbers or
    bullets before items are ignored."""
    return _ARROW.sub(" ", unlisted(text)).translate(_SEPARATORS).split()


def unlisted(text: str) -> str:
    """Return `text` without numbers (`1.`, `2)`) or bullets at the start of lines."""
    return _ITEM.sub("", text) if "\n" in text else text


def unbracketed(text: str) -> str:
    """Return `text` without surrounding whitespace and without one pair of surrounding brackets, if present."""
    text = text.strip()
    return text[1:-1].strip() if text[:1] + text[-1:] in ("[]", "()", "{}") else text
