"""`rg-env launch`: start and supervise a vLLM server and a trainer as one run.

commands = make_commands(LaunchOptions("train.py", model="Qwen/Qwen2.5-7B-Instruct", gpus=("1", "2")), Machine.here())
print(commands.server.shell())        # make_commands starts nothing and imports neither torch nor vLLM
code = launch(LaunchOptions("configs/train/multi_tasks.yaml"))

The trainer starts once the server is healthy, and neither outlives the other. On Ctrl-C, SIGTERM or SIGHUP, each
training process receives one SIGINT, and the trainer saves a checkpoint. A second signal stops everything without
waiting for the checkpoint. Unrelated processes are never signaled.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rg_env.core.config.files import is_config_file
from rg_env.core.processes import Command, ProcessGroup
from rg_env.core.run_folder import free_folder
from rg_env.core.text import counted
from rg_env.errors import InputError, OutputFolderError, TrainingError
from rg_env.inference.machine import HOST, Machine, port_problem
from rg_env.inference.protocol import PromptEncoder
from rg_env.inference.vllm.client import VllmServer
from rg_env.inference.vllm.command import attention_heads, guessed_sizes, parallel_sizes, serve_command
from rg_env.inference.vllm.plugin import BACKEND
from rg_env.jobs.supervisor import Supervisor
from rg_env.tiny import POLICY_DIR, TINY
from rg_env.training.config.load import load_train_config
from rg_env.training.config.plan import plan
from rg_env.training.config.schema import TrainConfig

LOGS = Path("logs")
SHARED_GPU_PART = "0.4"
"""Fraction of GPU memory that vLLM uses when it shares the GPU with the trainer."""
HEALTH_EVERY_S = 1.0
PROGRESS_EVERY_S = 10.0
TAIL = 20
"""Number of server log lines shown if the server does not start."""


@dataclass(frozen=True)
class LaunchOptions:
    """Options for `rg-env launch`. GPUs are named as in `CUDA_VISIBLE_DEVICES`."""

    script: str
    """Python script, or config for `rg-env train`."""
    model: str | None = None
    """Model passed to a script as `--model`. A config names its own model."""
    script_arguments: tuple[str, ...] = ()
    """Additional arguments for the script. If `script` is a config, the arguments are overrides and options for `rg-env
    train`."""
    vllm_gpus: tuple[str, ...] | None = None
    """GPUs for vLLM. Default: the first visible GPU not in `gpus`. A single visible GPU is shared with training."""
    gpus: tuple[str, ...] | None = None
    """GPUs for training. Default: all GPUs that vLLM does not use."""
    processes: int | None = None
    """Number of training processes. Default: one per GPU for training, or 1 without a GPU."""
    accelerate_config: str | None = None
    """accelerate config. Default: `configs/zero3.yaml` for several processes (`zero3_cpu.yaml` without a GPU)."""
    port: int = 8000
    tensor_parallel_size: int | None = None
    """Number of GPUs per model replica in vLLM. For the default, see `parallel_sizes`."""
    data_parallel_size: int | None = None
    """Number of model replicas in vLLM. Default: the number of vLLM's GPUs divided by `tensor_parallel_size`, or 1
    without a GPU."""
    dtype: str | None = None
    max_model_len: int | None = None
    vllm_args: tuple[str, ...] = ()
    """Additional vLLM options, which come last and override those set by `launch`."""
    log_dir: str | None = None
    """Folder for vllm.log and train.log. Default: a new folder under `logs/`."""
    server_timeout: float = 600
    """Seconds to wait for the server to become healthy."""
    save_timeout: float = 300
    """Seconds to wait for the trainer to save after an interrupt or after the server exits."""
    dry_run: bool = False
    """Whether to print the commands without running them or downloading anything."""
    verbose: bool = False
    """Whether to also show the server's log."""


@dataclass(frozen=True)
class Commands:
    """The server and trainer commands for a run, with a one-line summary."""

    server: Command
    trainer: Command
    summary: str
    plan: tuple[str, ...] = ()
    """Warnings and, for a config, lines that describe its run."""


def launch(options: LaunchOptions) -> int:
    """Run the server and the trainer until the trainer ends, and return its exit code, or 128 + N if signal N ended the
    run.

    Raises:
        InputError: the options are not usable on this machine, so nothing was started.
        TrainingError: the server did not start, or exited during training.
    """
    machine = Machine.here()
    commands = make_commands(options, machine)
    machine.check_installed(commands.server.arguments[0], commands.trainer.arguments[0])
    if problem := port_problem(options.port):
        raise InputError(f"cannot use {HOST}:{options.port} ({problem}): choose another --port")
    folder = _log_folder(options.log_dir, Path(options.script).stem)
    print("\n".join([f"{commands.summary}; logs in {folder}/", *commands.plan]), flush=True)
    server = VllmServer(HOST, options.port)
    return supervise(commands, options, folder, lambda: server.health_problem(timeout_s=1.0) is None)


