"""The user's own tasks: datasets that their module registers with Reasoning Gym.

    register_dataset("robots", RobotsDataset, RobotsConfig, RobotsCurriculum)     # reasoning_gym.factory

Such a task needs

- a config that is a dataclass with defaults, and with fields `seed` and `size`;
- items that depend only on (config, seed + index), so that the same spec yields the same rows everywhere. Generate each
  item on request: datasets are built with 20,000 items;
- a `score_answer(answer, entry)` that accepts the entry after a round trip through JSON: tuples become lists, and keys
  become text. It runs in a worker process, limited to `core.grading.scoring.UPSTREAM_WALL_S` seconds, which include the
  dataset's `__init__` on the first call.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from rg_env.core.tasks import library
from rg_env.core.tasks.task_table import SET_BY_ROWS, add_user_task, is_user_task, make_entry, shipped_table
from rg_env.core.text import one_line, shortened
from rg_env.errors import InputError

CATEGORY = "user"
_NAME = re.compile(r"\w[\w.-]{0,79}")


def register_new_tasks(source: str) -> None:
    """Add the tasks that the user's code in `source` has registered with the library to the task table.

    Raises:
        InputError: a task has the name of a shipped one or an invalid name, or its config or curriculum cannot be read.
    """
    factory = sys.modules.get("reasoning_gym.factory")
    for task, classes in factory.DATASETS.items() if factory else ():
        if is_user_task(task) or all(cls.__module__.partition(".")[0] == "reasoning_gym" for cls in classes):
            continue
        if task in shipped_table():
            raise InputError(
                f"imports: {source} registers the task {task!r}, which already exists: choose another name"
            )
        if not isinstance(task, str) or not _NAME.fullmatch(task):
            raise InputError(f"imports: {source} registers the task {task!r}: use letters, digits, '_', '-' and '.'")
        add_user_task(task, _entry_of(task, source, classes[1]))


def _entry_of(task: str, source: str, config_cls: Any) -> Any:
    where = f"imports: task {task!r} of {source}"
    fields = {field.name for field in dataclasses.fields(config_cls)}
    for name in SET_BY_ROWS:
        if name not in fields:
            raise InputError(f"{where}: its config {config_cls.__name__} lacks the required field {name!r}")
    try:
        return make_entry(task, CATEGORY, {})
    except Exception as error:  # the user's classes may lack defaults, or have a curriculum of unknown fields
        raise InputError(
            f"{where}: its config {config_cls.__name__} or its curriculum does not work: "
            f"{type(error).__name__}: {one_line(error)}"
        ) from error


def checked_entry(task: str, entry: object) -> dict[str, Any]:
    """Convert an item of the user's dataset to an entry with question, answer and metadata in JSON form.

    Raises:
        InputError: the item is invalid; the message names the task and its class.
    """
    cls = library.dataset_class(task)[0]
    where = f"task {task!r} ({cls.__module__}.{cls.__qualname__})"
    if not isinstance(entry, Mapping):
        raise InputError(f"{where}: an item must be a dict with question and answer, not {shortened(entry)}")
    for key in ("question", "answer"):
        if key not in entry:
            raise InputError(f"{where}: an item lacks {key!r}; it has {sorted(map(str, entry))}")
    if not isinstance(entry["question"], str) or not entry["question"].strip():
        raise InputError(f"{where}: a question must be text, not {shortened(entry['question'])}")
    if entry["answer"] is not None and not isinstance(entry["answer"], str):
        raise InputError(
            f"{where}: an answer must be text, or None if none is stored, not {shortened(entry['answer'])}"
        )
    metadata = entry.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise InputError(f"{where}: metadata of an item must be a dict, not {shortened(metadata)}")
    try:
        text = json.dumps({**entry, "metadata": metadata}, default=library.to_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{where}: an item cannot be written as JSON: {error}") from error
    whole: dict[str, Any] = json.loads(text)
    return whole
