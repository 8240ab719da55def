"""Extraction of the answer."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.extraction import Extraction, completion_text, extract

NONE = Extraction("no_answer", None)
PIECES = st.sampled_from(["<answer>", "</answer>", "a", " ", "\n", "<answer", "answer>", "<", "42", "</think>"])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>4</answer>", "4"),
        ("<answer>\n 4\t</answer> bye", "4"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1</answer> no, <answer>2", "1"),
        ("<answer>a<answer>b</answer>", "b"),
        ("<answer>a</answer></answer>", "a"),
        ("<answer>two\nlines</answer>", "two\nlines"),
        ("<answer>a < b</answer>", "a < b"),
        ("", None),
        ("4", None),
        ("<answer>4", None),
        ("4</answer>", None),
        ("</answer>4<answer>", None),
        ("<answer></answer>", None),
        ("<answer> \n</answer>", None),
        ("<answer>4</answer><answer> </answer>", None),
        ("<ANSWER>4</ANSWER>", None),
    ],
)
def test_the_last_well_formed_answer_counts(text: str, answer: str | None) -> None:
    """The last pair of tags, the innermost opening, white space stripped; blank is no answer."""
    assert extract(text) == (NONE if answer is None else Extraction("ok", answer))


def _reference(text: str) -> str | None:
    """The rule said another way: of all (opening, next closing) pairs without a tag between, the last."""
    pairs = []
    for start in range(len(text)):
        if text.startswith("<answer>", start):
            inside = text[start + 8 :].split("</answer>", 1)
            if len(inside) == 2 and "<answer>" not in inside[0]:
                pairs.append(inside[0])
    return (pairs[-1].strip() or None) if pairs else None


@given(st.lists(PIECES, max_size=30).map("".join))
def test_extraction_equals_its_definition(text: str) -> None:
    """One pass over the tags finds what a naive search finds."""
    assert extract(text).answer == _reference(text)


@given(st.text(), st.text())
def test_a_stated_answer_is_found(before: str, answer: str) -> None:
    """Whatever stands before, an answer between tags at the end is the one extracted."""
    if "answer>" not in answer:
        expected = answer.strip()
        assert extract(f"{before}<answer>{answer}</answer>") == (Extraction("ok", expected) if expected else NONE)


@pytest.mark.parametrize(
    "text", ["<answer>" * 20_000, "</answer>" * 20_000, "<answer></answer>" * 20_000, "<" * 500_000]
)
def test_extraction_takes_linear_time(text: str) -> None:
    """20,000 tags take milliseconds."""
    start = time.perf_counter()
    assert extract(text) == NONE
    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        (None, ""),
        ("x", "x"),
        ([], ""),
        ([{"role": "assistant", "content": "x"}], "x"),
        ({"role": "assistant", "content": "x"}, "x"),
        ([{"role": "assistant", "content": "a"}, {"role": "user", "content": "u"}], "a"),
        ([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": None}], ""),
        ([{"role": "user", "content": "u"}], ""),
        ([SimpleNamespace(role="assistant", content="x")], "x"),
        (
            [{"role": "assistant", "content": [{"type": "text", "text": "a"}, SimpleNamespace(text="b"), "c", {}]}],
            "abc",
        ),
    ],
)
def test_completions_come_in_many_forms(completion: Any, text: str) -> None:
    """Text, messages as mappings or objects, content as text, parts or nothing."""
    assert completion_text(completion) == text
