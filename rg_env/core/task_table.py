"""The table of tasks and options, `task_table.json`, so that names can be checked without importing reasoning_gym.

    python -m rg_env.core.task_table        # write it anew from the installed library

A test keeps it equal to the installed library. Form: {task: {"category": str, "options": {option: default}}}, defaults
in their JSON form, `size` and `seed` left out because rows set them.
"""

import dataclasses
import json
from functools import lru_cache
from pathlib import Path
from typing import TypedDict

PATH = Path(__file__).with_name("task_table.json")
SET_BY_ROWS = ("size", "seed")


class TaskEntry(TypedDict):
    """What the table says about one task."""

    category: str
    options: dict[str, object]


@lru_cache(maxsize=1)
def load_table() -> dict[str, TaskEntry]:
    """The table as shipped with the package."""
    table: dict[str, TaskEntry] = json.loads(PATH.read_text(encoding="utf-8"))
    return table


def generate_table() -> dict[str, TaskEntry]:
    """The table made from the installed library (imports it)."""
    from rg_env.core import library

    table: dict[str, TaskEntry] = {}
    for task in library.task_names():
        dataset_cls, config_cls = library.dataset_class(task)
        defaults = config_cls()
        options = {
            field.name: getattr(defaults, field.name)
            for field in dataclasses.fields(config_cls)
            if field.name not in SET_BY_ROWS
        }
        category = dataset_cls.__module__.split(".")[1]  # reasoning_gym.<category>.<module>
        table[task] = {"category": category, "options": json.loads(json.dumps(options, default=library.to_plain))}
    return table


def render(table: dict[str, TaskEntry]) -> str:
    """The file's text: one task a line, so that a library update gives a readable diff."""
    lines = [f"  {json.dumps(task)}: {json.dumps(entry, ensure_ascii=False)}" for task, entry in sorted(table.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(render(generate_table()), encoding="utf-8")
    print(f"wrote {PATH}")
