"""Constant answers: the best one found on training rows is right on few evaluation rows."""

import itertools
import json
import random
from collections import Counter
from typing import Any

import pytest

from rg_env.core.data.dataset import DrawnRow, build_rows
from rg_env.core.data.selection import BALANCED
from rg_env.core.grading.graders import grade
from rg_env.core.grading.graders.logic import Premises, parse

ROWS = 150
NOISE = 1.05
"""Factor by which an answer may exceed its share, because shares are rounded up to whole rows."""
OPEN = ["binary_alternation", "gcd", "letter_counting", "maze", "rotten_oranges", "self_reference", "shortest_path"]
"""Tasks with a share of their own and one right answer per question, except polynomial_equations, which is slow to
draw."""


def _rows(task: str) -> tuple[list[DrawnRow], list[DrawnRow]]:
    return build_rows(task, "train", ROWS, 5), build_rows(task, "eval", ROWS, 6)


def _entries(rows: list[DrawnRow]) -> list[dict[str, Any]]:
    return [json.loads(row["info"]["entry"]) for row in rows]


def _share(task: str, answer: str, entries: list[dict[str, Any]]) -> float:
    return sum(grade(task, {}, entry, answer) == 1.0 for entry in entries) / len(entries)


@pytest.mark.parametrize("task", OPEN)
def test_no_gold_answer_has_more_than_its_share(task: str) -> None:
    """The most frequent gold answers of training rows are right on at most one evaluation row in `BALANCED[task]`."""
    train, evaluation = _rows(task)
    common = Counter(row["answer"] for row in train).most_common(3)
    best = max(_share(task, answer, _entries(evaluation)) for answer, _ in common)
    assert best <= NOISE / BALANCED[task]


def _columns(names: str) -> list[str]:
    """A formula for every truth function of these variables, except the constant ones."""
    rows = [" ∧ ".join(f"{sign}{name}" for sign, name in zip(signs, names, strict=True))
            for signs in itertools.product(["", "¬"], repeat=len(names))]  # fmt: skip
    return [
        " ∨ ".join(f"({row})" for row, true in zip(rows, truth, strict=True) if true)
        for truth in itertools.product([False, True], repeat=len(rows))
        if any(truth) and not all(truth)
    ]


def test_no_formula_is_right_on_more_than_a_fifth() -> None:
    """The candidates are all truth functions of two variables and of P, Q and R, and some of four. The best ones on
    training rows are tested on evaluation rows."""
    train, evaluation = map(_entries, _rows("propositional_logic"))
    candidates = [formula for pair in itertools.combinations("PQRS", 2) for formula in _columns("".join(pair))]
    candidates += _columns("PQR")
    literals = [sign + name for name in "PQRS" for sign in ("", "¬")]
    candidates += [" ∨ ".join(some) for size in (3, 4) for some in itertools.combinations(literals, size)]
    candidates += [" ∧ ".join(some) for size in (2, 3) for some in itertools.combinations(literals, size)]
    on_train = dict.fromkeys(candidates, 0.0)
    # parsed only once, because parsing takes longer than the rest
    parsed = {formula: parse(formula, "PQRS") for formula in candidates}
    for entry in train:
        premises = Premises(entry["metadata"])
        for text, formula in parsed.items():
            if formula and {*text} & {*"PQRS"} <= {*premises.variables}:
                on_train[text] += premises.lead_to(formula) / len(train)
    best = sorted(candidates, key=lambda formula: -on_train[formula])[:40]
    assert on_train[best[0]] > 0.1  # the search is not trivially bad
    assert on_train[best[0]] <= 0.2
    assert max(_share("propositional_logic", formula, evaluation) for formula in best) <= 0.2


def test_copying_the_premises_is_rarely_right() -> None:
    """Premises joined by "and", even if weakened by an "or", are rarely a right answer."""
    entries = _entries(_rows("propositional_logic")[0])
    copies = {"": 0.1, " ∨ P": 0.25, " ∨ ¬Q": 0.25, " ∧ R": 0.1, " ∨ (P ∧ Q)": 0.1, " ∨ ¬(P ∧ Q)": 0.25}
    for copy, most in copies.items():
        right = 0.0
        for entry in entries:
            answer = f"({' ∧ '.join(entry['metadata']['premises'])}){copy}"
            right += grade("propositional_logic", {}, entry, answer)
        assert right / len(entries) <= most, copy


def test_no_coloring_fits_more_than_a_quarter_of_the_graphs() -> None:
    """The coloring is the best one that a local search finds on training rows."""
    train, evaluation = ([e["metadata"]["puzzle"]["edges"] for e in _entries(rows)] for rows in _rows("graph_color"))

    def fits(colors: list[int], graphs: list[list[list[int]]]) -> float:
        return sum(all(colors[a] != colors[b] for a, b in edges) for edges in graphs) / len(graphs)

    rng = random.Random(0)
    best = (0.0, [1] * 10)
    for _ in range(12):
        colors = [1, 1, 1, 2, 2, 2, 3, 3, 3, rng.randint(1, 3)]
        rng.shuffle(colors)
        value, moved = fits(colors, train), True
        while moved:
            changes = [[*colors[:v], color, *colors[v + 1 :]] for v in range(10) for color in (1, 2, 3)]
            for a, b in itertools.combinations(range(10), 2):
                swapped = list(colors)
                swapped[a], swapped[b] = colors[b], colors[a]
                changes.append(swapped)
            found = max((fits(change, train), change) for change in changes)
            moved = found[0] > value
            if moved:
                value, colors = found
        best = max(best, (value, colors))
    assert best[0] > 0.15  # the search is not trivially bad
    assert fits(best[1], evaluation) <= 0.25
