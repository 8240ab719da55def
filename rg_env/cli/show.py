"""Options for `rg-env plot` and `rg-env report`, which are implemented in `rg_env.evaluation`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from rg_env.commands import require


def add(commands: Any) -> None:
    """Add `rg-env plot` and `rg-env report` to the subcommands."""
    plot = commands.add_parser(
        "plot",
        help="plot evaluation results or learning curves",
        usage="rg-env plot FILE... [--title T] [--rename A=B ...] [--output f.png|svg|pdf]",
        epilog="A FILE is a file of evaluation results (results_*.json), a run's metrics (metrics.jsonl), or a folder "
        "that contains such a file. Several files are drawn in one plot: results on the same questions, or the curves "
        "of several runs. All intervals are 95% confidence intervals.",
        examples=["rg-env plot outputs/EVAL/results_*.json", "rg-env plot outputs/*/metrics.jsonl --output curves.svg"],
    )
    option = plot.add_argument
    option(
        "files", nargs="+", type=Path, metavar="FILE", help="results files, metrics files, or their folders (see below)"
    )
    option("--title", metavar="T", help="title of the plot ('' for none); default: a generated description")
    option("--rename", nargs="+", action="extend", default=[], metavar="A=B", help="label the model or run A as B")
    option(
        "--output", type=Path, metavar="FILE", help="PNG, SVG or PDF file to write; default: named after the first FILE"
    )
    plot.set_defaults(run=_plot)

    report = commands.add_parser(
        "report",
        help="write an HTML report of a run or evaluation, with curves, tables and rollouts",
        usage="rg-env report RUN_OR_RESULTS [--output FILE] [--max-rollouts N]",
        epilog="The report works offline. Notes on missing or omitted data appear in the report and on standard error.",
    )
    option = report.add_argument
    option("source", metavar="RUN_OR_RESULTS", type=Path, help="folder of a run or evaluation, or a results file")
    option("--output", metavar="FILE", type=Path, help="HTML file to write; default: report.html in the folder")
    report.number("--max-rollouts", default=10_000, help="maximum number of rollouts in the report; default: 10000")
    report.set_defaults(run=_report)


def _plot(options: argparse.Namespace) -> int:
    require("matplotlib", extra="eval")
    from rg_env.evaluation.plots.files import plot_files

    return _print(*plot_files(options.files, options.output, options.title, options.rename))


def _report(options: argparse.Namespace) -> int:
    from rg_env.evaluation.report import write_report

    report = write_report(options.source, options.output, options.max_rollouts)
    return _print(report.file, report.notes)


def _print(file: Path, notes: list[str]) -> int:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(file)
    return 0
