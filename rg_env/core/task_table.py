"""The table of tasks, options and levels, `task_table.json`, so that all of them can be checked without importing
reasoning_gym.

    python -m rg_env.core.task_table            # write it anew from the installed library
    python -m rg_env.core.task_table --probe    # ... and try every level of every task (minutes)

A test keeps it equal to the installed library. Form: {task: {"module": str, "category": str, "options": {option:
default}, "levels": {attribute: [{option: value}, ...]}, "broken_levels": {level: reason}}}, values in their JSON form,
`size` and `seed` left out because rows set them. `levels` holds, for each attribute of the task's curriculum, the
options that each of its levels sets; it is empty where the library has no curriculum. `broken_levels` are levels of a
whole task that the library cannot generate items for, or too slowly; only `--probe` finds them.
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


@lru_cache(maxsize=1)
def load_table() -> dict[str, TaskEntry]:
    """The table as shipped with the package."""
    table: dict[str, TaskEntry] = json.loads(PATH.read_text(encoding="utf-8"))
    return table


def generate_table(broken: dict[str, dict[str, str]] | None = None) -> dict[str, TaskEntry]:
    """The table made from the installed library (imports it); `broken` levels are those of the shipped table, unless
    given."""
    from rg_env.core import library

    if broken is None:
        broken = {task: entry.get("broken_levels", {}) for task, entry in load_table().items()}
    table: dict[str, TaskEntry] = {}
    for task in library.task_names():
        dataset_cls, config_cls = library.dataset_class(task)
        defaults = config_cls()
        options = {
            field.name: getattr(defaults, field.name)
            for field in dataclasses.fields(config_cls)
            if field.name not in SET_BY_ROWS
        }
        table[task] = {
            "module": dataset_cls.__module__,
            "category": dataset_cls.__module__.split(".")[1],  # reasoning_gym.<category>.<module>
            "options": _plain(options),
            "levels": _plain(library.curriculum_levels(task)),
            "broken_levels": broken.get(task, {}),
        }
    return table


def render(table: dict[str, TaskEntry]) -> str:
    """The file's text: one task a line, so that a library update gives a readable diff."""
    lines = [f"  {json.dumps(task)}: {json.dumps(entry, ensure_ascii=False)}" for task, entry in sorted(table.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _plain(value: Any) -> Any:
    from rg_env.core import library

    return json.loads(json.dumps(value, default=library.to_plain))


if __name__ == "__main__":
    import sys

    PATH.write_text(render(generate_table()), encoding="utf-8")
    if "--probe" in sys.argv[1:]:
        from rg_env.core.levels import probe_levels

        load_table.cache_clear()
        PATH.write_text(render(generate_table(probe_levels())), encoding="utf-8")
    print(f"wrote {PATH}")
