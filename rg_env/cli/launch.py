"""`rg-env launch`: its options. What it does is in `rg_env.jobs.launch`."""

import argparse
import shlex
from typing import Any

from rg_env.commands import positive
from rg_env.core.config.files import is_config_file
from rg_env.errors import InputError


def add(commands: Any) -> None:
    """Add the subcommand to those of `rg-env`."""
    launch = commands.add_parser(
        "launch",
        help="start a vLLM server and a training run that uses it, and end both",
        usage="rg-env launch CONFIG [section.key=value ...] [options] [-- options of rg-env train]\n"
        "       rg-env launch SCRIPT --model NAME [options] [-- the script's own arguments]",
        epilog="A script gets --model, --engine vllm and --vllm-port. Without a GPU both run on the CPU.",
        allow_abbrev=False,  # a script's argument that stands on the wrong side of `--` is not to be taken for ours
    )
    launch.add_argument("script", help="such as configs/train/tiny.yaml or examples/train_ultra_minimal.py")
    launch.add_argument("--model", help="folder, or name on the hub; a config names its own")
    launch.add_argument("--vllm-gpus", type=_gpus, metavar="0", help="default: the first that --gpus leaves")
    launch.add_argument("--gpus", type=_gpus, metavar="1,2,3", help="to train on; default: all that vLLM leaves")
    launch.add_argument("--processes", type=positive, metavar="N", help="that train; default: one a GPU")
    launch.add_argument("--accelerate-config", metavar="FILE", help="default for several processes: configs/zero3.yaml")
    launch.add_argument("--port", type=int, default=8000, help="of the server, on 127.0.0.1; default: 8000")
    launch.add_argument("--tensor-parallel-size", type=positive, metavar="N", help="GPUs for one copy of the model")
    launch.add_argument("--data-parallel-size", type=positive, metavar="N", help="copies of the model in vLLM")
    launch.add_argument("--dtype", help="of the server's weights; default: the model's, on a CPU float32")
    launch.add_argument("--max-model-len", type=positive, metavar="N", help="tokens, prompt and completion together")
    launch.add_argument(
        "--vllm-args", type=shlex.split, default=[], metavar="'...'", help="more for vLLM: --vllm-args='--seed 1'"
    )
    launch.add_argument("--log-dir", metavar="DIR", help="for vllm.log and train.log; default: a fresh one under logs/")
    launch.add_argument("--server-timeout", type=positive, default=600, metavar="S", help="seconds to come up; 600")
    launch.add_argument("--save-timeout", type=positive, default=300, metavar="S", help="seconds to save; 300")
    launch.add_argument("--verbose", action="store_true", help="show the server's log too")
    launch.add_argument("--dry-run", action="store_true", help="print the two commands, for two terminals")
    launch.set_defaults(run=run)


def parse(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """The options, and as `script_arguments` what stands after the first `--`: that belongs to the script. Overrides of
    a config may stand before it too.

    Raises:
        InputError: something before it is no option of ours.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, unknown = parser.parse_known_args(arguments[:end])
    overrides = [each for each in unknown if is_config_file(options.script) and _is_override(each)]
    if strange := [each for each in unknown if each not in overrides]:
        raise InputError(f"launch has no option {strange[0]!r}: the script's own arguments go to the end, after `--`")
    options.script_arguments = (*overrides, *arguments[end + 1 :])
    return options


def _is_override(argument: str) -> bool:
    return "=" in argument and not argument.startswith("-")


def _gpus(text: str) -> tuple[str, ...]:
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if not names:  # as of a variable that is not set: it does not mean the default
        raise argparse.ArgumentTypeError(f"{text!r} names no GPU")
    return names


def run(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from rg_env.training import LaunchOptions  # first: it tells what to install

    from rg_env.jobs.launch import dry_run, launch  # isort: skip

    if is_config_file(options.script):
        _read_config(options)
    elif options.model is None:
        raise InputError("a script needs --model: the server has to know it too")
    wanted = LaunchOptions(
        script=options.script,
        model=options.model,
        script_arguments=options.script_arguments,
        vllm_gpus=options.vllm_gpus,
        gpus=options.gpus,
        processes=options.processes,
        accelerate_config=options.accelerate_config,
        port=options.port,
        tensor_parallel=options.tensor_parallel_size,
        data_parallel=options.data_parallel_size,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        vllm_arguments=tuple(options.vllm_args),
    )
    if options.dry_run:
        print(dry_run(wanted))
        return 0
    return launch(
        wanted,
        log_dir=options.log_dir,
        server_timeout_s=options.server_timeout,
        save_timeout_s=options.save_timeout,
        verbose=options.verbose,
    )


def _read_config(options: argparse.Namespace) -> None:
    """Check the config, and take from it what the server must know."""
    from rg_env.jobs.launch import engine_overrides, longest_sequence, training_processes
    from rg_env.training.config.load import load_train_config

    if options.model is not None:
        raise InputError(f"--model is for scripts: say model.name={options.model} instead")
    if "--sweep" in options.script_arguments:
        raise InputError("launch makes one run: a sweep is for `rg-env train`, beside a server, or `rg-env slurm`")
    overrides = [each for each in options.script_arguments if _is_override(each)]
    processes = options.processes or training_processes(options.vllm_gpus, options.gpus, dry_run=options.dry_run)
    config = load_train_config(options.script, [*overrides, *engine_overrides(options.port)], processes=processes)
    options.model = config.model.name
    options.max_model_len = options.max_model_len or longest_sequence(config)
