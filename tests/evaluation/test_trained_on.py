"""What a checkpoint was trained on is left out when it is evaluated, by the problems that its manifest lists."""

import json
from pathlib import Path
from typing import Any

import pytest

from rg_env.core.data.dataset import build_splits
from rg_env.errors import InputError
from rg_env.evaluation.config import eval_config_of
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
    asked = draw(eval_config_of(["models=tiny", "tasks=lcm", "num_examples=60", "eval_seed=7"]), "lcm")
    known = {_numbers(row) for row in train}
    left_out = trained_on(_checkpoint(tmp_path, manifest)).among(asked)
    assert left_out == {number for number, row in enumerate(asked.rows) if _numbers(row) in known}
    words = {row["question"] for row in train}
    assert any(asked.rows[number]["question"] not in words for number in left_out)


def test_rows_of_the_users_own_and_damaged_manifests(tmp_path: Path) -> None:
    """Nothing is known of the first; the second are an error, for there is no telling."""
    model = _checkpoint(tmp_path, None)
    assert trained_on(model) == trained_on(str(tmp_path)) == Trained()
    for text in ('{"rows": {"splits": {"train": 3}}}', "{", "[]"):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(InputError, match="damaged"):
            trained_on(model)
