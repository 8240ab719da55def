"""Our graders on the answers in Reasoning Gym's own tests: every difference from the library's score is explained.

The recorded calls are sampled where a test grades many items in a loop: see `tools/record_upstream_scores.py`. The
library is not called.
"""

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from disagreements import explanation

from rg_env.core.grading.extraction import Extraction
from rg_env.core.grading.graders.common import prefix
from rg_env.core.grading.scoring import CORRECT_FROM, Score, score_extraction
from rg_env.core.tasks.task_table import load_table

DATA = Path(__file__).parents[2] / "data" / "upstream_scores.jsonl.gz"


class Case(NamedTuple):
    test: str
    task: str
    config: dict[str, Any]
    entry: dict[str, Any]
    answer: str | None
    paid: float
    """The library's score."""


def cases() -> list[Case]:
    found = []
    with gzip.open(DATA, "rt", encoding="utf-8") as file:
        for line in map(json.loads, file):
            for test, answer, paid in line["calls"]:
                found.append(Case(test, line["task"], line["config"], line["entry"], answer, paid))
    return found


CASES = cases()


def ours(case: Case) -> Score:
    answer = (case.answer or "").strip()
    extraction = Extraction("ok", answer) if answer else Extraction("no_answer", None)
    return score_extraction(extraction, {"rg_task": case.task, "config": case.config, "entry": json.dumps(case.entry)})


@dataclass(frozen=True)
class Kind:
    """A reason why the library's score differs from our strict grading, which gives 1 or 0."""

    why: str
    right: bool
    """Whether our verdict is that the answer is right."""
    tasks: str
    """Tasks in which it occurs at least once."""
    fits: Callable[[Case], bool]


def answer_of(case: Case) -> str:
    return (case.answer or "").strip()


def gold_inside(case: Case) -> bool:
    """Whether the library's score is the gold answer's share of the answer's characters."""
    gold, given = case.entry["answer"].strip().upper(), answer_of(case).upper()
    return given != gold and gold in given and case.paid == pytest.approx(len(gold) / len(given), abs=1e-6)


def common_prefix(case: Case) -> bool:
    """Whether the library's score is the share of leading digits that are right."""
    texts = [f"{float(Fraction(text)):.10g}" for text in (answer_of(case), case.entry["answer"])]
    return case.paid < CORRECT_FROM and case.paid == pytest.approx(prefix(*texts) / min(map(len, texts)), abs=1e-6)


def numbers_off(case: Case) -> bool:
    """Whether the answer has as many numbers as the gold one, but different ones."""
    given, gold = (re.findall(r"-?\d+(?:\.\d+)?", text) for text in (answer_of(case), case.entry["answer"]))
    return len(given) == len(gold) and [*map(float, given)] != [*map(float, gold)]


def parts_right(case: Case) -> bool:
    """Whether some of the words, letters, numbers or cells are right, but not all of them."""
    given, gold = (re.findall(r"\w", text.casefold()) for text in (answer_of(case), case.entry["answer"] or ""))
    return given != gold and bool(set(given) & set(gold))


def same_items(case: Case) -> bool:
    """Whether the answer equals the gold one except for brackets, commas, quotes, whitespace and order."""
    given, gold = (re.findall(r"\w+", text) for text in (answer_of(case), case.entry["answer"]))
    return "".join(given) == "".join(gold) or sorted(given) == sorted(gold)


