"""Graders of the algorithmic tasks on numbers and strings of signs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders.algorithmic import GRADERS


def _grade(task: str, answer: str, gold: str, **metadata: Any) -> float:
    return GRADERS[task](answer, {"question": "?", "answer": gold, "metadata": metadata}, {})


PUZZLE = {"words_letters": ["AB", "C"], "result_letters": "AD", "allow_leading_zero": False}  # 12 + 3 = 15, and others


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("#A B# A#", 1.0),
        ("#A, B#, A#", 1.0),
        ("['#A', 'B#', 'A#']", 1.0),
        ("#a b# a#", 1.0),
        ("#AB#A#", 1.0),
        ("# A B# A#", 0.0),
        ("#A A# B#", 0.0),
        ("#A B#", 0.0),
        ("", 0.0),
    ],
)
def test_ab_wants_the_tokens_in_their_order(answer: str, value: float) -> None:
    """Separators do not matter, tokens do."""
    assert _grade("ab", answer, "#A B# A#") == value


@pytest.mark.parametrize("task", ["ab", "string_manipulation"])
def test_nothing_left_can_be_said(task: str) -> None:
    """Where no sign remains, an answer may say so; it is wrong elsewhere, and signs are wrong there."""
    for answer in ('""', "empty", "(empty)", "nothing"):
        assert _grade(task, answer, "") == 1.0
        assert _grade(task, answer, "A#") == 0.0
    for answer in ("A#", ",", "()", "-", "none of them"):
        assert _grade(task, answer, "") == 0.0


@pytest.mark.parametrize(
    ("answer", "base", "gold", "value"),
    [
        ("1f", 16, "1f", 1.0),
        ("0x1F", 16, "1f", 1.0),
        ("1F_{16}", 16, "1f", 1.0),
        ("1f₁₆", 16, "1f", 1.0),
        ("001f", 16, "1f", 1.0),
        ("0b1010 1010", 2, "10101010", 1.0),
        ("1010_2", 2, "1010", 1.0),
        ("１０", 2, "10", 1.0),
        ("0b1", 12, "b1", 1.0),
        ("0b1", 12, "1", 0.0),
        ("1010_2", 3, "10102", 0.0),
        ("1010_3", 2, "1010", 0.0),
        ("0x10", 10, "10", 0.0),
        ("31", 16, "1f", 0.0),
        ("1f = 31", 16, "1f", 0.0),
        ("-1f", 16, "1f", 0.0),
        ("1f.0", 16, "1f", 0.0),
        ("0", 7, "", 1.0),
        ("", 7, "", 0.0),
        ("", 7, "10", 0.0),
    ],
)
def test_base_conversion_reads_a_number_in_the_target_base(answer: str, base: int, gold: str, value: float) -> None:
    """The usual ways of writing a number in a base; a number in another base is wrong."""
    assert _grade("base_conversion", answer, gold, target_base=base, target_repr=gold) == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("A=1,B=2,C=3,D=5", 1.0),
        ("A=1, B=3, C=4, D=7", 1.0),
        ('{"A": 1, "B": 2, "C": 3, "D": 5}', 1.0),
        ("A -> 1\nB -> 2\nC -> 3\nD -> 5", 1.0),
        ("a=1; b=2; c=3; d=5", 1.0),
        ("D=5,C=3,B=2,A=1,A=1", 1.0),
        ("A=0,B=2,C=3,D=5", 0.0),
        ("A=1,B=2,C=2,D=4", 0.0),
        ("A=1,B=2,C=3,D=6", 0.0),
        ("A=1,B=2,C=3", 0.0),
        ("A=1,B=2,C=3,D=5,E=6", 0.0),
        ("A=1,A=2,B=2,C=3,D=5", 0.0),
        ("A=1,B=2,C=3,D=15", 0.0),
        ("A=1,B=2,C=3,D=-5", 0.0),
        ("Solution: A=1,B=2,C=3,D=5", 0.0),
        ("", 0.0),
    ],
)
def test_cryptarithm_takes_any_solution(answer: str, value: float) -> None:
    """All letters, different digits, no leading zero, a right sum."""
    assert _grade("cryptarithm", answer, "A=1,B=2,C=3,D=5", **PUZZLE) == value


def test_cryptarithm_takes_a_leading_zero_where_the_puzzle_does() -> None:
    """The question says which."""
    puzzle = {**PUZZLE, "allow_leading_zero": True}
    assert _grade("cryptarithm", "A=0,B=2,C=3,D=5", "A=1,B=2,C=3,D=5", **puzzle) == 1.0


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("['5', '-2.50', '5.0']", 1.0),
        ("[5, -2.5, 5]", 1.0),
        ("5, -2.5, 5", 1.0),
        ('["5", "−2.5", "5"]', 1.0),
        ("['5', '5', '-2.5']", 0.0),
        ("['5', '-2.5']", 0.0),
        ("['5', '-2.5', '5', '5']", 0.0),
        ("['5', '-2.51', '5']", 0.0),
        ("['5, '-2.5', '5']", 0.0),
        ("['nan', 'nan', 'nan']", 0.0),
        ("[]", 0.0),
    ],
)
def test_number_filtering_wants_the_numbers_left_in_their_order(answer: str, value: float) -> None:
    """Each number in any form; another order, number or count is wrong."""
    assert _grade("number_filtering", answer, "['5', '-2.50', '5.0']", result=["5", "-2.50", "5.0"]) == value


@pytest.mark.parametrize(("answer", "value"), [("[]", 1.0), ("[ ]", 1.0), ("", 0.0), (",", 0.0), ("''", 0.0)])
def test_no_number_left_must_be_said(answer: str, value: float) -> None:
    """An empty list is an answer, an empty text is none."""
    assert _grade("number_filtering", answer, "[]", result=[]) == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("['-3.0', '1.5', '2.25', '70.0']", 1.0),
        ("-3, 1.5, 2.25, 70", 1.0),
        ("['-3.0', '1.5', '2.25', '70.9']", 0.0),  # the library takes what is off by up to 1
        ("[NaN, NaN, NaN, NaN]", 0.0),
        ("['nan', 'nan', 'nan', 'nan']", 0.0),
        ("[-3, -3, 2, 70]", 0.0),
        ("['-3.0', '1.5', '2.25']", 0.0),
        ("['-3.0', '1.5', '70.0', '2.25']", 0.5),
        ("['70.0', '2.25', '1.5', '-3.0']", 0.0),
        ("['1.5', '-3.0', '2.25', '70.0']", 0.0),
    ],
)
def test_number_sorting_wants_the_numbers_of_the_question(answer: str, value: float) -> None:
    """In part, the length of the right beginning; none of it for other numbers."""
    numbers = ["-3.0", "1.5", "2.25", "70.0"]
    metadata = {"sorted_numbers": numbers, "original_numbers": ["70.0", "1.5", "2.25", "-3.0"]}
    assert _grade("number_sorting", answer, str(numbers), **metadata) == value


def test_white_space_within_quotes_does_no_harm() -> None:
    """As little as around them."""
    numbers = ["-3.0", "1.5"]
    metadata = {"sorted_numbers": numbers, "original_numbers": ["1.5", "-3.0"]}
    for answer in ("['-3.0',' 1.5']", '[" -3.0 ", "1.5"]', "['-3.0 ', ' 1.5']"):
        assert _grade("number_sorting", answer, str(numbers), **metadata) == 1.0
    for answer in ("['-3.0', '1 .5']", "['-3.0' ' 1.5']", "['-3.0', ' ', '1.5']", "[' -3.0, 1.5']"):
        assert _grade("number_sorting", answer, str(numbers), **metadata) == 0.0


def test_the_list_as_given_is_no_progress() -> None:
    """A right beginning that the question has itself earns nothing."""
    gold, start = ["1", "2", "3", "4"], ["1", "2", "4", "3"]
    assert _grade("number_sorting", "1, 2, 4, 3", str(gold), sorted_numbers=gold, original_numbers=start) == 0.0


@given(st.lists(st.decimals(-100, 100, places=2), min_size=1, max_size=8), st.randoms())
def test_only_the_sorted_order_is_right(numbers: list[Any], rng: Any) -> None:
    """Of the orders of the numbers, in any notation, full value goes to the sorted ones."""
    gold = [str(number) for number in sorted(numbers)]
    order = numbers.copy()
    rng.shuffle(order)
    metadata = {"sorted_numbers": gold, "original_numbers": [str(number) for number in numbers]}
    value = _grade("number_sorting", str([str(number) for number in order]), str(gold), **metadata)
    assert (value == 1.0) == (order == sorted(numbers))
    assert 0.0 <= value <= 1.0


@pytest.mark.parametrize("task", ["isomorphic_strings", "ransom_note"])
def test_truth_has_two_names(task: str) -> None:
    """True or yes, in any letter case, and nothing around it."""
    for answer in ("True", "true", "TRUE", "yes"):
        assert _grade(task, answer, "True") == 1.0
        assert _grade(task, answer, "False") == 0.0
    for answer in ("", "1", "True False", "True or False", "maybe True", "not False"):
        assert _grade(task, answer, "True") == 0.0


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("ABCDAE", 1.0),
        ('"ABCDAE"', 1.0),
        ("['A', 'B', 'C', 'D', 'A', 'E']", 1.0),
        ("A B C D A E", 1.0),
        ("abcdae", 1.0),
        ("ABCDEA", 0.0),
        ("ABCDAE ABCDAE", 0.0),
        ("'ABC' + 'DAE'", 0.0),
        ("", 0.0),
    ],
)
def test_string_insertion_wants_the_signs(answer: str, value: float) -> None:
    """A list of the right signs is right; an expression that gives them is not evaluated."""
    assert _grade("string_insertion", answer, "ABCDAE") == value


@pytest.mark.parametrize("task", ["string_splitting", "string_synthesis"])
def test_counts_are_read_with_any_separators(task: str) -> None:
    """All counts in their order."""
    for answer in ("0 1 0 12 0 3", "0, 1, 0, 12, 0, 3", "[0, 1, 0, 12, 0, 3]"):
        assert _grade(task, answer, "0 1 0 12 0 3") == 1.0
    for answer in ("0 1 0 12 0", "0 1 0 12 0 3 0", "010 12 0 3", "0 1 0 12 3 0", "0 1 0 12 0 x", ""):
        assert _grade(task, answer, "0 1 0 12 0 3") == 0.0


@given(st.text(max_size=60) | st.text("ABab#=0123456789,.'\"[](){} _-x", max_size=60))
def test_no_text_makes_a_grader_raise(text: str) -> None:
    """Every grader gives any text a value in [0, 1]."""
    metadata = {
        **PUZZLE,
        "target_base": 16,
        "target_repr": "1f",
        "result": ["5"],
        "sorted_numbers": ["1", "2"],
        "original_numbers": ["2", "1"],
    }
    for task in ("ab", "base_conversion", "cryptarithm", "number_filtering", "number_sorting", "string_splitting"):
        gold = {"isomorphic_strings": "True", "ransom_note": "True"}.get(task, "12")
        assert 0.0 <= _grade(task, text, gold, **metadata) <= 1.0
