"""Tasks, their options and their difficulty levels, available without importing reasoning_gym.

    load_table()["maze"]["options"]                       # {option: default}
    resolve_levels("maze", 2, {"min_dist": 0})            # options for level 2, with min_dist at level 0

`tools/task_table.py` generates `task_table.json`, and a test checks the file against the installed library. The user's
own tasks (`core.user_code`) are added at run time.

A level is shorthand for the options that the library's curriculum sets at that level. `level: 2` applies to all
attributes of the task's curriculum, and `levels: {attribute: 2}` applies to individual attributes. `level` and `levels`
can be combined. Attributes for which neither is set stay at level 0, the library's default. If an attribute does not
have the level given by `level`, its highest level is used, as in the library's `set_global_level`.
"""

import contextlib
import dataclasses
import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict

from rg_env.errors import InputError, unknown_name

TABLE_FILE = Path(__file__).with_name("task_table.json")
SET_BY_ROWS = ("size", "seed")


class TaskEntry(TypedDict):
    """A task in the table. Values are JSON-compatible."""

    module: str
    """Name of the module that defines the task."""
    category: str
    options: dict[str, object]
    """Default of each option, except `size` and `seed`, which rg_env sets itself."""
    levels: dict[str, list[dict[str, object]]]
    """For each attribute of the task's curriculum, the options that each level sets. Empty if the task does not have a
    curriculum."""
    broken_levels: dict[str, str]
    """For each level that makes the library fail or run too slowly when applied to all attributes, the reason."""


_user_tasks: dict[str, TaskEntry] = {}


@lru_cache(maxsize=1)
def load_table() -> dict[str, TaskEntry]:
    """Return all tasks, both the library's and the user's own."""
    return {**shipped_table(), **_user_tasks}


@lru_cache(maxsize=1)
def shipped_table() -> dict[str, TaskEntry]:
    """Return the table shipped with the package."""
    table: dict[str, TaskEntry] = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
    return table


def add_user_task(task: str, entry: TaskEntry) -> None:
    """Add one of the user's own tasks to the table, or replace its entry."""
    _user_tasks[task] = entry
    load_table.cache_clear()


def is_user_task(task: str) -> bool:
    """Whether `task` is one of the user's own tasks."""
    return task in _user_tasks


def is_task_option(name: str) -> bool:
    """Whether any task has an option named `name`."""
    return any(name in entry["options"] for entry in load_table().values())


def make_entry(task: str, category: str, broken: dict[str, str]) -> TaskEntry:
    """Build a registered task's entry from its classes. Errors raised by these classes propagate."""
    from rg_env.core.tasks import library

    def plain(value: Any) -> Any:
        return json.loads(json.dumps(value, default=library.to_plain))

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
        "options": plain(options),
        "levels": plain(library.curriculum_levels(task)),
        "broken_levels": broken,
    }


def resolve_levels(task: str, level: int | None, levels: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return the options of `task` at the given `level` and `levels`. The result is empty if neither is given.

    Raises:
        UnknownNameError: an attribute is not in the task's curriculum.
        InputError: the task has no curriculum, or a level is out of range or broken in the library.
    """
    levels = levels or {}
    if level is None and not levels:
        return {}
    entry = load_table()[task]
    attributes = entry["levels"]
    if not attributes:
        raise InputError(f"task {task!r} has no levels: set its options under config instead")
    if level is not None:
        _check_level(("level",), task, level, max(map(len, attributes.values())))
    for attribute, value in levels.items():
        if attribute not in attributes:
            raise unknown_name(f"level attribute of task {task!r}", attribute, attributes).at("levels", str(attribute))
        _check_level(("levels", attribute), task, value, len(attributes[attribute]))
    options = level_options(attributes, {**dict.fromkeys(attributes, level or 0), **levels})
    for broken, reason in entry["broken_levels"].items():
        if options == level_options(attributes, dict.fromkeys(attributes, int(broken))):
            raise InputError(
                f"task {task!r}: level {broken} does not work in reasoning-gym {version('reasoning-gym')} ({reason}); "
                f"choose another level, or set options under config"
            )
    return options


def working_levels(task: str, attributes: Collection[str] = ()) -> dict[int, dict[str, Any]]:
    """Return a task's levels in ascending order, each with its options, excluding levels known to be broken.

    The `attributes` (by default, all of them) are set to the level, or to their highest level if that is lower. Other
    attributes stay at level 0. Raises `UnknownNameError` if an attribute is not in the task's curriculum.
    """
    steps = load_table()[task]["levels"]
    for name in attributes:
        if name not in steps:
            raise unknown_name(f"level attribute of task {task!r}", name, steps)
    working = {}
    for level in range(max((len(steps[name]) for name in attributes or steps), default=0)):
        levels = {name: min(level, len(steps[name]) - 1) for name in attributes or steps}
        with contextlib.suppress(InputError):  # broken
            working[level] = resolve_levels(task, None, levels)
    return working


def level_options(attributes: Mapping[str, list[dict[str, Any]]], levels: Mapping[str, int]) -> dict[str, Any]:
    """Return the options that result from setting each attribute to its given level, or to its highest level if the
    given level does not exist."""
    options: dict[str, Any] = {}
    for attribute, steps in attributes.items():
        options.update(steps[min(levels[attribute], len(steps) - 1)])
    return options


def _check_level(keys: tuple[str, ...], task: str, value: int, count: int) -> None:
    if value >= count:
        where = ".".join(keys)
        raise InputError(f"task {task!r}: {where} must be a whole number from 0 to {count - 1}, not {value}").at(*keys)
