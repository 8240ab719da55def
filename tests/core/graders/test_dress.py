"""Dress of an answer: every task takes the gold answer in every dress, but for listed exceptions.

That it takes no wrong one is tested with the other wrong answers.
"""

import pytest
from dresses import DRESSES, LABELS, taken
from grader_cases import entries

from rg_env.core.grading.graders import COMPOSED, gold_answer, grade
from rg_env.core.grading.parsing import forms
from rg_env.core.tasks.task_table import load_table

TASKS = sorted(load_table())
QUOTES = ("double quotes", "single quotes", "curly quotes", "single curly quotes")
LISTS = ("list", "list of a text")
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "base_conversion": (("thousands {,}", r"thousands \,"), "digits of another base have no thousands"),
    "bf": (LISTS, "brackets are what a program may print"),
    "codeio": ((*QUOTES, *LISTS), "quotes make a text of a value, and brackets a list"),
}
"""Dresses that change the meaning in one task, and why. Labels are for single values, so not for `COMPOSED` tasks."""


@pytest.mark.parametrize("task", TASKS)
def test_a_right_answer_is_right_in_every_dress(task: str) -> None:
    refused = (*REFUSED.get(task, ((), ""))[0], *(LABELS if task in COMPOSED else ()))
    tried = 0
    for entry in entries(task):
        gold = (gold_answer(task, entry) or "").strip()
        for name, dress in DRESSES.items():
            answer = dress(gold) if gold else None
            if answer is not None and name not in refused:
                tried += 1
                assert grade(task, {}, entry, answer) == 1.0, f"{name}: {answer!r}"
    assert tried >= 30


def test_the_audit_counts_what_is_refused() -> None:
    """Over the answers that can wear a dress: of 123456 in base 10 two ways to write thousands are not taken."""
    entry = {"question": "", "answer": "123456", "metadata": {"target_base": 10, "target_repr": "123456"}}
    share, names = taken("base_conversion", [entry])
    assert names == ["thousands {,}", r"thousands \,"]
    assert share == pytest.approx(1 - 2 / sum(dress("123456") is not None for dress in DRESSES.values()))
    assert taken("game_of_life", entries("game_of_life"))[1] == ["all labels"]


@pytest.mark.parametrize("task", REFUSED)
def test_dresses_that_change_the_meaning_are_refused(task: str) -> None:
    """Each exception is one: no entry's answer is right in it."""
    values = {"base_conversion": "123456", "bf": "onset", "codeio": "[1, 2]"}
    for name in REFUSED[task][0]:
        gold = "12" if task == "codeio" and name in LISTS else values[task]
        entry = {"question": "", "answer": gold, "metadata": {"target_base": 10, "target_repr": gold}}
        assert grade(task, {}, entry, gold) == 1.0
        answer = DRESSES[name](gold)
        assert answer is not None
        assert grade(task, {}, entry, answer) == 0.0, answer


HEDGES = [
    "The answer is not {gold}",
    "The answer is {other}, not {gold}",
    "The answer is {gold}, not {other}",
    "The answer is either {gold} or {other}",
    "The answer is {gold} or {other}",
    "The answer is {gold}? No, {other}",
    "Answer: {gold} / {other}",
    "Answer: {gold} Answer: {other}",
    "Answer: {other}. Answer: {gold}",
    "Answer: anything but {gold}",
    "Final answer: {gold} unless it is {other}",
    "The answer is {gold}. The answer is {other}.",
    "**{gold}** or **{other}**",
    r"\boxed{{{gold}}} or \boxed{{{other}}}",
    r"\boxed{{{gold}}}, \boxed{{{other}}}",
    '"{gold}" or "{other}"',
    "[{gold}] or [{other}]",
    "`{gold}` `{other}`",
    "The answer is [{gold}, {other}]",
    "It is unclear, but the answer is {gold}",
    "I guess {gold}",
]

