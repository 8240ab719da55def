"""The `rg-env` command. The modules in this folder parse the arguments for its subcommands, which are implemented in
lower layers.

rg-env tasks [NAME] [--json]         list the tasks, or show one task's options and examples
rg-env tasks --audit                 show the audit of the tasks' graders
rg-env train CONFIG [key=value ...]  train from a config; --dry-run prints the plan, --sweep runs a grid
rg-env compare FOLDER                compare the runs of a sweep
rg-env eval CONFIG [key=value ...]   evaluate models (endpoints, checkpoints, adapters) on tasks
rg-env score PATH                    grade existing replies, of any models, to Reasoning Gym's questions
rg-env probe --model M --tasks T ... find tasks and levels that a model can learn from
rg-env plot FILE... [--title T]      plot evaluation results or learning curves
rg-env report RUN_OR_RESULTS         write an HTML report of a run or evaluation, including rollouts
rg-env export CHECKPOINT             export a checkpoint as a Hugging Face model folder and verify it
rg-env push RUN --repo-id USER/NAME  publish a trained model on the Hugging Face Hub with a generated model card
rg-env doctor [CONFIG] [...]         check that a training run can start here, and print a fix for each problem
rg-env vllm MODEL [...]              start a vLLM server that accepts weights from a training run
rg-env launch CONFIG|SCRIPT [...]    start a vLLM server and a training run that uses it
rg-env slurm CONFIG --gpus N [...]   write an sbatch script for a training or evaluation config
"""

import argparse
import sys
from collections.abc import Sequence

from rg_env.cli import doctor, eval, launch, probe, publish, score, show, slurm, sweep, tasks, train, vllm
from rg_env.cli.parser import CommandParser
from rg_env.commands import run_command
from rg_env.errors import unknown_name

_COMMANDS = (tasks, train, sweep, eval, score, probe, show, publish, doctor, vllm, launch, slurm)
_EXAMPLES = (
    "rg-env train configs/train/tiny.yaml",
    "rg-env eval --models tiny --tasks leg_counting chain_sum -n 20 --max-tokens 90",
    "rg-env doctor configs/train/leg_counting_qwen7b.yaml engine.kind=vllm --processes 3",
)

_OTHER_COMMANDS = {
    "sweep": "use `rg-env train CONFIG --sweep KEY=VALUE,VALUE`",
    "grade": "use `rg-env score`",
    "serve": "use `rg-env vllm` or `transformers serve`",
}


def main() -> None:
    """Run the `rg-env` command."""
    if sys.platform == "win32":  # importing POSIX modules would fail with a traceback
        sys.exit("error: rg-env requires Linux or macOS; on Windows, install it in WSL 2")
    run_command(lambda: run(sys.argv[1:]))


def make_parser() -> "tuple[CommandParser, argparse._SubParsersAction[CommandParser]]":
    """Build the parser for `rg-env` and return it with its subparsers action."""
    description = "Train and evaluate language models on Reasoning Gym tasks."
    parser = CommandParser(prog="rg-env", description=description, examples=_EXAMPLES)
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    for command in _COMMANDS:
        command.add(commands)
    return parser, commands


def run(arguments: Sequence[str]) -> int:
    """Run one subcommand and return the exit code.

    Raises:
        InputError: the arguments are invalid. For an unknown command or option, the message suggests a similar name.
    """
    parser, commands = make_parser()
    first = next(iter(arguments), "")
    if first and not first.startswith("-") and first not in commands.choices:
        raise unknown_name("command", first, commands.choices, hint=_OTHER_COMMANDS.get(first, ""))
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
