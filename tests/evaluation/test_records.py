"""Records that are appended one by one, and what an interrupt at any byte leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.environment import Environment
from rg_env.core.run_folder import json_lines
from rg_env.errors import InputError
from rg_env.evaluation.questions import Answer, Questions, TaskWork, record_file
from rg_env.inference.protocol import Sampling

QUESTIONS = Questions(Environment(eval_rows=[{"question": "q"}]), label="t")
KNOWN = {**Answer()._asdict(), "model": "m", "task": "t", "draw": "sampled", "row": QUESTIONS.hashes[0], "problem": 0}


def _added(path: Path, *texts: str) -> list[str]:
    """The texts in the file, with new ones, as they are read again."""
    with record_file(path, [work := TaskWork("m", QUESTIONS, Sampling(), 9)]):
        for text in texts:
            work.keep({**KNOWN, "rollout": 0, "completion": text})
    with record_file(path, [work := TaskWork("m", QUESTIONS, Sampling(), 9)]) as strangers:
        assert (strangers, len(work.answers)) == (0, path.stat().st_size > 0)
    return [record["completion"] for record in json_lines(path)]


@given(st.lists(st.text(), max_size=4), st.integers(0, 1500))
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
    path.write_text(f"{json.dumps({**KNOWN, 'rollout': 0, 'completion': ''})}\n{line}\n")
    with pytest.raises(InputError, match=r"rollouts\.jsonl is damaged: (line 2|a record)"):
        _added(path)
