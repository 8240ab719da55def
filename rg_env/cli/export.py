"""Options and output of `rg-env export`."""

import argparse
from pathlib import Path
from typing import Any

from rg_env.cli.parser import request_of
from rg_env.commands import end_signals_as_ctrl_c, require, say


def add(commands: Any) -> None:
    """Add `rg-env export` to the subcommands."""
    export = commands.add_parser(
        "export",
        help="export a checkpoint as a Hugging Face model folder and verify it",
        usage="rg-env export CHECKPOINT [--output-dir DIR] [--dtype bf16|fp16|fp32] [--merge-lora] [options]",
        epilog="If a check fails, nothing is written and the exit code is 1. Code in a checkpoint is never executed.",
        examples=[
            "rg-env export outputs/RUN --best --dtype bf16 --output-dir my-model",
            "rg-env export global_step_400/actor --base Qwen/Qwen2.5-3B-Instruct --output-dir my-model",
        ],
    )
    option = export.add_argument
    option(
        "path",
        metavar="CHECKPOINT",
        type=Path,
        help="model folder, run (its last checkpoint), DeepSpeed or FSDP shards, or LoRA adapters",
    )
    option("--output-dir", metavar="DIR", dest="out", type=Path, help="new output folder; default: CHECKPOINT-export")
    option(
        "--dtype",
        choices=["bf16", "fp16", "fp32"],
        help="dtype of the weights; default: that of the run or config.json",
    )
    option("--merge-lora", action="store_true", help="merge LoRA adapters into the base model")
    option("--best", action="store_true", help="export the run's checkpoint with the best accuracy")
    option("--base", metavar="MODEL", help="base model, if the checkpoint lacks a config or tokenizer")
    option(
        "--verify",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="check that tensors, logits and accuracy match those of the trained model; default: on",
    )
    export.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    require("torch", "train")
    from rg_env.publish.checkpoint import find_checkpoint

    find_checkpoint(options.path, best=options.best, base=options.base)  # fails before torch is imported
    from rg_env.publish.export import ExportRequest, export

    with end_signals_as_ctrl_c():
        print(export(request_of(ExportRequest, options), say))
    return 0
