"""Lines that are appended one by one, and what an interrupt at any byte leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.errors import InputError
from rg_env.evaluation.rollouts import RolloutFile, read_rollouts


def _record(rollout: int, text: str = "") -> dict[str, Any]:
    return {
        "model": "m", "task": "t", "row": "r", "rollout": rollout, "status": "wrong", "reward": 0.0, "truncated": None,
        "prompt_tokens": None, "completion_tokens": None, "completion": text,
    }  # fmt: skip


@given(st.lists(st.text(), max_size=4), st.integers(0, 2000))
def test_any_text_survives_and_a_broken_line_does_not(tmp_path_factory: Any, texts: list[str], cut: int) -> None:
    """Cut at any byte, the whole lines before it are there, and the next ones stand on lines of their own."""
    path = tmp_path_factory.mktemp("rollouts") / "rollouts.jsonl"
    with RolloutFile(path) as file:
        for number, text in enumerate(texts):
            file.append(_record(number, text))
        assert [record["completion"] for record in file.records()] == texts
    content = path.read_bytes()
    path.write_bytes(content[: min(cut, len(content))])
    whole = content[: min(cut, len(content))].count(b"\n")
    with RolloutFile(path) as file:
        assert [record["completion"] for record in file.records()] == texts[:whole]
        file.append(_record(99, "next"))
    assert [record["completion"] for record in read_rollouts(path)] == [*texts[:whole], "next"]


def test_text_that_no_utf8_can_hold_does_not_end_the_evaluation(tmp_path: Path) -> None:
    """A lone surrogate, as a server may send it in JSON."""
    with RolloutFile(tmp_path / "rollouts.jsonl") as file:
        file.append(_record(0, "a\ud800b"))
        (record,) = file.records()
    assert record["completion"].startswith("a")


@pytest.mark.parametrize("line", ["{", "[]", "null", json.dumps({"model": "m"}), "\x00"])
def test_a_damaged_line_is_told_with_its_place(tmp_path: Path, line: str) -> None:
    """Nothing is left out in silence."""
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"{json.dumps(_record(0))}\n{line}\n")
    with pytest.raises(InputError, match=r"rollouts\.jsonl:2 is no rollout"):
        list(read_rollouts(path))


def test_files_that_cannot_be_read_or_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        list(read_rollouts(tmp_path / "none.jsonl"))
    with pytest.raises(InputError, match="cannot write"), RolloutFile(tmp_path):
        pass
