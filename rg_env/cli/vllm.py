"""Options for `rg-env vllm`, which starts a vLLM server."""

import argparse
import os
from typing import Any


def add(commands: Any) -> None:
    """Add `rg-env vllm` to the subcommands."""
    vllm = commands.add_parser(
        "vllm",
        help="start a vLLM server that accepts weights from a training run",
        usage="rg-env vllm MODEL [--host HOST] [--port N] [vLLM options]",
        examples=["rg-env vllm Qwen/Qwen2.5-7B-Instruct --port 8000 --max-model-len 2048 --tensor-parallel-size 2"],
        advice="pass the model first, then vLLM's options: rg-env vllm MODEL ...",
    )
    vllm.add_argument("model", metavar="MODEL", help="model folder, LoRA adapter, name on the Hub, or 'tiny'")
    vllm.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        metavar="vLLM option",
        help="any of vLLM's options, such as --host and --port",
    )
    vllm.set_defaults(run=_vllm)


def _vllm(options: argparse.Namespace) -> int:
    from rg_env.inference.machine import Machine, machine_gpus
    from rg_env.inference.vllm.command import vllm_command
    from rg_env.inference.vllm.plugin import BACKEND

    machine = Machine.here()
    machine.check_installed()
    backend = "nccl" if len(machine_gpus()) > 1 else BACKEND
    command = vllm_command(options.model, options.options, on_gpu=machine.runs_vllm_on_gpu, backend=backend)
    # Replace this process so that signals reach the server directly.
    os.execve(command.arguments[0], command.arguments, {**os.environ, **command.environment})
