"""`rg-env launch`: from what the user wants to two commands, a vLLM server and a trainer, and their run.

commands = make_commands(LaunchOptions("train.py", "Qwen/Qwen2.5-7B-Instruct", gpus=("1", "2", "3")), Machine.here())
commands = make_commands(LaunchOptions("configs/train/multi_tasks.yaml", "Qwen/Qwen2.5-3B-Instruct"), Machine.here())
print(commands.server.shell())

Making them starts nothing, and imports neither torch nor vLLM. Running is `supervise`'s.

A server and a trainer as one run: the trainer starts when the server is healthy, and neither outlives the other.

code = Run(server, trainer, folder=..., healthy=...).supervise()

Ctrl-C, SIGTERM and SIGHUP reach the trainer as one SIGINT, on which it saves; a second signal ends everything at once.
Processes that were there before are left alone.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from rg_env.core.config.files import is_config_file
from rg_env.core.processes import TICK_S, Command, ProcessGroup, adopt_orphans, descendants, end_all
from rg_env.errors import InputError, OutputFolderError, TrainingError
from rg_env.inference.machine import Machine
from rg_env.inference.vllm.client import VllmServer, serve_command
from rg_env.inference.vllm.plugin import BACKEND
from rg_env.tiny import POLICY_DIR
from rg_env.training.config.schema import TrainConfig

HOST = "127.0.0.1"
LOGS = Path("logs")
SHARED_GPU_PART = "0.4"
"""Of its memory for vLLM, where the trainer is on the same GPU."""


@dataclass(frozen=True)
class LaunchOptions:
    """What the user asks for. GPUs are names as `CUDA_VISIBLE_DEVICES` takes them."""

    script: str
    """A Python script, or a config of `rg-env train`."""
    model: str
    script_arguments: tuple[str, ...] = ()
    """More for the script; with a config, overrides and options of `rg-env train`."""
    vllm_gpus: tuple[str, ...] | None = None
    """Default: the first that the trainer does not use."""
    gpus: tuple[str, ...] | None = None
    """For training. Default: all that vLLM does not use."""
    processes: int | None = None
    """That train. Default: one a GPU."""
    accelerate_config: str | None = None
    """Default: `configs/zero3.yaml` (without a GPU `zero3_cpu.yaml`) for several processes, none for one."""
    port: int = 8000
    tensor_parallel: int | None = None
    """GPUs that hold one copy of the model for vLLM. Default: all of `vllm_gpus`, divided by `data_parallel`."""
    data_parallel: int | None = None
    """Copies of the model that vLLM generates with. Default: 1, or as many as `tensor_parallel` leaves GPUs for."""
    dtype: str | None = None
    max_model_len: int | None = None
    vllm_arguments: tuple[str, ...] = ()
    """More options for vLLM. They come last, and so win."""


@dataclass(frozen=True)
class Commands:
    """The two commands, and where what goes."""

    server: Command
    trainer: Command
    summary: str


def make_commands(options: LaunchOptions, machine: Machine) -> Commands:
    """The commands that do what `options` ask for.

    Raises:
        InputError: they cannot be met.
    """
    script = _checked_script(options.script)
    if not options.model.strip():
        raise InputError("--model is empty: give a folder, a name on the hub, or 'tiny'")
    if not 1 <= options.port <= 65535:
        raise InputError(f"port {options.port} does not exist: ports go from 1 to 65535")
    vllm_gpus, gpus = split_gpus(options.vllm_gpus, options.gpus, machine.gpus)
    processes = options.processes or len(gpus) or 1
    if gpus and processes > len(gpus):
        raise InputError(f"--processes {processes} with {len(gpus)} GPUs to train on: one process needs one GPU")
    if not gpus and processes > (cores := max(2, os.cpu_count() or 1)):
        raise InputError(f"--processes {processes} on a CPU with {cores} cores: at most one a core")
    gpus = gpus[:processes]  # one process that sees two GPUs would use both, the slow way (DataParallel)
    return Commands(
        _server(options, vllm_gpus, machine, shared=bool(gpus) and vllm_gpus == gpus),
        _trainer(options, script, gpus, processes, machine),
        f"vLLM on {_gpu_words(vllm_gpus)}, training on {_gpu_words(gpus)} in "
        f"{processes} {'process' if processes == 1 else 'processes'}",
    )


def dry_run(options: LaunchOptions) -> str:
    """The two commands, for two terminals here or on the machine that the GPUs are named for."""
    commands = make_commands(options, _with_named(Machine.here(), options.vllm_gpus, options.gpus))
    return f"# {commands.summary}\n# terminal 1\n{commands.server.shell()}\n# terminal 2\n{commands.trainer.shell()}"


def training_processes(vllm: Sequence[str] | None, training: Sequence[str] | None, *, dry_run: bool = False) -> int:
    """How many processes train, one a GPU, if nothing else is said. Raises `InputError` as `split_gpus`."""
    machine = Machine.here()
    machine = _with_named(machine, vllm, training) if dry_run else machine
    return len(split_gpus(vllm, training, machine.gpus)[1]) or 1


def longest_sequence(config: TrainConfig) -> int:
    """Tokens of prompt and completion that a server for this config must take."""
    training = config.training
    return training.max_prompt_length + max(training.max_tokens, config.evaluation.max_tokens or 0)


def served_model(name: str) -> str:
    """What a server loads for the model `name`."""
    return str(POLICY_DIR) if name == "tiny" else name


def _with_named(machine: Machine, *named: Sequence[str] | None) -> Machine:
    """The machine that the GPUs are named for: a dry run may be for another."""
    return replace(machine, gpus=tuple(dict.fromkeys([*machine.gpus, *(gpu for each in named for gpu in each or ())])))


def launch(
    options: LaunchOptions,
    *,
    log_dir: str | None = None,
    server_timeout_s: float = 600.0,
    save_timeout_s: float = 300.0,
    verbose: bool = False,
) -> int:
    """Run server and trainer until the trainer ends; its exit code, or 128 + N where signal N ended the run.

    Raises:
        InputError: it cannot work; nothing was started.
        TrainingError: the server did not come up, or died.
    """
    machine = Machine.here()
    commands = make_commands(options, machine)
    machine.check_installed(commands.server.arguments[0], commands.trainer.arguments[0])
    _check_port(options.port)
    folder = _log_folder(log_dir, Path(options.script).stem)
    print(f"{commands.summary}; logs in {folder}/", flush=True)
    server = VllmServer(HOST, options.port)
    return Run(
        commands.server,
        commands.trainer,
        folder=folder,
        healthy=lambda: server.health_problem(timeout_s=1.0) is None,
        server_timeout_s=server_timeout_s,
        save_timeout_s=save_timeout_s,
        verbose=verbose,
    ).supervise()


def split_gpus(
    vllm: Sequence[str] | None, training: Sequence[str] | None, visible: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """GPUs for vLLM and for training; the same one for both if there is but one.

    Raises:
        InputError: a GPU does not exist, or is asked for twice, or none is left.
    """
    for flag, asked in (("--vllm-gpus", vllm or ()), ("--gpus", training or ())):
        if unknown := [gpu for gpu in asked if gpu not in visible]:
            here = f"visible are {', '.join(visible)}" if visible else "none is visible here (nvidia-smi)"
            raise InputError(f"{flag}: there is no GPU {', '.join(unknown)}: {here}")
        if len(set(asked)) < len(asked):
            raise InputError(f"{flag} {','.join(asked)} names a GPU twice")
    if vllm and vllm == training and len(vllm) == 1:
        return tuple(vllm), tuple(vllm)
    if both := [gpu for gpu in vllm or () if gpu in (training or ())]:
        raise InputError(
            f"GPU {', '.join(both)} is in --vllm-gpus and in --gpus: give each its own; one "
            f"GPU alone can be shared (--vllm-gpus {both[0]} --gpus {both[0]})"
        )
    if len(visible) <= 1:
        return tuple(visible), tuple(visible)
    server = tuple(vllm or [gpu for gpu in visible if gpu not in (training or ())][:1])
    trainer = tuple(training or [gpu for gpu in visible if gpu not in server])
    if not server or not trainer:
        raise InputError(f"{'--gpus' if trainer else '--vllm-gpus'} takes all GPUs ({', '.join(visible)}): leave one")
    return server, trainer


def parallel_sizes(tensor: int | None, data: int | None, gpus: int) -> tuple[int, int]:
    """Sizes of tensor and data parallelism of a server on so many GPUs; 0 GPUs: a CPU.

    Raises:
        InputError: they do not use each GPU once.
    """
    gpus = gpus or 1
    tensor = tensor or gpus // (data or 1)
    data = data or max(1, gpus // max(1, tensor))
    if tensor * data != gpus or not tensor:
        raise InputError(
            f"--tensor-parallel-size {tensor} x --data-parallel-size {data} is not the number of vLLM's GPUs ({gpus}): "
            "change one of them, or --vllm-gpus"
        )
    return tensor, data


def check_heads(model: str, tensor_parallel: int) -> None:
    """Raise `InputError` if the attention heads of a model cannot be divided; a model that is not on this machine, its
    configuration included, passes: vLLM will say it."""
    sizes = _text_config(model)
    heads, groups = (_count(sizes.get(name)) for name in ("num_attention_heads", "num_key_value_heads"))
    problem = None
    if heads and heads % tensor_parallel:
        problem = f"{heads} attention heads"
    elif groups and groups % tensor_parallel and tensor_parallel % groups:  # vLLM copies them where they are fewer
        problem = f"{groups} key-value heads"
    if problem:
        fit = [n for n in range(1, tensor_parallel) if (heads or 0) % n == 0 and (groups or 0) % n == 0]
        raise InputError(
            f"--tensor-parallel-size {tensor_parallel}: {model} has {problem}, which it does not divide; the nearest "
            f"that does is {max(fit)}; use --data-parallel-size for the other GPUs"
        )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _text_config(model: str) -> dict[str, Any]:
    """The language model's part of a config.json in a folder, or in the hub's cache; {} if there is none here."""
    path: object = Path(model) / "config.json"
    try:
        if not Path(model).is_dir():
            from huggingface_hub import try_to_load_from_cache

            path = try_to_load_from_cache(model, "config.json")
        values = json.loads(Path(str(path)).read_text())
        return dict(values.get("text_config") or values)
    except (ImportError, OSError, ValueError, TypeError, AttributeError):  # ValueError: not a name on the hub, too
        return {}


def _server(options: LaunchOptions, gpus: tuple[str, ...], machine: Machine, *, shared: bool) -> Command:
    extra = ["--gpu-memory-utilization", SHARED_GPU_PART] if shared else []
    if shared:  # NCCL refuses two processes on one GPU
        extra += ["--weight-transfer-config", json.dumps({"backend": BACKEND})]
    extra += [] if gpus else ["--enforce-eager"]
    tensor_parallel, data_parallel = parallel_sizes(options.tensor_parallel, options.data_parallel, len(gpus))
    check_heads(served_model(options.model), tensor_parallel)
    arguments = serve_command(
        served_model(options.model),
        host=HOST,
        port=options.port,
        dtype=options.dtype or (None if gpus else "float32"),
        max_model_len=options.max_model_len,
        tensor_parallel=tensor_parallel,
        data_parallel=data_parallel,
        extra=[*extra, *options.vllm_arguments],
    )
    environment = _visible(gpus)
    if not gpus and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        environment["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GB; its default is half of the memory
    return Command((str(machine.programs / arguments[0]), *arguments[1:]), environment)


def _trainer(options: LaunchOptions, script: Path, gpus: tuple[str, ...], processes: int, machine: Machine) -> Command:
    is_config = is_config_file(script.name)
    program = [str(machine.programs / ("rg-env" if is_config else Path(sys.executable).name))]
    distributed = processes > 1 or options.accelerate_config is not None
    if distributed:
        config = _accelerate_config(options.accelerate_config, script, "zero3.yaml" if gpus else "zero3_cpu.yaml")
        program = [str(machine.programs / "accelerate"), "launch", "--config-file", str(config)]
        # Port 0: a free one. Two runs on one machine would both take accelerate's default.
        program += ["--num-processes", str(processes), "--main-process-port", "0"]
        program += ["--module", "rg_env.cli.main"] if is_config else []
    if is_config:
        arguments = ["train", str(script), *options.script_arguments, *engine_overrides(options.port)]
    else:
        arguments = [str(script), *_script_arguments(options)]
    return Command((*program, *arguments), _visible(gpus), starts_workers=distributed)


def engine_overrides(port: int) -> list[str]:
    """What makes a config train with the server that is started."""
    return ["engine.kind=vllm", f"engine.host={HOST}", f"engine.port={port}"]


def _script_arguments(options: LaunchOptions) -> list[str]:
    ours = {"--model": options.model, "--engine": "vllm", "--vllm-port": str(options.port)}
    for number, argument in enumerate(options.script_arguments):
        flag, _, value = argument.partition("=")
        if flag in ours:
            value = value or " ".join(options.script_arguments[number + 1 : number + 2])
            if value != ours[flag]:
                remedy = "leave it out" if flag == "--engine" else f"give {flag.replace('vllm-', '')} before `--`, once"
                raise InputError(f"{flag} {value} after `--` is not what the server is started with: {remedy}")
            del ours[flag]
        elif flag == "--vllm-host":
            raise InputError("--vllm-host after `--`: launch starts the server on this machine; leave it out")
    return [*(part for pair in ours.items() for part in pair), *options.script_arguments]


def _checked_script(name: str) -> Path:
    script = Path(name)
    such_as = "such as examples/train_ultra_minimal.py or configs/train/tiny.yaml"
    if not _is_file(script):
        raise InputError(f"no script or config at {name!r}: give the path of one, {such_as}")
    if script.suffix != ".py" and not is_config_file(name):
        raise InputError(f"{name!r} is neither a Python script (.py) nor a config (.yaml): give one, {such_as}")
    return script


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def _accelerate_config(given: str | None, script: Path, name: str) -> Path:
    if given is not None:
        if not _is_file(Path(given)):
            raise InputError(f"no file at --accelerate-config {given!r}")
        return Path(given)
    # As the user would write it: beside the script's folder, in the folders above, or here.
    for folder in (*script.parents, *script.absolute().parents[:3], Path()):
        if (config := folder / "configs" / name).is_file():
            return config
    raise InputError(f"no configs/{name} in the folders around {script} or here: give --accelerate-config FILE")


def _visible(gpus: Sequence[str]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}


def _gpu_words(gpus: Sequence[str]) -> str:
    return f"GPU{'s' if len(gpus) > 1 else ''} {','.join(gpus)}" if gpus else "the CPU"


def _check_port(port: int) -> None:
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        reason = os.strerror(error.errno or 0)  # its own text tells how Python asked
        raise InputError(f"cannot have {HOST}:{port} ({reason}): choose another --port") from error


def _log_folder(given: str | None, name: str) -> Path:
    """A new folder, or the given one if it holds no logs yet."""
    stem = LOGS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = (
        Path(given) if given else next(p for n in range(1000) if not (p := Path(f"{stem}-{n}" if n else stem)).exists())
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = sorted(path.name for path in folder.glob("*.log"))
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputFolderError(f"cannot write to {folder}: {error.strerror}; choose another --log-dir") from error
    if taken:
        raise OutputFolderError(f"{folder} holds {', '.join(taken)} of another run: choose another --log-dir")
    return folder


GRACE_S = 15.0
"""For a program to end after SIGTERM, once nothing is to be saved any more."""
HURRY_S = 2.0
"""The same after a second signal."""
HEALTH_EVERY_S = 1.0
TAIL = 20


class _Asked(Exception):
    """A signal asks for the end."""


class Run:
    """One run; `supervise` is called once, from the main thread."""

    def __init__(
        self,
        server: Command,
        trainer: Command,
        *,
        folder: Path,
        healthy: Callable[[], bool],
        server_timeout_s: float = 600.0,
        save_timeout_s: float = 300.0,
        verbose: bool = False,
    ):
        self._commands = {"vllm": server, "train": trainer}
        self._logs = {name: folder / f"{name}.log" for name in self._commands}
        self._groups: dict[str, ProcessGroup] = {}
        self._healthy, self._server_timeout_s, self._save_timeout_s = healthy, server_timeout_s, save_timeout_s
        self._shown = {"vllm", "train"} if verbose else {"train"}
        self._signals: list[int] = []
        self._heeded = 0  # of them; a further one means hurry
        self._console = Console()

    def supervise(self) -> int:
        """Run both; returns the trainer's exit code, or 128 + N after signal N.

        Raises:
            TrainingError: the server does not come up, or dies.
        """
        strangers = set(descendants(psutil.Process()))
        adopt_orphans()
        with signals_noted(self._signals):
            try:
                self._start("vllm")
                self._await_health()
                self._start("train")
                return self._watch()
            except _Asked:
                self._heeded, number = 1, self._signals[0]
                if "train" in self._groups:
                    time_left = f"{self._save_timeout_s:g} s"
                    self._console.line(
                        f"interrupted: the trainer has {time_left} to save (Ctrl-C again ends it at once)"
                    )
                    self._await_trainer(interrupt=True)
                return 128 + number
            finally:
                for name in reversed(self._groups):  # the trainer first: it would complain of the server's end
                    self._groups[name].end(self._grace)
                self._show_output()
                # Orphans: what a program left behind that died before it could end it.
                end_all(lambda: set(descendants(psutil.Process())) - strangers, self._grace)
                self._console.progress("")

    def _grace(self) -> float:
        return HURRY_S if len(self._signals) > self._heeded else GRACE_S

    def _start(self, name: str) -> None:
        self._groups[name] = ProcessGroup(self._commands[name], self._logs[name])

    def _await_health(self) -> None:
        server, log = self._groups["vllm"], self._logs["vllm"]
        start = asked = time.monotonic()
        while True:
            self._tick()
            now = time.monotonic()
            if server.code is not None:
                self._show_tail(server)
                raise TrainingError(f"vLLM ended with code {server.code} before it was ready: see above, and {log}")
            if now - start > self._server_timeout_s:
                self._show_tail(server)
                waited = f"{self._server_timeout_s:g} s"
                raise TrainingError(f"vLLM is not ready after {waited}: see {log}, or give a longer --server-timeout")
            if now - asked >= HEALTH_EVERY_S:
                asked = now
                last = " ".join(server.last_lines(1))
                self._console.progress(f"waiting for vLLM, {now - start:.0f} s{': ' if last else ''}{last}")
                if self._healthy():
                    self._console.line(f"vLLM is ready after {now - start:.0f} s")
                    return

    def _watch(self) -> int:
        server, trainer = self._groups["vllm"], self._groups["train"]
        while trainer.code is None and server.code is None:
            self._tick()
        if trainer.code is not None:
            return trainer.code
        self._console.line(
            f"vLLM ended with code {server.code}: the trainer has {self._save_timeout_s:g} s to notice, save and end"
        )
        self._await_trainer(interrupt=False)
        last = " ".join(server.last_lines(1))
        raise TrainingError(f"vLLM ended with code {server.code} in mid-run ({last[:200]}): see {self._logs['vllm']}")

    def _await_trainer(self, *, interrupt: bool) -> None:
        """Return when it has ended, has had its time, or a further signal came."""
        trainer = self._groups["train"]
        deadline = time.monotonic() + self._save_timeout_s
        while trainer.code is None and len(self._signals) == self._heeded:
            if time.monotonic() >= deadline:
                self._console.line(f"the trainer did not end within {self._save_timeout_s:g} s: it is ended now")
                return
            if interrupt:
                trainer.interrupt()  # again and again: a launcher may have been about to start one more worker
            time.sleep(TICK_S)
            self._show_output()

    def _tick(self) -> None:
        time.sleep(TICK_S)
        self._show_output()
        if self._signals:
            raise _Asked

    def _show_output(self) -> None:
        for name, group in self._groups.items():
            for line in group.new_lines():
                if name in self._shown:
                    self._console.line(f"[{name}] {line}")

    def _show_tail(self, group: ProcessGroup) -> None:
        if "vllm" not in self._shown:
            for line in group.last_lines(TAIL):
                self._console.line(f"[vllm] {line}")


@contextlib.contextmanager
def signals_noted(noted: list[int]) -> Iterator[None]:
    """Within, signals that ask for the end are only put down in `noted`: none can break off the ending of processes."""

    def note(number: int, _: Any) -> None:
        noted.append(number)

    # A terminal that goes away sends SIGHUP; under nohup that is ignored, and stays so.
    kinds = [signal.SIGINT, signal.SIGTERM]
    kinds += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    assert threading.current_thread() is threading.main_thread(), "signals come to the main thread"
    before = {kind: signal.signal(kind, note) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


class Console:
    """Standard output: lines, and below them one that is written over and over, on a terminal."""

    EVERY_S = 15.0
    """Between progress lines where they cannot be written over."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._under = False  # there is a progress line
        self._last = -self.EVERY_S

    def line(self, text: str) -> None:
        self._write(("\r\033[K" if self._under else "") + text + "\n")
        self._under = False

    def progress(self, text: str) -> None:
        """Show `text` until the next line; an empty one takes it away."""
        if self._terminal:
            if text or self._under:
                width = shutil.get_terminal_size().columns - 1
                self._write("\r\033[K" + text[:width])
            self._under = bool(text)
        elif text and time.monotonic() - self._last >= self.EVERY_S:
            self._last = time.monotonic()
            self._write(text[:200] + "\n")

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:  # the reader or the terminal is gone; the run is not, and its logs are on disk
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
