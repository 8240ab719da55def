"""vLLM servers for the models of an evaluation, one a GPU: started, waited for, and ended whatever happens.

async with serving(model, gpu="0", folder=folder, config=config) as (url, served): ...
"""

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rg_env.core.processes import Command, ProcessGroup
from rg_env.errors import ServerError
from rg_env.evaluation.config import TINY, EvalConfig
from rg_env.evaluation.models import base_model
from rg_env.inference.machine import Machine
from rg_env.inference.vllm.client import PROGRAM, VllmServer
from rg_env.tiny import POLICY_DIR

HOST = "127.0.0.1"
_GRACE_S = 15.0
_POLL_S = 1.0
_LORA_RANKS = (16, 32, 64, 128, 256, 320, 512)
"""Bounds that vLLM's `--max-lora-rank` takes, from its default on."""


def default_gpus() -> tuple[str, ...]:
    """Those of this machine that may be used."""
    return Machine.here().gpus


def can_serve() -> bool:
    """Whether vLLM is installed, and has a GPU here."""
    machine = Machine.here()
    return bool(machine.vllm) and bool(machine.gpus) and "cpu" not in str(machine.vllm)


@asynccontextmanager
async def serving(name: str, gpu: str | None, folder: Path, config: EvalConfig) -> AsyncIterator[tuple[str, str]]:
    """A server for the model `name` on `gpu` (None: on the CPU): its address, and the name that it answers to.

    Adapters are served with the model that they were made for.

    Raises:
        ServerError: it does not come up; its log stands in `folder`.
        MissingExtraError: vLLM is not installed.
    """
    Machine.here().check_installed()
    port, log = _free_port(), folder / f"vllm-{gpu if gpu is not None else 'cpu'}.log"
    command, served = _command(name, gpu, port, config)
    group = await asyncio.to_thread(ProcessGroup, command, log)
    try:
        server, start = VllmServer(HOST, port), time.monotonic()
        while (problem := await asyncio.to_thread(server.health_problem, 5.0)) is not None:
            if group.code is not None:
                last = " ".join(group.last_lines(1))[:200]
                raise ServerError(f"vLLM for {name} ended with code {group.code} ({last}): see {log}")
            if time.monotonic() - start > config.serving.start_timeout_s:
                raise ServerError(
                    f"vLLM for {name} is not ready after {config.serving.start_timeout_s:g} s ({problem}): see {log}, "
                    "or give a longer serving.start_timeout_s"
                )
            await asyncio.sleep(_POLL_S)
        yield f"http://{HOST}:{port}/v1", served
    finally:
        # Not in a thread: on Ctrl-C nothing may come between.
        group.end(lambda: _GRACE_S)


def _command(name: str, gpu: str | None, port: int, config: EvalConfig) -> tuple[Command, str]:
    base = base_model(name)
    weights = str(POLICY_DIR) if (base or name) == TINY else base or name
    served = "adapter" if base else weights
    arguments = [*PROGRAM, "--model", weights, "--host", HOST, "--port", str(port)]
    if base:
        arguments += ["--enable-lora", "--lora-modules", f"{served}={name}", "--max-lora-rank", str(_rank_bound(name))]
    environment = {"CUDA_VISIBLE_DEVICES": gpu if gpu is not None else ""}
    if gpu is None:
        arguments += ["--enforce-eager", "--dtype", "float32"]
        environment["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")  # GB
    return Command((*arguments, *config.serving.vllm_args), environment), served


def _rank_bound(folder: str) -> int:
    """What `--max-lora-rank` must be for the adapters in `folder`."""
    told = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8"))
    rank = max([told.get("r") or 0, *(told.get("rank_pattern") or {}).values()])
    return next((bound for bound in _LORA_RANKS if bound >= rank), _LORA_RANKS[-1])


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
