"""Options for `rg-env launch`, which is implemented in `rg_env.jobs.launch`."""

import argparse
import re
import shlex
from typing import Any

from rg_env.cli.parser import request_of
from rg_env.commands import require
from rg_env.core.config.files import is_config_file

_GPU = re.compile(r"[0-9]+|(GPU|MIG)-[\w/-]+", re.ASCII)


def add(commands: Any) -> None:
    """Add `rg-env launch` to the subcommands."""
    launch = commands.add_parser(
        "launch",
        help="start a vLLM server and a training run that uses it, and stop the server when the run ends",
        usage="rg-env launch CONFIG [section.key=value ...] [options] [-- options for rg-env train]\n"
        "       rg-env launch SCRIPT --model NAME [options] [-- the script's own arguments]",
        epilog="A script receives --model, --engine vllm and --port. Without a GPU, the server and the training run "
        "use the CPU.",
        examples=[
            "rg-env launch configs/train/leg_counting_qwen7b.yaml --vllm-gpus 0 --gpus 1,2,3",
            "rg-env launch examples/train_minimal.py --model Qwen/Qwen2.5-1.5B-Instruct -- --num-generations 8",
        ],
        advice="put options for rg-env train and a script's own arguments at the end, after `--`",
    )
    option, number = launch.add_argument, launch.number
    option(
        "script",
        metavar="CONFIG",
        help="config or script, such as configs/train/tiny.yaml or examples/train_minimal.py",
    )
    option("--model", help="model folder or name on the Hub (only for scripts, because a config names its own model)")
    option("--vllm-gpus", type=gpus, metavar="0", help="GPUs for vLLM; default: the first GPU not in --gpus")
    option("--gpus", type=gpus, metavar="1,2,3", help="GPUs for training; default: all GPUs that vLLM does not use")
    number("--processes", help="training processes; default: one per GPU for training")
    text = "accelerate config; default: configs/zero3.yaml for several processes (zero3_cpu.yaml without a GPU)"
    option("--accelerate-config", metavar="FILE", help=text)
    option("--port", type=int, default=8000, help="port of the vLLM server on 127.0.0.1; default: 8000")
    number("--tensor-parallel-size", help="GPUs per model replica in vLLM")
    number("--data-parallel-size", help="model replicas in vLLM")
    option("--dtype", help="dtype of the server's weights; default: the model's dtype, or float32 on a CPU")
    number("--max-model-len", help="context length for vLLM, in tokens (prompt plus completion)")
    text = "additional vLLM options, such as --vllm-args='--seed 1'"
    option("--vllm-args", type=shell_words, default=(), metavar="'...'", help=text)
    option("--log-dir", metavar="DIR", help="folder for vllm.log and train.log; default: a new folder under logs/")
    number("--server-timeout", default=600, metavar="S", help="seconds to wait for the server to start; default: 600")
    number(
        "--save-timeout",
        default=300,
        metavar="S",
        help="seconds to wait for a stopped run to save and exit; default: 300",
    )
    launch.flag("--verbose", help="show the server log")
    launch.flag("--dry-run", help="print the server and training commands, then exit")
    launch.set_defaults(run=run)


def parse(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """Parse the options. Everything after the first `--` goes to `script_arguments`, as do config overrides before it.

    Raises:
        InputError: an argument before `--` is not a `launch` option.
    """
    from rg_env.jobs.launch import is_override

    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:end])
    overrides = [each for each in unknown if is_config_file(options.script) and is_override(each)]
    if strange := [each for each in unknown if each not in overrides]:
        raise options.parser.unknown(strange[0])
    options.script_arguments = (*overrides, *arguments[end + 1 :])
    return options


def shell_words(text: str) -> tuple[str, ...]:
    """Split `text` into words as a shell does (an argparse type)."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} has an unclosed quote; write options as in '--seed 1'") from None


def gpus(text: str) -> tuple[str, ...]:
    """Parse comma-separated GPU indices or UUIDs (an argparse type)."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(map(_GPU.fullmatch, names)):
        raise argparse.ArgumentTypeError(f"{text!r} must be GPU indices or UUIDs (GPU-... or MIG-...), such as 0,1")
    return names


def run(options: argparse.Namespace) -> int:
    """Run `rg-env launch` and return the exit code."""
    require("psutil", extra="train")
    from rg_env.jobs.launch import LaunchOptions, dry_run, launch

    wanted = request_of(LaunchOptions, options)
    if options.dry_run:
        print(dry_run(wanted))
        return 0
    return launch(wanted)