KINDS: dict[str, Kind] = {
    "consolation": Kind(
        "The library pays up to 0.1 for any answer, or any of the right shape.",
        False,
        "arc_agi calendar_arithmetic codeio countdown cryptarithm emoji_mystery group_anagrams palindrome_generation "
        "pool_matrix power_function prime_factorization puzzle24 rearc rubiks_cube rush_hour tower_of_hanoi tsumego",
        lambda case: case.paid <= 0.1,
    ),
    "gold inside": Kind(
        "The library pays for any text that contains the gold answer, less the longer it is.",
        False,
        "arc_1d basic_arithmetic tsumego",
        gold_inside,
    ),
    "label": Kind(
        "The library pays less for the right value after `The answer is`.",
        True,
        "products",
        lambda case: answer_of(case).startswith("The answer is ") and gold_inside(case),
    ),
    "leading digits": Kind("The library pays for leading digits that are right.", False, "coin_flip", common_prefix),
    "near": Kind(
        "The library pays for numbers that are wrong, less the farther they are off.",
        False,
        "complex_arithmetic polynomial_equations",
        lambda case: case.paid < CORRECT_FROM and numbers_off(case),
    ),
    "parts": Kind(
        "The library pays for parts of an answer; ours do with partial credit only.",
        False,
        "figlet_font futoshiki game_of_life knights_knaves letter_jumble polynomial_equations prime_factorization "
        "word_ladder word_sorting",
        lambda case: case.paid < CORRECT_FROM and parts_right(case),
    ),
    "longer path": Kind(
        "The question asks for the shortest path; the library pays half for a longer one.",
        False,
        "shortest_path",
        lambda case: case.paid == 0.5 and len(answer_of(case).split()) > len(case.entry["answer"].split()),
    ),
    "no palindromes": Kind(
        "The stored partition of the library's test has parts that are not palindromes.",
        False,
        "palindrome_partitioning",
        lambda case: any(part != part[::-1] for parts in json.loads(answer_of(case)) for part in parts),
    ),
    "nothing to do": Kind(
        "A blank answer counts as missing; rows leave out cubes that are solved already.",
        False,
        "rubiks_cube",
        lambda case: case.paid == 1 and not answer_of(case),
    ),
    "another layout": Kind(
        "The same items in the same order, as a list or without its outer brackets, are as clear.",
        True,
        "binary_matrix group_anagrams n_queens spiral_matrix string_insertion",
        same_items,
    ),
    "letter of the variable": Kind(
        "Questions say `dx` even for the variable `X`, so its letter case is free.",
        True,
        "simple_integration intermediate_integration",
        lambda case: case.answer in ("x**2 + C", "X**2 + C") and case.entry["metadata"]["integrand"] in ("2*x", "2*X"),
    ),
}


def listed(case: Case, right: bool) -> str | None:
    """The first of `KINDS` that explains this difference, with its task."""
    for name, kind in KINDS.items():
        if kind.right is right and case.task in kind.tasks.split() and kind.fits(case):
            return f"{name}: {case.task}"
    return None


def kind_of(case: Case, right: bool) -> str | None:
    """The kind of this difference, from `KINDS` or from the audit's explanations."""
    return listed(case, right) or explanation(case.task, case.entry, answer_of(case), right)


@pytest.fixture(scope="module")
def differences() -> list[tuple[Case, bool]]:
    """Cases in which our score differs from the library's, and whether the answer is right by our verdict."""
    scores = [(case, ours(case)) for case in CASES]
    assert {score.value for _, score in scores} == {0.0, 1.0}
    return [(case, score.value == 1) for case, score in scores if abs(score.value - case.paid) > 1 - CORRECT_FROM]


def test_the_data_is_of_all_tasks() -> None:
    """The data covers all tasks except boxnet, which the library's tests do not grade; most have wrong answers, too."""
    unsolved = {"boxnet", "rush_hour"}  # the library stores no right answers to their questions
    assert {case.task for case in CASES if case.paid >= CORRECT_FROM} == load_table().keys() - unsolved
    assert len({case.task for case in CASES if case.paid < CORRECT_FROM}) > 60
    assert len({case.test for case in CASES}) > 100


def test_every_difference_is_of_a_listed_kind(differences: list[tuple[Case, bool]]) -> None:
    """A new difference is either a mistake of a grader or a new kind."""
    new = [
        (case.test, case.task, case.answer, f"library {case.paid}, ours {float(right)}")
        for case, right in differences
        if kind_of(case, right) is None
    ]
    assert not new


def test_every_listed_kind_occurs(differences: list[tuple[Case, bool]]) -> None:
    """Every kind still occurs in each of its tasks."""
    found = {listed(case, right) for case, right in differences}
    assert {f"{name}: {task}" for name, kind in KINDS.items() for task in kind.tasks.split()} - found == set()


def test_kinds_excuse_nothing_else(differences: list[tuple[Case, bool]]) -> None:
    """Where the scores agree, no kind would explain the opposite verdict."""
    for case in CASES:
        if case.paid in (0, 1) and (case, case.paid == 0) not in differences:
            assert listed(case, case.paid == 0) is None, case


def test_only_broken_entries_cannot_be_graded() -> None:
    """Only one handwritten entry of the library's tests has a wrong gold answer."""
    ungradable = {case.test for case in CASES if ours(case).status == "ungradable"}
    assert ungradable == {"test_palindrome_partitioning.py::test_palindrome_partitioning_score_answer"}
