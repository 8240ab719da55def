"""Mutations of replies that score or nearly score: `CHANGES` to one reply, `JOINS` of two replies, and `templates`,
which are gold answers in which tokens from their own question are replaced with tokens from another question.

A change takes the reply and the question, and never raises an exception: a reply that it cannot change is returned
unchanged or blank.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

Change = Callable[[str, str], str]

TABLES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))
_TOKEN = re.compile(r"-?\d+(?:\.\d+)?|[^\W\d_]+|[^\w\s]|\s+|_")
_LOOK_ALIKES = str.maketrans("ABCEHKMOPTXaceopxyi", "АВСЕНКМОРТХасеорхуі")
_FULL_WIDTH = str.maketrans("0123456789+-", "０１２３４５６７８９＋－")
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@lru_cache(maxsize=1024)
def _variable(question: str) -> str:
    """Return the variable of the question's formula: the most frequent single letter in the question's first 400
    characters, except for A, a and I."""
    letters = Counter(re.findall(r"(?<![A-Za-z])[B-HJ-Zb-z](?![A-Za-z])", question[:400]))
    return letters.most_common(1)[0][0] if letters else "x"


def _formula(text: str, question: str) -> str:
    """Return the formula in a reply, without any surrounding text copied from the question, such as `∫` and `dx`."""
    text = re.sub(r"^.*?[∫:]\s*|\s*d[A-Za-z]\s*$", "", text.strip(), flags=re.DOTALL)
    return text.partition("=")[0].strip() or text


def _filled(form: str) -> Change:
    """Return a change that fills `form`: `{a}` is the reply, `{f}` its formula, `{v}` the question's variable."""
    return lambda text, question: (
        form.replace("{v}", _variable(question)).replace("{f}", _formula(text, question)).replace("{a}", text)
    )


def _fields(change: Callable[[list[str]], Sequence[str]], separator: str = " ") -> Change:
    """Return a change to the reply's fields, which are separated by commas or, if the reply has no commas, by white
    space."""

    def changed(text: str, question: str) -> str:
        if "," in text:
            return ", ".join(change([field.strip() for field in text.split(",")]))
        return separator.join(change(text.split()))

    return changed


