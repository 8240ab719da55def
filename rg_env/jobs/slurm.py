"""`rg-env slurm`: write an sbatch script for a training run, a sweep or an evaluation, without submitting it.

script = sbatch_script(SlurmJob("configs/train/leg_counting_qwen7b.yaml", gpus=4, time="04:00:00", account="lab"))

On one node, the script runs `rg-env launch` for `engine.kind: vllm`, and `rg-env train` for the embedded engine (with
DDP on several GPUs). On several nodes, the script runs one vLLM server on the first node and trains on all nodes with
ZeRO-3. An evaluation runs on one node, where `rg-env eval` starts any vLLM servers that it needs. All scripts are
rendered from the template `slurm.sh.jinja`. This module does not import torch.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from rg_env.core.config.files import Document, is_config_file, read_config
from rg_env.core.config.yaml12 import to_yaml
from rg_env.core.files import write_aside
from rg_env.core.text import counted, reason_of, without_controls
from rg_env.errors import InputError, OutputFolderError
from rg_env.evaluation.load import load_eval_config
from rg_env.inference.vllm.command import guessed_sizes, parallel_sizes, serve_command
from rg_env.jobs.launch import accelerate_config, longest_sequence
from rg_env.jobs.sweep import SWEEP_FILE, load_sweep, parse_axes
from rg_env.training.config.load import load_train_config
from rg_env.training.config.plan import plan
from rg_env.training.config.schema import EngineConfig, TrainConfig

PORT = "10000 + SLURM_JOB_ID % 10000 * 2"
"""vLLM's port, as a shell expression. Jobs use different pairs of ports, below the system's ephemeral range, unless
their IDs differ by a multiple of 10,000."""
INHERITED = ("HF_HOME", "RG_ENV_CACHE")
"""Environment variables copied into the script. API keys are not copied, because programs read them from `.env`."""
_OPTIONS = ("account", "partition", "qos", "gpu_type", "constraint", "mem", "time", "array")
_FORMS = {
    **dict.fromkeys(_OPTIONS, r"[A-Za-z0-9_][A-Za-z0-9_.,:+&|*()\[\]!%-]*"),
    "job_name": r"[A-Za-z0-9_][A-Za-z0-9_.+-]*",
    "modules": r"[A-Za-z0-9_][A-Za-z0-9_.+/-]*",
}
"""For each option, a pattern that its values must match, so that no value can break out of its #SBATCH line or run as a
command. sbatch itself checks the values' meaning."""


@dataclass(frozen=True)
class SlurmJob:
    """Options for `rg-env slurm`."""

    config: str
    gpus: int
    """GPUs per node."""
    time: str
    """Time limit in one of Slurm's formats: MINUTES, HOURS:MINUTES:SECONDS, DAYS-HOURS, ..."""
    overrides: tuple[str, ...] = ()
    """Config overrides: "key=value"."""
    nodes: int = 1
    account: str | None = None
    partition: str | None = None
    """Partition, or several partitions separated by commas."""
    qos: str | None = None
    cpus_per_task: int | None = None
    """CPU cores per node. Default: 8 per GPU."""
    mem: str | None = None
    """Memory per node, such as 200G. Default: the cluster's default."""
    array: str | None = None
    """Seeds, such as "0-4" or "1,7,9", with one job per seed. "0-9%2" runs two at a time."""
    sweep: tuple[str, ...] = ()
    """Axes of a sweep ("key=value,value"), with one job per point."""
    vllm_gpus: int | None = None
    """Number of GPUs that vLLM uses on the first node. Default: 1. If the job has only one GPU, the trainer
    shares it."""
    job_name: str | None = None
    """Job name. Default: the config's name."""
    gpu_type: str | None = None
    """GPU type as the cluster names it, such as a100 or h100."""
    constraint: str | None = None
    """Required node features, such as "a100&nvlink"."""
    modules: tuple[str, ...] = ()
    """Environment modules to load, such as "cuda/12.8"."""
    python: str | None = None
    """Python of the environment in which the job runs. Default: `.venv` in the working directory if there is one,
    otherwise the environment of this process."""

    @property
    def name(self) -> str:
        """Name of the job, which is also the start of its output folder's name."""
        return self.job_name or re.sub(r"[^A-Za-z0-9_.+-]+", "-", Path(self.config).stem).lstrip("-.+")[:64] or "rg-env"

    @property
    def served_gpus(self) -> int:
        """Number of GPUs used by vLLM on the first node."""
        return self.vllm_gpus or 1

    def check(self) -> None:
        """Raise `InputError` if an option is malformed or conflicts with another option."""
        for option, form in _FORMS.items():
            given = self.modules if option == "modules" else (getattr(self, option),)
            if wrong := [value for value in given if value is not None and not re.fullmatch(form, value, re.ASCII)]:
                remedy = "use letters, digits and punctuation, without spaces or quotes"
                raise InputError(f"--{option.replace('_', '-')} {wrong[0]!r} is not valid: {remedy}")
        if not is_config_file(self.config):
            raise InputError(f"{self.config!r} is not a config: pass a .yaml file, such as configs/train/tiny.yaml")
        _check_printable({"the config's path": [self.config], "override": self.overrides, "--sweep": self.sweep})
        if self.array is not None and self.sweep:
            raise InputError("--sweep sets the array itself: omit --array, and sweep the seed instead")
        if self.array is not None and any(each.partition("=")[0].strip() == "seed" for each in self.overrides):
            raise InputError("--array sets the seed of each job: omit seed=...")

    def processes(self, *, embedded: bool) -> int:
        """Return the number of training processes across all nodes.

        Raises:
            InputError: there are not enough GPUs, or the embedded engine does not support the options.
        """
        if embedded:
            if self.vllm_gpus is not None or self.nodes > 1:
                raise InputError("--vllm-gpus and --nodes require engine.kind=vllm: the embedded engine uses one node")
            return self.gpus
        if self.nodes == self.gpus == self.served_gpus == 1:
            return 1  # the trainer shares the GPU with the server
        if self.served_gpus >= self.gpus:
            used = f"--vllm-gpus {self.served_gpus} with --gpus {self.gpus}"
            raise InputError(f"{used} leaves no GPU for training: reduce --vllm-gpus or increase --gpus")
        return (self.gpus - self.served_gpus) * self.nodes


