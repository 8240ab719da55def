"""What the rows of a run are, and whether other rows are the same.

    train, evaluation, manifest = build_splits("maze", 2000, 200, seed=1)
    build_splits("maze", 2000, 200, seed=1, manifest="outputs/RUN/manifest.json")    # those rows, or an InputError

A manifest holds versions, hashes of the user's own code where tasks are theirs, tasks, what decided the split of a row
(`split_by`; a manifest without it means "question"), and for each split its seed, its size and, in order, the hash of
every question and the key of its problem. Entries are not hashed: they follow from these, as long as the version of
reasoning-gym is the same.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from rg_env.core.data.selection import Row
from rg_env.core.data.splits import Split, SplitBy, question_hash
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import is_user_task
from rg_env.core.text import reason_of, shortened
from rg_env.core.user_code import sources
from rg_env.errors import InputError

Manifest = Mapping[str, Any]


def make_manifest(
    mixture: Mixture, splits: Mapping[str, tuple[Sequence[Row], int]], split_by: SplitBy = "problem"
) -> dict[str, Any]:
    """The manifest of `splits`, each given as its rows and their seed."""
    own = {os.path.basename(name): source for name, source in sources().items()}
    return {
        "versions": {name: version(name) for name in ("rg-env", "reasoning-gym")},
        **({"imports": own} if any(map(is_user_task, mixture.names)) else {}),
        "tasks": [_task(task.model_dump()) for task in mixture.tasks],
        "split_by": split_by,
        "splits": {split: _split(rows, seed) for split, (rows, seed) in splits.items()},
    }


class _SplitShape(BaseModel):
    seed: int
    size: int
    question_hashes: list[str]
    problems: list[str] | None = None


class _SplitsShape(BaseModel):
    train: _SplitShape
    eval: _SplitShape


class _VersionsShape(BaseModel):
    library: str = Field(alias="reasoning-gym")


class _ManifestShape(BaseModel):
    versions: _VersionsShape
    tasks: list[dict[str, Any]]
    split_by: SplitBy = "question"
    splits: _SplitsShape


def read_manifest(source: str | Path | Manifest) -> Manifest:
    """The manifest of rows in `source`, which is one, or a run's `manifest.json` or its path.

    Raises `InputError` if it cannot be read, or is something else.
    """
    value: Any = source
    name = "the manifest"
    if isinstance(source, str | Path):
        name = f"the manifest {shortened(str(source))}"
        try:
            value = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{name} cannot be read: {reason_of(error)}") from error
    if isinstance(value, Mapping) and "rows" in value:  # a run's, with the machine and other packages
        value = value["rows"]
        if value is None:
            raise InputError(f"{name} is of a run on rows that rg_env did not draw: there is nothing to compare")
    try:
        _ManifestShape.model_validate(value)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "its top"
        raise InputError(f"{name} is not a manifest of rows: missing or of another form: {where}") from error
    return dict(value) if not isinstance(value, dict) else value


def split_hash(manifest: Manifest, split: Split) -> str:
    """Hex SHA-256 of what makes the rows of one split: tasks, seed, questions in order, version of reasoning-gym.

    The same for runs that differ in the other split or in the version of rg-env alone.
    """
    rows = {key: value for key, value in manifest["splits"][split].items() if key != "problems"}
    parts = [manifest["versions"]["reasoning-gym"], manifest["tasks"], rows]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def hash_of_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Hex SHA-256 of the prompts and gold answers of rows, in order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row["prompt"], row["answer"]], sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


def split_by_of(manifest: Manifest) -> SplitBy:
    """What decided the split of its rows."""
    return manifest.get("split_by", "question")


def check_manifest(expected: str | Path | Manifest, actual: Manifest) -> None:
    """Raise `InputError` unless `actual` describes the rows that `expected` does, with what best explains why not."""
    wanted, found = read_manifest(expected), json.loads(json.dumps(actual))
    if difference := _difference(wanted, found):
        raise InputError(f"these are not the rows of the manifest: {difference}")


def _difference(wanted: Manifest, found: Manifest) -> str:
    """Why the rows differ: the first cause; empty if they are the same. Another version of rg-env alone is not one."""
    theirs, ours = (manifest["versions"]["reasoning-gym"] for manifest in (wanted, found))
    if theirs != ours:
        return f"it was made with reasoning-gym {theirs}, and {ours} is installed"
    theirs, ours = map(split_by_of, (wanted, found))
    if theirs != ours:
        return (
            f"its rows were divided by {theirs}, and here by {ours}: set splits.by (split_by outside of a config) to "
            f"{theirs}"
        )
    names = [[str(task.get("name")) for task in manifest["tasks"]] for manifest in (wanted, found)]
    if names[0] != names[1]:
        return f"its tasks are {shortened(names[0])}, and here {shortened(names[1])}"
    for theirs, ours in zip(wanted["tasks"], found["tasks"], strict=True):
        for key in sorted({*theirs, *ours}, reverse=True):  # a level before the options it became
            if theirs.get(key) != ours.get(key):
                values = f"{shortened(theirs.get(key))}, and here {shortened(ours.get(key))}"
                return f"its {key} of task {ours['name']} is {values}"
    for key in ("seed", "size"):
        for split, ours in found["splits"].items():
            theirs = wanted["splits"][split]
            if theirs[key] != ours[key]:
                return f"its {key} of the {split} rows is {theirs[key]}, and here {ours[key]}"
    for split, ours in found["splits"].items():
        old, new = (part["question_hashes"] for part in (wanted["splits"][split], ours))
        if old != new:
            others = len(set(new) - set(old))
            what = f"{others} of {len(new)} questions" if others else "the order of the questions"
            theirs, ours = (manifest["versions"].get("rg-env") for manifest in (wanted, found))
            why = f" (made by rg-env {theirs}, this is {ours})" if theirs != ours else ""
            if wanted.get("imports") != found.get("imports"):
                why = " (your own tasks were edited since)"
            return f"{what} of the {split} rows differ{'' if others else 's'}{why}"
    return ""


def _task(task: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in task.items() if key not in ("level", "levels") or value not in (None, {})}


def _split(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    hashes = [question_hash(row["question"]) for row in rows]
    return {
        "seed": seed,
        "size": len(hashes),
        "sha256": hashlib.sha256("\n".join(hashes).encode()).hexdigest(),
        "question_hashes": hashes,
        "problems": [row["info"]["problem"] for row in rows],
    }
