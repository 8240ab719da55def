"""Extraction of the answer from a completion."""

import re
import time
from types import SimpleNamespace
from typing import Any

import pytest
from data_files import data
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.extraction import Extraction, completion_text, extract

NONE = Extraction("no_answer", None)
TAGS = ["<answer>", "</answer>", "<think>", "</think>"]
PIECES = st.sampled_from([*TAGS, "a", " ", "\n", "<answer", "answer>", "<", "42", "<THINK>", "</think"])
TEXTS = st.lists(PIECES, max_size=30).map("".join)


@pytest.mark.parametrize(("text", "answer"), data("extraction"))
def test_the_last_answer_outside_of_thinking_counts(text: str, answer: str | None) -> None:
    """The answer is the text in the last pair of tags, from the innermost opening one, without surrounding whitespace.
    A blank answer is missing, and one inside a thinking block does not count."""
    assert extract(text) == (NONE if answer is None else Extraction("ok", answer))


def _reference(text: str) -> str | None:
    """The rule as a grammar: at each position a thinking block, otherwise an answer, otherwise one character."""
    answers: list[str] = []
    at = 0
    while at < len(text):
        block = re.compile(r"<think>.*?(?:</think>|$)", re.DOTALL).match(text, at)
        answer = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL).match(text, at)
        first = "</think>" not in text[:at]  # only the first `</think>` can close a block that the prompt opened
        stray = answer and first and "</think>" in answer[1].partition("<think>")[0]
        if block:
            at = block.end()
        elif answer and not stray:
            answers.append(answer[1])
            at = answer.end()
        elif text.startswith("</think>", at):
            answers = [] if first else answers
            at += len("</think>")
        else:
            at += 1
    return (answers[-1].strip() or None) if answers else None


@given(TEXTS)
def test_extraction_equals_its_definition(text: str) -> None:
    """One pass over the tags finds the same answer as a naive search."""
    assert extract(text).answer == _reference(text)


@pytest.mark.parametrize(
    "text",
    [
        *(tag * 20_000 for tag in TAGS),
        "<answer></answer>" * 20_000,
        "<think><answer>" * 20_000,
        "<answer>4</answer></think>" * 20_000,
        "<" * 500_000,
    ],
)
def test_extraction_takes_linear_time(text: str) -> None:
    """20,000 tags take less than half a second of CPU time."""
    start = time.process_time()
    assert extract(text).answer == ("4" if "4" in text else None)
    assert time.process_time() - start < 0.5


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
    """A completion is text or messages. Messages are mappings or objects, with content that is text, a list of parts or
    None."""
    assert completion_text(completion) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "text", "type"]), inner, max_size=4)
        | st.fixed_dictionaries({"role": st.just("assistant"), "content": inner})
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_completion_raises(completion: Any) -> None:
    """Whatever a server sends as a message has a text, and either an answer from that text or none."""
    text = completion_text(completion)
    assert isinstance(text, str)
    assert extract(completion) == extract(text)
    assert extract(completion).answer is None or extract(completion).answer in text
