"""The table of tasks, options and levels, `task_table.json`, so that all of them can be checked without importing
reasoning_gym.

`tools/task_table.py` writes it.

Tasks of the user's own (`core.tasks.user_tasks`) stand beside those of the file while the program runs.

A test keeps it equal to the installed library. Form: {task: {"module": str, "category": str, "options": {option:
default}, "levels": {attribute: [{option: value}, ...]}, "broken_levels": {level: reason}}}, values in their JSON form,
`size` and `seed` left out because rows set them. `levels` holds, for each attribute of the task's curriculum, the
options that each of its levels sets; it is empty where the library has no curriculum. `broken_levels` are levels of a
whole task that the library cannot generate items for, or too slowly.
"""

import dataclasses
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

PATH = Path(__file__).with_name("task_table.json")
SET_BY_ROWS = ("size", "seed")


class TaskEntry(TypedDict):
    """What the table says about one task."""

    module: str
    """The library's module that defines it."""
    category: str
    options: dict[str, object]
    levels: dict[str, list[dict[str, object]]]
    broken_levels: dict[str, str]


_user_tasks: dict[str, TaskEntry] = {}


@lru_cache(maxsize=1)
def load_table() -> dict[str, TaskEntry]:
    """All tasks that there are: those shipped, and the user's own."""
    return {**shipped_table(), **_user_tasks}


@lru_cache(maxsize=1)
def shipped_table() -> dict[str, TaskEntry]:
    """The table as shipped with the package."""
    table: dict[str, TaskEntry] = json.loads(PATH.read_text(encoding="utf-8"))
    return table


def add_user_task(task: str, entry: TaskEntry) -> None:
    """Put a task of the user's own into the table, or another entry in its place."""
    _user_tasks[task] = entry
    load_table.cache_clear()


def is_user_task(task: str) -> bool:
    """Whether `task` is one of the user's own."""
    return task in _user_tasks


def make_entry(task: str, category: str, broken: dict[str, str]) -> TaskEntry:
    """The entry of a registered task, made from its classes; raises what these raise."""
    from rg_env.core.tasks import library

    dataset_cls, config_cls = library.dataset_class(task)
    defaults = config_cls()
    options = {
        field.name: getattr(defaults, field.name)
        for field in dataclasses.fields(config_cls)
        if field.name not in SET_BY_ROWS
    }
    return {
        "module": dataset_cls.__module__,
        "category": category,
        "options": _plain(options),
        "levels": _plain(library.curriculum_levels(task)),
        "broken_levels": broken,
    }


def _plain(value: Any) -> Any:
    from rg_env.core.tasks import library

    return json.loads(json.dumps(value, default=library.to_plain))