def _split(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _joined(separator: str) -> Change:
    return lambda text, question: separator.join(_split(text))


def _numbers(change: Callable[[float], float]) -> Change:
    """Return a change to the reply's last number."""

    def changed(text: str, question: str) -> str:
        found = list(re.finditer(r"-?\d+(?:\.\d+)?", text))
        if not found or len(found[-1][0]) > 100:
            return ""
        value = change(float(found[-1][0]))
        shown = str(int(value)) if value == value and abs(value) < 1e15 and value == int(value) else str(value)
        return text[: found[-1].start()] + shown + text[found[-1].end() :]

    return changed


def _exchanged(one: str, other: str) -> Change:
    return lambda text, question: text.replace(one, "\0").replace(other, one).replace("\0", other)


_OPPOSITES = (("0", "1"), ("left", "right"), ("up", "down"), ("+", "-"))
_FORMS = (*TABLES["forms"], "9" * 500)
CHANGES: dict[str, Change] = {
    **{f"as {form[:60]!r}": _filled(form) for form in _FORMS},
    "in upper case": lambda text, question: text.upper(),
    "in lower case": lambda text, question: text.lower(),
    "with capitals": lambda text, question: text.title(),
    "backward": lambda text, question: text[::-1],
    "letters sorted": lambda text, question: "".join(sorted(text)),
    "letters apart": lambda text, question: " ".join(text),
    "without white space": lambda text, question: "".join(text.split()),
    "without punctuation": lambda text, question: re.sub(r"[^\w\s]", "", text),
    "without letters": lambda text, question: re.sub(r"[^\W\d_]", "", text),
    "without digits": lambda text, question: re.sub(r"\d", "", text),
    "without the first character": lambda text, question: text[1:],
    "without the last character": lambda text, question: text[:-1],
    "its first half": lambda text, question: text[: len(text) // 2],
    "its second half": lambda text, question: text[len(text) // 2 :],
    "its first character": lambda text, question: text[:1],
    "its last character": lambda text, question: text[-1:],
    "its length": lambda text, question: str(len(text)),
    "its first half and that backward": lambda text, question: (half := text[: (len(text) + 1) // 2]) + half[::-1],
    "fields backward": _fields(lambda fields: fields[::-1]),
    "fields sorted": _fields(sorted),
    "fields once": _fields(lambda fields: list(dict.fromkeys(fields))),
    "without the first field": _fields(lambda fields: fields[1:]),
    "without the last field": _fields(lambda fields: fields[:-1]),
    "fields each backward": _fields(lambda fields: [field[::-1] for field in fields]),
    "fields twice": _fields(lambda fields: [field for field in fields for _ in (0, 1)]),
    "two fields exchanged": _fields(lambda fields: [*fields[1::-1], *fields[2:]]),
    "count of fields": lambda text, question: str(len(text.split())),
    **{f"joined by {sign} ": _joined(f" {sign} ") for sign in "+*×-→"},
    "fields as JSON texts": lambda text, question: json.dumps(_split(text), ensure_ascii=False),
    "each field as a JSON list": lambda text, question: json.dumps([[f] for f in _split(text)], ensure_ascii=False),
    "lines backward": lambda text, question: "\n".join(text.splitlines()[::-1]),
    "lines sorted": lambda text, question: "\n".join(sorted(text.splitlines())),
    "twice": lambda text, question: f"{text} {text}",
    "twice, in lines": lambda text, question: f"{text}\n{text}",
    "twenty times": lambda text, question: " ".join([text] * 20),
    "its last number and one": _numbers(lambda number: number + 1),
    "its last number less one": _numbers(lambda number: number - 1),
    "its last number twice": _numbers(lambda number: number * 2),
    "half its last number": _numbers(lambda number: number / 2),
    "its last number negated": _numbers(lambda number: -number),
    "its last number off by a millionth": _numbers(lambda number: number * (1 + 1e-6)),
    "its last number off by a thousandth": _numbers(lambda number: number * 1.001),
    "look-alikes of letters": lambda text, question: text.translate(_LOOK_ALIKES),
    "full-width digits": lambda text, question: text.translate(_FULL_WIDTH),
    "superscript digits": lambda text, question: text.translate(_SUPERSCRIPT),
    "zero-width spaces inside": lambda text, question: "\u200b".join(text[:500]),
    "every digit made 0": lambda text, question: re.sub(r"\d", "0", text),
    "every 0 made 1": lambda text, question: text.replace("0", "1"),
    "every _ made 1": lambda text, question: text.replace("_", "1"),
    **{f"{one} and {other} exchanged": _exchanged(one, other) for one, other in _OPPOSITES},
    "moves undone": lambda text, question: " ".join(
        move[:-1] if move.endswith("'") else move + "'" for move in text.split()[::-1]
    ),
    "all in one line": lambda text, question: " ".join(text.split()),
}

JOINS = (" ", ", ", "\n", " or ", " and ", "/", " = ", " + ", "", " → ", "; ")


@dataclass(frozen=True)
class Template:
    """A gold answer with placeholders for tokens from the question: `6 × {number 2}`."""

    pieces: tuple[str | tuple[str, int], ...]

    def __str__(self) -> str:
        text = "".join(piece if isinstance(piece, str) else f"{{{piece[0]} {piece[1]}}}" for piece in self.pieces)
        return text if len(text) <= 120 else text[:117] + "..."

    def fill(self, question: str) -> str:
        """Return the template filled with tokens from `question`, or an empty string if the question lacks one of the
        tokens."""
        tokens = _tokens(question)
        found = []
        for piece in self.pieces:
            if isinstance(piece, str):
                found.append(piece)
                continue
            values = tokens[piece[0]]
            if not -len(values) <= piece[1] < len(values):
                return ""
            found.append(values[piece[1]])
        return "".join(found)


def _tokens(question: str) -> dict[str, list[str]]:
    """Return the question's tokens by kind: numbers, capitalized words, and other words without a final s."""
    found: dict[str, list[str]] = {"number": [], "name": [], "word": []}
    for token in _TOKEN.findall(question[:4000]):
        if token[-1].isdigit():
            found["number"].append(token)
        elif token[0].isupper():
            found["name"].append(token)
        elif token[0].isalpha():
            found["word"].append(token.removesuffix("s"))
    return found


def templates(questions: Sequence[str], golds: Sequence[str]) -> Iterator[Template]:
    """Yield up to three templates for each gold answer: with positions counted from the question's start, with
    positions counted from its end, and with placeholders only for names and numbers. Tokens that occur in more than
    half of the gold answers stay unchanged."""
    given = [(question, _TOKEN.findall(gold)) for question, gold in zip(questions, golds, strict=True) if gold.strip()]
    frequent = Counter(token for _, tokens in given for token in set(tokens))
    seen: set[Template] = set()
    for question, tokens in given:
        own = _tokens(question)
        every = ("number", "name", "word")
        for backward, kinds in ((False, every), (True, every), (False, ("number", "name"))):
            pieces: list[str | tuple[str, int]] = []
            for token in tokens:
                kind = next((kind for kind in kinds if token in own[kind]), None)
                if kind is None or frequent[token] * 2 > len(given):
                    pieces.append(token)
                else:
                    values = own[kind]
                    pieces.append((kind, -1 - values[::-1].index(token) if backward else values.index(token)))
            template = Template(tuple(pieces))
            if template not in seen and any(isinstance(piece, tuple) for piece in pieces):
                seen.add(template)
                yield template
