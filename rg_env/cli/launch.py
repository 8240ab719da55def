"""`rg-env launch`: its options. It is implemented in `rg_env.jobs.launch`."""

import argparse
import shlex
from dataclasses import fields
from typing import Any

from rg_env.commands import positive, require
from rg_env.core.config.files import is_config_file
from rg_env.errors import InputError


def add(commands: Any) -> None:
    """Add the subcommand to those of `rg-env`."""
    launch = commands.add_parser(
        "launch",
        help="start a vLLM server and a training run that uses it, and end both",
        usage="rg-env launch CONFIG [section.key=value ...] [options] [-- options of rg-env train]\n"
        "       rg-env launch SCRIPT --model NAME [options] [-- the script's own arguments]",
        epilog="A script gets --model, --engine vllm and --port. Without a GPU both run on the CPU.",
        examples=[
            "rg-env launch configs/train/leg_counting_qwen7b.yaml --vllm-gpus 0 --gpus 1,2,3",
            "rg-env launch examples/train_minimal.py --model Qwen/Qwen2.5-1.5B-Instruct -- --num-generations 8",
        ],
    )
    launch.add_argument("script", help="such as configs/train/tiny.yaml or examples/train_ultra_minimal.py")
    launch.add_argument("--model", help="folder, or name on the hub; a config names its own")
    launch.add_argument("--vllm-gpus", type=_gpus, metavar="0", help="default: the first that --gpus leaves")
    launch.add_argument("--gpus", type=_gpus, metavar="1,2,3", help="GPUs to train on; default: all that vLLM leaves")
    launch.add_argument("--processes", type=positive, metavar="N", help="training processes; default: one for each GPU")
    launch.add_argument("--accelerate-config", metavar="FILE", help="default for several processes: configs/zero3.yaml")
    launch.add_argument("--port", type=int, default=8000, help="port of the server, on 127.0.0.1; default: 8000")
    launch.add_argument("--tensor-parallel-size", type=positive, metavar="N", help="GPUs for one copy of the model")
    launch.add_argument("--data-parallel-size", type=positive, metavar="N", help="copies of the model in vLLM")
    launch.add_argument("--dtype", help="type of the server's weights; default: the model's, on a CPU float32")
    launch.add_argument("--max-model-len", type=positive, metavar="N", help="tokens, prompt and completion together")
    launch.add_argument(
        "--vllm-args", type=_words, default=(), metavar="'...'", help="options for vLLM: --vllm-args='--seed 1'"
    )
    launch.add_argument("--log-dir", metavar="DIR", help="for vllm.log and train.log; default: a fresh one under logs/")
    launch.add_argument("--server-timeout", type=positive, default=600, metavar="S", help="seconds to come up; 600")
    launch.add_argument("--save-timeout", type=positive, default=300, metavar="S", help="seconds to save; 300")
    launch.add_argument("--verbose", action="store_true", help="show the log of the server, and notices of libraries")
    launch.add_argument("--dry-run", action="store_true", help="print the two commands, for two terminals")
    launch.set_defaults(run=run)


def parse(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """The options; everything after the first `--` is `script_arguments`, and so are overrides of a config before it.

    Raises:
        InputError: something before `--` is not an option of launch.
    """
    from rg_env.jobs.launch import is_override

    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:end])
    overrides = [each for each in unknown if is_config_file(options.script) and is_override(each)]
    if strange := [each for each in unknown if each not in overrides]:
        if is_config_file(options.script):
            raise options.parser.unknown(strange[0])
        raise InputError(f"launch has no option {strange[0]!r}: the script's own arguments go to the end, after `--`")
    options.script_arguments = (*overrides, *arguments[end + 1 :])
    return options


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def _gpus(text: str) -> tuple[str, ...]:
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if not names:  # an empty variable of a shell does not mean the default
        raise argparse.ArgumentTypeError(f"{text!r} names no GPU")
    return names


def run(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    require("psutil", "train")
    from rg_env.jobs.launch import LaunchOptions, dry_run, launch

    wanted = LaunchOptions(**{field.name: getattr(options, field.name) for field in fields(LaunchOptions)})
    if options.dry_run:
        print(dry_run(wanted))
        return 0
    return launch(wanted)
