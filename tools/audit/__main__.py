"""Audit the grader of each task; results are stored in `rg_env/core/grading/task_audit.json`.

    .venv/bin/python -m tools.audit                      # all tasks, on all cores
    .venv/bin/python -m tools.audit gcd maze --rows 100  # two tasks
    .venv/bin/python -m tools.audit --write              # update the table

For each task, the audit checks whether gold answers are graded as right, and whether our grader and the library's agree
on honest answers (`honest`). It also measures the scores of the best constant answer and the best cheap reply
(`constants`, `search`) and the number of distinct problems. `rg-env tasks --audit` prints the shipped table. The exit
code is 1 if a gold answer is graded as wrong or a disagreement with the library is unexplained.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from rg_env.cli.tasks import AUDIT_HEADER, audit_line
from rg_env.core.grading.audit import AUDIT_FILE, Audit, kept
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import shipped_table

from .changes import TABLES
from .honest import compare
from .rows import rows_of
from .search import SHORTCUTS, SOLUTIONS, Found, search

SLOW: dict[str, float] = TABLES["slow"]
_MOST_SHOWN = 200


def measure(task: str, items: int, seeds: int, rows: int) -> Audit:
    """Audit one task on `items` questions for each of `seeds` seeds and on `rows` rows from each split, or on fewer if
    the task is in `SLOW`."""
    share = SLOW.get(task, 1.0)
    result = compare(task, round(items * share), range(seeds))
    train, held_out = rows_of(task, round(rows * share), round(rows * share))
    found = search(task, train, held_out)
    result.rows = len(held_out)
    result.constant, _, result.constant_reply = _shown(found.constant)
    result.constant_reply = result.constant_reply.removeprefix("constant ")
    result.exploit, _, result.exploit_reply = _shown(found.exploit)
    if result.exploit > 0.5 and task in SHORTCUTS:
        result.exploit_reply += f" ({SHORTCUTS[task]})"
    _, result.partial, result.partial_reply = _shown(found.partial)
    result.solution, _, result.solution_reply = _shown(found.solution)
    if found.solution:
        result.solution_reply += f": {SOLUTIONS[task]['why']}"
    return result


def _shown(found: Found | None) -> tuple[float, float, str]:
    if found is None:
        return 0.0, 0.0, ""
    name = found.strategy.name
    return (*found.paid, name if len(name) <= _MOST_SHOWN else name[: _MOST_SHOWN - 3] + "...")


def write(audits: Iterable[Audit], path: Path = AUDIT_FILE) -> None:
    """Replace the table's entries for these tasks, and keep the other entries."""
    table = (kept(path) if path.exists() else {}) | {result.task: result for result in audits}
    lines = []
    for task, result in sorted(table.items()):
        row = {name: value for name, value in vars(result).items() if name not in ("task", "examples")}
        row = {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
        lines.append(f"  {json.dumps(task)}: {json.dumps(row, ensure_ascii=False)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> int:
    """Audit the tasks. Print each result as soon as it is available, and store it with `--write`."""
    parser = argparse.ArgumentParser("python -m tools.audit", description="Audit the graders of all or some tasks.")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="tasks; default: all")
    parser.add_argument("--items", type=int, default=100, help="questions per seed for honest answers; default: 100")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds; default: 3")
    parser.add_argument("--rows", type=int, default=200, help="rows from each split for the searches; default: 200")
    parser.add_argument("--processes", type=int, default=cores, help="number of processes; default: one per core")
    parser.add_argument("--write", action="store_true", help=f"store the results in {AUDIT_FILE.name}")
    options = parser.parse_args()
    tasks = list(Mixture.parse(options.tasks).names) if options.tasks else list(shipped_table())
    before = kept()
    tasks.sort(key=lambda task: before[task].draw_ms if task in before else 0)  # fast tasks first
    fine = True
    print(AUDIT_HEADER)
    with ProcessPoolExecutor(options.processes) as pool:
        jobs = [pool.submit(measure, task, options.items, options.seeds, options.rows) for task in tasks]
        for job in as_completed(jobs):
            result = job.result()
            fine = fine and result.fine
            print("\n".join([audit_line(result), *(f"    ! {text}" for text in result.examples)]), flush=True)
            if options.write:
                write([result])
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
