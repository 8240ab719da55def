"""Levels of difficulty: the library's curricula as plain options.

A task spec names `level: 2` for all attributes of the task's curriculum, `levels: {attribute: 2}` for single ones, or
both; attributes not named stay at level 0, the library's default. An attribute with fewer levels than the `level` asked
for takes its highest, as in the library's `set_global_level`. What a level means is read from the shipped table
(`core.tasks.task_table`), so that neither parsing nor grading imports reasoning_gym.
"""

import os
import signal
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import version
from typing import Any

from rg_env.core.tasks.task_table import load_table, shipped_table
from rg_env.errors import InputError, unknown_name

PROBE_ITEMS = 4
PROBE_S = 8.0
"""A level that does not give `PROBE_ITEMS` items in this many seconds, beside the import, counts as broken ..."""
PROBE_DRAWS = 500
"""... and so does one that does not give them in this many draws (`core.tasks.library_fixes.is_item`)."""


def resolve_levels(task: str, level: object, levels: object) -> dict[str, Any]:
    """The options that `level` and `levels` of `task` mean; empty if neither is given (None, and None or empty).

    Raises `UnknownNameError` for an attribute that the task's curriculum does not have, and `InputError` for a task
    without a curriculum, a level out of range and one that is broken in the library.
    """
    if levels is None:
        levels = {}
    if not isinstance(levels, Mapping):
        raise InputError(f"task {task!r}: levels must be a mapping of attributes to levels, not {levels!r}")
    if level is None and not levels:
        return {}
    entry = load_table()[task]
    attributes = entry["levels"]
    if not attributes:
        raise InputError(f"task {task!r} has no levels: set its options with config")
    if level is not None:
        _check(("level",), task, level, max(len(steps) for steps in attributes.values()))
    for attribute, value in levels.items():
        if attribute not in attributes:
            raise unknown_name(f"level attribute of task {task!r}", attribute, attributes).at("levels", str(attribute))
        _check(("levels", attribute), task, value, len(attributes[attribute]))
    everywhere = level if isinstance(level, int) else 0
    options = _options(attributes, {attribute: levels.get(attribute, everywhere) for attribute in attributes})
    for broken, reason in entry["broken_levels"].items():
        if options == _options(attributes, dict.fromkeys(attributes, int(broken))):
            raise InputError(
                f"task {task!r}: level {broken} does not work in reasoning-gym {version('reasoning-gym')} ({reason}): "
                f"choose another, or set options with config"
            )
    return options


def options_at(task: str, level: int, attributes: Collection[str] = ()) -> dict[str, Any]:
    """The options of `level`: of the given attributes, the others at level 0; none given: of all.

    An attribute with fewer levels takes its highest. Raises as `resolve_levels`; the attributes must exist.
    """
    if not attributes:
        return resolve_levels(task, level, None)
    steps = load_table()[task]["levels"]
    return resolve_levels(task, None, {name: min(level, len(steps[name]) - 1) for name in attributes})


def working_levels(task: str, attributes: Collection[str] = ()) -> list[int]:
    """The levels of a task, ascending, without those that are known to be broken; `attributes` as for `options_at`.

    Raises `UnknownNameError` for an attribute that the task's curriculum does not have.
    """
    steps = load_table()[task]["levels"]
    for name in attributes:
        if name not in steps:
            raise unknown_name(f"level attribute of task {task!r}", name, steps)
    working = []
    for level in range(max((len(steps[name]) for name in attributes or steps), default=0)):
        try:
            options_at(task, level, attributes)
        except InputError:
            continue
        working.append(level)
    return working


def _options(attributes: Mapping[str, list[dict[str, Any]]], levels: Mapping[str, int]) -> dict[str, Any]:
    """The options of each attribute's level, or of its highest where it has fewer."""
    options: dict[str, Any] = {}
    for attribute, steps in attributes.items():
        options.update(steps[min(levels[attribute], len(steps) - 1)])
    return options


def _check(keys: tuple[str, ...], task: str, value: object, count: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        what = keys[0] + "".join(f"[{key!r}]" for key in keys[1:])
        raise InputError(f"task {task!r}: {what} must be a whole number from 0 to {count - 1}, not {value!r}").at(*keys)


def probe_levels(tasks: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
    """For each task the levels that the installed library cannot serve, with the reason.

    Each level is tried in a forked process that an alarm ends when it takes too long. About two minutes for all tasks:
    once for a library version.
    """
    from rg_env.core.tasks import library

    library.factory()
    broken: dict[str, dict[str, str]] = {}
    for task in tasks or shipped_table():
        attributes = load_table()[task]["levels"]
        for level in range(max((len(steps) for steps in attributes.values()), default=0)):
            options = _options(attributes, dict.fromkeys(attributes, level))
            if reason := _probe(task, options):
                broken.setdefault(task, {})[str(level)] = reason
    return broken


def _probe(task: str, options: Mapping[str, Any]) -> str:
    """Why no items come from `task` with `options`; empty if they do."""
    from rg_env.core.tasks import library
    from rg_env.core.tasks.library_fixes import is_item

    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, PROBE_S)  # its default action ends the process, inside C code too
        reason = ""
        try:
            dataset = library.create(task, options, seed=1, size=PROBE_DRAWS)
            with library.quiet():
                found = 0
                for index in range(PROBE_DRAWS):
                    found += is_item(task, dataset[index])
                    if found == PROBE_ITEMS:
                        break
                else:
                    reason = f"{found} questions in {PROBE_DRAWS} draws"
        except Exception as error:
            cause = error.__cause__ or error
            reason = f"{type(cause).__name__}: {' '.join(str(cause).split())}".rstrip(": ")
        os.write(sender, reason[:1000].encode())
        os._exit(0)
    os.close(sender)
    with open(receiver, encoding="utf-8") as stream:
        reason = stream.read()
    _, status = os.waitpid(child, 0)
    return reason if status == 0 else f"over {PROBE_S:g} s for {PROBE_ITEMS} items"
