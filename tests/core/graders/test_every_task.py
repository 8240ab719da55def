"""Every task's grader, tested with gold answers in many forms, honest answers, wrong answers and hostile ones."""

import json
import re
import time
from math import inf
from pathlib import Path
from typing import Any

import pytest
from audit.__main__ import SLOW
from audit.disagreements import DISAGREEMENTS, explanation
from audit.honest import compare
from audit.wrappings import WRAPPINGS, taken
from data_files import data
from grader_cases import entries, entry
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.grading.audit import kept
from rg_env.core.grading.extraction import Extraction
from rg_env.core.grading.graders import GRADERS, gold_answer, grade
from rg_env.core.grading.graders.gold import STORED_ELSEWHERE
from rg_env.core.grading.scoring import MAX_ANSWER_CHARS, Score, score_extraction
from rg_env.core.tasks.task_table import load_table

TASKS = sorted(load_table())
LONG = MAX_ANSWER_CHARS
each_task = pytest.mark.parametrize("task", TASKS)


def graded(task: str, item: dict[str, Any] | str, answer: str, grading: str = "partial") -> Score:
    text = item if isinstance(item, str) else json.dumps(item)
    info = {"rg_task": task, "config": "{}", "entry": text, "grading": grading}
    return score_extraction(Extraction("ok", answer), info)


