"""Results files that somebody made up: damaged ones, and a terminal's codes in any text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from result_files import all_results, task_results

Run = Callable[..., tuple[int, str, str]]
ESCAPES = "\x1b[31mred\x07\x9b\u202e"


@pytest.fixture
def values() -> Any:
    return json.loads(all_results([task_results({"a": 0.5})]).model_dump_json())


def test_a_damaged_file_is_one_error(values: Any, tmp_path: Path, rg_env: Run) -> None:
    """By all that reads results, with file and place: figures that are not finite too."""
    file = tmp_path / "r.json"
    text = json.dumps(values)
    for damage in (
        text[:-9],
        text.replace('"reward": 0.5', '"reward": NaN', 1),
        text.replace('"reward": 0.5', '"reward": "much"', 1),
        text.replace("rg_env.evaluation/2", "rg_env.evaluation/1"),
    ):
        assert damage != text
        file.write_text(damage)
        for command in ("plot", "report"):
            code, _, error = rg_env(
                command, str(file), "--output", str(tmp_path / ("x.png" if command == "plot" else "x"))
            )
            assert (code, error.count("\n")) == (2, 1)
            assert error.startswith(f"error: {file} is damaged: it is not a results file of this version: ")


@pytest.mark.parametrize("place", ["system_prompt", "key"])
def test_errors_reach_a_terminal_without_its_codes(place: str, values: Any, tmp_path: Path, rg_env: Run) -> None:
    """Texts of a file that errors quote are escaped."""
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(values))
    if place == "system_prompt":
        values["tasks"]["maze"]["system_prompt"] = ESCAPES
    else:
        values[ESCAPES] = 1
    second.write_text(json.dumps(values))
    code, _, error = rg_env("plot", str(first), str(second))
    assert (code, error.count("\n")) == (2, 1)
    assert "red" in error
    assert error.strip("\n").isprintable()
