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
        usage="rg-env push CHECKPOINT --repo-id USER/NAME [--private] [--optimizer-state none|full] [options]",
        epilog="Needs a token with write access (HF_TOKEN, or `hf auth login`). The same command resumes an upload.",
        examples=[
            "rg-env push outputs/RUN --repo-id me/legs --dry-run",
            "rg-env push global_step_400 --base Qwen/Qwen2.5-3B-Instruct --repo-id me/legs --optimizer-state full",
        ],
    )
    push.add_argument(
        "path",
        metavar="CHECKPOINT",
        type=Path,
        help="a run (its last checkpoint), a checkpoint of any trainer, adapters, or a model folder",
    )
    push.add_argument("--repo-id", metavar="USER/NAME", required=True, help="the repository, created if it is missing")
    push.add_argument("--private", action="store_true", help="create it as private")
    push.add_argument(
        "--optimizer-state",
        choices=["none", "full"],
        default="none",
        help="full: with what training resumes from, also of other trainers",
    )
    push.add_argument("--base", metavar="MODEL", help="base model, if the checkpoint has no config or tokenizer")
    push.add_argument("--revision", metavar="BRANCH", help="a branch, created if it is missing; default: the main one")
    push.add_argument(
        "--dry-run", action="store_true", help="list the files, print the card and check the export; send nothing"
    )
    push.set_defaults(run=_push)


def _push(options: argparse.Namespace) -> int:
    for package in ("huggingface_hub", "safetensors", "scipy"):
        require(package, "train")
    from rg_env.core.hub import PushRequest
    from rg_env.publish.push import preview, push

    request = PushRequest(
        path=options.path,
        repo_id=options.repo_id,
        private=options.private,
        optimizer_state=options.optimizer_state,
        revision=options.revision,
        base=options.base,
    )
    with end_signals_as_ctrl_c():
        print(preview(request).rstrip() if options.dry_run else push(request, say))
    return 0
