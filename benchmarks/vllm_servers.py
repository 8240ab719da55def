"""A vLLM server for the benchmarks, started the way `rg-env vllm` starts one."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path


@contextlib.contextmanager
def server(
    model: Path,
    log: Path,
    backend: str | None = None,
    *,
    max_model_len: int = 256,
    variables: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Run a server and yield its port. The id of its process group is in a file next to the log.

    Args:
        backend: weight-transfer backend. Default: chosen for the machine.
        variables: additional environment variables.
    """
    from rg_env.inference.vllm.client import VllmServer
    from rg_env.inference.vllm.command import serve_command

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    extra = ["--enforce-eager"]
    if backend is not None:
        extra += ["--weight-transfer-config", json.dumps({"backend": backend})]
    command = serve_command(str(model), port=port, dtype="float32", max_model_len=max_model_len, extra=extra)
    command[0] = str(Path(sys.executable).with_name(command[0]))
    fixed = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env={**os.environ, **fixed, **(variables or {})}, stdout=file, stderr=file, start_new_session=True
        )
    log.with_suffix(".pid").write_text(str(process.pid))
    try:
        VllmServer("127.0.0.1", port).wait(600, still_wanted=lambda: process.poll() is None)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
