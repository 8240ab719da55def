"""Options of `rg-env plot`, implemented in `rg_env.evaluation.plots.files`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from rg_env.commands import require


def add(commands: Any) -> None:
    """Add `rg-env plot` to the subcommands."""
    plot = commands.add_parser(
        "plot",
        help="plot results files or learning curves",
        usage="rg-env plot FILE... [--title T] [--rename A=B ...] [--rename-file m.json] [--output f.png|svg|pdf]",
        epilog="Several files are drawn in one plot: results on the same questions, or the curves of several runs. "
        "All intervals are 95%.",
        examples=["rg-env plot outputs/EVAL/results_*.json", "rg-env plot outputs/*/metrics.jsonl --output curves.svg"],
    )
    option = plot.add_argument
    option(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="evaluation results (results_*.json), run metrics (metrics.jsonl), or their folders",
    )
    option("--title", metavar="T", help="title of the plot; default: a generated description; '': no title")
    option("--rename", nargs="+", action="extend", default=[], metavar="A=B", help="label the model or run A as B")
    option(
        "--rename-file",
        type=Path,
        metavar="m.json",
        help='JSON file of labels, {"A": "B"}; names missing from the plot are ignored',
    )
    option(
        "--output",
        type=Path,
        metavar="FILE",
        help="output file (.png, .svg or .pdf); default: named after the first FILE",
    )
    plot.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `rg-env plot` and return the exit code."""
    require("matplotlib", "eval")
    from rg_env.evaluation.plots.files import plot_files

    plot, notes = plot_files(options.files, options.output, options.title, options.rename, options.rename_file)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(plot)
    return 0