def filled(unit: str, length: int = LONG) -> str:
    """`unit`, repeated up to `length` characters."""
    return (unit * (length // len(unit) + 1))[:length]


HOSTILE = data("hostile")
ANSWERS = [
    *(HOSTILE["heavy"] + HOSTILE["odd"]),
    *map(filled, HOSTILE["repeated"]),
    *("0x" + "f" * 5000, "1" * LONG, "-" + "9" * (LONG - 1), "0." + "3" * (LONG - 2), "1/" + "7" * (LONG - 2)),
    *("[" * 5000 + "]" * 5000, "(" * 4999 + "1" + ")" * 5000, "\\boxed{" * 400 + "1" + "}" * 400, "A+1 " * 2500),
    *(" ∨ ".join(f"P{i}" for i in range(1000)), " and ".join(chr(65 + i % 26) for i in range(1500))),
    *(json.dumps([[0] * 60] * 50), json.dumps({str(i): i for i in range(800)}), json.dumps(list(range(1500)))),
    *("\x00" * 5000, "ﷺ" * 500, "🧩" * 2000, "e\u0301" * 2000),
]


def test_every_task_has_one_grader() -> None:
    """The task table lists exactly the tasks with graders; every task with known disagreements is one of them."""
    assert sorted(GRADERS) == TASKS
    assert set(DISAGREEMENTS) <= set(TASKS)


def timed(task: str, text: str, answer: str) -> tuple[Score, float]:
    """The score, and the CPU seconds that grading took. Slow answers are graded again, because garbage collection may
    interfere."""
    seconds = inf
    for _ in range(3):
        start = time.process_time()
        score = graded(task, text, answer)
        seconds = min(seconds, time.process_time() - start)
        if seconds < 0.5:
            break
    return score, seconds


@each_task
def test_hostile_answers_score_0_and_are_graded_quickly(task: str, tmp_path: Path) -> None:
    """No answer is executed, raises an error, scores above 0 or takes 0.5 s of CPU time (a few milliseconds are usual).
    Answers of megabytes are `too_long`; blank and missing ones score 0."""
    item = entries(task)[0]
    gold, text = gold_answer(task, item) or "", json.dumps(item)
    for payload in [*(code.format(path=tmp_path / "made") for code in HOSTILE["code"]), *ANSWERS]:
        score, seconds = timed(task, text, payload)
        shown = f"{payload[:60]!r} for {gold[:60]!r}: {score.value} {score.status} {score.detail}"
        assert seconds < 0.5, f"{seconds:.3f} s, {shown}"
        assert score.status == "wrong", shown
    assert not list(tmp_path.iterdir())
    for payload in ("<answer>" * 125_000, "7" * 10_000_000):
        score, seconds = timed(task, text, payload)
        assert score.status == "too_long"
        assert seconds < 0.5
    assert [graded(task, text, blank).value for blank in ("", " ", "\n\t")] == [0.0, 0.0, 0.0]
    info = {"rg_task": task, "config": "{}", "entry": text}
    assert score_extraction(Extraction("no_answer", None), info).status == "no_answer"


@each_task
def test_any_text_has_a_value_and_the_same_verdict_in_another_wrapping(task: str) -> None:
    """Random text, including text made of a gold answer's characters or words, is never ungradable, and a wrapping does
    not change its verdict."""
    item = entries(task)[0]
    text, gold = json.dumps(item), (gold_answer(task, item) or "0")[:2_000]
    signs = st.text(st.sampled_from(sorted(set(gold + "[](){},\"' \n-=+.0"))), max_size=60)
    tokens = st.lists(st.sampled_from(re.findall(r"\w+|\s+|[^\w\s]", gold)), max_size=30).map("".join)

    @settings(max_examples=20, database=None)
    @given(
        st.one_of(st.text(max_size=50), signs, tokens), st.sampled_from(("box", "bold", "italic", "dollars", "fence"))
    )
    def check(answer: str, wrapping: str) -> None:
        score = graded(task, text, answer)
        assert score.status != "ungradable", score.detail
        assert 0.0 <= score.value <= 1.0
        if answer.strip() and not set(answer) & set("*_`$\\{}"):
            wrapped = graded(task, text, WRAPPINGS[wrapping](answer) or "")
            assert (wrapped.status == "correct") == (score.status == "correct")

    check()


@each_task
def test_wrong_answers_to_a_broken_entry_are_ungradable(task: str) -> None:
    """If an entry's gold answer does not score 1.0, as in edited entries or those of another library release, wrong
    answers to it are ungradable rather than wrong."""
    item = entries(task)[0]
    for change in ({}, {"metadata": {}}, {"answer": "@@"}, {"answer": None}):
        broken = {**item, **change}
        try:
            gold = gold_answer(task, broken)
            fits = task in STORED_ELSEWHERE if gold is None else grade(task, {}, broken, gold.strip()) == 1.0
        except Exception:  # as in scoring: a grader may raise anything on a malformed entry
            fits = False
        for form in (json.dumps(broken), broken):
            for grading in ("hardened", "partial"):
                info = {"rg_task": task, "config": "{}", "entry": form, "grading": grading}
                score = score_extraction(Extraction("ok", "-98765"), info)
                # Without metadata, some graders raise only on the wrong answer.
                possible = {"wrong"} if fits and not change else {"wrong", "ungradable"} if fits else {"ungradable"}
                assert score.value == 0.0
                assert score.status in possible, f"{change}: {score}"


QUOTES = ("double quotes", "single quotes", "curly quotes", "single curly quotes")
LISTS = ("list", "list of a text")
REFUSED: dict[str, tuple[str, ...]] = {
    "base_conversion": ("thousands {,}", r"thousands \,"),  # digits in another base have no thousands separators
    "bf": LISTS,  # a program may print brackets
    "codeio": (*QUOTES, *LISTS),  # quotes turn a value into a string, and brackets into a list
}
"""Wrappings that change an answer's meaning, by task."""


@each_task
def test_a_right_answer_is_right_in_every_wrapping(task: str) -> None:
    """Gold answers are correct in all wrappings, except those in `REFUSED`."""
    refused = REFUSED.get(task, ())
    tried = 0
    for item in entries(task):
        gold = (gold_answer(task, item) or "").strip()
        for name, wrapping in [*WRAPPINGS.items(), ("white space", lambda answer: f"\n  {answer} \n")]:
            answer = wrapping(gold) if gold else None
            if answer is not None and name not in refused:
                tried += 1
                assert graded(task, item, answer, "hardened").status == "correct", f"{name}: {answer!r}"
    assert tried >= 30


def test_wrappings_that_change_the_meaning_are_refused_and_counted() -> None:
    """Graders refuse the wrappings in `REFUSED`, and the audit reports the share of accepted wrappings and the names of
    the others."""
    for task, names in REFUSED.items():
        for name in names:
            gold = {"bf": "onset", "codeio": "12" if name in LISTS else "[1, 2]"}.get(task, "123456")
            item = entry(gold, target_base=10, target_repr=gold)
            assert grade(task, {}, item, gold) == 1.0
            assert grade(task, {}, item, WRAPPINGS[name](gold) or "") == 0.0, name
    share, names = taken("base_conversion", [entry("123456", target_base=10, target_repr="123456")])
    assert names == ["thousands {,}", r"thousands \,"]
    assert share == pytest.approx(1 - 2 / sum(wrapping("123456") is not None for wrapping in WRAPPINGS.values()))


PART_OF_THE_ANSWER = {
    "knights_knaves": "sentences are read claim by claim, and names of other questions claim nothing",
    "polynomial_equations": "a quotient of two roots may be the right one",
    "propositional_logic": "`or` and brackets are signs of a formula",
}
"""Tasks in which some hedged answers are right, with the reason."""


@pytest.mark.parametrize("task", [task for task in TASKS if task not in PART_OF_THE_ANSWER])
def test_a_second_value_a_hedge_or_a_denial_is_wrong(task: str) -> None:
    """A gold answer next to a second value, a hedge or a denial does not get full value."""
    golds = [(item, (gold_answer(task, item) or "").strip()) for item in entries(task)]
    for item, gold in golds:
        others = [other for _, other in golds if other and other.casefold() != gold.casefold()] or ["-98765"]
        for hedge in HOSTILE["hedges"] if gold else []:
            answer = hedge.format(gold=gold, other=others[0])
            assert grade(task, {}, item, answer, partial_credit=True) < 1.0, answer


SLOW_TO_DRAW = {"codeio", "futoshiki", "intermediate_integration", "knight_swap"}
"""Tasks for which the library takes seconds per question, so that only two are tested here; the shipped table was
measured on more."""


@each_task
def test_honest_answers_are_graded_as_by_the_library(task: str) -> None:
    """Gold answers are correct. On altered answers and on answers to other questions, our grader and the library's
    agree, or the disagreement has a known explanation."""
    result = compare(task, items=2 if task in SLOW_TO_DRAW else 8, seeds=[5])
    assert not result.gold_wrong
    assert not result.unexplained, result.examples


@pytest.mark.parametrize("task", DISAGREEMENTS)
def test_no_kind_of_disagreement_excuses_a_mistake_on_gold_answers(task: str) -> None:
    """No explanation covers a rejected gold answer, or an accepted answer that is entirely different."""
    for item in entries(task):
        gold = gold_answer(task, item)
        if gold is not None:
            assert explanation(task, item, gold, right=False) is None, gold
        assert explanation(task, item, "7, 7 and 7 (a guess)", right=True) is None


def test_the_shipped_table_explains_every_disagreement() -> None:
    """Each task was measured on 100 questions for each of three seeds (fewer if they are slow to draw), and every
    disagreement is of a kind that still exists."""
    audits = kept()
    assert sorted(audits) == TASKS
    for task, result in audits.items():
        items = 3 * round(100 * SLOW.get(task, 1.0))
        assert (result.items, result.gold_wrong, result.unexplained) == (items, 0, 0), task
        assert result.answers >= 100, task
        assert sum(kind["count"] for kind in result.kinds.values()) == result.disagreements, task
        assert set(result.kinds) <= set(DISAGREEMENTS.get(task, {})), task
