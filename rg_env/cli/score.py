"""Options for `rg-env score`, which is implemented in `rg_env.evaluation.rescore`."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from rg_env.commands import end_signals_as_ctrl_c, require, say


def add(commands: Any) -> None:
    """Add `rg-env score` to the subcommands."""
    parser = commands.add_parser(
        "score",
        help="grade existing replies to Reasoning Gym's questions",
        epilog="PATH is a file or folder with rows (JSONL, JSON, CSV, TSV, Parquet), results of reasoning-gym-eval or "
        "vf-eval, logs of Inspect, or samples of lm-eval. A row has a reply, a model (optional), a task, and the "
        "question's entry, or the question with the library's config and seed. docs/tutorials/score.md has examples.",
        examples=["rg-env score replies.jsonl", "rg-env score replies.csv --task gcd --extraction lenient"],
    )
    option = parser.add_argument
    option("path", metavar="PATH", type=Path, help="file or folder with the replies")
    option("--task", metavar="TASK", help="task of rows that do not name one")
    option(
        "--grading",
        choices=("hardened", "partial", "upstream"),
        default="hardened",
        help="kind of grading; default: hardened",
    )
    option(
        "--extraction",
        choices=("strict", "lenient"),
        default="strict",
        help="lenient: show in addition the accuracy if answers without tags are read too; default: strict",
    )
    option("--output-dir", metavar="DIR", help="output folder; default: a new folder under outputs/")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `rg-env score` and return the exit code."""
    require("scipy", "matplotlib", extra="eval")
    from rg_env.evaluation.rescore import score_replies
    from rg_env.evaluation.tables import print_results

    with end_signals_as_ctrl_c():
        results, folder = score_replies(
            options.path,
            task=options.task,
            grading=options.grading,
            lenient=options.extraction == "lenient",
            output_dir=options.output_dir,
        )
    print_results(results)
    for note in results.notes:
        say(note)
    print(f"files in {folder}; `rg-env report {shlex.quote(str(folder))}` makes a page with the results and replies")
    return 0
