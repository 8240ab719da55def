"""Python programs in forks of a process that has already imported torch, transformers and rg_env.

These imports take about 10 CPU seconds, and the slow tests start dozens of programs. A command that begins with
`PYTHON` instead of `[sys.executable]` runs the same program in a fork. The process that the test starts is a small one
that passes on its arguments, folder, environment, standard streams and signals, and exits as the program does. The
program is killed if that process is.

Programs that must not share imports start as usual: those that test imports or the start itself, and those whose
environment differs in a variable that libraries read when they are imported.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PYTHON = [sys.executable, "-I", "-S", __file__]
_ADDRESS, _USERS = "RG_ENV_TESTS_FORKS", "forks.users"
_PRELOADED = (
    "rg_env.cli.main", "rg_env.training", "rg_env.training.run", "rg_env.training.trainer", "rg_env.evaluation",
    "rg_env.inference.models", "transformers.models.llama.modeling_llama", "torch.distributed.run",
    "accelerate.commands.launch", "matplotlib.pyplot",
)  # fmt: skip
_READ_ON_IMPORT = ("HF_", "OMP_", "TRANSFORMERS_", "MPL", "PYTHONHASHSEED")
_READ_AGAIN = ("HF_ENDPOINT", "HF_HOME", "HF_TOKEN")  # by huggingface_hub, when a fork starts
_READ_LATER = ("HF_DATASETS_", "HF_XET_")  # `datasets` and `hf_xet` are not preloaded
_PREPARED = {"TRANSFORMERS_VERBOSITY": "error"}
"""What `prepare_process` sets: in the process that forks, in most programs, and in tests that run a command."""


@contextlib.contextmanager
def serve_forks(folder: Path) -> Iterator[None]:
    """Start the process that forks, unless another worker of pytest-xdist has, and let commands use it. It ends when
    all test processes that use it have ended."""
    from filelock import FileLock  # the small process runs without site-packages

    address, users = folder / "forks", folder / _USERS
    os.environ[_ADDRESS] = str(address)
    with FileLock(folder / "forks.lock"):
        try:
            use = os.open(users, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # there is no such pipe yet, or no process reads it anymore
            for each in (address, users):
                each.unlink(missing_ok=True)
            os.mkfifo(users)
            os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, __file__, "serve"])
            use = os.open(users, os.O_WRONLY)  # waits until the process reads it
    try:
        yield
    finally:
        del os.environ[_ADDRESS]
        os.close(use)


def _read(connection: socket.socket) -> str:
    """Receive one line, or what came before the connection was closed."""
    found = b""
    while not found.endswith(b"\n") and (part := connection.recv(65536)):
        found += part
    return found.decode()


def _read_on_import(environment: dict[str, str]) -> dict[str, str]:
    found = {**_PREPARED, **environment}
    fixed = [each for each in found if each.startswith(_READ_ON_IMPORT)]
    names = [each for each in fixed if each not in _READ_AGAIN and not each.startswith(_READ_LATER)]
    return {name: found[name] for name in names}


def _pass_on(arguments: list[str]) -> None:
    """Run the program in a fork of the server, and exit as it does."""
    if _ADDRESS not in os.environ:
        os.execv(sys.executable, [sys.executable, *arguments])
    connection = socket.socket(socket.AF_UNIX)
    while connection.connect_ex(os.environ[_ADDRESS]):  # the server has just been started
        time.sleep(0.05)
    environment = dict(os.environ)
    if _read_on_import(environment) != json.loads(_read(connection)):
        os.execv(sys.executable, [sys.executable, *arguments])
    socket.send_fds(connection, [b"fds"], [0, 1, 2])
    asked = {"arguments": arguments, "folder": os.getcwd(), "environment": environment}
    connection.sendall(json.dumps(asked).encode() + b"\n")
    pid = int(_read(connection))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
        signal.signal(number, lambda received, frame: os.kill(pid, received))
    code = int(_read(connection) or -signal.SIGKILL)
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _serve() -> None:
    import gc
    import importlib
    import selectors

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ[_ADDRESS])
    listener.listen()
    users = os.open(Path(os.environ[_ADDRESS]).with_name(_USERS), os.O_RDONLY)  # at its end when all have closed it
    original = dict(os.environ)
    from rg_env.commands import prepare_process

    prepare_process()
    for name in _PRELOADED:
        importlib.import_module(name)
    os.environ.clear()
    os.environ.update(original)
    gc.collect()
    gc.freeze()
    ended, wakes = socket.socketpair()
    for end in (ended, wakes):
        end.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    for each in (listener, ended, users):
        selector.register(each, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == users:  # the tests have ended
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            elif key.fileobj is listener:
                connection = listener.accept()[0]
                connection.sendall(json.dumps(_read_on_import(original)).encode() + b"\n")
                _, streams, _, _ = socket.recv_fds(connection, 3, 3)
                if not streams:  # the program started as usual
                    connection.close()
                    continue
                asked = json.loads(_read(connection))
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(users)
                    for each in (listener, ended, wakes, connection, *running.values()):
                        each.close()
                    selector.close()
                    _run(asked, streams)
                for each in streams:
                    os.close(each)
                running[pid] = connection
                selector.register(connection, selectors.EVENT_READ, pid)
                connection.sendall(f"{pid}\n".encode())
            elif key.fileobj is ended:
                ended.recv(4096)
                _reap(running, selector)
            elif key.data in running:  # the process that the test started has been killed
                os.kill(key.data, signal.SIGKILL)
                selector.unregister(running[key.data])


def _reap(running: dict[int, socket.socket], selector: Any) -> None:
    """Report the exit codes of programs that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        connection = running.pop(pid)
        try:
            selector.unregister(connection)
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        except (KeyError, OSError):  # nobody waits for it
            pass
        connection.close()


def _run(asked: Any, streams: list[int]) -> None:
    """Be the program: take its streams, folder, environment and arguments, run it, and exit."""
    import atexit
    import importlib
    import io
    import runpy
    import threading
    import traceback

    import numpy as np

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(str(asked["folder"]))
    os.environ.clear()
    os.environ.update(asked["environment"])
    unbuffered = "PYTHONUNBUFFERED" in os.environ
    options: Any = {"encoding": "utf-8", "write_through": unbuffered}
    sys.stdin = open(0)  # noqa: SIM115
    sys.stdout = io.TextIOWrapper(open(1, "wb", 0 if unbuffered else -1), **options)  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", 0), errors="backslashreplace", **options)  # noqa: SIM115
    np.random.seed()
    importlib.reload(sys.modules["huggingface_hub.constants"])
    arguments = list(asked["arguments"])
    code = 0
    try:
        while arguments[0] in ("-u", "-W", "-X"):
            if arguments.pop(0) == "-u":
                sys.stdout.reconfigure(write_through=True, line_buffering=True)
            else:
                arguments.pop(0)
        sys.argv = {"-m": arguments[1:], "-c": ["-c", *arguments[2:]]}.get(arguments[0], arguments)
        more = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        first = "" if arguments[0] in ("-m", "-c") else os.path.dirname(os.path.abspath(arguments[0]))
        sys.path[:] = [first, *more, *(each for each in sys.path if each != os.path.dirname(__file__))]
        if arguments[0] == "-m":
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exc()
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        try:
            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stdout.flush()
        finally:
            if code < 0:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
            os._exit(code)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        _serve()
    else:
        _pass_on(sys.argv[1:])
