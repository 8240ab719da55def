"""Readers of a run's output files, for tests that read or compare runs."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from rg_env.core.run_folder import RunFolder
from rg_env.evaluation.results import read_results

_BY_THE_CLOCK = ("time/", "memory/", "gpu/", "step_time", "tokens_per_second")


def repeatable(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines of metrics without values that depend on the clock or the machine."""
    return [{name: value for name, value in line.items() if not name.startswith(_BY_THE_CLOCK)} for line in lines]


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines."""
    with file.open(encoding="utf-8") as lines:  # splitlines() also splits at characters in model text
        return [json.loads(line) for line in lines]


def logged(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Return the lines of a run's file, without values that differ between repeated runs on the same machine."""
    return repeatable(lines_of(folder / name))


def results_of(folder: Path) -> dict[str, Any]:
    """Return the results of the run in `folder`."""
    found: dict[str, Any] = json.loads((folder / "train_results.json").read_text())
    return found


def evaluation_of(folder: Path, step: int) -> dict[str, Any]:
    """Return the evaluation of the run in `folder` after `step`: the summary and the rollouts."""
    found = read_results(RunFolder(folder).evaluation_file(step))
    return {**found.summary(), "rollouts": found.rollouts}


def evaluations_of(folder: Path) -> list[dict[str, Any]]:
    """Return all evaluations of the run in `folder`, as in `evaluation_of`."""
    return [evaluation_of(folder, step) for step in RunFolder(folder).evaluation_steps()]


def keep(folder: Path, name: str) -> None:
    """Copy a run to the folder from which CI prints its learning curve."""
    if destination := os.environ.get("RG_ENV_KEEP_RUNS"):
        shutil.copytree(folder, Path(destination) / name, dirs_exist_ok=True)
