"""Records that are appended one by one, and what an interrupt at any byte leaves."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.errors import InputError
from rg_env.evaluation.models import Reply, Request
from rg_env.evaluation.runner import Graded, Record, Work, record_file
from rg_env.inference.protocol import Sampling


class Echo(Work):
    """Any keys, with the texts of their answers."""

    file = "rollouts.jsonl"

    def __init__(self) -> None:
        super().__init__("m", "t", [])
        self.texts: list[str] = []

    def request(self, key: Any) -> Request:
        return Request("", Sampling())

    def put(self, record: Record) -> bool:
        self.texts.append(record["completion"])
        return True

    def records(self, graded: Sequence[Graded]) -> Iterator[Record]:
        return ({"task": self.label, "completion": reply.text} for _, reply, _ in graded)


def _added(path: Path, *texts: str) -> list[str]:
    """The texts in the file, with new ones, as they are read again."""
    with record_file(path, [work := Echo()]) as strangers:
        assert strangers == 0
        work.take(work.graded({number: Reply(text) for number, text in enumerate(texts)}))
    with record_file(path, [again := Echo()]):
        return again.texts


@given(st.lists(st.text(), max_size=4), st.integers(0, 1000))
def test_any_text_survives_and_a_broken_line_does_not(tmp_path_factory: Any, texts: list[str], cut: int) -> None:
    """If the file is cut at any byte, complete lines are kept, and new records start on their own lines."""
    path = tmp_path_factory.mktemp("rollouts") / "rollouts.jsonl"
    assert _added(path, *texts) == texts
    content = path.read_bytes()
    path.write_bytes(content[: min(cut, len(content))])
    whole = content[: min(cut, len(content))].count(b"\n")
    *before, last = _added(path, "a\ud800b")  # a lone surrogate, as a server may send it in JSON
    assert (before, last[0]) == (texts[:whole], "a")


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"model": "m", "task": "t"}', '{"model": []}', "\x00"])
def test_a_damaged_line_is_one_error(tmp_path: Path, line: str) -> None:
    """Nothing is left out in silence."""
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"{json.dumps({'model': 'm', 'task': 't', 'completion': ''})}\n{line}\n")
    with pytest.raises(InputError, match=r"rollouts\.jsonl is damaged: (line 2|a record)"):
        _added(path)
