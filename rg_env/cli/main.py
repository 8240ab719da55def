"""The `rg-env` command: parsing only, in one module for each subcommand. The layers below do the work.

rg-env tasks [NAME] [--show N]       the tasks, or one task's options and examples
rg-env tasks --audit                 the audit of the tasks' graders
rg-env train CONFIG [key=value ...]  train by a config; --dry-run: print the plan; --sweep: a grid of runs
rg-env compare FOLDER                the runs of a sweep, side by side
rg-env eval CONFIG [key=value ...]   models on tasks, with intervals: endpoints, checkpoints, adapters
rg-env probe --model M --tasks T ... which tasks, at which levels, can teach a model anything
rg-env plot FILE... [--title T]      a picture of results, or of learning curves
rg-env report RUN_OR_RESULTS         one HTML page about a run or an evaluation, rollouts included
rg-env export CHECKPOINT [--out DIR] a model folder that anyone can load, proven to be the trained model
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
from rg_env.commands import run_command

_COMMANDS = (tasks, train, sweep, eval, plot, probe, report, export, push, serve, doctor, vllm, launch, slurm)


def main() -> None:
    """Entry point of the `rg-env` command."""
    run_command(lambda: run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one subcommand; returns the exit code. Argument errors exit with 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="rg-env", description="Reasoning Gym environment and GRPO training.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in _COMMANDS:
        command.add(commands)
    launches = arguments and arguments[0] == "launch"
    options = launch.parse(parser, list(arguments)) if launches else parser.parse_args(arguments)
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    main()
