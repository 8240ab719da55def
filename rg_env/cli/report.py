"""Options and output of `rg-env report`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from rg_env.commands import positive


def add(commands: Any) -> None:
    """Add `rg-env report` to the subcommands."""
    report = commands.add_parser(
        "report",
        help="write an HTML report of a run or an evaluation: curves, tables, rollouts",
        usage="rg-env report RUN_OR_RESULTS [--output FILE] [--max-rollouts N]",
        epilog="The page works offline. Notes on missing or omitted data appear on the page and on standard error.",
    )
    option = report.add_argument
    option("source", metavar="RUN_OR_RESULTS", type=Path, help="folder of a run or evaluation, or a results file")
    option("--output", metavar="FILE", type=Path, help="HTML file to write; default: report.html in the folder")
    option(
        "--max-rollouts", type=positive, metavar="N", help="maximum number of rollouts in the report; default: 10000"
    )
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from rg_env.evaluation.report import ROLLOUTS_KEPT, write_report

    report = write_report(options.source, options.output, options.max_rollouts or ROLLOUTS_KEPT)
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    print(report.file)
    return 0
