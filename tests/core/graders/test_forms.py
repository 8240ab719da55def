"""Harmless form, and the literals that answers are made of."""

import json
import math
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.parsing import forms, literals

plain = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_json_and_python_literals_are_read(value: Any) -> None:
    """As `json.dumps` and `repr` write them, up to 20 levels and 1,000 digits."""
    assert literals.parse(json.dumps(value)) == value
    if all(ord(character) < 128 and character.isprintable() for character in repr(value)):
        assert literals.parse(repr(value)) == value


@given(st.text(alphabet="[](){},:'\"\\ 019-+.eE_TrueFalsenul\n", max_size=200))
def test_anything_else_is_nothing(text: str) -> None:
    """No text raises; what is read can be written as JSON."""
    value = literals.parse(text)
    json.dumps(value, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(1, 2)", (1, 2)),
        ("(1,)", (1,)),
        ("(1)", 1),
        ("[1, 2,]", [1, 2]),
        ("{'a': [True, false]}", {"a": [True, False]}),
        ("{1: 2}", {1: 2}),
        ("()", ()),
        ("{}", {}),
        (r"'it\'s \u00e9'", "it's é"),
    ],
)
def test_literals(text: str, value: Any) -> None:
    assert literals.parse(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "[", "]", "[1 2]", "[,1]", "[1,,2]", "{1}", "{1: 2: 3}", "{1, 2}", "{[1]: 2}", "nan", "[NaN]", "1e999", "null",
     "--1", "1+2j", "1 2", "[1](2)", "f(1)", "[" * 30 + "]" * 30, "9" * 2000, "'a' 'b'", "[1) ", "__import__('os')"],
)  # fmt: skip
def test_no_literals(text: str) -> None:
    assert literals.parse(text) is None


@pytest.mark.parametrize("unit", ["[", "(", "{'a':", "-", "(x+1)(y-1)", "1,", "'", "\\", "[1],", "9", "\u0661", " "])
def test_time_is_linear(unit: str) -> None:
    """Ten thousand characters take milliseconds in each function."""
    text = (unit * 10_000)[:10_000]
    for function in (forms.literal, forms.number, forms.rational, forms.numbers, forms.unwrap, forms.candidates):
        start = time.process_time()
        function(text)
        assert time.process_time() - start < 0.1, function


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234,567.50", Fraction("1234567.5")),
        ("1 234", 1234),
        ("1_000", 1000),
        ("\N{MINUS SIGN}12", -12),
        ("١٢٣", 123),
        ("+.5", Fraction(1, 2)),
        ("2e3", 2000),
        ("7.", 7),
        ("1,23", None),
        ("1,234 567", None),
        ("²", None),
        ("".join(chr(0x0660 + digit) for digit in range(10)), 123456789),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        ("0x10", None),
        ("1/2", None),
        (".", None),
        ("e5", None),
        ("1" * 1001, None),
        ("", None),
    ],
)
def test_numbers(text: str, value: Fraction | int | None) -> None:
    assert forms.number(text) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**9), max_value=10**9))
def test_every_way_to_write_a_number(value: Any) -> None:
    """With thousands separators or without, in fixed or scientific notation."""
    for text in (f"{value:f}", f"{value:,f}", f"{value:,f}".replace(",", "_"), f"{value:e}"):
        assert forms.number(text) == Fraction(value), text


@pytest.mark.parametrize(
    ("text", "value"),
    [("3/4", Fraction(3, 4)), (r"\frac{-6}{8}", Fraction(-3, 4)), (r"-\dfrac{1}{2}", Fraction(-1, 2)), ("1/0", None),
     ("1/2/3", None), ("2", 2), (r"\frac{1}{}", None)],
)  # fmt: skip
def test_fractions(text: str, value: Fraction | int | None) -> None:
    assert forms.rational(text) == value


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("```json\n[1]\n```", "[1]"),
        ("```42```", "42"),
        ("```\n1\n2\n```", "1\n2"),
        ("```1\n2\n```", "1\n2"),
        ("```\n1\n```\nor\n```\n2\n```", "```\n1\n```\nor\n```\n2\n```"),
        ("```" + "a" * 50_000 + ".", "```" + "a" * 50_000 + "."),
        (r"$\boxed{5}$", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed{2}", r"\boxed{1} or \boxed{2}"),
        ("$1$ and $2$", "$1$ and $2$"),
        ("**5**", "5"),
        (r"\( x \)", "x"),
        ("`a`", "a"),
        ("$", "$"),
        ("**", "**"),
    ],
)
def test_wrapping(text: str, bare: str) -> None:
    assert forms.unwrap(text) == bare


@given(st.text(alphabet=" .`\\$*[]()\"'“”5x{},\n-", max_size=12) | st.text(max_size=8))
def test_no_wrapping_is_overlooked(text: str) -> None:
    """Whatever it begins with."""
    found = forms.candidates(text)
    assert found[0] == text
    assert len(found) > 1 or forms.unwrap(text) == text.strip()


@given(st.integers(-(10**12), 10**12), st.sampled_from(["{}", "{}.0", " {} ", "+{}"]))
def test_whole_numbers(value: int, form: str) -> None:
    text = form.format(abs(value))
    assert forms.integer(text) == forms.number(text) == abs(value)


def test_a_period_may_belong_to_the_answer() -> None:
    """Both are tried; dots that are no period stay."""
    assert forms.candidates(" It is.\n") == [" It is.\n", "It is.", "It is"]
    assert forms.candidates("...") == ["..."]
    assert math.isclose(float(forms.number("0.5") or 0), 0.5)


def test_lists_of_any_length_are_read() -> None:
    """The caller bounds the text; number_sorting has lists of 889 numbers."""
    assert forms.numbers(", ".join(map(str, range(2_000)))) == list(range(2_000))


def test_numbers_are_separated_by_one_sign_or_more() -> None:
    assert forms.numbers("[1 , 2;3  4\n5,]") == [1, 2, 3, 4, 5]
