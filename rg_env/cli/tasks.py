"""Options of `rg-env tasks`; `rg_env.cli.describe` renders the output."""

import argparse
import json
from typing import Any

from rg_env.commands import positive
from rg_env.errors import InputError


def add(commands: Any) -> None:
    """Add `rg-env tasks` to the subcommands."""
    tasks = commands.add_parser(
        "tasks",
        help="list the tasks, show one task, or show the grader audit",
        usage="rg-env tasks [NAME [--level N] [--show N]] [--category C] [--sort BY] [--audit] [--json]",
        examples=[
            "rg-env tasks --category logic --sort constant",
            "rg-env tasks leg_counting --level 3 --show 2",
            "rg-env tasks --json | jq '.[] | select(.levels > 5) | .name'",
        ],
    )
    option = tasks.add_argument
    option("name", nargs="*", metavar="NAME", help="task to show; several with --audit")
    option("--category", metavar="C", help="list only tasks of this category")
    option(
        "--sort",
        choices=["category", "name", "levels", "draw", "constant"],
        default="category",
        help="sort order of the list; numbers ascending",
    )
    option("--json", action="store_true", help="print records instead of a table")
    option("--level", type=int, metavar="N", help="difficulty level of the task")
    option("--show", type=positive, default=0, metavar="N", help="print N example rows of the task")
    option("--audit", action="store_true", help="show the grader audit: gold answers, agreement, exploits")
    tasks.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `rg-env tasks`; returns the exit code: 1 if the audit found problems."""
    from rg_env.cli import describe

    if options.audit:
        return 0 if describe.show_audit(lambda line: print(line, flush=True), options.name) else 1
    if len(options.name) > 1:
        raise InputError(f"expected one task, got {len(options.name)} (several require --audit)")
    if options.name:
        print(describe.one_task(options.name[0], options.level, options.show))
        return 0
    if options.level is not None or options.show:
        raise InputError("--level and --show require a task name")
    found = describe.records(options.category, options.sort)
    print(json.dumps(found, indent=1) if options.json else describe.table(found))
    return 0
