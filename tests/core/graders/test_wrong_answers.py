"""Wrong answers made of gold ones score below 1.0, for every task: judged by what makes them wrong, not by a grader.

Where the answer is unique, any other is wrong: a digit or a letter of it is changed. Where there are several, the gold
one is broken in a way that no rule allows (`BROKEN`): the last move of a shortest solution is left out, say.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from dresses import DRESSES
from grader_cases import ENTRIES, entries

from rg_env.core.grading.graders import gold_answer, grade
from rg_env.core.tasks.task_table import load_table

Entry = dict[str, Any]
ROUNDED = {
    *("advanced_geometry", "codeio", "coin_flip", "decimal_arithmetic", "number_format", "polynomial_equations"),
    *("pool_matrix", "power_function", "simple_geometry", "time_intervals"),
}
"""The last digit may be another (time_intervals' own is a millisecond short now and then): only the first of
a number is changed, which is a tenth of it at least."""
OPPOSITES = [("True", "False"), ("Yes", "No"), ("on", "off"), ("Peng", "Chi"), ("knight", "knave"), ("0", "1")]


def other_digit(gold: str, last: bool) -> list[str]:
    """The gold answer with its first or last digit one higher, 0 after 9."""
    digits = list(re.finditer(r"\d", gold))
    if not digits:
        return []
    at = digits[-1 if last else 0].start()
    return [f"{gold[:at]}{(int(gold[at]) + 1) % 10}{gold[at + 1 :]}"]


def other_letter(gold: str) -> list[str]:
    """The gold answer with its first letter, and with its last one, replaced by the next of the alphabet."""
    places = [match.start() for match in re.finditer(r"[A-Za-z]", gold)]
    next_one = {at: "a" if gold[at] in "zZ" else chr(ord(gold[at]) + 1) for at in places}
    return [gold[:at] + next_one[at] + gold[at + 1 :] for at in places[:1] + places[-1:]]


def opposite(gold: str) -> list[str]:
    """The other one of two answers."""
    pairs = [pair for one, two in OPPOSITES for pair in ((one, two), (two, one))]
    return [two for one, two in pairs if gold == one]


def unlike(task: str, gold: str) -> list[str]:
    """What differs from the only right answer."""
    found = other_digit(gold, last=False) + opposite(gold)
    if task not in ROUNDED:
        found += other_digit(gold, last=True)
    return found if re.search(r"\d", gold) else found + other_letter(gold)


def without_last(separator: str) -> Callable[[str, Entry], list[str]]:
    return lambda gold, entry: [separator.join(gold.split(separator)[:-1])]


def without_last_item(gold: str, entry: Entry) -> list[str]:
    """Of a JSON list, which may also be the word that there is no solution."""
    return [json.dumps(json.loads(gold)[:-1])] if gold.startswith("[") else [gold[::-1], "[]"]


def same_color(gold: str, entry: Entry) -> list[str]:
    """Both ends of one edge of the graph have one color."""
    coloring, (one, other) = json.loads(gold), entry["metadata"]["puzzle"]["edges"][0]
    return [json.dumps({**coloring, str(one): coloring[str(other)]}), json.dumps({**coloring, str(one): 999})]


def occupied(gold: str, entry: Entry) -> list[str]:
    """A move to where a stone is, and one beside the board."""
    board = entry["metadata"]["board"]
    size = len(board)
    row, column = next((r, c) for r in range(size) for c in range(size) if board[r][c] != ".")
    return [f"{chr(ord('A') + column)}{size - row}", f"A{size + 1}"]


BROKEN: dict[str, Callable[[str, Entry], list[str]]] = {
    "boxnet": without_last_item,
    "countdown": lambda gold, entry: [f"{gold} + 1", f"({gold})*1 + 2 - 1", str(entry["metadata"]["target"])],
    "cryptarithm": lambda gold, entry: [re.sub(r"^(\w=)(\d)(.*)\d$", r"\1\2\3\2", gold), gold[:-4]],  # a digit twice
    "graph_color": same_color,
    "intermediate_integration": lambda gold, entry: [f"{gold} + {entry['metadata']['variable']}", f"2*({gold}) + 1"],
    "jugs": without_last_item,
    "knight_swap": without_last_item,
    "modulo_grid": lambda gold, entry: [gold.replace("✅", "❌", 1), gold.replace("❌", "✅", 1), gold[:-2]],
    "n_queens": lambda gold, entry: [gold.replace("Q", "_", 1), gold.replace("_", "Q", 1)],
    "propositional_logic": lambda gold, entry: ["P ∧ ¬P", "P ∨ ¬P", f"{gold} ∧ (Q ∧ ¬Q)", f"¬{gold}"],
    "puzzle24": lambda gold, entry: [f"{gold} + 1", f"({gold}) - 0", "24"],
    "quantum_lock": without_last(" → "),
    "rubiks_cube": without_last(" "),
    "rush_hour": without_last(" "),
    "simple_integration": lambda gold, entry: [f"{gold} + {entry['metadata']['variable']}", f"2*({gold}) + 1"],
    "sokoban": lambda gold, entry: [gold[:-1]],
    "tower_of_hanoi": without_last("\n"),
    "tsumego": occupied,
}
"""Tasks with several right answers."""


@pytest.mark.parametrize("task", sorted(load_table()))
def test_a_wrong_answer_made_of_a_gold_one_is_not_right(task: str) -> None:
    """Nor is it with partial credit, nor in any dress; the gold answer itself is."""
    tried = 0
    for entry in entries(task):
        gold = gold_answer(task, entry)
        if gold is None:
            continue
        assert grade(task, {}, entry, gold) == 1.0
        for wrong in BROKEN[task](gold, entry) if task in BROKEN else unlike(task, gold):
            if wrong == gold:
                continue
            tried += 1
            value = grade(task, {}, entry, wrong, partial_credit=True)
            assert 0.0 <= value < 1.0, f"{wrong!r} for {gold!r}"
            for dress in DRESSES.values():
                dressed = dress(wrong)
                if dressed is not None:
                    assert grade(task, {}, entry, dressed, partial_credit=True) < 1.0, f"{dressed!r} for {gold!r}"
    assert tried >= ENTRIES / 2