PART_OF_THE_ANSWER = {
    "knights_knaves": "sentences are read claim by claim, and names of other questions claim nothing",
    "polynomial_equations": "a quotient of two roots may be the right one",
    "propositional_logic": "`or` and brackets are signs of a formula",
}
"""Tasks where some of `HEDGES` say something right, and why."""


@pytest.mark.parametrize("task", [task for task in TASKS if task not in PART_OF_THE_ANSWER])
def test_a_second_value_a_hedge_or_a_denial_is_wrong(task: str) -> None:
    """Whatever stands before the label or after the answer."""
    golds = [(entry, (gold_answer(task, entry) or "").strip()) for entry in entries(task)]
    for entry, gold in golds:
        others = [other for _, other in golds if other and other.casefold() != gold.casefold()] or ["-98765"]
        for hedge in HEDGES if gold else []:
            answer = hedge.format(gold=gold, other=others[0])
            assert grade(task, {}, entry, answer, partial_credit=True) < 1.0, answer


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        (r"\boxed{\text{Yes}}", "Yes"),
        (r"\boxed{\mathrm{Yes}}.", "Yes"),
        (r"**$\boxed{\text{Yes}}$**", "Yes"),
        ("**x**2 + C**", "x**2 + C"),
        ("**(x + 1)**(-2)**", "(x + 1)**(-2)"),
        ("**5** or **6**", "**5** or **6**"),
        ("“Yes”", "Yes"),
        ("'Yes'.", "Yes"),
        ('"Yes" and "No"', '"Yes" and "No"'),
        ('"["a", "b"]"', '["a", "b"]'),
        ("[293]", "293"),
        ("[2, 3]", "[2, 3]"),
        ("[[1]]", "[[1]]"),
        ("[]", "[]"),
        ('""', '""'),
        ("The answer is: **5**.", "5"),
        ("**Final answer:** 5", "5"),
        ("Answer: The answer is 5", "5"),
        ("The answers are 5", "The answers are 5"),
        ("My answer is unclear", "My answer is unclear"),
        ("Answer:", "Answer:"),
    ],
)
def test_what_is_left_of_a_dressed_answer(text: str, bare: str) -> None:
    """The text itself is tried first."""
    found = forms.candidates(text, label=True)
    assert (found[0], found[-1]) == (text, bare)


def test_what_may_belong_to_the_answer_is_tried_with_and_without_it() -> None:
    assert forms.candidates('The answer is "It is.".', label=True) == [
        'The answer is "It is.".',
        '"It is.".',
        '"It is."',
        "It is.",
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1{,}234", 1234), (r"1\,234", 1234), (r"-1{,}234{,}567.5", -1234567.5), ("1{,}23", None), ("{,}234", None),
     ("1{,}2345", None), ("1{}234", None)],
)  # fmt: skip
def test_thousands_as_latex_writes_them(text: str, value: float | None) -> None:
    assert forms.number(text) == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [("((3.0 + 2.0i ) )", 1.0), ("( (2.0i + 3) )", 1.0), ("((3.0 + 2.1i))", 0.0), ("((3.0 + 2.0i)", 0.0),
     ("(3)(2i)", 0.0)],
)  # fmt: skip
def test_brackets_around_a_complex_number(answer: str, value: float) -> None:
    metadata = {"num1": [1.0, 1.0], "num2": [2.0, 1.0], "result": [3.0, 2.0], "operation": "+"}
    entry = {"question": "", "answer": "3.0 + 2.0i", "metadata": metadata}
    assert grade("complex_arithmetic", {}, entry, answer) == value


def test_a_long_list_of_numbers_is_read_without_quotes() -> None:
    """number_sorting has up to 889 at level 2, and more above."""
    numbers = [str(number) for number in range(1_200)]
    metadata = {"sorted_numbers": numbers, "original_numbers": numbers[::-1]}
    entry = {"question": "", "answer": str(numbers), "metadata": metadata}
    assert grade("number_sorting", {}, entry, ", ".join(numbers)) == 1.0
    assert grade("number_sorting", {}, entry, ", ".join(numbers[:-1])) == 0.0
