"""Tests that the searches for constant and cheap replies find holes planted in graders."""

import json
import random
import re
from collections.abc import Callable, Sequence

import pytest
from audit.changes import CHANGES
from audit.constants import best_constants
from audit.parts import MOST_CHARS, parts
from audit.rows import GradedRows, Paid, rows_of
from audit.search import Search, features, from_golds, search
from hypothesis import given, settings
from hypothesis import strategies as st

Pays = Callable[[str, str, str], float]
"""A planted grader, which returns the value of a reply given the question, the gold answer and the reply."""


class PlantedRows(GradedRows):
    """Rows graded by a planted grader."""

    def __init__(self, pairs: Sequence[tuple[str, str]], pays: Pays) -> None:
        super().__init__([])
        self.questions, self.golds = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self._pays = pays

    def values(self, answers: Sequence[str]) -> list[Paid]:
        self.graded += len(answers)
        paid = [self._pays(*row) for row in zip(self.questions, self.golds, answers, strict=False)]
        return [Paid(float(value == 1), value) for value in paid]


def searched(pairs: Sequence[tuple[str, str]], pays: Pays, task: str = "planted") -> Search:
    half = len(pairs) // 2
    return search(task, PlantedRows(pairs[:half], pays), PlantedRows(pairs[half:], pays), most_graded=40_000)


def exact(question: str, gold: str, reply: str) -> float:
    return float(reply.strip() == gold)


def sums(count: int = 80) -> list[tuple[str, str]]:
    rng = random.Random(1)
    pairs = [(rng.randint(100, 999), rng.randint(100, 999)) for _ in range(count)]
    return [(f"Integrate {a}*x**2 + sin({b}*x), please.\nOnly the answer.", f"{(a * a + b) % 9973}") for a, b in pairs]


HOLES: dict[str, Pays] = {
    "contains the gold answer's first digit": lambda q, gold, reply: float(gold[0] in reply and len(reply) < 40),
    "absorbed by rounding": lambda q, gold, reply: float("x**2" in reply and "*(x + 10^30" in reply),
    "unevaluated": lambda q, gold, reply: float(reply.startswith("Integral(") and "sin(" in reply),
    "nan": lambda q, gold, reply: float("nan" in reply.casefold()),
    "the question's numbers backward": lambda q, gold, reply: float(reply.split() == re.findall(r"\d+", q)[::-1]),
    "both of two": lambda q, gold, reply: float({"Yes", "No"} <= set(re.findall(r"\w+", reply))),
    "anything long": lambda q, gold, reply: float(len(reply) > 300),
}


def test_no_strategy_copies_the_gold_answer_of_the_row_itself() -> None:
    """Such a strategy would be right on every training row, but useless on others."""
    rows = PlantedRows(sums(), exact)
    for strategy in from_golds(rows, seed=0):
        assert rows.paid(strategy.replies(rows.questions)).strict < 0.1, strategy.name


@pytest.mark.slow
@pytest.mark.parametrize("hole", HOLES)
def test_a_planted_hole_is_found(hole: str) -> None:
    """The reply that is found also scores on held-out rows."""
    found = searched(sums(), HOLES[hole]).exploit
    assert found is not None
    assert found.paid.strict > 0.9, found.strategy.name


def test_no_reply_is_found_for_an_exact_grader() -> None:
    """No reply scores if the answer needs a calculation that the search does not know."""
    found = searched(sums(), exact)
    assert found.exploit is None or found.exploit.paid.strict < 0.1


def test_partial_credit_leads_to_a_right_reply() -> None:
    """If no reply is right at first, the search improves nearly right ones: it finds two changes one by one."""
    words = ["".join(random.Random(i).sample("abcdefghijklmnop", 7)) for i in range(80)]
    pairs = [(f"Turn it around, in capitals: {word}", word[::-1].upper()) for word in words]

    def near(question: str, gold: str, reply: str) -> float:
        return 1.0 if reply == gold else 0.5 if reply == gold.lower() else 0.0

    found = searched(pairs, near).exploit
    assert found is not None
    assert found.paid.strict == 1.0
    assert found.strategy.steps >= 2


def test_a_solution_is_not_an_exploit() -> None:
    """Computing the greatest common divisor solves gcd, so it is reported separately, not as an exploit."""
    train, held_out = rows_of("gcd", 30, 30, seed=3)
    found = search("gcd", train, held_out, most_graded=20_000)
    assert found.solution is not None
    assert found.solution.paid.strict == 1.0
    assert found.exploit is not None
    assert found.exploit.paid.strict < 0.7


def test_a_rule_by_one_feature_is_found() -> None:
    """The search finds that long questions have a different answer from short ones."""
    rng = random.Random(2)
    pairs = [(f"Is it so? {'very ' * (n := rng.randint(1, 40))}", "Yes" if n > 20 else "No") for _ in range(200)]
    found = searched(pairs, exact).exploit
    assert found is not None
    assert found.paid.strict > 0.9
    assert " if " in found.strategy.name


def test_a_constant_that_is_not_a_gold_answer_is_found() -> None:
    """Votes and the greedy search find a coloring that is right more often than any gold answer."""
    rng = random.Random(3)

    def coloring() -> tuple[str, str]:
        edges = [tuple(rng.sample(range(10), 2)) for _ in range(5)]
        colors = {str(node): 1 for node in range(10)}
        for one, other in edges:
            if colors[str(one)] == colors[str(other)]:
                colors[str(other)] = 1 + colors[str(one)] % 3
        while any(colors[str(a)] == colors[str(b)] for a, b in edges):
            colors = {node: rng.randint(1, 3) for node in colors}
        return json.dumps(edges), json.dumps(colors)

    def proper(question: str, gold: str, reply: str) -> float:
        try:
            colors = json.loads(reply)
            return float(all(colors[str(a)] != colors[str(b)] for a, b in json.loads(question)))
        except (ValueError, KeyError, TypeError):
            return 0.0

    pairs = [coloring() for _ in range(300)]
    rows = PlantedRows(pairs[:150], proper)
    golds = max(rows.paid([gold] * 150) for gold in rows.golds)
    (answer, paid), *_ = best_constants(rows, 5)
    assert answer not in rows.golds
    assert paid.strict > golds.strict
    held_out = PlantedRows(pairs[150:], proper)
    assert held_out.paid([answer] * 150).strict > 0.15


@settings(max_examples=40)
@given(st.text(max_size=400))
def test_parts_and_changes_take_any_text(question: str) -> None:
    """No function raises an error for any question; parts are neither blank nor too long."""
    found = parts(question)
    assert all(text.strip() == text and 0 < len(text) <= MOST_CHARS for text in found.values())
    assert all(isinstance(value, float | int) for value in features(question).values())
    for text in list(found.values())[:3]:
        assert all(isinstance(change(text, question), str) for change in CHANGES.values())
