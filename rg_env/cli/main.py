"""The `rg-env` command: parsing only, in one module for each subcommand. The layers below do the work.

rg-env tasks [NAME] [--json]         the tasks, or one task's options and examples
rg-env tasks --audit                 the audit of the tasks' graders
rg-env train CONFIG [key=value ...]  train by a config; --dry-run: print the plan; --sweep: a grid of runs
rg-env compare FOLDER                the runs of a sweep, side by side
rg-env eval CONFIG [key=value ...]   models on tasks, with intervals: endpoints, checkpoints, adapters
rg-env probe --model M --tasks T ... which tasks, at which levels, can teach a model anything
rg-env plot FILE... [--title T]      a picture of results, or of learning curves
rg-env report RUN_OR_RESULTS         one HTML page about a run or an evaluation, rollouts included
rg-env export CHECKPOINT             a model folder that anyone can load, proven to be the trained model
rg-env push RUN --repo-id USER/NAME  a trained model to the Hugging Face Hub, with a card made from the run's files
rg-env serve --model DIR [--port N]  the embedded engine as an OpenAI-compatible server on 127.0.0.1
rg-env doctor [CONFIG] [...]         would a training run start here? every failed line ends with the fix
rg-env vllm MODEL [...]              a vLLM server that a training run can send weights to
rg-env launch CONFIG|SCRIPT [...]    a vLLM server and the training run that uses it, as one
rg-env slurm CONFIG --gpus N [...]   an sbatch script for a run
"""

import argparse
import sys
from collections.abc import Sequence

from rg_env.cli import doctor, eval, export, launch, plot, probe, push, report, serve, slurm, sweep, tasks, train, vllm
from rg_env.cli.parser import CommandParser
from rg_env.commands import run_command
from rg_env.errors import unknown_name

_COMMANDS = (tasks, train, sweep, eval, plot, probe, report, export, push, serve, doctor, vllm, launch, slurm)
_EXAMPLES = (
    "rg-env train configs/train/tiny.yaml",
    "rg-env eval --models tiny --tasks leg_counting chain_sum -n 20 --max-tokens 90",
    "rg-env doctor configs/train/leg_counting_qwen7b.yaml engine.kind=vllm --processes 3",
)


def main() -> None:
    """Entry point of the `rg-env` command."""
    run_command(lambda: run(sys.argv[1:]))


def make_parser() -> "tuple[CommandParser, argparse._SubParsersAction[CommandParser]]":
    """The parser of `rg-env`, and those of its subcommands."""
    description = "Reasoning Gym environment and GRPO training."
    parser = CommandParser(prog="rg-env", description=description, examples=_EXAMPLES)
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    for command in _COMMANDS:
        command.add(commands)
    return parser, commands


def run(arguments: Sequence[str]) -> int:
    """Run one subcommand; returns the exit code. Argument errors exit with 2, as argparse does.

    Raises:
        InputError: there is no such command or option; with the likely one.
    """
    parser, commands = make_parser()
    first = next(iter(arguments), "")
    if first and not first.startswith("-") and first not in commands.choices:
        raise unknown_name("command", first, commands.choices)
    if first == "launch":
        options = launch.parse(parser, list(arguments))
    else:
        options, unknown = parser.parse_known_args(arguments)
        if unknown:
            raise options.parser.unknown(unknown[0])
    if options.version:
        from rg_env import __version__

        print(f"rg-env {__version__}")
        return 0
    if options.command is None:
        parser.print_help()
        return 0
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    main()
