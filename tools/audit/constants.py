"""Search for the constant answer that is most often right on training rows; `search` measures it on other rows.

Candidates are the gold answers, their parts, answers that are common in many tasks (`USUAL`), short formulas, and the
majority vote of the gold answers at each position (for colorings and boards). The best candidates are then changed
token by token as long as the score increases. This greedy search finds, for example, colorings that are not the gold
answer to any question.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from .changes import TABLES
from .rows import GradedRows, Paid

USUAL = (*map(str, range(-10, 101)), *TABLES["usual"])
_FORMULA = re.compile(r"[∧∨¬→↔]")
_TOKEN = re.compile(r"\w+|[^\w\s]|\s+")
_MOST_PLACES = 60
_WORTH_CLIMBING = 0.03
"""Minimum accuracy for the greedy search; less accurate answers are specific to single rows and not worth improving."""
_HALVINGS = ((16, 60), (60, 12))
"""Rounds of elimination, each with the number of rows to grade on and the number of answers to keep."""


def best_constants(rows: GradedRows, count: int, most_graded: int = 60_000) -> list[tuple[str, Paid]]:
    """Return the best `count` answers on `rows`, best first; grade at most about `most_graded` answers."""
    stop = rows.graded + most_graded
    left = list(candidates(rows))
    for tried, kept in _HALVINGS:
        if tried < len(rows):
            rated = ranked(left, rows, tried, rows.graded + most_graded // 3)
            left = [answer for answer, _ in rated[:kept]]
    found = dict(ranked(left, rows, len(rows), stop))
    for answer in sorted(found, key=lambda answer: found[answer], reverse=True)[:3]:
        if found[answer].strict >= _WORTH_CLIMBING:
            found |= climb(answer, rows, stop)
    return sorted(found.items(), key=lambda item: (*item[1], -len(item[0])), reverse=True)[:count]


def ranked(answers: Iterable[str], rows: GradedRows, tried: int, stop: int) -> list[tuple[str, Paid]]:
    """Return the answers sorted by score on the first `tried` rows; grading stops when `rows.graded` reaches `stop`."""
    rated = []
    for answer in answers:
        if rows.graded >= stop:
            break
        rated.append((answer, rows.paid([answer] * tried)))
    return sorted(rated, key=lambda item: item[1], reverse=True)


def candidates(rows: GradedRows) -> Iterator[str]:
    """Yield distinct candidates, most promising first."""
    golds = [gold for gold in rows.golds if gold.strip()]
    tokens = Counter(token for gold in golds for token in set(_TOKEN.findall(gold)) if token.strip())
    lines = Counter(line for gold in golds for line in set(gold.splitlines()) if line.strip())
    fields = Counter(field for gold in golds for field in set(gold.split()))
    frequent = [field for field, _ in fields.most_common(6)]
    formulas = short_formulas(golds) if any(map(_FORMULA.search, golds)) else []
    groups: tuple[Iterable[str], ...] = (
        [gold for gold, _ in Counter(golds).most_common()],
        votes(golds),
        *([part for part, _ in counted.most_common(40)] for counted in (tokens, fields, lines)),
        (f"{part} {other}" for part, other in itertools.permutations(frequent, 2)),
        USUAL,
        formulas,
    )
    yield from dict.fromkeys(itertools.chain.from_iterable(groups))


def votes(golds: Sequence[str]) -> Iterator[str]:
    """Yield answers made up of the most frequent token at each position, among gold answers with the same number of
    tokens. For JSON objects, also yield an object with the most frequent value for each key."""
    by_length: dict[int, list[list[str]]] = {}
    for gold in golds:
        tokens = _TOKEN.findall(gold)
        by_length.setdefault(len(tokens), []).append(tokens)
    for group in sorted(by_length.values(), key=len, reverse=True)[:5]:
        yield "".join(Counter(column).most_common(1)[0][0] for column in zip(*group, strict=True))
    maps = [value for value in map(_json, golds) if isinstance(value, dict)]
    keys = {key: Counter(str(value[key]) for value in maps if key in value) for value in maps for key in value}
    if keys:
        yield json.dumps({key: _json(counted.most_common(1)[0][0]) for key, counted in keys.items()})


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def short_formulas(golds: Sequence[str]) -> Iterator[str]:
    """Yield logic formulas with up to three of the most frequent variables, plain or negated."""
    variables = [name for name, _ in Counter(re.findall(r"[A-Z]", "".join(golds))).most_common(4)]
    literals = [sign + name for name in variables for sign in ("", "¬")]
    pairs = [f"({a} {link} {b})" for a, b in itertools.permutations(literals, 2) for link in "∨∧→↔"]
    yield from literals
    yield from (text[1:-1] for text in pairs)
    yield from ("¬" + text for text in pairs)
    names = [*literals, *(f"({name} ∨ {name})" for name in variables)]
    yield from (f"({a} {link} {b})" for a, b in itertools.product(names, repeat=2) for link in "∨→")
    clauses = itertools.combinations(literals, 3)
    yield from (f"{a} ∨ {b} ∨ {c}" for a, b, c in clauses)
    yield from (f"{a} → ({b} ∨ {c})" for a, b, c in itertools.permutations(literals, 3))
    yield from (f"{a} → ({b} → {c})" for a, b, c in itertools.permutations(literals, 3))


def climb(answer: str, rows: GradedRows, stop: int) -> dict[str, Paid]:
    """Improve an answer by changing one token at a time until no change helps or `rows.graded` reaches `stop`. Return
    the score of each version."""
    best = rows.paid([answer] * len(rows))
    steps = {answer: best}
    alternatives = _alternatives(rows.golds)
    improved = True
    while improved and rows.graded < stop:
        improved = False
        for place in range(min(len(_TOKEN.findall(answer)), _MOST_PLACES)):
            tokens = _TOKEN.findall(answer)
            if place >= len(tokens) or not tokens[place].strip():
                continue
            for token in alternatives(tokens[place]):
                changed = "".join([*tokens[:place], token, *tokens[place + 1 :]])
                if rows.graded >= stop or changed in steps:
                    continue
                paid = rows.paid([changed] * len(rows))
                if paid > best:
                    answer, best, improved = changed, paid, True
                    steps[changed] = paid
                    break
    return steps


def _alternatives(golds: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a function that lists alternatives to a token: the eight most frequent other tokens of the same kind
    (number, word, sign) in `golds`."""
    common = Counter(token for gold in golds for token in _TOKEN.findall(gold) if token.strip())
    by_kind: dict[str, list[str]] = {}
    for token, _ in common.most_common():
        by_kind.setdefault(_kind(token), []).append(token)
    return lambda token: [other for other in by_kind.get(_kind(token), []) if other != token][:8]


def _kind(token: str) -> str:
    return "number" if token.isdigit() else "word" if token[0].isalnum() or token[0] == "_" else "sign"
