"""Manifests, which record a run's rows so that other rows can be compared with them.

    train, evaluation, manifest = build_splits("maze", 2000, 200, seed=1)
    build_splits("maze", 2000, 200, seed=1, manifest="outputs/RUN/manifest.json")    # the same rows, or an InputError

A manifest contains versions, the tasks, hashes of the user's task code, and `split_by`. For each split, it also
contains the seed, the size, and ordered lists of question hashes and problem keys. Entries are not hashed, because the
rest of the manifest determines them for a given version of reasoning-gym.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rg_env.core.data.selection import DrawnRow
from rg_env.core.data.splits import Split, SplitBy, question_hash
from rg_env.core.files import regular
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import is_user_task
from rg_env.core.text import counted, reason_of, shortened
from rg_env.core.user_code import sources
from rg_env.errors import InputError

Manifest = Mapping[str, Any]


def make_manifest(
    mixture: Mixture, splits: Mapping[str, tuple[Sequence[DrawnRow], int]], split_by: SplitBy = "problem"
) -> dict[str, Any]:
    """Build the manifest for `splits`, which maps each split to its rows and seed."""
    fields = ("name", "weight", "config", "level", "levels")
    tasks = [{key: getattr(task, key) for key in fields if key != "levels" or task.levels} for task in mixture.tasks]
    own = {os.path.basename(name): source for name, source in sources().items()}
    return {
        "versions": {name: version(name) for name in ("rg-env", "reasoning-gym")},
        **({"imports": own} if any(map(is_user_task, mixture.names)) else {}),
        "tasks": [{key: value for key, value in task.items() if value is not None} for task in tasks],
        "split_by": split_by,
        "splits": {split: _split(rows, seed) for split, (rows, seed) in splits.items()},
    }


class _Split(BaseModel):
    seed: int
    size: int
    question_hashes: list[str]
    problems: list[str]


class _Splits(BaseModel):
    train: _Split
    eval: _Split


class _Manifest(BaseModel):
    versions: dict[str, str]
    tasks: list[dict[str, Any]]
    split_by: SplitBy
    splits: _Splits


def read_manifest(source: str | Path | Manifest) -> Manifest:
    """Read a manifest of rows from `source`: a manifest, or the path or contents of a run's `manifest.json`.

    Raises `InputError` if `source` cannot be read or is not a manifest.
    """
    value: Any = source
    name = "the manifest"
    if isinstance(source, str | Path):
        name = f"the manifest {shortened(str(source))}"
        try:
            value = json.loads(regular(source).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{name} cannot be read: {reason_of(error)}") from error
    if isinstance(value, Mapping) and "rows" in value:  # a run's manifest, which also records the machine
        value = value["rows"]
        if value is None:
            raise InputError(f"{name} is from a run on the user's own rows, so there is nothing to compare")
    try:
        _Manifest.model_validate(value)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "its top level"
        raise InputError(f"{name} is not a manifest of rows: {where} is missing or malformed") from error
    return dict(value)


def split_hash(manifest: Manifest, split: Split) -> str:
    """Return the hex SHA-256 of what identifies a split's rows: the tasks, the seed, the questions and the version of
    reasoning-gym.

    Runs that differ only in the other split or in the version of rg-env have the same hash.
    """
    rows = {key: value for key, value in manifest["splits"][split].items() if key != "problems"}
    parts = [manifest["versions"].get("reasoning-gym"), manifest["tasks"], rows]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def hash_of_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the hex SHA-256 of the rows' prompts and gold answers, in order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row["prompt"], row["answer"]], sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


def check_manifest(expected: str | Path | Manifest, actual: Manifest) -> None:
    """Raise `InputError` unless `actual` describes the same rows as `expected`. The error message states the likely
    cause."""
    if difference := _difference(read_manifest(expected), actual):
        raise InputError(f"the rows differ from the manifest: {difference}")


def check_request(
    expected: str | Path | Manifest, mixture: Mixture, seeds: Mapping[Split, int], split_by: SplitBy
) -> None:
    """Raise `InputError` if rows for these arguments certainly differ from `expected`, because their tasks, options or
    seeds are different. This draws no rows, so other differences are not found."""
    found = make_manifest(mixture, {split: ((), seed) for split, seed in seeds.items()}, split_by)
    manifests = [
        {
            **manifest,
            "versions": {},
            "tasks": [{key: task.get(key) for key in ("name", "config")} for task in manifest["tasks"]],
            "splits": {split: {"seed": rows["seed"], "size": 0} for split, rows in manifest["splits"].items()},
        }
        for manifest in (read_manifest(expected), found)
    ]
    if difference := _differing_cause(*manifests):
        raise InputError(f"the rows differ from the manifest: {difference}")


def _differing_cause(wanted: Manifest, found: Manifest) -> str:
    for (what, theirs), (_, ours) in zip(_causes(wanted), _causes(found), strict=False):
        if theirs != ours:
            return f"the {what} is {shortened(theirs)} in the manifest but {shortened(ours)} here"
    return ""


def _difference(wanted: Manifest, found: Manifest) -> str:
    """Return the first cause of a difference, or "" if the rows are the same. A different rg-env version is not a cause
    by itself."""
    if cause := _differing_cause(wanted, found):
        return cause
    for split, ours in found["splits"].items():
        old, new = (part["question_hashes"] for part in (wanted["splits"][split], ours))
        if old != new:
            others = len(set(new) - set(old))
            what = f"{others} of {counted(len(new), 'question')}" if others else "the order of the questions"
            versions = [manifest["versions"].get("rg-env") for manifest in (wanted, found)]
            why = f" (made by rg-env {versions[0]}; this is {versions[1]})" if versions[0] != versions[1] else ""
            if wanted.get("imports") != found.get("imports"):
                why = " (your own tasks have been edited since the manifest was written)"
            return f"{what} in the {split} rows {'differ' if others > 1 else 'differs'}{why}"
    return ""


def _causes(manifest: Manifest) -> Iterator[tuple[str, Any]]:
    """Yield the inputs that determine the rows, most informative first."""
    yield "version of reasoning-gym", manifest["versions"].get("reasoning-gym")
    yield "split_by (splits.by in a config)", manifest["split_by"]
    yield "list of tasks", [task.get("name") for task in manifest["tasks"]]
    for task in manifest["tasks"]:
        # Levels come before `config` because a level explains the options that it sets.
        for key in ("weight", "levels", "level", "config"):
            yield f"{key} of task {task['name']}", task.get(key)
    for key in ("seed", "size"):
        for split in ("train", "eval"):
            yield f"{key} of the {split} rows", manifest["splits"][split][key]


def _split(rows: Sequence[DrawnRow], seed: int) -> dict[str, Any]:
    hashes = [question_hash(row["question"]) for row in rows]
    return {
        "seed": seed,
        "size": len(hashes),
        "sha256": hashlib.sha256("\n".join(hashes).encode()).hexdigest(),
        "question_hashes": hashes,
        "problems": [row["info"]["problem"] for row in rows],
    }
