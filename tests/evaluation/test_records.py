"""Lines that are appended one by one, and what an interrupt at any byte leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.errors import InputError
from rg_env.evaluation.records import RecordFile


def _record(rollout: int, text: str = "") -> dict[str, Any]:
    return {"rollout": rollout, "completion": text}


@given(st.lists(st.text(), max_size=4), st.integers(0, 500))
def test_any_text_survives_and_a_broken_line_does_not(tmp_path_factory: Any, texts: list[str], cut: int) -> None:
    """If the file is cut at any byte, complete lines are kept, and new records start on their own lines."""
    path = tmp_path_factory.mktemp("rollouts") / "rollouts.jsonl"
    with RecordFile(path) as file:
        for number, text in enumerate(texts):
            file.append(_record(number, text))
        assert [record["completion"] for record in file.records("rollout", "completion")] == texts
    content = path.read_bytes()
    path.write_bytes(content[: min(cut, len(content))])
    whole = content[: min(cut, len(content))].count(b"\n")
    with RecordFile(path) as file:
        file.append(_record(99, "a\ud800b"))  # a lone surrogate, as a server may send it in JSON
        *before, last = (record["completion"] for record in file.records("rollout", "completion"))
    assert (before, last[0]) == (texts[:whole], "a")


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"rollout": 1}', "\x00"])
def test_a_damaged_line_is_one_error(tmp_path: Path, line: str) -> None:
    """Nothing is left out in silence."""
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"{json.dumps(_record(0))}\n{line}\n")
    with RecordFile(path) as file, pytest.raises(InputError, match=r"rollouts\.jsonl is damaged: (line 2|a record)"):
        list(file.records("rollout", "completion"))
