"""Regenerate `rg_env/core/tasks/task_table.json` from the installed library.

python tools/task_table.py            # keeps the shipped table's list of broken levels
python tools/task_table.py --probe    # probes every level of every task (takes minutes)
"""

import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rg_env.core.tasks import library
from rg_env.core.tasks.library_fixes import left_out
from rg_env.core.tasks.task_table import TABLE_FILE, TaskEntry, level_options, load_table, make_entry, shipped_table
from rg_env.core.text import one_line

PROBE_ITEMS = 4
PROBE_S = 8.0
"""Maximum time in seconds to generate `PROBE_ITEMS` items, excluding imports; a level that takes longer is broken."""
PROBE_DRAWS = 500
"""Maximum number of draws to generate `PROBE_ITEMS` items; a level that needs more is broken."""


def generate_table(broken: dict[str, dict[str, str]] | None = None) -> dict[str, TaskEntry]:
    """Generate the table from the installed library, which this function imports. `broken` defaults to the broken
    levels of the shipped table."""
    if broken is None:
        broken = {task: entry.get("broken_levels", {}) for task, entry in shipped_table().items()}
    table: dict[str, TaskEntry] = {}
    for task in library.task_names():
        category = library.dataset_class(task)[0].__module__.split(".")[1]  # reasoning_gym.<category>.<module>
        table[task] = make_entry(task, category, broken.get(task, {}))
    return table


def render(table: Mapping[str, Any]) -> str:
    """Return the file's text, with one task per line so that a library update produces a readable diff."""
    lines = [f"  {json.dumps(task)}: {json.dumps(entry, ensure_ascii=False)}" for task, entry in sorted(table.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def probe_levels(tasks: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
    """Return, for each task, the levels at which the installed library cannot generate questions, with the reasons.

    Each level is probed in a forked process, which is terminated by an alarm if it takes too long. Probing is needed
    once per library version; probing all tasks takes about two minutes.
    """
    library.factory()
    broken: dict[str, dict[str, str]] = {}
    for task in tasks or shipped_table():
        attributes = load_table()[task]["levels"]
        for level in range(max((len(steps) for steps in attributes.values()), default=0)):
            options = level_options(attributes, dict.fromkeys(attributes, level))
            if reason := _probe(task, options):
                broken.setdefault(task, {})[str(level)] = reason
    return broken


def _probe(task: str, options: Mapping[str, Any]) -> str:
    """Return the reason why `PROBE_ITEMS` items of `task` cannot be generated with `options`, or "" if they can."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, PROBE_S)  # the signal's default action ends the process even inside C code
        reason = ""
        try:
            dataset = library.create(task, options, seed=1, size=PROBE_DRAWS)
            with library.quiet():
                found = 0
                for index in range(PROBE_DRAWS):
                    found += not left_out(task, dataset[index])
                    if found == PROBE_ITEMS:
                        break
                else:
                    reason = f"{found} questions in {PROBE_DRAWS} draws"
        except Exception as error:
            cause = error.__cause__ or error
            reason = f"{type(cause).__name__}: {one_line(cause)}".rstrip(": ")
        os.write(sender, reason[:1000].encode())
        os._exit(0)
    os.close(sender)
    with open(receiver, encoding="utf-8") as stream:
        reason = stream.read()
    _, status = os.waitpid(child, 0)
    return reason if status == 0 else f"over {PROBE_S:g} s for {PROBE_ITEMS} items"


if __name__ == "__main__":
    TABLE_FILE.write_text(render(generate_table()), encoding="utf-8")
    if "--probe" in sys.argv[1:]:
        shipped_table.cache_clear()
        load_table.cache_clear()
        TABLE_FILE.write_text(render(generate_table(probe_levels())), encoding="utf-8")
    print(f"wrote {TABLE_FILE}")