def dry_run(options: LaunchOptions) -> str:
    """Return the two commands as text, to be run in two terminals on this machine or on a machine with the named
    GPUs."""
    here = Machine.here()
    gpus = tuple(dict.fromkeys([*here.gpus, *(options.vllm_gpus or ()), *(options.gpus or ())]))
    commands = make_commands(options, Machine(gpus, here.vllm, here.programs))
    head = "\n".join(f"# {line}" for line in (commands.summary, *commands.plan))
    return f"{head}\n# terminal 1\n{commands.server.shell()}\n# terminal 2\n{commands.trainer.shell()}"


def make_commands(options: LaunchOptions, machine: Machine) -> Commands:
    """Create the server and trainer commands for `options`.

    Raises:
        InputError: the options are not usable on this machine, or the config is invalid (`ConfigError`).
    """
    script = Path(options.script)
    if not os.path.isfile(script) or not (script.suffix == ".py" or is_config_file(options.script)):
        raise InputError(
            f"{options.script!r} does not exist, or is neither a Python script (.py) nor a config (.yaml); pass a path "
            "such as examples/train_minimal.py or configs/train/tiny.yaml"
        )
    if not 1 <= options.port <= 65535:
        raise InputError(f"port {options.port} is out of range: use 1 to 65535")
    vllm_gpus, gpus = split_gpus(options.vllm_gpus, options.gpus, machine.gpus)
    processes = options.processes or len(gpus) or 1
    if gpus and processes > len(gpus):
        raise InputError(
            f"--processes {processes} exceeds the {counted(len(gpus), 'GPU')} for training: use fewer processes"
        )
    gpus = gpus[:processes]  # a single process that sees two GPUs would use DataParallel, which is slow
    model, length, lines = _model(options, processes)
    if unused := [gpu for gpu in machine.gpus if gpu not in (*vllm_gpus, *gpus)]:
        lines.append(
            f"warning: the run leaves {_gpu_words(unused)} idle: increase --processes, or name more GPUs in --gpus or "
            "--vllm-gpus"
        )
    if options.tensor_parallel_size is None and options.data_parallel_size is None:
        lines += guessed_sizes(model, len(vllm_gpus))
    return Commands(
        _server(options, model, length, vllm_gpus, machine, shared=bool(gpus) and vllm_gpus == gpus),
        _trainer(options, model, script, gpus, processes, machine),
        f"vLLM on {_gpu_words(vllm_gpus)}, training on {_gpu_words(gpus)} in {counted(processes, 'process')}",
        tuple(lines),
    )


def longest_sequence(config: TrainConfig, prompts: Iterable[int] | None = None) -> int:
    """Return the context length (prompt plus completion, in tokens) that a server needs for all tasks.

    Args:
        prompts: the token count of each prompt for the held-out and labeled tasks, to which `max_prompt_length` does
            not apply. By default, this function measures the prompts. If the tokenizer cannot be loaded, these prompts
            are ignored here, and only the trainer checks them.
    """
    training, new_tokens = config.training, config.evaluation.max_tokens or config.training.max_tokens
    trained = training.max_prompt_length + max(training.max_tokens, new_tokens)
    prompts = _evaluation_prompts(config) or () if prompts is None else prompts
    return max([trained, *(length + new_tokens for length in prompts)])


def _evaluation_prompts(config: TrainConfig, *, download: bool = True) -> list[int] | None:
    """Return the token count of each prompt for the held-out and labeled tasks, or None if the tokenizer cannot be
    loaded."""
    if not config.evaluation.tasks:
        return []
    name = config.model.name
    if not download and not attention_heads(name):
        return None
    from transformers import AutoTokenizer

    try:
        folder = POLICY_DIR if name == TINY else name
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=not download)
        encode = PromptEncoder(tokenizer, config.prompt.chat_template_kwargs)
        environments = config.evaluation_environments()
        return [len(encode(row["prompt"])) for _, gym in environments for row in gym.eval_rows]
    except (OSError, ValueError):
        return None


