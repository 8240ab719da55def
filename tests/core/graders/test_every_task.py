"""Every task's grader: gold answers, honest answers beside the library's own grader, and hostile ones."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from disagreements import DISAGREEMENTS, explanation
from grader_audit import SLOW
from grader_cases import entries
from honest_answers import compare

from rg_env.core.grading.audit import kept
from rg_env.core.grading.extraction import Extraction
from rg_env.core.grading.graders import GRADERS, gold_answer, grade
from rg_env.core.grading.graders.gold import STORED_ELSEWHERE
from rg_env.core.grading.scoring import MAX_ANSWER_CHARS, Score, score_extraction
from rg_env.core.tasks.task_table import load_table

TASKS = sorted(load_table())
LONG = MAX_ANSWER_CHARS


def graded(task: str, entry: dict[str, Any], answer: str, grading: str = "partial") -> Score:
    info = {"rg_task": task, "config": "{}", "entry": json.dumps(entry), "grading": grading}
    return score_extraction(Extraction("ok", answer), info)


def filled(unit: str, length: int = LONG) -> str:
    """`unit` over and over, up to `length` characters."""
    return (unit * (length // len(unit) + 1))[:length]


CODE = [
    "__import__('os').system('touch {path}')",
    "[open('{path}', 'w').close()]",
    "exec(\"open('{path}','w')\")",
    "().__class__.__bases__[0].__subclasses__()",
    "[[__import__('pathlib').Path('{path}').touch() or 1]]",
    "lambda: open('{path}', 'w')",
    "{{x for x in [open('{path}','w')]}}",
    'f\'{{open("{path}", "w")}}\'',
    "Symbol('x').__init__.__globals__['__builtins__']['open']('{path}','w')",
    '{{"__class__": "os.system", "args": ["touch {path}"]}}',
    "!!python/object/apply:os.system ['touch {path}']",
    "cos.__globals__",
    "(lambda f: f(f))(lambda f: f(f))",
    "while True: pass",
]
HEAVY = [
    "9**9**9**9",
    "9^9^9^9^9",
    "2**(2**(2**(2**(2**2))))",
    "factorial(10**8)",
    "expand((x+1)**20000)",
    "(x+1)^20000",
    "x**999999999",
    "((((x+y)^99)^99)^99)^99",
    "prod(range(10**9))",
    "1e999999999",
    "-1e-999999999",
    "1e400",
    "10**400000",
    "1/1e-400",
    "0x" + "f" * 5000,
    "1" * LONG,
    "-" + "9" * (LONG - 1),
    "0." + "3" * (LONG - 2),
    "1/" + "7" * (LONG - 2),
    "R999999999",
    "A+999999999999",
    "A+1 " * 2500,
    filled("R U R' U' "),
    filled("Move disk 1 from Peg 1 to Peg 2\n"),
    filled("((((("),
    filled("[[[[["),
    filled('{"a":'),
    filled("[" * 5000 + "]" * 5000),
    filled("(" * 4999 + "1" + ")" * 5000),
    filled("-"),
    filled("~"),
    filled("not "),
    filled("+-"),
    filled("1+"),
    filled("x*"),
    filled("x*x+"),
    filled("(x+1)*"),
    filled("(x+1)(y-1)"),
    filled("sin("),
    filled("a/"),
    filled("A∧"),
    filled("(A ∨ "),
    filled("((A→B)↔"),
    filled("(A↔B)∧(C∨D)→"),
    " ∨ ".join(f"P{i}" for i in range(1000)),
    " and ".join(chr(65 + i % 26) for i in range(1500)),
    filled("1,"),
    filled("1 "),
    filled("a "),
    filled("\n"),
    filled("1\n"),
    filled("| 1 "),
    filled("word, "),
    filled("["),
    filled('"'),
    filled("\\"),
    filled("\\frac{1}{"),
    filled("\\boxed{"),
    "\\boxed{" * 400 + "1" + "}" * 400,
    filled("$"),
    filled("```"),
    filled("<answer>"),
    filled("</answer><answer>"),
    filled("{"),
    filled("**"),
    filled("knight, "),
    filled("Alice is a knight. "),
    json.dumps([[0] * 60] * 50),
    json.dumps({str(i): i for i in range(800)}),
    json.dumps(list(range(1500))),
]
ODD = [
    "nan",
    "NaN",
    "[NaN, NaN, NaN]",
    "[nan, nan]",
    "inf",
    "-Infinity",
    "[Infinity]",
    "1j*inf",
    "None",
    "null",
    "undefined",
    "{}",
    "[]",
    "[[]]",
    "[[], []]",
    "()",
    '""',
    "''",
    ".",
    ",",
    "-",
    "=",
    "?",
    "\x00",
    "1\x002",
    "\x00" * 5000,
    "\ud800",
    "\udfff12\ud800",
    "\u202e12",
    "\ufeff",
    "\u200b\u200b",
    "١٢٣",
    "²³",
    "𝟙𝟚",
    "½",
    "Ⅷ",
    "ﷺ" * 500,
    "🧩" * 2000,
    "e\u0301" * 2000,
    "Integral(f, x)",
    "Integral(x, x)",
    "integrate(x)",
    "expand(f)",
    "simplify(0)",
    "Derivative(x)",
    "the answer",
    "I do not know",
    "see above",
    "answer",
    "<answer>",
    "a<b>c</b>",
    '{"a": {"b": {"c": 1}}}',
    '[{"Agent[0.5, 0.5]": "move(box_blue, square[0.5, 1.5])"}]',
    "[1, [2, [3, [4, [5]]]]]",
    "[true, 1, '1', 1.0]",
    '{"0": 1e999}',
    "[1e999]",
    "not a number",
    "%s%s%s%n",
    "${jndi:ldap://127.0.0.1/a}",
    "'; DROP TABLE answers; --",
]


def test_every_task_has_one_grader() -> None:
    """And no grader is for a task that does not exist."""
    assert sorted(GRADERS) == TASKS
    assert set(DISAGREEMENTS) <= set(TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_hostile_answers_earn_nothing_and_take_no_time(task: str, tmp_path: Path) -> None:
    """Nothing runs, nothing raises, nothing is paid, and nothing takes long: 0.5 s here leaves room for a busy machine,
    where some milliseconds are the rule."""
    entry = entries(task)[0]
    gold = gold_answer(task, entry) or ""
    for payload in [text.format(path=tmp_path / "made") for text in CODE] + HEAVY + ODD:
        start = time.perf_counter()
        score = graded(task, entry, payload)
        seconds = time.perf_counter() - start
        shown = f"{payload[:60]!r} for {gold[:60]!r}: {score.value} {score.status} {score.detail}"
        assert seconds < 0.5, f"{seconds:.3f} s, {shown}"
        assert score.status == "wrong", shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("task", TASKS)
def test_answers_too_long_are_not_graded(task: str) -> None:
    """Of a megabyte, and of ten: the score says why it is 0, at once."""
    entry = entries(task)[0]
    for answer in ("<answer>" * 125_000, "7" * 10_000_000):
        start = time.perf_counter()
        assert graded(task, entry, answer).status == "too_long"
        assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize("task", TASKS)
def test_blank_and_missing_answers_score_zero(task: str) -> None:
    entry = entries(task)[0]
    info = {"rg_task": task, "config": "{}", "entry": json.dumps(entry)}
    assert score_extraction(Extraction("no_answer", None), info).status == "no_answer"
    for blank in ("", " ", "\n\t"):
        assert graded(task, entry, blank).value == 0.0


@pytest.mark.parametrize("task", TASKS)
def test_an_entry_whose_gold_is_not_right_is_ungradable(task: str) -> None:
    """Edited by hand, or of another version of the library: a 0 for every answer is not blamed on the answers."""
    entry = entries(task)[0]
    for change in ({}, {"metadata": {}}, {"answer": "@@"}, {"answer": None}):
        broken = {**entry, **change}
        try:
            gold = gold_answer(task, broken)
            fits = task in STORED_ELSEWHERE if gold is None else grade(task, {}, broken, gold.strip()) == 1.0
        except Exception:  # as scoring does: a grader may raise anything on an entry that is not one
            fits = False
        for form in (json.dumps(broken), broken):
            for grading in ("hardened", "partial"):
                info = {"rg_task": task, "config": "{}", "entry": form, "grading": grading}
                score = score_extraction(Extraction("ok", "-98765"), info)
                assert score.value == 0.0
                # Some graders raise on the wrong answer alone, where metadata is missing.
                possible = {"wrong"} if fits and not change else {"wrong", "ungradable"} if fits else {"ungradable"}
                assert score.status in possible, f"{change}: {score}"


@pytest.mark.parametrize("task", TASKS)
def test_harmless_form_is_forgiven(task: str) -> None:
    """White space, a period, a box, dollars, a fence, bold type around a gold answer."""
    for entry in entries(task)[:2]:
        gold = gold_answer(task, entry)
        if gold is None or not gold.strip():
            continue
        forms = ["{}", " {}  ", "\n{}\n", "{}.", "\\boxed{{{}}}", "${}$", "$\\boxed{{{}}}$", "```\n{}\n```", "**{}**"]
        for form in forms:
            if "$" in gold and "$" in form:
                continue
            if form == "**{}**" and "**" in gold:
                continue
            answer = form.format(gold)
            assert graded(task, entry, answer, "hardened").status == "correct", f"{answer!r}"


SLOW_TO_DRAW = {"codeio", "futoshiki", "intermediate_integration", "knight_swap"}
"""The library takes seconds for one of their questions; the table that is kept was made of more."""


@pytest.mark.parametrize("task", TASKS)
def test_honest_answers_are_graded_as_by_the_library(task: str) -> None:
    """Gold answers are right; on changed ones and those of other questions both graders agree, or the disagreement is
    of a kind that the table explains."""
    result = compare(task, items=2 if task in SLOW_TO_DRAW else 8, seeds=[5])
    assert not result.gold_wrong
    assert not result.unexplained, result.examples


@pytest.mark.parametrize("task", DISAGREEMENTS)
def test_no_kind_of_disagreement_excuses_a_mistake_on_gold_answers(task: str) -> None:
    """That a gold answer is called wrong is never explained, nor that something quite different is called right."""
    for entry in entries(task):
        gold = gold_answer(task, entry)
        if gold is not None:
            assert explanation(task, entry, gold, right=False) is None, gold
        assert explanation(task, entry, "7, 7 and 7 (a guess)", right=True) is None


def test_the_table_as_kept_explains_every_disagreement() -> None:
    """Each task was measured on 100 questions of three seeds, or a share of them where they are slow to draw, and each
    disagreement is of a kind that still exists."""
    audits = kept()
    assert sorted(audits) == TASKS
    for task, result in audits.items():
        items = 3 * round(100 * SLOW.get(task, 1.0))
        assert (result.items, result.gold_wrong, result.unexplained) == (items, 0, 0), task
        assert result.answers >= 100, task
        assert sum(kind["count"] for kind in result.kinds.values()) == result.disagreements, task
        assert set(result.kinds) <= set(DISAGREEMENTS.get(task, {})), task
