"""Parsing of the numbers, lists and literals that answers consist of, and removal of the wrappings around them."""

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import forms

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_json_and_python_literals_are_read(value: Any) -> None:
    """`literal` reads back the output of `json.dumps` and `repr`."""
    if json.dumps(value).isascii() and forms.plain_digits(str(value)) == str(value):
        assert forms.literal(json.dumps(value)) == value
    if all(ord(character) < 128 and character.isprintable() for character in repr(value)):
        assert forms.literal(repr(value)) == value


@given(st.text(alphabet="[](){},:'\"\\ 019-+.eE_TrueFalsenulU\n", max_size=200))
def test_any_text_is_a_literal_or_unreadable(text: str) -> None:
    """For any text, `literal` returns a value that can be written as JSON, or raises `Unreadable`."""
    assert json.dumps(forms.attempt(forms.literal, text), allow_nan=False)


@given(st.from_regex(r"-?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,4})?", fullmatch=True))
def test_plain_numbers_have_their_decimal_value(text: str) -> None:
    exponent = int(text.lower().partition("e")[2] or 0)
    assert forms.attempt(forms.number, text) == (Fraction(text) if abs(exponent) <= 400 else None)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        *((forms.literal, *case) for case in (
            *(("(1, 2)", (1, 2)), ("(1,)", (1,)), ("(1)", 1), ("[1, 2,]", [1, 2]), ("{1: 2}", {1: 2}), ("()", ())),
            ("[null, None]", [None, None]),
            *(("{}", {}), ("{'a': [True, false]}", {"a": [True, False]}), (r"'it\'s \u00e9'", "it's é")),
        )),
        *((forms.number, *case) for case in (
            *(("1,234,567.50", Fraction("1234567.5")), ("1 234", 1234), ("1_000", 1000), ("\N{MINUS SIGN}12", -12)),
            *(("١٢٣", 123), ("+.5", Fraction(1, 2)), ("2e3", 2000), ("7.", 7)),
            ("".join(chr(0x0660 + digit) for digit in range(10)), 123456789),
            *(("1{,}234", 1234), (r"1\,234", 1234), (r"-1{,}234{,}567.5", Fraction("-1234567.5"))),  # LaTeX
        )),
        *((forms.integer, text, 12) for text in ("12", "12.0", " 12 ", "+12")),
        (forms.numbers, "[1 , 2;3  4\n5,]", [1, 2, 3, 4, 5]),
        (forms.numbers, ", ".join(map(str, range(2_000))), list(range(2_000))),  # number_sorting has up to 889
        *((forms.rational, *case) for case in (
            *(("3/4", Fraction(3, 4)), (r"\frac{-6}{8}", Fraction(-3, 4)), (r"-\dfrac{1}{2}", Fraction(-1, 2))),
            ("2", 2),
        )),
    ],
)  # fmt: skip
def test_values(read: Callable[[str], Any], text: str, value: Any) -> None:
    """Literals, numbers, lists of numbers and fractions are parsed to the right values."""
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (forms.literal, [
            *("", "[", "]", "[1 2]", "[,1]", "[1,,2]", "{1}", "{1: 2: 3}", "{1, 2}", "{[1]: 2}", "nan", "[NaN]"),
            *("nul", "--1", "1+2j", "1 2", "[1](2)", "f(1)", "[" * 130 + "]" * 130, "9" * 2000, "'a' 'b'", "[1) "),
            *("1e999", "{1: 2, 1: 3}", r"'\Uffffffff'", r"'\U00110000'"),
        ]),
        (forms.number, [
            *("1,23", "1,234 567", "²", "nan", "inf", "1e999", "0x10", "1/2", ".", "e5", "1" * 1001, "", "+.e1"),
            *("1{,}23", "{,}234", "1{,}2345", "1{}234"),
        ]),
        (forms.integer, ["12.5"]),
        (forms.rational, ["1/0", "1/2/3", r"\frac{1}{}"]),
    ],
)  # fmt: skip
def test_anything_else_is_unreadable(read: Callable[[str], Any], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(forms.Unreadable):
            read(text)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**9), max_value=10**9))