def sbatch_script(job: SlurmJob) -> str:
    """Return the script's text. The job runs in the working directory. If it trains with several processes, it needs an
    accelerate config in `configs`, there or near the job's config.

    Raises:
        InputError: the options or the working directory are not usable, or the config is invalid (`ConfigError`).
    """
    checkout = Path.cwd()
    job.check()
    programs = _programs(job.python, checkout)
    document = read_config(job.config, job.overrides)
    own = _evaluation(job) if _is_evaluation(job, document) else _training(job, document)
    values = {"head": (), "settings": (), "points": (), "server": None, "accelerate_config": None, **own}
    exports = {name: os.environ[name] for name in INHERITED if name in os.environ}
    texts = {"the working directory": [str(checkout)], "output.dir": [values["root"]], "--python": [str(programs)]}
    _check_printable(texts | {name: [value] for name, value in exports.items()})
    if "'" in values["root"]:
        raise InputError(f'output.dir "{values["root"]}" contains a single quote: choose another folder')
    # #SBATCH lines contain only values validated by `check`, because sbatch's quoting rules differ between releases.
    options = {flag: getattr(job, flag) for flag in ("account", "partition", "qos", "constraint", "mem", "array")}
    if points := values["points"]:
        options["array"] = f"1-{len(points)}"
    values["head"] = [without_controls(line)[:300] for line in values["head"]]
    values["settings"] = [job.config, *job.overrides, *values["settings"]]
    environment = Environment(
        undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["quote"] = lambda word: shlex.quote(str(word))
    template = Path(__file__).with_name("slurm.sh.jinja").read_text(encoding="utf-8")
    fixed = {
        "job": job,
        "checkout": checkout,
        "exports": exports,
        "port": PORT,
        "sweep_file": SWEEP_FILE,
        "programs": programs,
    }
    return environment.from_string(template).render(**fixed, options=options, **values)


def _programs(python: str | None, checkout: Path) -> Path | None:
    """Return the folder of the programs of the job's environment, or None for `.venv` in the working directory."""
    if python is None and (checkout / ".venv/bin/activate").is_file():
        return None
    folder = Path(os.path.abspath(Path(python or sys.executable).expanduser())).parent  # a venv's python is a link
    if not (folder / "rg-env").is_file():
        where = "pass --python PATH, the Python of the environment in which rg_env is installed"
        raise InputError(f"there is no rg-env in {folder}: {where}" + ("" if python else ", or run ./setup.sh here"))
    return folder


def write_script(script: str, file: Path, *, force: bool = False) -> None:
    """Write the script to `file`, which must not exist unless `force` is set.

    Raises:
        OutputFolderError: `file` exists or cannot be written.
    """
    if not force and os.path.lexists(file):
        raise OutputFolderError(f"{file} exists: choose another --output, or overwrite it with --force")
    try:
        write_aside(file, script)
    except OutputFolderError:
        raise
    except (OSError, ValueError) as error:
        raise OutputFolderError(f"cannot write {str(file)!r}: {reason_of(error)}") from error


def _is_evaluation(job: SlurmJob, document: Document) -> bool:
    """Whether the config is for evaluation (it has `models`) rather than for training (it has `model`)."""
    kinds = {"model", "models"} & {axis.split("=")[0].split(".")[0] for axis in (*job.sweep, *document.values)}
    if len(kinds) != 1:
        has = "both model and models: remove one" if kinds else "neither model nor models: add one"
        raise InputError(f"{job.config} has {has} (model is for training, models for an evaluation)")
    return "models" in kinds


def _evaluation(job: SlurmJob) -> dict[str, Any]:
    for name in ("array", "sweep", "vllm_gpus", "nodes"):
        if getattr(job, name) != getattr(SlurmJob, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is for training, but {job.config} is an evaluation config: omit the option")
    config = load_eval_config(job.config, job.overrides)
    if all(model.url for model in config.models.values()):
        raise InputError(f"{job.config}: all models are served at a URL, so run rg-env eval directly, without a job")
    if config.serving.gpus is not None:
        raise InputError("serving.gpus: a job uses all GPUs allocated by Slurm (--gpus), so omit the key")
    if config.serving.kind == "embedded" and job.gpus > 1:
        raise InputError(f"--gpus {job.gpus}: serving.kind=embedded uses one GPU, so use --gpus 1 or serving.kind=vllm")
    # If vLLM does not start, the job fails rather than evaluating on the CPU.
    serving = ["serving.kind=vllm"] if config.serving.kind == "auto" else []
    root = config.output.dir or "outputs"
    return {"kind": "evaluation", "root": root, "settings": serving, "head": [f"output      {root}/{job.name}-JOBID"]}


def _training(job: SlurmJob, document: Document) -> dict[str, Any]:
    """Return the template variables for a training run, an array of seeds, or a sweep."""
    for key in parse_axes(job.sweep):
        if key in ("engine", "engine.kind"):
            raise InputError(f"--sweep {key}: a script supports only one engine.kind; write one script per engine")
    embedded = (document.get(("engine", "kind")) or EngineConfig().kind) == "embedded"
    processes = job.processes(embedded=embedded)
    values: dict[str, Any] = {"processes": processes}
    if job.sweep:
        sweep = load_sweep(job.config, job.overrides, job.sweep, processes=processes)
        configs = sweep.configs
        root = configs[0].output.dir or "outputs"
        values |= {"points": sweep.points, "described": to_yaml(sweep.described())}
        head = [f"Compare the sweep's runs at any time with: rg-env compare {shlex.quote(root)}/{job.name}-JOBID"]
        head += [f"{counted(len(sweep.points), 'job')}, one per point"]
    else:
        config = load_train_config(job.config, job.overrides, processes=processes)
        configs, root = (config,), config.output.dir or "outputs"
        # The script chooses the folder and the port itself, so those in the config would be misleading.
        folder = f"{root}/{job.name}-JOBID{'/seed-SEED' if job.array else ''}"
        output = config.output.model_copy(update={"dir": folder})
        head = plan(config.model_copy(update={"output": output}), processes)
        head[0] = head[0].replace(f"{config.engine.host}:{config.engine.port}", "127.0.0.1:PORT")
    if not embedded:
        head.append(f"port        PORT is {PORT}")
    values |= {"root": root, "head": head}
    if embedded and job.gpus > 1:
        head.append("warning: engine.kind=embedded generates on one GPU at a time; engine.kind=vllm uses all GPUs")
    if job.nodes > 1:
        head.append(f"warning: every node but the first leaves {job.served_gpus} of its {job.gpus} GPUs idle")
    if embedded:
        if processes == 1:
            return values | {"kind": "one process"}
        return values | {"kind": "copies", "accelerate_config": accelerate_config(None, Path(job.config), "ddp.yaml")}
    head += guessed_sizes(configs[0].model.name, job.served_gpus)
    if job.nodes == 1:
        if processes > 1:
            accelerate_config(None, Path(job.config), "zero3.yaml")  # `rg-env launch` in the job needs it
        return values | {"kind": "one node"}
    servers = {_server(job, config) for config in configs}
    if len(servers) > 1:
        raise InputError(
            "--sweep: the points need different vLLM servers, which a script for several nodes does not support; write "
            "one script per point"
        )
    return values | {
        "kind": "several nodes",
        "accelerate_config": accelerate_config(None, Path(job.config), "zero3_multinode.yaml"),
        "server": servers.pop(),
    }


def _server(job: SlurmJob, config: TrainConfig) -> str:
    """Return the command that starts the vLLM server for a run on several nodes."""
    _check_printable({"model.name": [config.model.name]})
    command = serve_command(
        config.model.name,
        port="$port",
        max_model_len=longest_sequence(config),
        parallel=parallel_sizes(None, None, job.served_gpus, config.model.name),
    )
    return " ".join('"$port"' if word == "$port" else shlex.quote(word) for word in command)


def _check_printable(texts: Mapping[str, Sequence[str]]) -> None:
    """Raise `InputError` if a text contains unprintable characters. Quoting would not be enough, because some texts
    appear in comments, which end at a line break."""
    for what, given in texts.items():
        for text in given:
            if not text.isprintable():
                raise InputError(f"{what}: {text[:80]!r} contains line breaks or other unprintable characters")
