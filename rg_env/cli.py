"""The `rg-env` command: parsing only. What the subcommands do stands in the layers below.

rg-env tasks [NAME]                  the tasks, or one task's options
rg-env serve --model DIR [--port N]  the embedded engine as an OpenAI-compatible server on 127.0.0.1
"""

import argparse
import sys
from collections.abc import Sequence

from rg_env.commands import run_command


def main() -> None:
    """Entry point of the `rg-env` command."""
    run_command(lambda: run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one subcommand; returns the exit code. Argument errors exit with 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="rg-env", description="Reasoning Gym environment and GRPO training.")
    commands = parser.add_subparsers(dest="command", required=True)

    tasks = commands.add_parser("tasks", help="list the tasks, or show one task's options")
    tasks.add_argument("name", nargs="?", help="a task")
    tasks.set_defaults(run=_tasks)

    serve = commands.add_parser("serve", help="serve a model folder over HTTP on 127.0.0.1, for any OpenAI client")
    serve.add_argument("--model", required=True, help="folder, name on the hub, or 'tiny'")
    serve.add_argument("--port", type=int, default=8000, help="default: 8000; 0 takes a free one")
    serve.add_argument("--seed", type=int, help="of the sampling; default: random")
    serve.set_defaults(run=_serve)

    options = parser.parse_args(arguments)
    code: int = options.run(options)
    return code


def _tasks(options: argparse.Namespace) -> int:
    from rg_env.core.tasks import describe_tasks

    print(describe_tasks(options.name))
    return 0


def _serve(options: argparse.Namespace) -> int:
    from rg_env.training import best_device, load_policy  # first: it tells what to install where torch is missing

    from rg_env.inference.engine import EmbeddedEngine  # isort: skip
    from rg_env.inference.server import HOST, bind, serve

    with bind(options.port) as listener:  # before the model is loaded, which may take minutes
        policy = load_policy(options.model)
        policy.model.to(best_device())
        engine = EmbeddedEngine(policy.model, policy.tokenizer, model_name=options.model, seed=options.seed)
        print(f"serving {options.model!r} at http://{HOST}:{listener.getsockname()[1]}/v1 (Ctrl-C ends it)", flush=True)
        serve(engine, listener)
    return 0


if __name__ == "__main__":
    main()
