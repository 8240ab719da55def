"""Options of `rg-env launch`, implemented in `rg_env.jobs.launch`."""

import argparse
import re
import shlex
from typing import Any

from rg_env.cli.parser import request_of
from rg_env.commands import positive, require
from rg_env.core.config.files import is_config_file
from rg_env.errors import InputError

_GPU = re.compile(r"[0-9]+|(GPU|MIG)-[\w/-]+", re.ASCII)


def add(commands: Any) -> None:
    """Add `rg-env launch` to the subcommands."""
    launch = commands.add_parser(
        "launch",
        help="start a vLLM server and a training run that uses it; stop both at the end",
        usage="rg-env launch CONFIG [section.key=value ...] [options] [-- options of rg-env train]\n"
        "       rg-env launch SCRIPT --model NAME [options] [-- the script's own arguments]",
        epilog="A script receives --model, --engine vllm and --port. Without a GPU, both processes run on the CPU.",
        examples=[
            "rg-env launch configs/train/leg_counting_qwen7b.yaml --vllm-gpus 0 --gpus 1,2,3",
            "rg-env launch examples/train_minimal.py --model Qwen/Qwen2.5-1.5B-Instruct -- --num-generations 8",
        ],
    )
    option = launch.add_argument
    option("script", help="config or script, such as configs/train/tiny.yaml or examples/train_ultra_minimal.py")
    option("--model", help="model folder or name on the Hub; only for scripts, because a config names its model")
    option("--vllm-gpus", type=_gpus, metavar="0", help="GPUs for vLLM; default: the first one not in --gpus")
    option("--gpus", type=_gpus, metavar="1,2,3", help="GPUs for training; default: all not used by vLLM")
    option("--processes", type=positive, metavar="N", help="training processes; default: one per GPU")
    option(
        "--accelerate-config",
        metavar="FILE",
        help="accelerate config; default with several processes: configs/zero3.yaml",
    )
    option("--port", type=int, default=8000, help="port of the vLLM server on 127.0.0.1; default: 8000")
    option("--tensor-parallel-size", type=positive, metavar="N", help="GPUs per model replica in vLLM")
    option("--data-parallel-size", type=positive, metavar="N", help="model replicas in vLLM")
    option("--dtype", help="dtype of the server's weights; default: the model's, or float32 on a CPU")
    option("--max-model-len", type=positive, metavar="N", help="context length of vLLM: prompt and completion tokens")
    option(
        "--vllm-args",
        type=_words,
        default=(),
        metavar="'...'",
        help="additional vLLM options, such as --vllm-args='--seed 1'",
    )
    option("--log-dir", metavar="DIR", help="folder for vllm.log and train.log; default: a new one under logs/")
    option(
        "--server-timeout",
        type=positive,
        default=600,
        metavar="S",
        help="seconds to wait for the server to start; default: 600",
    )
    option(
        "--save-timeout",
        type=positive,
        default=300,
        metavar="S",
        help="seconds to wait on shutdown for the trainer to save a checkpoint; default: 300",
    )
    option("--verbose", action="store_true", help="show the server log and library messages")
    option("--dry-run", action="store_true", help="print the two commands and exit")
    launch.set_defaults(run=run)


def parse(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """Parse the options. Everything after the first `--` goes to `script_arguments`, as do config overrides before it.

    Raises:
        InputError: an argument before `--` is not an option of launch.
    """
    from rg_env.jobs.launch import is_override

    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:end])
    overrides = [each for each in unknown if is_config_file(options.script) and is_override(each)]
    if strange := [each for each in unknown if each not in overrides]:
        if is_config_file(options.script) or options.parser.knows(strange[0]):
            raise options.parser.unknown(strange[0])
        raise InputError(f"launch has no option {strange[0]!r}: pass the script's own arguments at the end, after `--`")
    options.script_arguments = (*overrides, *arguments[end + 1 :])
    return options


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} has an unclosed quote or ends with a backslash") from None


def _gpus(text: str) -> tuple[str, ...]:
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if not names:  # such as an empty shell variable
        raise argparse.ArgumentTypeError(f"{text!r} does not name a GPU")
    if wrong := [name for name in names if not _GPU.fullmatch(name)]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is neither a GPU's index nor its UUID (GPU-... or MIG-...)")
    return names


def run(options: argparse.Namespace) -> int:
    """Run `rg-env launch` and return the exit code."""
    require("psutil", "train")
    from rg_env.jobs.launch import LaunchOptions, dry_run, launch

    wanted = request_of(LaunchOptions, options)
    if options.dry_run:
        print(dry_run(wanted))
        return 0
    return launch(wanted)
