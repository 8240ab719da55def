"""The notebook, which is executed like a script: cell by cell in one namespace."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from run_code import EXAMPLES

NOTEBOOK = json.loads((EXAMPLES / "first_run.ipynb").read_text(encoding="utf-8"))
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_outputs_are_stripped() -> None:
    for cell in NOTEBOOK["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
def test_the_notebook_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every cell runs, the printed scores are those of the three replies, and accuracy rises by at least 0.2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(CELLS):
        exec(compile(ast.parse(cell), f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines() if "{'correctness'" in line] == ["1.10", "0.10", "0.00"]
    results = names["results"]
    assert results["eval_after"]["accuracy"] - results["eval_before"]["accuracy"] >= 0.2
    assert "rewards/shows_work/mean" in (names["folder"] / "metrics.jsonl").read_text()
    assert list(tmp_path.iterdir()) == [names["folder"].parent]
