"""Our graders on the answers in Reasoning Gym's own tests: every difference from the library's score is explained.

The recorded calls are sampled where a test grades many items in a loop: see `tools/record_upstream_scores.py`. The
library is not called.
"""

import gzip
import json
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from audit.disagreements import explanation

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
    library_score: float
    """The library's score."""


def cases() -> list[Case]:
    found = []
    with gzip.open(DATA, "rt", encoding="utf-8") as file:
        for line in map(json.loads, file):
            for test, answer, library_score in line["calls"]:
                found.append(Case(test, line["task"], line["config"], line["entry"], answer, library_score))
    return found


CASES = cases()


def ours(case: Case) -> Score:
    answer = (case.answer or "").strip()
    extraction = Extraction("ok", answer) if answer else Extraction("no_answer", None)
    return score_extraction(extraction, {"rg_task": case.task, "config": case.config, "entry": json.dumps(case.entry)})


class Kind(NamedTuple):
    """A reason why the library's score differs from our strict grading, which gives 1 or 0."""

    name: str
    right: bool
    """Whether the answer is right by our verdict."""
    tasks: list[str]
    """Tasks in which it occurs at least once."""
    fits: Callable[[Case], bool]


KINDS: list[Kind] = []


def kind(tasks: str, *, right: bool = False) -> Callable[[Callable[[Case], bool]], Callable[[Case], bool]]:
    """Register a function that decides whether a difference is of the kind that its docstring describes."""

    def register(fits: Callable[[Case], bool]) -> Callable[[Case], bool]:
        KINDS.append(Kind(fits.__name__, right, tasks.split(), fits))
        return fits

    return register


def answer_of(case: Case) -> str:
    return (case.answer or "").strip()


@kind(
    "arc_agi calendar_arithmetic codeio countdown cryptarithm emoji_mystery group_anagrams palindrome_generation "
    "pool_matrix power_function prime_factorization puzzle24 rearc rubiks_cube rush_hour tower_of_hanoi tsumego"
)
def consolation(case: Case) -> bool:
    """The library gives up to 0.1 for any answer, or any of the right shape."""
    return case.library_score <= 0.1


@kind("basic_arithmetic")
def gold_inside(case: Case) -> bool:
    """The library accepts any text that contains the gold answer; its score is the share of the gold answer."""
    gold, given = case.entry["answer"].strip().upper(), answer_of(case).upper()
    return given != gold and gold in given and case.library_score == pytest.approx(len(gold) / len(given), abs=1e-6)


@kind("arc_1d calendar_arithmetic products tsumego", right=True)
def label(case: Case) -> bool:
    """The library takes off credit for words such as `The answer is` before the right answer."""
    gold = case.entry["answer"]
    return answer_of(case) == f"It is {gold}" or (answer_of(case).endswith(gold) and gold_inside(case))


@kind("coin_flip")
def leading_digits(case: Case) -> bool:
    """The library's score is the share of leading digits that are right."""
    texts = [f"{float(Fraction(text)):.10g}" for text in (answer_of(case), case.entry["answer"])]
    return case.library_score < CORRECT_FROM and case.library_score == pytest.approx(
        prefix(*texts) / min(map(len, texts)), abs=1e-6
    )


@kind("complex_arithmetic polynomial_equations")
def near(case: Case) -> bool:
    """The library gives partial credit for wrong numbers, which decreases with the error."""
    given, gold = (re.findall(r"-?\d+(?:\.\d+)?", text) for text in (answer_of(case), case.entry["answer"]))
    return case.library_score < CORRECT_FROM and len(given) == len(gold) and [*map(float, given)] != [*map(float, gold)]


@kind(
    "figlet_font futoshiki game_of_life knights_knaves letter_jumble polynomial_equations prime_factorization "
    "word_ladder word_sorting"
)
def parts(case: Case) -> bool:
    """The library gives credit if some words, letters, numbers or cells are right; our graders do so only as partial
    credit."""
    given, gold = (re.findall(r"\w", text.casefold()) for text in (answer_of(case), case.entry["answer"] or ""))
    return case.library_score < CORRECT_FROM and given != gold and bool(set(given) & set(gold))


