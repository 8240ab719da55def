"""What the operating system grants a run: ports, files, memory, disk."""

import errno
import shutil
import socket
import sys
from pathlib import Path

from rg_env.core.run_folder import OUTPUTS, RunFolder
from rg_env.errors import OutputFolderError, ServerError
from rg_env.jobs.doctor.asked_run import AskedRun, Check, gigabytes

LAUNCH_PORT = 29500
"""Where `accelerate launch` lets processes meet, unless given `--main_process_port`."""
_SERVER_NEEDS_SHM = 10**9
_SPARE_FILES = 512
"""Files that libraries, data and logs hold open beside the connections."""


def check_server(run: AskedRun, model: str | None, tokens: int) -> tuple[Check, bool]:
    """Who answers at the server's port, and whether there is a server at all.

    Args:
        model: the name it has to serve; None: not known.
        tokens: that it must take, of prompt and completion together.
    """
    if run.engine != "vllm":
        return Check("server", "skipped", "the embedded engine needs none"), False
    from rg_env.inference.vllm.client import NOBODY, VllmServer, start_hint

    server = VllmServer(run.vllm_host, run.vllm_port)
    start = f"`{start_hint(model or 'MODEL', run.vllm_port)}`"
    problem = server.health_problem(timeout_s=5.0)
    if problem == NOBODY:
        if run.server_is_here and (taken := port_problem(run.vllm_port)):
            return Check("server", "failed", f"port {run.vllm_port}: {taken}", "choose another --vllm-port"), False
        finding = f"nothing listens at {server} yet"
        fix = f"before training, start {start}"
        if not run.server_is_here:
            fix = f"check --vllm-host, or {fix} there, with --host an address that this machine reaches"
        return Check("server", "warning", finding, fix), False
    another = f"choose another --vllm-port, and start {start} with it"
    if problem:
        return Check("server", "failed", f"what listens at {server} is no healthy vLLM: {problem}", another), True
    try:
        served, workers = server.model(), server.world_size()
    except ServerError as error:
        return Check("server", "failed", str(error).partition(": give the port")[0], another), True
    if model is not None and served.name != model:
        return Check(
            "server", "failed", f"{server} serves {served.name!r}, not {model!r}", f"restart it: {start}"
        ), True
    if served.max_model_len < tokens:
        finding = f"{server} takes {served.max_model_len} tokens, and prompt and completion can have {tokens}"
        return Check(
            "server", "failed", finding, f"restart it with --max-model-len {tokens}, or less --max-tokens"
        ), True
    plural = "s" * (workers != 1)
    text = f"vLLM at {server} serves {served.name!r}, {served.max_model_len} tokens, {workers} worker{plural}"
    return Check("server", "ok", text), True


def check_ports(run: AskedRun) -> Check:
    """The ports that processes of a run meet at, which nobody else may hold."""
    if run.processes == 1:
        return Check("ports", "skipped", "one process needs none of its own")
    if taken := port_problem(LAUNCH_PORT):
        return Check(
            "ports",
            "warning",
            f"{LAUNCH_PORT}: {taken}",
            "several nodes need another --main_process_port; one node takes a free one (--main-process-port 0)",
        )
    return Check("ports", "ok", f"{LAUNCH_PORT} free")


def port_problem(port: int) -> str | None:
    """Why this machine cannot listen at `port`; None if it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: closed connections do not count
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError as error:
            return "something else listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return None


def check_open_files(soft: int, hard: int, connections: int) -> Check:
    """`connections`: how many rollouts a server answers at once; 0 without one. Limits of -1 are none at all."""
    need = _SPARE_FILES + connections
    if soft in (-1, sys.maxsize) or soft >= need:
        return Check("open files", "ok", "no limit" if soft in (-1, sys.maxsize) else f"limit {soft}")
    wanted = max(need, 65536)
    fix = f"`ulimit -n {wanted if hard < 0 else min(wanted, hard)}` before vLLM and the trainer"
    if 0 <= hard < need:
        fix = f"let an administrator raise the hard limit ({hard}) to {wanted}"
    return Check("open files", "failed", f"limit {soft}, and a run needs {need}: each rollout holds a connection", fix)


def open_file_limits() -> tuple[int, int] | None:
    """Soft and hard; None where there is no such thing."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def check_shared_memory(size: int | None, run: AskedRun) -> Check:
    """`size` of /dev/shm in bytes; None: there is none. NCCL and vLLM's workers talk through it."""
    if size is None:
        return Check("shared memory", "skipped", "no /dev/shm on this system")
    if size >= _SERVER_NEEDS_SHM or (run.engine != "vllm" and run.processes == 1):
        return Check("shared memory", "ok", f"/dev/shm has {gigabytes(size)}")
    fix = "start the container with `--shm-size=8g` or `--ipc=host`"
    return Check("shared memory", "warning", f"/dev/shm has {gigabytes(size)}, several processes may need 1 GB", fix)


def shared_memory_size() -> int | None:
    path = Path("/dev/shm")
    return shutil.disk_usage(path).total if path.is_dir() else None


def memory_free() -> int | None:
    """Bytes of memory that this process can still have, its container's limit included; None: not known here."""
    free = None
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except OSError:
        return None
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        if limit != "max" and free is not None:
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            free = min(free, int(limit) - int(used) + int(stat.get("inactive_file", 0)))  # cached files make room
    except (OSError, ValueError):
        pass
    return free


def nearest_folder(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    path = path.expanduser().absolute()
    return next(parent for parent in (path, *path.parents) if parent.is_dir())


def check_output(run: AskedRun, checkpoint: int | None, count: int) -> Check:
    """Whether the output folder can be written and holds `count` checkpoints of `checkpoint` bytes (None: unknown)."""
    try:
        folder = RunFolder.choose(run.output_dir, "check")
    except OutputFolderError as error:
        return Check("output folder", "failed", str(error).partition("; choose")[0], "choose another output folder")
    shown = folder if run.output_dir else OUTPUTS
    free = shutil.disk_usage(nearest_folder(folder)).free
    if checkpoint is None:
        return Check("output folder", "ok", f"{shown}: {gigabytes(free)} free")
    text = f"{shown}: {gigabytes(free)} free, and {_checkpoints(count)} of {gigabytes(checkpoint)}"
    fix = "make room, or choose another output folder"
    if free < checkpoint:
        return Check("output folder", "failed", f"{text} will not fit", fix)
    if free < checkpoint * count:
        return Check("output folder", "warning", f"{text} will not all fit", f"{fix}; or save_total_limit=1")
    return Check("output folder", "ok", f"{text} will fit")


def _checkpoints(count: int) -> str:
    return "a checkpoint" if count == 1 else f"{count} checkpoints"