def split_gpus(
    vllm: Sequence[str] | None, training: Sequence[str] | None, visible: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the GPUs for vLLM and for training. A single visible GPU is shared by vLLM and training.

    Raises:
        InputError: a named GPU is not visible, a GPU is named twice (unless it is the only GPU in both options), or
            vLLM or the trainer would have no GPU.
    """
    for flag, named in (("--vllm-gpus", vllm or ()), ("--gpus", training or ())):
        if unknown := [gpu for gpu in named if gpu not in visible]:
            here = f"only {_gpu_words(visible)} can be used here (check nvidia-smi and CUDA_VISIBLE_DEVICES)"
            remedy = "to set only the number of GPUs, use --processes"
            raise InputError(f"{flag} names {_gpu_words(unknown)}, but {here}; {remedy}")
    if len(visible) <= 1:
        return tuple(visible), tuple(visible)
    if vllm and vllm == training and len(vllm) == 1:
        return tuple(vllm), tuple(vllm)
    server = tuple(vllm or [gpu for gpu in visible if gpu not in (training or ())][:1])
    trainer = tuple(training or [gpu for gpu in visible if gpu not in server])
    if not server or not trainer or len({*server, *trainer}) < len(server) + len(trainer):
        problem = "name a GPU twice" if server and trainer else "leave no GPU for vLLM or for training"
        raise InputError(f"--vllm-gpus and --gpus {problem}: name different GPUs, or the same single GPU in both")
    return server, trainer


def _model(options: LaunchOptions, processes: int) -> tuple[str, int | None, list[str]]:
    """Return the model to serve, its context length in tokens (None for the model's own limit), and lines that describe
    the run."""
    if not is_config_file(options.script):
        if options.model is None or not options.model.strip():
            raise InputError(
                "a script requires --model, which the server also needs: a folder, a name on the Hub, or 'tiny'"
            )
        return options.model, options.max_model_len, []
    if options.model is not None:
        raise InputError(f"--model is for scripts: use model.name={options.model} instead")
    if "--sweep" in options.script_arguments:
        raise InputError("launch starts a single run: use `rg-env train --sweep` or `rg-env slurm --sweep`")
    overrides = [argument for argument in options.script_arguments if is_override(argument)]
    if other := [each for each in overrides if each.startswith("engine.kind=") and each != "engine.kind=vllm"]:
        raise InputError(
            f"{other[0]}: launch starts a vLLM server (engine.kind=vllm); omit this override, or use `rg-env train`"
        )
    config = load_train_config(options.script, [*overrides, *_engine_overrides(options)], processes=processes)
    prompts = () if options.max_model_len else _evaluation_prompts(config, download=not options.dry_run)
    length = options.max_model_len or longest_sequence(config, prompts or ())
    lines = plan(config, processes)
    if prompts is None:
        name = config.model.name
        lines.append(
            f"warning: --max-model-len {length} is a guess because the tokenizer of {name} is not on this machine; "
            "prompts of held-out tasks may be longer than max_prompt_length"
        )
    return config.model.name, length, lines


def is_override(argument: str) -> bool:
    """Whether the argument is a config override ("key=value") rather than an option."""
    return "=" in argument and not argument.startswith("-")


def _server(
    options: LaunchOptions, model: str, length: int | None, gpus: tuple[str, ...], machine: Machine, *, shared: bool
) -> Command:
    extra = ["--gpu-memory-utilization", SHARED_GPU_PART] if shared else []
    if shared:  # NCCL does not support two processes on one GPU
        extra += ["--weight-transfer-config", json.dumps({"backend": BACKEND})]
    arguments = serve_command(
        model,
        port=options.port,
        dtype=options.dtype,
        max_model_len=length,
        parallel=parallel_sizes(options.tensor_parallel_size, options.data_parallel_size, len(gpus), model),
        extra=[*extra, *options.vllm_args],
    )
    return Command((str(machine.programs / arguments[0]), *arguments[1:]), _visible(gpus))


def _trainer(
    options: LaunchOptions, model: str, script: Path, gpus: tuple[str, ...], processes: int, machine: Machine
) -> Command:
    is_config = is_config_file(script.name)
    program = [str(machine.programs / ("rg-env" if is_config else Path(sys.executable).name))]
    distributed = processes > 1 or options.accelerate_config is not None
    if distributed:
        config = accelerate_config(options.accelerate_config, script, "zero3.yaml" if gpus else "zero3_cpu.yaml")
        program = [str(machine.programs / "accelerate"), "launch", "--config-file", str(config)]
        # Port 0 selects a free port. Otherwise, two runs on one machine would both use accelerate's default port.
        program += ["--num-processes", str(processes), "--main-process-port", "0"]
        program += ["--module", "rg_env.cli.main"] if is_config else []
    if is_config:
        arguments = ["train", str(script), *options.script_arguments, *_engine_overrides(options)]
    else:
        ours = ("--model", "--engine", "--port", "--host")
        if given := [each for each in options.script_arguments if each.partition("=")[0] in ours]:
            raise InputError(
                f"{given[0]} after `--`: omit it, because launch passes the model, engine and port to the script"
            )
        arguments = [str(script), "--model", model, "--engine", "vllm", "--port", str(options.port)]
        arguments += options.script_arguments
    # With --module, Python would import from the working directory first.
    environment = _visible(gpus) | ({"PYTHONSAFEPATH": "1"} if is_config and distributed else {})
    return Command((*program, *arguments), environment, starts_workers=distributed)


def _engine_overrides(options: LaunchOptions) -> list[str]:
    """Return config overrides that connect training to the launched server."""
    return ["engine.kind=vllm", f"engine.host={HOST}", f"engine.port={options.port}"]


def accelerate_config(given: str | None, script: Path, name: str) -> Path:
    """Return the given accelerate config or, by default, the file `name` in a `configs` folder near the script or in
    the working directory. Raises `InputError` if there is no such file."""
    # Relative parents come first so that the path is printed as the user would write it.
    folders = (*script.parents, *script.absolute().parents[:3], Path())
    candidates = [Path(given)] if given else [folder / "configs" / name for folder in folders]
    for config in candidates:
        if os.path.isfile(config):
            return config
    if given:
        raise InputError(f"--accelerate-config {given} not found: pass an accelerate config")
    raise InputError(
        f"configs/{name} not found: copy it from rg_env's repository, because pip does not install it (`rg-env launch` "
        "also has --accelerate-config FILE)"
    )


def _visible(gpus: Sequence[str]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}


def _gpu_words(gpus: Sequence[str]) -> str:
    return f"GPU{'s' if len(gpus) > 1 else ''} {','.join(gpus)}" if gpus else "the CPU"


def _log_folder(given: str | None, name: str) -> Path:
    """Create a new log folder, or the given one, which must not contain logs yet."""
    folder = Path(given) if given else LOGS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    free_folder(folder, "", may_have_files=True, remedy="choose another --log-dir")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.log")):
        raise OutputFolderError(f"{folder} has the logs of another run: choose another --log-dir")
    return folder


def supervise(commands: Commands, options: LaunchOptions, folder: Path, healthy: Callable[[], bool]) -> int:
    """Run the server and, once `healthy()` is true, the trainer. Logs are written to `folder`. Returns the exit code
    for `launch`."""
    supervisor = Supervisor(options.save_timeout)
    with supervisor.noting_signals(), supervisor.ending_programs():
        shown = "[vllm] {}".format if options.verbose else lambda line: None
        server = supervisor.start(commands.server, folder / "vllm.log", shown)
        if not _is_ready(supervisor, server, healthy, options.server_timeout):
            return 128 + supervisor.signals[0]
        trainer = supervisor.start(commands.trainer, folder / "train.log", "[train] {}".format)
        if not supervisor.wait_until(lambda: trainer.code is not None or server.code is not None):
            supervisor.let_save(trainer, "interrupted: the trainer", interrupt=True)
            return 128 + supervisor.signals[0]
        if trainer.code is not None:
            return trainer.code
        ended = f"vLLM exited with code {server.code}"
        supervisor.let_save(trainer, f"{ended}: the trainer", interrupt=False)
        last = " ".join(server.last_lines(1))
        raise TrainingError(f"{ended} during training ({last[:200]}): see {server.log}")


def _is_ready(supervisor: Supervisor, server: ProcessGroup, healthy: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until the server is healthy. Returns False if a signal arrives first. On failure, prints the end of the
    server log and raises `TrainingError`."""
    start, shown = time.monotonic(), 0.0
    while supervisor.wait_until(lambda: server.code is not None, HEALTH_EVERY_S):
        seconds = time.monotonic() - start
        if server.code is not None or seconds > timeout_s:
            for line in server.last_lines(TAIL):
                supervisor.say(f"[vllm] {line}")
            problem = f"is not ready after {timeout_s:g} s: increase --server-timeout, or see {server.log}"
            if server.code is not None:
                problem = f"exited with code {server.code} before it was ready: see the log above, and {server.log}"
            raise TrainingError(f"vLLM {problem}")
        if seconds >= shown + PROGRESS_EVERY_S:
            shown = seconds
            supervisor.say(f"waiting for vLLM ({seconds:.0f} s): {' '.join(server.last_lines(1))[:200]}")
        if healthy():
            supervisor.say(f"vLLM is ready after {seconds:.0f} s")
            return True
    return False
