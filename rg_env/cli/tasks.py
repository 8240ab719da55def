"""`rg-env tasks`: its options. The text is made in `rg_env.cli.describe`."""

import argparse
from typing import Any

from rg_env.commands import positive
from rg_env.errors import InputError


def add(commands: Any) -> None:
    """Add the subcommand to those of `rg-env`."""
    tasks = commands.add_parser("tasks", help="list the tasks, show one, or show the audit of the graders")
    tasks.add_argument("name", nargs="*", help="a task; several with --audit")
    tasks.add_argument("--level", type=int, help="difficulty level, for one task")
    tasks.add_argument("--show", type=positive, default=0, metavar="N", help="print N example rows of one task")
    tasks.add_argument("--audit", action="store_true", help="the table of graders: gold answers, agreement, exploits")
    tasks.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run it; returns the exit code: 1 if the audit found problems."""
    from rg_env.cli import describe

    if options.audit:
        return 0 if describe.show_audit(lambda line: print(line, flush=True), options.name) else 1
    if len(options.name) > 1:
        raise InputError(f"one task at a time, not {len(options.name)} (several go with --audit)")
    if not options.name and (options.level is not None or options.show):
        raise InputError("--level and --show need the name of a task")
    print(describe.one_task(options.name[0], options.level, options.show) if options.name else describe.all_tasks())
    return 0
