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
        "[]",
        text.replace('"reward": 0.5', '"reward": NaN', 1),
        text.replace('"reward": 0.5', '"reward": "much"', 1),
        text.replace("rg_env.evaluation/1", "rg_env.evaluation/0"),
    ):
        assert damage != text
        file.write_text(damage)
        for command in ("plot", "report"):
            code, _, error = rg_env(
                command, str(file), "--output", str(tmp_path / ("x.png" if command == "plot" else "x"))
            )
            assert (code, error.count("\n")) == (2, 1)
            assert error.startswith(f"error: {file} is damaged: it is not a results file of this version: ")


def test_names_to_rename_stand_once(values: Any, tmp_path: Path, rg_env: Run) -> None:
    """Python would take the last one."""
    file, names = tmp_path / "r.json", tmp_path / "names.json"
    file.write_text(json.dumps(values))
    names.write_text('{"a": "b", "a": "c"}')
    code, _, error = rg_env("plot", str(file), "--rename-file", str(names))
    assert (code, error) == (2, f"error: --rename-file {names} is not JSON: it has a key twice\n")


@pytest.mark.parametrize("place", ["system_prompt", "key", "task"])
def test_errors_reach_a_terminal_without_its_codes(place: str, values: Any, tmp_path: Path, rg_env: Run) -> None:
    """Whatever of a file they quote."""
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(values))
    if place == "system_prompt":
        values["tasks"]["maze"]["system_prompt"] = ESCAPES
    elif place == "key":
        values[ESCAPES] = 1
    else:
        values["tasks"][ESCAPES] = values["tasks"].pop("maze")
    second.write_text(json.dumps(values))
    code, _, error = rg_env("plot", str(first), str(second))
    assert (code, error.count("\n")) == (2, 1)
    assert "red" in error
    assert error.strip("\n").isprintable()
