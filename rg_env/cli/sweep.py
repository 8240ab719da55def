"""Options for `rg-env train --sweep` and `rg-env compare`."""

import argparse
from pathlib import Path
from typing import Any

from rg_env.commands import require
from rg_env.errors import InputError


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--sweep` to a subcommand."""
    parser.add_argument(
        "--sweep",
        nargs="+",
        action="extend",
        default=[],
        metavar="key=a,b",
        help="train once for each combination of values, such as training.learning_rate=1e-6,2e-6 seed=0,1,2; "
        "a key with a single value, before or after --sweep, applies to all runs",
    )


def add(commands: Any) -> None:
    """Add `rg-env compare` to the subcommands."""
    compare = commands.add_parser(
        "compare",
        help="compare the settings of a sweep in tables and plots",
        usage="rg-env compare FOLDER",
        epilog="The command prints the means by setting, with intervals over seeds, and a paired test between "
        "settings. It writes them to comparison.md, comparison.json, comparison.csv and comparison.tex in FOLDER, with "
        "the plots comparison.png and curves.png. For runs that do not belong to a single sweep, use `rg-env plot RUN "
        "RUN --group` to draw the curves, and `rg-env eval --models RUN RUN` to compare the models.",
    )
    compare.add_argument("folder", metavar="FOLDER", type=Path, help="sweep folder")
    compare.set_defaults(run=lambda options: compare_runs(options.folder))


def run(options: argparse.Namespace) -> int:
    """Run a sweep and return the exit code."""
    from rg_env.core.processes import world_size
    from rg_env.jobs.sweep import (
        fixed_and_swept,
        load_sweep,
        plan_lines,
        resume_command,
        run_sweep,
        sweep_folder,
    )

    if options.eval_only:
        raise InputError("--sweep cannot be combined with --eval-only, which evaluates a single model")
    if options.resume not in (None, "auto"):
        raise InputError(f"--resume {options.resume} is for a single run: use --resume auto for a sweep")
    if world_size() > 1:
        raise InputError("--sweep starts a single process per run: use `rg-env slurm --sweep` for several processes")
    options.overrides, options.sweep = fixed_and_swept(options.overrides, options.sweep)
    sweep = load_sweep(options.config, options.overrides, options.sweep)
    folder = sweep_folder(sweep, Path(options.config).stem, options.resume == "auto")
    if options.dry_run:
        print("\n".join(plan_lines(sweep, folder)))
        return 0
    require("psutil", "matplotlib", "rich", extra="train")  # fail before the runs start
    print(plan_lines(sweep, folder)[0], flush=True)
    code = run_sweep(sweep, folder, again=resume_command(options.config, options.overrides, options.sweep, folder))
    if code <= 1:
        compare_runs(folder)
    return code


def compare_runs(folder: Path) -> int:
    """Write and print the comparison for the sweep in `folder`, and return the exit code."""
    require("matplotlib", "rich", extra="eval")
    from rg_env.core.run_folder import damage_reported
    from rg_env.jobs.comparison import compare, print_comparison, write_comparison

    with damage_reported(folder):
        comparison = compare(folder)
        try:  # write the files before printing the table, because `| head` may close the pipe
            names = write_comparison(comparison)
        finally:
            print_comparison(comparison)
    print(f"{folder}: {', '.join(names)}")
    return 0
