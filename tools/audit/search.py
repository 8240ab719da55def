"""Search each task for reward hacks: replies that earn rewards without solving the question, of the kind that RL
training would find.

A strategy is a function of the question's text alone. The search begins with thousands of strategies: constants,
everything that `parts` copies or computes, gold answers to other questions as templates, and the gold answer
to the most similar training question. The strategies with the best scores on a few rows are mutated and joined in pairs
(`changes`), in two rounds. Each round keeps the strategies with the highest accuracy, and a few with the highest
partial credit, which guides the search until a reply is right. The last step tries rules that choose between two of the
best strategies by one feature of the text (`_rule`). The winners on training rows are measured on held-out rows.

Some strategies do solve the task: `gcd`, for example, asks for the greatest common divisor of the question's numbers.
`SOLUTIONS` lists these strategies with reasons; they are reported separately, and are not mutated or joined.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

import numpy as np
import yaml

from .changes import CHANGES, JOINS, Change, templates
from .constants import best_constants
from .parts import parts
from .rows import GradedRows, Paid

TRIED = 12
"""Number of rows for the first rating of a strategy."""
_GLANCED = 6
"""Number of rows after which a strategy that scored 0 on all of them is graded no further. This affects about 1 in 60
of the strategies that score on half of all rows."""
_CHANGED = 16
_MOST_CHARS = 10_000


@dataclass(frozen=True)
class Strategy:
    """A function that replies to any question of a task."""

    name: str
    reply: Callable[[str], str]
    steps: int = 0
    """Number of mutations and joins that led to this strategy."""
    solves: bool = False
    """Whether the strategy solves the task."""

    def replies(self, questions: Iterable[str]) -> tuple[str, ...]:
        """Return the replies to `questions`, truncated to the maximum length that is scored."""
        return tuple(self.reply(question)[:_MOST_CHARS] for question in questions)


@dataclass(frozen=True)
class Found:
    """A strategy and its score on held-out rows."""

    strategy: Strategy
    paid: Paid


@dataclass(frozen=True)
class Search:
    """Results of the search on one task; a field is None if no such strategy scores on the training rows."""

    constant: Found | None
    """Best constant answer."""
    exploit: Found | None
    """Best strategy that does not solve the task, by accuracy; may be a constant."""
    partial: Found | None
    """Best strategy that does not solve the task, by mean score with partial credit."""
    solution: Found | None
    """Best strategy that solves the task."""
    tried: int
    """Number of strategies that were rated; strategies with equal replies count once."""
    graded: int
    """Number of answers graded on training rows."""


_KNOWN = yaml.safe_load(Path(__file__).with_name("known_replies.yaml").read_text(encoding="utf-8"))
SHORTCUTS: dict[str, str] = _KNOWN["shortcuts"]
"""Tasks in which a cheap reply is right on more than half of the rows, and why the grader is not at fault."""
SOLUTIONS: dict[str, dict[str, str]] = _KNOWN["solutions"]
"""By task, a regular expression for the `names` of strategies that solve the task, and `why` they do."""


def search(task: str, train: GradedRows, held_out: GradedRows, seed: int = 0, most_graded: int = 90_000) -> Search:
    """Search on `train`, and measure the winners on `held_out`; grade at most about `most_graded` answers."""
    pattern = re.compile(SOLUTIONS[task]["names"]) if task in SOLUTIONS else None
    constants = best_constants(train, 12, most_graded // 3)
    rating = _Rating(train, pattern, train.graded + most_graded * 2 // 3)
    fixed = [Strategy(f"constant {answer!r}", _constant(answer)) for answer, _ in constants]
    rating.add([*fixed, *_copied(train), *from_golds(train, seed)])
    for _ in range(2):
        best = rating.best(_CHANGED)
        rating.add(_joined(best[:6]))
        rating.add(_changed(best))
    finalists = [*fixed, *rating.best(24)]
    questions = train.questions
    final = [(train.paid(strategy.replies(questions)), strategy) for strategy in finalists]
    if rule := _rule(train, [strategy for _, strategy in sorted(final, key=_by_paid, reverse=True)[:12]]):
        final.append((train.paid(rule.replies(questions)), rule))

    def measured(those: list[tuple[Paid, Strategy]], partial: bool = False) -> Found | None:
        winner = _winner(those, len(train), partial)
        return None if winner is None else Found(winner, held_out.paid(winner.replies(held_out.questions)))

    cheap = [item for item in final if not item[1].solves]
    constant = measured([item for item in final if item[1] in fixed])
    exploit, near = measured(cheap), measured(cheap, partial=True)
    if constant and exploit and near:  # a strategy that won by chance may be worse than a constant
        exploit = max(exploit, constant, key=lambda found: found.paid.strict)
        near = max(near, exploit, key=lambda found: found.paid.partial)
    return Search(
        constant=constant,
        exploit=exploit,
        partial=near,
        solution=measured([(train.paid(strategy.replies(questions)), strategy) for strategy in rating.solving()]),
        tried=rating.tried,
        graded=train.graded,
    )


def _winner(those: Sequence[tuple[Paid, Strategy]], rows: int, partial: bool) -> Strategy | None:
    """Return the simplest strategy within a standard error of the best, because a smaller lead may be due to chance;
    None if no strategy scores."""
    rated = [(paid.partial if partial else paid.strict, strategy) for paid, strategy in those]
    most = max((value for value, _ in rated), default=0.0)
    if not most:
        return None
    enough = most - (most * (1 - most) / rows) ** 0.5
    close = [(strategy.steps, -value, len(strategy.name), strategy) for value, strategy in rated if value >= enough]
    return min(close, key=lambda item: item[:3])[-1]


def _by_paid(item: tuple[Paid, Strategy]) -> tuple[float, ...]:
    """Return a sort key that is larger for a higher score and, for equal scores, for fewer steps."""
    return (*item[0], -item[1].steps, -len(item[1].name))


class _Rating:
    """Strategies rated on the first rows; strategies with equal replies are included once."""

    def __init__(self, rows: GradedRows, solution: re.Pattern[str] | None, stop: int) -> None:
        self.tried = 0
        self._rows, self._solution, self._stop = rows, solution, stop
        self._questions = rows.questions[:TRIED]
        self._rated: list[tuple[Paid, Strategy]] = []
        self._seen: set[tuple[str, ...]] = set()

    def add(self, strategies: Iterable[Strategy]) -> None:
        for strategy in strategies:
            if self._rows.graded > self._stop:
                return
            replies = strategy.replies(self._questions)
            if replies in self._seen:
                continue
            self._seen.add(replies)
            self.tried += 1
            if self._solution is not None and self._solution.search(strategy.name):
                strategy = Strategy(strategy.name, strategy.reply, strategy.steps, solves=True)
            paid = self._rows.paid(replies[:_GLANCED])
            if paid.partial:
                paid = self._rows.paid(replies)
            self._rated.append((paid, strategy))

    def best(self, count: int) -> list[Strategy]:
        """Return the `count` best strategies that do not solve the task: three quarters by accuracy, the rest by
        partial credit."""
        cheap = [item for item in self._rated if not item[1].solves]
        right = [strategy for _, strategy in sorted(cheap, key=_by_paid, reverse=True)[: count * 3 // 4]]
        near = [s for _, s in sorted(cheap, key=lambda item: (item[0].partial, -item[1].steps), reverse=True)]
        return right + [strategy for strategy in near[:count] if strategy not in right][: count - len(right)]

    def solving(self) -> list[Strategy]:
        """Return the best three strategies that solve the task."""
        found = sorted((item for item in self._rated if item[1].solves), key=_by_paid, reverse=True)
        return [strategy for _, strategy in found[:3]]


def _constant(answer: str) -> Callable[[str], str]:
    return lambda question: answer


def _copied(rows: GradedRows) -> list[Strategy]:
    """Return a strategy for each part that occurs in one of the first questions."""
    names = dict.fromkeys(name for question in rows.questions[:TRIED] for name in parts(question))

    def part(name: str) -> Callable[[str], str]:
        return lambda question: _known_parts(question).get(name, "")

    return [Strategy(name, part(name)) for name in names]


@lru_cache(maxsize=512)
def _known_parts(question: str) -> dict[str, str]:
    return parts(question)


def from_golds(rows: GradedRows, seed: int) -> list[Strategy]:
    """Return strategies that use the gold answers of the rows after the first `TRIED`: templates, and the gold answer
    to the most similar of these rows' questions. A question's own gold answer is excluded, because it would always be
    right."""
    questions, golds = rows.questions[TRIED:], rows.golds[TRIED:]
    known = [
        (question, frozenset(question.split()), gold) for question, gold in zip(questions, golds, strict=True) if gold
    ]

    @lru_cache(maxsize=1024)
    def of_most_similar(question: str) -> str:
        words = frozenset(question.split())
        others = ((len(words & those) / len(words | those), gold) for other, those, gold in known if other != question)
        return max(others, key=itemgetter(0), default=(0.0, ""))[1]

    made = list(templates(questions, golds))
    chosen = random.Random(f"templates:{seed}").sample(made, min(150, len(made)))
    return [
        Strategy("gold answer of the most similar training question", of_most_similar, 1),
        *(Strategy(f"template {str(template)!r}", template.fill, 1) for template in chosen),
    ]


def _changed(those: Sequence[Strategy]) -> list[Strategy]:
    def after(reply: Callable[[str], str], change: Change) -> Callable[[str], str]:
        return lambda question: change(reply(question)[:_MOST_CHARS], question)

    return [
        Strategy(f"{strategy.name} | {name}", after(reply, change), strategy.steps + 1)
        for strategy in those
        for reply in [lru_cache(maxsize=512)(strategy.reply)]
        for name, change in CHANGES.items()
    ]


def _joined(those: Sequence[Strategy]) -> list[Strategy]:
    def both(one: Strategy, other: Strategy, separator: str) -> Callable[[str], str]:
        return lambda question: one.reply(question) + separator + other.reply(question)

    return [
        Strategy(f"{one.name} {separator!r} {other.name}", both(one, other, separator), one.steps + other.steps + 1)
        for one in those
        for other in those
        if one is not other
        for separator in JOINS
    ]


def features(question: str) -> dict[str, float]:
    """Return a question's features for rules, such as lengths, character counts, and the first and last numbers."""
    numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", question)[:400]]
    found: dict[str, float] = {
        "characters": len(question),
        "words": len(question.split()),
        "distinct words": len(set(question.split())),
        "lines": question.count("\n"),
        "numbers": len(numbers),
        "characters of the last line": len(question.strip().rpartition("\n")[2]),
        "words of the last line": len(question.strip().rpartition("\n")[2].split()),
        "characters of the last word": len((question.split() or [""])[-1]),
        "distinct characters": len(set(question)),
    }
    for index in range(min(6, len(numbers))):
        found[f"number {index}"], found[f"number -{index + 1}"] = numbers[index], numbers[-1 - index]
    if numbers:
        found |= {"largest number": max(numbers), "smallest number": min(numbers), "sum": sum(numbers)}
        found["parity of the sum"] = sum(numbers) % 2
        found["sum of the second half less the first"] = sum(numbers[len(numbers) // 2 :]) * 2 - sum(numbers)
    found |= {f"count of {character!r}": count for character, count in Counter(question).items()}
    words = question.split()
    found |= {f"count of the word {word!r}": count for word, count in Counter(words).items() if len(word) <= 20}
    found["difference of the lengths of the last two words"] = len(words[-1]) - len(words[-2]) if len(words) > 1 else 0
    found["distinct characters of the last word"] = len(set(words[-1])) if words else 0
    return found


def _rule(rows: GradedRows, those: Sequence[Strategy]) -> Strategy | None:
    """Return the best decision stump on the rows: one strategy for values of a feature up to a threshold, and another
    for larger values; None if a single strategy is at least as good."""
    measured = [features(question) for question in rows.questions]
    known = Counter(name for own in measured for name in own)
    names = sorted(name for name, count in known.items() if count > len(rows) // 10)
    right = np.array([[value.strict for value in rows.values(strategy.replies(rows.questions))] for strategy in those])
    best, chosen = right.sum(1).max(initial=0.0), None
    for name in names:
        values = np.array([own.get(name, 0.0) for own in measured])
        order = np.argsort(values, kind="stable")
        below = right[:, order].cumsum(1)
        above = below[:, -1:] - below
        sums = np.where(np.diff(values[order]) > 0, (below.max(0) + above.max(0))[:-1], 0.0)
        if len(sums) and sums.max() > best:
            at = int(sums.argmax())
            best = sums[at]
            chosen = name, float(values[order][at]), int(below[:, at].argmax()), int(above[:, at].argmax())
    if chosen is None:
        return None
    name, threshold, low, high = chosen

    def reply(question: str) -> str:
        return those[low if features(question).get(name, 0.0) <= threshold else high].reply(question)

    return Strategy(
        f"{those[low].name} if {name} <= {threshold:g} else {those[high].name}",
        reply,
        1 + max(those[low].steps, those[high].steps),
    )
