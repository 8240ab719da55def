"""Write `rg_env/core/tasks/task_table.json` anew from the installed library.

python tools/task_table.py            # levels that are broken stay those of the shipped table
python tools/task_table.py --probe    # try every level of every task (minutes)
"""

import json
import sys

from rg_env.core.tasks import library
from rg_env.core.tasks.levels import probe_levels
from rg_env.core.tasks.task_table import PATH, TaskEntry, load_table, make_entry, shipped_table


def generate_table(broken: dict[str, dict[str, str]] | None = None) -> dict[str, TaskEntry]:
    """The table made from the installed library (imports it); `broken` levels are those of the shipped table, unless
    given."""
    if broken is None:
        broken = {task: entry.get("broken_levels", {}) for task, entry in shipped_table().items()}
    table: dict[str, TaskEntry] = {}
    for task in library.task_names():
        category = library.dataset_class(task)[0].__module__.split(".")[1]  # reasoning_gym.<category>.<module>
        table[task] = make_entry(task, category, broken.get(task, {}))
    return table


def render(table: dict[str, TaskEntry]) -> str:
    """The file's text: one task a line, so that a library update gives a readable diff."""
    lines = [f"  {json.dumps(task)}: {json.dumps(entry, ensure_ascii=False)}" for task, entry in sorted(table.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(render(generate_table()), encoding="utf-8")
    if "--probe" in sys.argv[1:]:
        shipped_table.cache_clear()
        load_table.cache_clear()
        PATH.write_text(render(generate_table(probe_levels())), encoding="utf-8")
    print(f"wrote {PATH}")