def test_every_way_to_write_a_number(value: Any) -> None:
    """Numbers are read with or without thousands separators, in fixed and scientific notation."""
    for text in (f"{value:f}", f"{value:,f}", f"{value:,f}".replace(",", "_"), f"{value:e}"):
        assert forms.number(text) == Fraction(value), text


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        *(("```json\n[1]\n```", "[1]"), ("```42```", "42"), ("```\n1\n2\n```", "1\n2"), ("```1\n2\n```", "1\n2")),
        *(("```\n1\n```\nor\n```\n2\n```", "```\n1\n```\nor\n```\n2\n```"), (r"$\boxed{5}$", "5"), ("**5**", "5")),
        *((r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"), (r"\boxed{1} or \boxed{2}", r"\boxed{1} or \boxed{2}")),
        *(("$1$ and $2$", "$1$ and $2$"), (r"\( x \)", "x"), ("`a`", "a"), ("$", "$"), ("**", "**")),
        *((r"\boxed{\text{Yes}}", "Yes"), (r"**$\boxed{\text{Yes}}$**", "Yes"), ("**x**2 + C**", "x**2 + C")),
        *((form, "5") for form in ("*5*", "***5***", "__5__", "_5_", "\u200b5\ufeff")),
        ("*5* or *6*", "*5* or *6*"),
        *(("_Q_", "Q"), ("_Q__", "_Q__"), ("*", "*"), ("__", "__")),
        *(("**(x + 1)**(-2)**", "(x + 1)**(-2)"), ("**5** or **6**", "**5** or **6**")),
        ("```" + "a" * 50_000 + ".", "```" + "a" * 50_000 + "."),
    ],
)
def test_wrapping(text: str, bare: str) -> None:
    assert forms.unwrap(text) == bare


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        *((r"\boxed{\mathrm{Yes}}.", "Yes"), ("“Yes”", "Yes"), ("'Yes'.", "Yes"), ('"Yes" and "No"', '"Yes" and "No"')),
        *(('"["a", "b"]"', '["a", "b"]'), ("[293]", "293"), ("[2, 3]", "[2, 3]"), ("[[1]]", "[[1]]"), ("[]", "[]")),
        *(('""', '""'), ("The answer is: **5**.", "5"), ("**Final answer:** 5", "5"), ("Answer: The answer is 5", "5")),
        *(("The answers are 5", "5"), ("My answer is unclear", "My answer is unclear")),
        *(("Total legs: **406**.", "406"), ("The number of legs is 406", "406"), ("There are 406", "406")),
        *((text, text) for text in ("Total arms: 406", "Wrong answer: 5", "Not the answer: 5", "A = 5", "The = 5")),
        *((text, text) for text in ("Answer:", "...", "0.33...")),
        *(("5..", "5"), ("So the answer is 5.", "5"), ("Therefore, the answer is: 5", "5")),
    ],
)
def test_candidates_range_from_the_whole_text_to_the_bare_answer(text: str, bare: str) -> None:
    """The first candidate is the text itself, and the last one has no label, wrapping or final period."""
    question = "How many legs are there?"
    found = forms.candidates(text, question)
    assert (found[0], found[-1]) == (text, bare)
    assert forms.candidates(" It is.\n") == [" It is.\n", "It is.", "It is"]
    wrapped = 'The answer is "It is.".'
    assert forms.candidates(wrapped, question) == [wrapped, '"It is.".', '"It is."', "It is."]
    assert "It is dark" in forms.candidates("**It is dark.**", question)


@given(st.text(alphabet=" .`\\$*[]()\"'“”5x{},\n-", max_size=12) | st.text(max_size=8))
def test_no_wrapping_is_overlooked(text: str) -> None:
    """Every text that `unwrap` changes has several candidates."""
    found = forms.candidates(text)
    assert found[0] == text
    assert len(found) > 1 or forms.unwrap(text) == text.strip()
