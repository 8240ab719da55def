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
    export.add_argument(
        "path",
        metavar="CHECKPOINT",
        type=Path,
        help="model folder, run (its last checkpoint), DeepSpeed or FSDP shards, or LoRA adapters",
    )
    export.add_argument(
        "--output-dir",
        metavar="DIR",
        dest="out",
        type=Path,
        help="new output folder; default: CHECKPOINT-export",
    )
    export.add_argument(
        "--dtype", choices=["bf16", "fp16", "fp32"], help="dtype of the weights; default: as in the run or config.json"
    )
    export.add_argument("--merge-lora", action="store_true", help="merge LoRA adapters into the base model")
    export.add_argument("--best", action="store_true", help="export the run's checkpoint with the best accuracy")
    export.add_argument("--base", metavar="MODEL", help="base model, if the checkpoint lacks config or tokenizer")
    export.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare tensors, logits and the recorded accuracy with the trained model; default: on",
    )
    export.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    require("torch", "train")
    from rg_env.publish.export import ExportRequest, export

    with end_signals_as_ctrl_c():
        print(export(request_of(ExportRequest, options), say))
    return 0
