"""`rg-env push`: its options, and what is printed."""

import argparse
from pathlib import Path
from typing import Any

from rg_env.commands import end_signals_as_ctrl_c, require, say


def add(commands: Any) -> None:
    """Add `rg-env push` to the subcommands."""
    push = commands.add_parser(
        "push",
        help="publish a trained model on the Hugging Face Hub, with a card made from the run's files",
        usage="rg-env push RUN|DIR --repo-id USER/NAME [--private] [--optimizer-state none|full] [options]",
        epilog="Needs a token that may write (HF_TOKEN, or `hf auth login`). An upload that broke off goes on by the "
        "same command.",
    )
    push.add_argument(
        "path", metavar="RUN|DIR", type=Path, help="a run (its last checkpoint), a checkpoint, or a model"
    )
    push.add_argument("--repo-id", metavar="USER/NAME", required=True, help="the repository; made if it is not there")
    push.add_argument("--private", action="store_true", help="make it so that only you see it")
    push.add_argument(
        "--optimizer-state", choices=["none", "full"], default="none", help="full: with all that training goes on from"
    )
    push.add_argument("--revision", metavar="BRANCH", help="a branch, made if it is not there; default: the main one")
    push.add_argument("--dry-run", action="store_true", help="list the files and print the card; nothing is sent")
    push.set_defaults(run=_push)


def _push(options: argparse.Namespace) -> int:
    for package in ("huggingface_hub", "safetensors", "scipy"):
        require(package, "train")
    from rg_env.publish.hub.push import preview, push
    from rg_env.training.hub_uploads import PushRequest

    asked = PushRequest(options.path, options.repo_id, options.private, options.optimizer_state, options.revision)
    with end_signals_as_ctrl_c():
        print(preview(asked).rstrip() if options.dry_run else push(asked, say))
    return 0
