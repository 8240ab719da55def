"""Folders of checkpoints: which ones a run has, and of which step one is. Imports no torch."""

import re
from pathlib import Path

from rg_env.evaluation.report.values import dict_of, read_json, whole_of

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def checkpoints_in(run: Path) -> list[Path]:
    """The folders checkpoint-N in it, the newest first."""
    if not run.is_dir():
        return []
    numbered = [(step, path) for path in run.iterdir() if (step := named_step(path)) is not None and path.is_dir()]
    return [path for _, path in sorted(numbered, reverse=True)]


def named_step(folder: Path) -> int | None:
    """N of checkpoint-N; None: it has another name."""
    match = _CHECKPOINT.fullmatch(folder.name)
    return int(match[1]) if match else None


def saved_step(folder: Path) -> int | None:
    """The step in the trainer_state.json of `folder`; None: there is none, or the file is damaged.

    Raises:
        InputError: the file cannot be read.
    """
    file = folder / "trainer_state.json"
    return whole_of(dict_of(read_json(file)).get("global_step")) if file.is_file() else None
