"""vLLM servers that run only as long as this process needs them.

async with running_server("outputs/RUN/checkpoint-25", "0", log) as (server, name):
    ...                     # `name` is the model's name in requests to http://{server}/v1
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from rg_env.core.processes import ProcessGroup
from rg_env.errors import ServerError
from rg_env.inference.machine import HOST, Machine
from rg_env.inference.vllm.client import VllmServer
from rg_env.inference.vllm.command import served_name, vllm_command

_GRACE_S = 15.0


@asynccontextmanager
async def running_server(
    model: str, gpu: str | None, log: Path, options: Sequence[str] = (), start_timeout_s: float = 900
) -> AsyncIterator[tuple[VllmServer, str]]:
    """Run a server for `model` (see `vllm_command`) on `gpu`, or on the CPU if `gpu` is None. Yield the server and the
    model's name in requests once the server is healthy.

    Raises:
        ServerError: the server does not start. Its output is in `log`.
        MissingExtraError: vLLM is not installed.
    """
    Machine.here().check_installed()
    server = VllmServer(HOST, _free_port())
    command = vllm_command(model, ["--port", str(server.port), *options], on_gpu=gpu is not None)
    command = replace(command, environment={**command.environment, "CUDA_VISIBLE_DEVICES": gpu or ""})
    group = await asyncio.to_thread(ProcessGroup, command, log)
    try:
        try:
            await asyncio.to_thread(server.wait, start_timeout_s, lambda: group.code is None)
        except ServerError as error:
            what = f"was not ready after {start_timeout_s:g} s (serving.start_timeout_s)"
            if group.code is not None:
                what = f"exited with code {group.code} ({' '.join(group.last_lines(1))[:200]})"
            raise ServerError(f"vLLM for {model} {what}: see {log}") from error
        yield server, served_name(model)
    finally:
        # `end` is deliberately not called in a thread: Ctrl-C could interrupt the wait for a thread.
        group.end(lambda: _GRACE_S)


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
