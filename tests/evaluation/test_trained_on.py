"""What a checkpoint was trained on is left out when it is evaluated: by problem where its manifest knows them."""

import json
from pathlib import Path
from typing import Any

import pytest

from rg_env.core.config.parsing import PromptConfig
from rg_env.core.data.dataset import build_splits
from rg_env.core.data.splits import question_hash
from rg_env.errors import InputError
from rg_env.evaluation.questions import Trained, draw, trained_on


def _numbers(row: Any) -> tuple[int, ...]:
    return tuple(sorted(json.loads(row["info"]["entry"])["metadata"]["numbers"]))


def _checkpoint(folder: Path, rows: dict[str, Any] | None) -> str:
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1" / "config.json").write_text("{}")
    (folder / "manifest.json").write_text(json.dumps({"rows": rows}))
    return str(folder / "checkpoint-1")


def test_problems_that_were_trained_on_are_left_out_in_any_order(tmp_path: Path) -> None:
    """A run that was divided by question has asked some of them, in this order of the numbers or in another."""
    train, _, manifest = build_splits("lcm", 400, 0, 0, split_by="question")
    asked = draw("lcm", {"name": "lcm"}, 60, 7, PromptConfig(), "strict")
    known = {_numbers(row) for row in train}
    left_out = trained_on(_checkpoint(tmp_path, manifest)).among(asked)
    expected = {question_hash(row["question"]) for row in asked.rows if _numbers(row) in known}
    assert left_out == expected
    words = {row["question"] for row in train}
    assert any(row["question"] not in words for row in asked.rows if question_hash(row["question"]) in left_out)


def test_manifests_without_problems_know_the_questions(tmp_path: Path) -> None:
    """Those of releases before there were keys."""
    train, _, manifest = build_splits("lcm", 400, 0, 0, split_by="question")
    del manifest["splits"]["train"]["problems"]
    asked = draw("lcm", {"name": "lcm"}, 60, 0, PromptConfig(), "strict")
    words = {row["question"] for row in train}
    left_out = trained_on(_checkpoint(tmp_path, manifest)).among(asked)
    assert left_out == {question_hash(row["question"]) for row in asked.rows if row["question"] in words}
    assert left_out


def test_rows_of_the_users_own_and_damaged_manifests(tmp_path: Path) -> None:
    """Nothing is known of the first; the second are an error, for there is no telling."""
    model = _checkpoint(tmp_path, None)
    assert trained_on(model) == Trained()
    for text in (
        '{"rows": {"splits": {"train": 3}}}',
        "{",
        "[]",
        '{"rows": {"splits": {"train": {"question_hashes": 1}}}}',
    ):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(InputError, match="damaged"):
            trained_on(model)
