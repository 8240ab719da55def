"""Options for `rg-env export` and `rg-env push`, which are implemented in `rg_env.publish`."""

import argparse
from pathlib import Path
from typing import Any

from rg_env.cli.parser import request_of
from rg_env.commands import end_signals_as_ctrl_c, require, say


def add(commands: Any) -> None:
    """Add `rg-env export` and `rg-env push` to the subcommands."""
    export = commands.add_parser(
        "export",
        help="export a checkpoint as a Hugging Face model folder and verify it",
        usage="rg-env export CHECKPOINT [--output-dir DIR] [--dtype bf16|fp16|fp32] [options]",
        epilog="If a check fails, nothing is written and the exit code is 1. Code in a checkpoint is never executed.",
        examples=[
            "rg-env export outputs/RUN --best --dtype bf16 --output-dir my-model",
            "rg-env export outputs/LORA/checkpoint-200",
        ],
    )
    option = export.add_argument
    text = "a run (its last checkpoint), a checkpoint (also with DeepSpeed's shards), LoRA adapters, or a model folder"
    option("path", metavar="CHECKPOINT", type=Path, help=text)
    option("--base", metavar="MODEL", help="base model, if the checkpoint lacks a config or tokenizer")
    option("--output-dir", metavar="DIR", dest="out", type=Path, help="new output folder; default: CHECKPOINT-export")
    option(
        "--dtype",
        choices=["bf16", "fp16", "fp32"],
        help="dtype of the weights; default: the run's dtype, or the dtype in config.json",
    )
    export.flag("--best", help="export the run's checkpoint with the best accuracy")
    text = "check that tensors and logits match those of the trained model; default: on"
    option("--verify", action=argparse.BooleanOptionalAction, default=True, help=text)
    export.set_defaults(run=_export)

    push = commands.add_parser(
        "push",
        help="publish a trained model on the Hugging Face Hub with a generated model card",
        usage="rg-env push CHECKPOINT --repo-id USER/NAME [--private] [--card FILE] [options]",
        epilog="The command requires a write token (HF_TOKEN or `hf auth login`). "
        "Rerun the command to resume an interrupted upload.",
        examples=[
            "rg-env push outputs/RUN --repo-id me/legs --dry-run",
            "rg-env push outputs/RUN --repo-id me/legs --card outputs/RUN/card.md",
            "rg-env push outputs/RUN/checkpoint-200 --repo-id me/legs --private --optimizer-state full",
        ],
    )
    option = push.add_argument
    text = "a run (its last checkpoint), one of its checkpoints, or an export next to these"
    option("path", metavar="CHECKPOINT", type=Path, help=text)
    option("--repo-id", metavar="USER/NAME", required=True, help="target repository (created if missing)")
    push.flag("--private", help="create a private repository")
    text = "optimizer state to upload (needed to resume training); default: none"
    option("--optimizer-state", choices=["none", "full"], default="none", help=text)
    option("--revision", metavar="BRANCH", help="target branch (created if missing); default: main")
    option("--card", metavar="FILE", type=Path, help="Markdown file to upload as the model card; default: generated")
    push.flag("--dry-run", help="list the files and write the card to card.md in the run's folder; nothing is uploaded")
    push.set_defaults(run=_push)


def _export(options: argparse.Namespace) -> int:
    require("torch", extra="train")
    from rg_env.publish.checkpoint import find_checkpoint

    # Report a missing or incomplete checkpoint before importing torch.
    find_checkpoint(options.path, best=options.best, base=options.base)
    from rg_env.publish.export import ExportRequest, export

    with end_signals_as_ctrl_c():
        print(export(request_of(ExportRequest, options), say))
    return 0


def _push(options: argparse.Namespace) -> int:
    require("huggingface_hub", "safetensors", "scipy", extra="train")
    from rg_env.core.run_folder import damage_reported
    from rg_env.publish.push import PushRequest, preview, push

    request = request_of(PushRequest, options)
    with end_signals_as_ctrl_c(), damage_reported(options.path):
        print(preview(request).rstrip() if options.dry_run else push(request, say))
    return 0
