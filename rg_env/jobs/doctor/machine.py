"""Checks of the machine's resources: server and other ports, open files, memory, disk and logins."""

import contextlib
import netrc
import os
import resource
import shutil
from pathlib import Path

from rg_env.core.run_folder import OUTPUTS, RunFolder
from rg_env.core.text import counted
from rg_env.errors import OutputFolderError, ServerError
from rg_env.inference.machine import port_problem
from rg_env.inference.vllm.client import NOT_LISTENING, VllmServer, start_hint
from rg_env.jobs.doctor.checks import Check, PlannedRun, gigabytes

LAUNCH_PORT = 29500
"""Default rendezvous port of `accelerate launch` (`--main_process_port`)."""
_SERVER_NEEDS_SHM = 10**9
_SPARE_FILES = 512
"""Number of files that libraries, data and logs keep open in addition to the connections."""


def check_server(planned: PlannedRun, model: str | None, tokens: int) -> Check:
    """Check the server.

    Args:
        model: model name that it must serve; None: unknown.
        tokens: maximum tokens (prompt plus completion) that it must accept.
    """
    if not planned.uses_vllm:
        return Check("skipped", "the embedded engine does not need a server")
    engine = planned.config.engine
    server = VllmServer(engine.host, engine.port)
    start = f"`{start_hint(model or 'MODEL', engine.port)}`"
    another = f"choose another engine.port, and start {start} with it"
    problem = server.health_problem(timeout_s=5.0)
    if problem == NOT_LISTENING:
        if planned.server_is_local and (taken := port_problem(server.port)):
            return Check("failed", f"port {server.port}: {taken}", another)
        fix = f"before training, start {start}"
        if not planned.server_is_local:
            fix = f"check engine.host, or {fix} there, with a --host that this machine can reach"
        return Check("warning", f"nothing listens at {server} yet", fix)
    try:
        if problem:
            raise ServerError(f"{server} is not a healthy vLLM server: {problem}")
        info = server.info()
    except ServerError as error:
        return Check("failed", str(error).partition(": use the port")[0], another)
    if model is not None and info.name != model:
        return Check("failed", f"{server} serves {info.name!r}, not {model!r}", f"restart it: {start}")
    if info.max_model_len < tokens:
        finding = f"{server} accepts {info.max_model_len} tokens, but prompt plus completion can have {tokens}"
        return Check("failed", finding, f"restart it with --max-model-len {tokens}, or reduce training.max_tokens")
    text = f"vLLM at {server} serves {info.name!r}, {info.max_model_len} tokens, {counted(info.workers, 'worker')}"
    return Check("ok", text)


def check_ports(planned: PlannedRun, port: int = LAUNCH_PORT) -> Check:
    """Check that the rendezvous port of the run's processes is free."""
    if planned.processes == 1:
        return Check("skipped", "a single process does not need one")
    if taken := port_problem(port):
        fix = "on several nodes use another --main_process_port; on one node use any free port (--main-process-port 0)"
        return Check("warning", f"{port}: {taken}", fix)
    return Check("ok", f"{port} free")


def check_open_files(connections: int, limits: tuple[int, int] | None = None) -> Check:
    """Check the limit of open files.

    Args:
        connections: rollouts that a server generates concurrently.
        limits: soft and hard limit; default: those of this process.
    """
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    need = _SPARE_FILES + connections
    if soft == resource.RLIM_INFINITY or soft >= need:
        return Check("ok", "no limit" if soft == resource.RLIM_INFINITY else f"limit {soft}")
    wanted = max(need, 65536) if hard == resource.RLIM_INFINITY else min(max(need, 65536), hard)
    fix = f"run `ulimit -n {wanted}` before starting vLLM and the trainer"
    if wanted < need:
        fix = f"ask an administrator to raise the hard limit ({hard}) to {need}"
    return Check("failed", f"limit {soft}, but a run needs {need}: each rollout uses a connection", fix)


