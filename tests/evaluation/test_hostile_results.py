"""Results files that somebody made up: figures that are none, keys that stand twice, a terminal's codes in any text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from result_files import all_results, task_results

from rg_env.errors import InputError
from rg_env.evaluation.results import read_results

Run = Callable[..., tuple[int, str, str]]
ESCAPES = "\x1b[31mred\x07\x9b\u202e"


@pytest.fixture
def values() -> Any:
    return json.loads(all_results([task_results({"a": 0.5})]).model_dump_json())


SCORES = ("tasks", "maze", "models", "a", "scores")


@pytest.mark.parametrize("figure", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    "path",
    [(*SCORES, "accuracy"), (*SCORES, "reward"), (*SCORES, "accuracy_interval", 0), ("tasks", "maze", "floor"),
     ("models", "a", "accuracy_interval", 1), ("tasks", "maze", "sampling", "temperature")],
    ids=lambda path: str(path[-1]),
)  # fmt: skip
def test_figures_that_are_none_are_refused(
    figure: str, path: tuple[Any, ...], values: Any, tmp_path: Path, rg_env: Run
) -> None:
    """By all that reads results: rg-env writes none."""
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "HERE"
    file = tmp_path / "r.json"
    file.write_text(json.dumps(values).replace('"HERE"', figure))
    for command in ("plot", "report"):
        code, _, error = rg_env(command, str(file), "--output", str(tmp_path / ("x.png" if command == "plot" else "x")))
        assert (code, error) == (2, f"error: {file} is damaged: it has a figure that is not finite\n")
    assert [each.name for each in tmp_path.iterdir()] == ["r.json"]


def test_a_key_that_stands_twice_is_refused(values: Any, tmp_path: Path, rg_env: Run) -> None:
    """Python would show the last of two models; so with names to rename."""
    file, names = tmp_path / "r.json", tmp_path / "names.json"
    text = json.dumps(values)
    file.write_text(text.replace('"models": {"a": {', '"models": {"a": {}, "a": {', 1))
    with pytest.raises(InputError, match=r"r\.json is no results file: .*the key 'a' stands twice$"):
        read_results(file)
    file.write_text(text)
    names.write_text('{"a": "b", "a": "c"}')
    code, _, error = rg_env("plot", str(file), "--rename-file", str(names))
    assert (code, error) == (2, f"error: --rename-file {names} is not JSON: the key 'a' stands twice\n")


@pytest.mark.parametrize("place", ["system_prompt", "key", "format", "task"])
def test_errors_reach_a_terminal_without_its_codes(place: str, values: Any, tmp_path: Path, rg_env: Run) -> None:
    """Whatever of a file they quote."""
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(values))
    if place == "system_prompt":
        values["tasks"]["maze"]["system_prompt"] = ESCAPES
    elif place == "key":
        values[ESCAPES] = 1
    elif place == "format":
        values["format"] = f"rg_env.results/{ESCAPES}"
    else:
        values["tasks"][ESCAPES] = values["tasks"].pop("maze")
    second.write_text(json.dumps(values))
    code, _, error = rg_env("plot", str(first), str(second))
    assert (code, error.count("\n")) == (2, 1)
    assert "red" in error
    assert error.strip("\n").isprintable()
