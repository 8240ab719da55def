"""Options and output of `rg-env push`."""

import argparse
from pathlib import Path
from typing import Any

from rg_env.cli.parser import request_of
from rg_env.commands import end_signals_as_ctrl_c, require, say


def add(commands: Any) -> None:
    """Add `rg-env push` to the subcommands."""
    push = commands.add_parser(
        "push",
        help="publish a trained model on the Hugging Face Hub with a generated model card",
        usage="rg-env push CHECKPOINT --repo-id USER/NAME [--private] [--optimizer-state none|full] [options]",
        epilog="Requires a write token (HF_TOKEN or `hf auth login`). Rerun the command to resume an upload.",
        examples=[
            "rg-env push outputs/RUN --repo-id me/legs --dry-run",
            "rg-env push global_step_400 --base Qwen/Qwen2.5-3B-Instruct --repo-id me/legs --optimizer-state full",
        ],
    )
    option = push.add_argument
    option(
        "path",
        metavar="CHECKPOINT",
        type=Path,
        help="run (its last checkpoint), checkpoint from any trainer, LoRA adapters, or model folder",
    )
    option("--repo-id", metavar="USER/NAME", required=True, help="repository, created if missing")
    option("--private", action="store_true", help="create a private repository")
    option(
        "--optimizer-state",
        choices=["none", "full"],
        default="none",
        help="optimizer state to upload, which is needed to resume training; default: none",
    )
    option("--base", metavar="MODEL", help="base model, if the checkpoint lacks a config or tokenizer")
    option("--revision", metavar="BRANCH", help="branch, created if missing; default: main")
    option("--dry-run", action="store_true", help="list the files, print the card, check the export; upload nothing")
    push.set_defaults(run=_push)


def _push(options: argparse.Namespace) -> int:
    for package in ("huggingface_hub", "safetensors", "scipy"):
        require(package, "train")
    from rg_env.core.hub import PushRequest
    from rg_env.publish.push import preview, push

    request = request_of(PushRequest, options)
    with end_signals_as_ctrl_c():
        print(preview(request).rstrip() if options.dry_run else push(request, say))
    return 0
