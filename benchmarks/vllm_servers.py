"""`vf-vllm` servers on the CPU for the benchmarks: rg_env's, and upstream's with gloo in place of NCCL."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

GLOO = '''
"""NCCL's broadcast over gloo, for a machine without CUDA: both ends of upstream's path."""
from datetime import timedelta

def register():
    import torch.distributed as dist
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator

    def start(self, group, device=None, library_path=None):
        self.group = group
        store = dist.PrefixStore("gloo", group.store)
        self.gloo = dist.ProcessGroupGloo(store, group.rank, group.world_size, timedelta(seconds=300))

    def broadcast(self, tensor, src, stream=None):
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self.gloo.broadcast([tensor.detach()], options).wait()

    PyNcclCommunicator.__init__, PyNcclCommunicator.broadcast = start, broadcast
'''


@contextlib.contextmanager
def server(model: Path, log: Path, environment: dict[str, str]) -> Iterator[int]:
    """A `vf-vllm` on a free port."""
    from rg_env.inference.vllm import VllmServer

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("vf-vllm")), "--model", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "256"]
    fixed = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "all", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env={**os.environ, **fixed, **environment}, stdout=file, stderr=file, start_new_session=True
        )
    try:
        VllmServer("127.0.0.1", port).wait(600, still_wanted=lambda: process.poll() is None)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def environment(ours: bool, scratch: Path) -> dict[str, str]:
    """What server and trainer need to exchange weights in one way or the other."""
    if ours:
        return {"RG_ENV_WEIGHT_SYNC": "1"}
    extra = scratch / "plugin"
    info = extra / "upstream_gloo-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (extra / "upstream_gloo.py").write_text(GLOO)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: upstream-gloo\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nupstream-gloo = upstream_gloo:register\n")
    return {"PYTHONPATH": str(extra)}