def check_shared_memory(planned: PlannedRun, size: int | None) -> Check:
    """Check /dev/shm, through which NCCL and vLLM's workers communicate. `size` is in bytes, None if it is missing."""
    if size is None:
        return Check("skipped", "this system has no /dev/shm")
    if size >= _SERVER_NEEDS_SHM or (not planned.uses_vllm and planned.processes == 1):
        return Check("ok", f"/dev/shm has {gigabytes(size)}")
    fix = "start the container with `--shm-size=8g` or `--ipc=host`"
    return Check("warning", f"/dev/shm has {gigabytes(size)}, but several processes may need 1 GB", fix)


def shared_memory_size() -> int | None:
    path = Path("/dev/shm")
    return shutil.disk_usage(path).total if path.is_dir() else None


def memory_free() -> int:
    """Memory in bytes that this process can still allocate, within the limit of its container."""
    import psutil

    free: int = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # ValueError: the limit is "max"
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, limit - used + int(stat.get("inactive_file", 0)))  # the file cache can be reclaimed
    return free


def nearest_folder(path: Path) -> Path:
    """Return `path`, or its nearest existing parent."""
    path = path.expanduser().absolute()
    return next(parent for parent in (path, *path.parents) if parent.is_dir())


def check_output(planned: PlannedRun, checkpoint: int | None) -> Check:
    """Check that the output folder is writable and has room for checkpoints of `checkpoint` bytes (None: unknown)."""
    output = planned.config.output
    try:
        folder = RunFolder.choose(output.dir, "check")
    except OutputFolderError as error:
        return Check("failed", str(error).partition("; choose")[0], "choose another output folder")
    free = shutil.disk_usage(nearest_folder(folder)).free
    text = f"{folder if output.dir else OUTPUTS}: {gigabytes(free)} free"
    if checkpoint is None:
        return Check("ok", text)
    count = max(1, -(-planned.config.training.max_steps // output.save_every)) if output.save_every else 1
    count = min(count, output.save_total_limit or count)
    text = f"{text}, for {counted(count, 'checkpoint')} of {gigabytes(checkpoint)}"
    if free >= checkpoint * count:
        return Check("ok", text)
    fix = "free some space, choose another output folder, or set output.save_total_limit=1"
    return Check("failed" if free < checkpoint else "warning", f"{text}, which will not all fit", fix)


def check_hub(planned: PlannedRun) -> Check:
    """Check the Hugging Face login, needed for gated models and uploads. No part of a token is ever shown."""
    try:
        from huggingface_hub import get_token
    except ImportError:
        return Check("skipped", "huggingface_hub is not installed")
    if get_token():
        return Check("ok", "token found")
    if planned.config.hub.enabled:
        fix = "set HF_TOKEN in .env, run `hf auth login`, or set hub.enabled=false"
        return Check("failed", f"no token, but the run will be uploaded to {planned.config.hub.repo_id}", fix)
    return Check("ok", "no token: public models only, no uploads (HF_TOKEN in .env, or `hf auth login`)")


def check_wandb(planned: PlannedRun) -> Check:
    """Check the Weights & Biases login, needed if `logging.report_to` names it."""
    mode, wanted = os.environ.get("WANDB_MODE"), "wandb" in planned.config.logging.report_to
    login = f"WANDB_MODE={mode}" if mode in ("offline", "disabled") else "login found" if _wandb_key() else "no login"
    if wanted and login == "no login":
        fix = "set WANDB_API_KEY in .env, run `wandb login`, or set WANDB_MODE=offline"
        return Check("failed", "no login, but report_to names it", fix)
    return Check("ok", login if wanted else f"{login}; report_to does not name it")


def _wandb_key() -> bool:
    """Whether the environment or the netrc file has a key. No part of a token is ever shown."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    for name in (os.environ.get("NETRC") or "~/.netrc", "~/_netrc"):
        # The text of a NetrcParseError may quote the file.
        with contextlib.suppress(OSError, ValueError, netrc.NetrcParseError):
            if netrc.netrc(os.path.expanduser(name)).authenticators("api.wandb.ai"):
                return True
    return False
