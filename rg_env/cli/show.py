"""Options for `rg-env plot` and `rg-env report`, which are implemented in `rg_env.evaluation`."""

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Any

from rg_env.commands import require, say
from rg_env.core.text import without_controls


def add(commands: Any) -> None:
    """Add `rg-env plot` and `rg-env report` to the subcommands."""
    plot = commands.add_parser(
        "plot",
        help="plot evaluation results or learning curves",
        usage="rg-env plot FILE... [--group [KEY ...]] [--size WxH] [--title T]\n    [--rename A=B ...] "
        "[--output f.png|svg|pdf]",
        epilog="A FILE is a file of evaluation results (results_*.json), a run's metrics (metrics.jsonl), or a folder "
        "that contains such a file, or a sweep. Several files are drawn in one plot: results on the same questions, or "
        "the curves of several runs. All intervals are 95% confidence intervals: over questions, or with --group, over "
        "at least three runs (accuracies: Wilson's, with runs as clusters; rewards: Student's t).",
        examples=[
            "rg-env plot outputs/EVAL/results_*.json",
            "rg-env plot outputs/*/metrics.jsonl --output curves.svg",
            "rg-env plot outputs/SWEEP --group training.learning_rate --size 6.5x3 --output curves.pdf",
        ],
    )
    option = plot.add_argument
    option(
        "files", nargs="+", type=Path, metavar="FILE", help="results files, metrics files, or their folders (see below)"
    )
    text = "draw the mean of the runs with the same values of these config keys; without KEY: of all keys but seeds"
    option("--group", nargs="*", metavar="KEY", help=text)
    option(
        "--size", type=_size, metavar="WxH", help="width and height of the image in inches; default: to fit the content"
    )
    option("--title", metavar="T", help="title of the plot ('' for none); default: a generated description")
    option("--rename", nargs="+", action="extend", default=[], metavar="A=B", help="label the model or run A as B")
    option(
        "--output", type=Path, metavar="FILE", help="PNG, SVG or PDF file to write; default: named after the first FILE"
    )
    plot.set_defaults(run=_plot)

    report = commands.add_parser(
        "report",
        help="write an HTML report of a run, an evaluation, or a folder of runs",
        usage="rg-env report RUN_OR_RESULTS [--output FILE] [--max-rollouts N] [--watch SECONDS]",
        epilog="The report shows the result, curves, a table and the rollouts, and works offline. For a folder of "
        "runs, such as a sweep, the command writes a report of each run and a page that links to them. Notes on "
        "missing or omitted data appear in the report and on standard error.",
        examples=["rg-env report outputs/RUN --watch 30", "rg-env report outputs"],
    )
    option = report.add_argument
    option(
        "source",
        metavar="RUN_OR_RESULTS",
        type=Path,
        help="folder of a run, an evaluation or several runs, or a results file",
    )
    option("--output", metavar="FILE", type=Path, help="HTML file to write; default: report.html in the folder")
    report.number("--max-rollouts", default=10_000, help="maximum number of rollouts in the report; default: 10000")
    report.number(
        "--watch",
        metavar="SECONDS",
        help="while the run is not finished, rewrite the report this often; the page reloads itself",
    )
    report.set_defaults(run=_report)


def _plot(options: argparse.Namespace) -> int:
    require("matplotlib", extra="eval")
    from rg_env.evaluation.plots.files import plot_files

    given = options.files, options.output, options.title, options.rename, options.group, options.size
    return _print(*plot_files(*given))


def _size(text: str) -> tuple[float, float]:
    match = re.fullmatch(r"(\d+\.?\d*)x(\d+\.?\d*)", text)
    if not match or not all(1 <= float(each) <= 40 for each in match.groups()):
        raise argparse.ArgumentTypeError(f"{text!r} is not WIDTHxHEIGHT in inches, from 1 to 40, such as 6.5x3")
    return float(match[1]), float(match[2])


def _report(options: argparse.Namespace) -> int:
    from rg_env.core.run_folder import damage_reported
    from rg_env.evaluation.report import write_report

    is_sweep = (options.source / "sweep.yaml").is_file() and any(options.source.glob("*/metrics.jsonl"))
    while True:
        with damage_reported(options.source):
            study = _study(options.source) if is_sweep else {}
        report = write_report(options.source, options.output, options.max_rollouts, refresh_s=options.watch, **study)
        if not (options.watch and report.is_unfinished):
            return _print(report.file, report.notes)
        print(f"{report.file}: updated every {options.watch} s until the run ends (stop with Ctrl-C)", flush=True)
        time.sleep(options.watch)


def _study(sweep: Path) -> dict[str, Any]:
    """Return the tables of a sweep's comparison, and a chart of its mean curves."""
    require("matplotlib", extra="eval")
    from rg_env.evaluation.plots.curves import ACCURACY
    from rg_env.evaluation.report.content import Chart
    from rg_env.jobs.comparison import compare, comparison_tables, mean_curves

    comparison = compare(sweep)
    lines: dict[str, Any] = {
        curve.name: [(step, (each, *curve.intervals.get(step, (None, None)))) for step, each in accuracies.items()]
        for curve in mean_curves(comparison)
        if (accuracies := curve.values.get(ACCURACY))
    }
    about = "Mean over finished runs, and 95% interval over the seeds or, for a single run, over its questions"
    charts = [Chart("Accuracy on the frozen questions, by setting", lines, about, share=True)] if lines else []
    return {"tables": comparison_tables(comparison), "charts": charts}


def _print(file: Path, notes: list[str]) -> int:
    for note in notes:
        print(f"note: {without_controls(note)}", file=sys.stderr)
    say(str(file))
    return 0
