"""`rg-env serve`: its options. The server is `rg_env.inference.embedded.server`."""

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Add the subcommand to those of `rg-env`."""
    serve = commands.add_parser("serve", help="serve a model over HTTP on 127.0.0.1, for any OpenAI client")
    serve.add_argument("--model", required=True, help="folder, name on the hub, or 'tiny'")
    serve.add_argument("--port", type=int, default=8000, help="default: 8000; 0 takes a free one")
    serve.add_argument("--seed", type=int, help="seed of the sampling; default: random")
    serve.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run it until Ctrl-C; returns the exit code."""
    from rg_env.training import best_device, load_policy  # first: reports what to install if torch is missing

    from rg_env.inference.embedded.engine import EmbeddedEngine  # isort: skip
    from rg_env.inference.embedded.server import HOST, bind, serve

    with bind(options.port) as listener:  # before the model is loaded, which may take minutes
        policy = load_policy(options.model)
        policy.model.to(best_device())
        engine = EmbeddedEngine(policy.model, policy.tokenizer, model_name=options.model, seed=options.seed)
        address = f"http://{HOST}:{listener.getsockname()[1]}/v1"
        print(f"serving {options.model!r} at {address} (Ctrl-C ends it)", flush=True)
        serve(engine, listener)
    return 0