@kind("shortest_path")
def longer_path(case: Case) -> bool:
    """The question asks for the shortest path; the library gives half credit for a longer one."""
    return case.library_score == 0.5 and len(answer_of(case).split()) > len(case.entry["answer"].split())


@kind("palindrome_partitioning")
def no_palindromes(case: Case) -> bool:
    """The partition stored in the library's test has parts that are not palindromes."""
    return any(part != part[::-1] for parts in json.loads(answer_of(case)) for part in parts)


@kind("rubiks_cube")
def nothing_to_do(case: Case) -> bool:
    """A blank answer counts as missing. The library accepts it for cubes that are already solved, which never become
    rows."""
    return case.library_score == 1 and not answer_of(case)


@kind("binary_matrix group_anagrams n_queens spiral_matrix string_insertion", right=True)
def another_layout(case: Case) -> bool:
    """The same items are right with or without brackets, and anagrams in any order."""
    given, gold = (re.findall(r"\w+", text) for text in (answer_of(case), case.entry["answer"]))
    return "".join(given) == "".join(gold) or sorted(given) == sorted(gold)


@kind("simple_integration intermediate_integration", right=True)
def case_of_the_variable(case: Case) -> bool:
    """Questions say `dx` even for the variable `X`, so its letter case does not matter."""
    return case.answer in ("x**2 + C", "X**2 + C") and case.entry["metadata"]["integrand"] in ("2*x", "2*X")


def listed(case: Case, right: bool) -> str | None:
    """The first of `KINDS` that explains this difference, with its task."""
    found = (each for each in KINDS if each.right is right and case.task in each.tasks and each.fits(case))
    return next((f"{each.name}: {case.task}" for each in found), None)


@pytest.fixture(scope="module")
def differences() -> list[tuple[Case, bool]]:
    """Cases in which our score differs from the library's, and whether the answer is right by our verdict."""
    scores = [(case, ours(case)) for case in CASES]
    assert {score.value for _, score in scores} == {0.0, 1.0}
    return [
        (case, score.value == 1) for case, score in scores if abs(score.value - case.library_score) > 1 - CORRECT_FROM
    ]


def test_the_data_covers_all_tasks() -> None:
    """The data has right answers for all tasks except `unsolved`, and wrong answers for most."""
    unsolved = {"boxnet", "rush_hour"}  # the library stores no right answers to their questions
    assert {case.task for case in CASES if case.library_score >= CORRECT_FROM} == load_table().keys() - unsolved
    assert len({case.task for case in CASES if case.library_score < CORRECT_FROM}) > 60
    assert len({case.test for case in CASES}) > 100


def test_every_difference_is_of_a_listed_kind(differences: list[tuple[Case, bool]]) -> None:
    """A new difference is either a grader's mistake or a new kind."""
    new = [
        (case.test, case.task, case.answer, f"library {case.library_score}, ours {float(right)}")
        for case, right in differences
        if not (listed(case, right) or explanation(case.task, case.entry, answer_of(case), right))
    ]
    assert not new


def test_every_listed_kind_occurs(differences: list[tuple[Case, bool]]) -> None:
    """Every kind still occurs in each of its tasks."""
    found = {listed(case, right) for case, right in differences}
    assert {f"{each.name}: {task}" for each in KINDS for task in each.tasks} - found == set()


def test_kinds_excuse_nothing_else(differences: list[tuple[Case, bool]]) -> None:
    """Where the scores agree, no kind would explain the opposite verdict."""
    for case in CASES:
        if case.library_score in (0, 1) and (case, case.library_score == 0) not in differences:
            assert listed(case, case.library_score == 0) is None, case


def test_only_broken_entries_cannot_be_graded() -> None:
    """Only one entry in the library's tests, a handwritten one, has a wrong gold answer."""
    ungradable = {case.test for case in CASES if ours(case).status == "ungradable"}
    assert ungradable == {"test_palindrome_partitioning.py::test_palindrome_partitioning_score_answer"}
