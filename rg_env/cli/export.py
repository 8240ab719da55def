"""`rg-env export`: its options, and what is printed."""

import argparse
from pathlib import Path
from typing import Any

from rg_env.commands import end_signals_as_ctrl_c, require, say


def add(commands: Any) -> None:
    """Add `rg-env export` to the subcommands."""
    export = commands.add_parser(
        "export",
        help="turn a checkpoint of any kind into a model folder, verified to be the trained model",
        usage="rg-env export CHECKPOINT [--output-dir DIR] [--dtype bf16|fp16|fp32] [--merge-lora] [options]",
        epilog="Exit code 1: a check failed, and nothing is left. Nothing in a checkpoint is executed.",
        examples=[
            "rg-env export outputs/RUN --best --dtype bf16 --output-dir my-model",
            "rg-env export global_step_400/actor --base Qwen/Qwen2.5-3B-Instruct --output-dir my-model",
        ],
    )
    export.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        type=Path,
        help="a model folder, a run (its last checkpoint), DeepSpeed or FSDP shards, adapters",
    )
    export.add_argument("--output-dir", metavar="DIR", type=Path, help="a new folder; default: CHECKPOINT-export")
    export.add_argument("--dtype", choices=["bf16", "fp16", "fp32"], help="default: the run's or the configuration's")
    export.add_argument("--merge-lora", action="store_true", help="adapters: merge them into the base model")
    export.add_argument("--best", action="store_true", help="for a run: its checkpoint with the best accuracy")
    export.add_argument("--base", metavar="MODEL", help="base model, if the checkpoint has no config or tokenizer")
    export.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare tensors, logits and the accuracy that the run recorded",
    )
    export.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    require("torch", "train")
    from rg_env.publish.export import ExportRequest, export

    request = ExportRequest(
        path=options.checkpoint,
        out=options.output_dir,
        dtype=options.dtype,
        merge_lora=options.merge_lora,
        verify=options.verify,
        best=options.best,
        base=options.base,
    )
    with end_signals_as_ctrl_c():
        print(export(request, say))
    return 0
