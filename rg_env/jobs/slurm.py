"""`rg-env slurm`: write an sbatch script for a training run, a sweep or an evaluation, without submitting it.

script = sbatch_script(SlurmJob("configs/train/leg_counting_qwen7b.yaml", gpus=4, time="04:00:00", account="lab"))

On one node, `engine.kind: vllm` runs `rg-env launch`; the embedded engine runs `rg-env train` (DDP on several GPUs).
Several nodes run one vLLM server on the first node and ZeRO-3 on all. An evaluation runs `rg-env eval` on one node,
which starts its own servers. All scripts are rendered from the template `slurm.sh.template`. Does not import torch.
"""

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rg_env.core.config.files import Document, is_config_file, read_config
from rg_env.core.config.yaml12 import to_yaml
from rg_env.core.text import counted, without_controls
from rg_env.errors import InputError, OutputFolderError
from rg_env.evaluation.config import load_eval_config
from rg_env.jobs.launch import guessed_sizes, longest_sequence, parallel_sizes
from rg_env.jobs.sweep.grid import Sweep, load_sweep, parse_axes
from rg_env.jobs.sweep.runs import SWEEP_FILE, notes
from rg_env.training.config.load import load_train_config
from rg_env.training.config.plan import plan
from rg_env.training.config.schema import TrainConfig
from rg_env.training.config.sections import EngineConfig

INHERITED = ("HF_HOME", "RG_ENV_CACHE")
"""Environment variables copied into the script. API keys are not copied: programs read them from `.env`."""
_SEEDS = r"[0-9]{1,9}(-[0-9]{1,9}(:0*[1-9][0-9]*)?)?"
_NAME, _NAMES = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}", "a name of letters, digits and any of . _ + -"
_FORMS = {
    **dict.fromkeys(("account", "qos", "job_name", "gpu_type"), (_NAME, _NAMES)),
    "partition": (rf"{_NAME}(,{_NAME})*", _NAMES),
    "constraint": (r"\w[\w.+&|*,:()\[\]!-]*", "a list of features such as 'a100&nvlink', without spaces"),
    "mem": ("[0-9]+[KMGT]?", "an amount of memory such as 200G (units: K, M, G, T)"),
    "time": (
        r"[0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}",
        "a time: MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS or DAYS-HOURS:MINUTES[:SECONDS]",
    ),
    "array": (
        rf"{_SEEDS}(,{_SEEDS})*(%0*[1-9][0-9]*)?",
        "a list of seeds such as 0-4, or 1,7,9 (0-9%2: two at a time)",
    ),
}
"""Option -> (pattern, description). The patterns ensure that no value can end an #SBATCH line or a quote."""
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+/-]*")
_SIGNAL_WORKERS = 'pkill -TERM -P "$program"'
_ONE_JOB = 'id=$SLURM_JOB_ID job=$id leaf=""'
# In an array, job must have both numbers: to scancel, the first one alone means the whole array.
_SEED = """\
id=$SLURM_ARRAY_JOB_ID job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID leaf=/seed-$SLURM_ARRAY_TASK_ID
set -- "$@" "seed=$SLURM_ARRAY_TASK_ID"
"""
_POINT = """\
id=$SLURM_ARRAY_JOB_ID job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
# The points of the sweep by array task ID.
case $SLURM_ARRAY_TASK_ID in
@@{cases}
*) echo "the sweep has no point $SLURM_ARRAY_TASK_ID: points are 1 to @@{count}" >&2 && exit 2 ;;
esac
"""
_RECORD = """\
# The description of the sweep for `rg-env compare`, the same in every job.
sweep=${output_dir%/*}/@@{file}
mkdir -p "${sweep%/*}"
cat >"$sweep.$SLURM_ARRAY_TASK_ID" <<'end of @@{file}'
@@{text}end of @@{file}
if [ -e "$sweep" ] && ! cmp -s "$sweep" "$sweep.$SLURM_ARRAY_TASK_ID"; then
  rm "$sweep.$SLURM_ARRAY_TASK_ID"
  echo "$sweep belongs to another sweep: choose another RG_ENV_OUTPUT_DIR" >&2
  exit 2
fi
mv "$sweep.$SLURM_ARRAY_TASK_ID" "$sweep"
"""
_MODULES = """
# Before `set -u`, which module scripts may not support. Some batch shells lack the `module` command.
# shellcheck source=/dev/null
type module >/dev/null 2>&1 || source /etc/profile
"""
_SERVER = """
# The server listens on 127.0.0.1 only, because it does not check credentials. Only the trainer of rank 0, which runs on
# this node, connects to it. Traffic between nodes is not encrypted: use a network that you trust.
export first_node=$SLURMD_NODENAME
server_log="@@{log}"
CUDA_VISIBLE_DEVICES=$vllm_gpus @@{server} >>"$server_log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
  if ! kill -0 "$server" 2>/dev/null || [ "$SECONDS" -gt 1200 ]; then
    echo "vLLM exited, or was not ready after 20 minutes: see $server_log" >&2
    exit 1
  fi
  sleep 1
done
"""


class _Template(Template):
    delimiter = "@@"  # shell scripts are full of $


@dataclass(frozen=True)
class SlurmJob:
    """Options of `rg-env slurm`."""

    config: str
    gpus: int
    """GPUs per node."""
    time: str
    """Time limit in one of Slurm's forms: MINUTES, HOURS:MINUTES:SECONDS, DAYS-HOURS, ..."""
    overrides: tuple[str, ...] = ()
    """Config overrides: "key=value"."""
    nodes: int = 1
    account: str | None = None
    partition: str | None = None
    """Partition, or several separated by commas."""
    qos: str | None = None
    cpus_per_task: int | None = None
    """CPU cores per node; default: 8 per GPU."""
    mem: str | None = None
    """Memory per node, such as 200G; default: the cluster's."""
    array: str | None = None
    """Seeds, one job per seed: "0-4" or "1,7,9"; "0-9%2" runs two at a time."""
    sweep: tuple[str, ...] = ()
    """Axes of a sweep ("key=value,value"); one job per point."""
    vllm_gpus: int | None = None
    """GPUs of the first node for vLLM; default: 1. A single GPU is shared with the trainer."""
    job_name: str | None = None
    """Job name; default: the config's name."""
    gpu_type: str | None = None
    """GPU type as the cluster names it: a100, h100, ..."""
    constraint: str | None = None
    """Required node features: "a100&nvlink"."""
    modules: tuple[str, ...] = ()
    """Environment modules to load: "cuda/12.8"."""

    @property
    def name(self) -> str:
        """Name of the job and of its output folder."""
        return self.job_name or re.sub(r"[^A-Za-z0-9_.+-]+", "-", Path(self.config).stem).lstrip("-.+")[:64] or "rg-env"

    @property
    def cpus(self) -> int:
        """CPU cores per node."""
        return self.cpus_per_task or 8 * self.gpus

    @property
    def served_gpus(self) -> int:
        """Number of GPUs of the first node used by vLLM."""
        return self.vllm_gpus or 1

    def check(self) -> None:
        """Raise `InputError` unless Slurm accepts the options."""
        for option, (form, what) in _FORMS.items():
            value = getattr(self, option)
            if value is not None and not re.fullmatch(form, value, re.ASCII):
                raise InputError(f"--{option.replace('_', '-')} {value!r} is not {what}")
        if wrong := [name for name in self.modules if not _MODULE.fullmatch(name)]:
            raise InputError(f"--modules {wrong[0]!r} is not a module name such as cuda/12.8")
        if not is_config_file(self.config):
            raise InputError(f"{self.config!r} is not a config: pass a .yaml file, such as configs/train/tiny.yaml")
        if self.array is not None and self.sweep:
            raise InputError("--sweep sets the array itself: omit --array, and sweep the seed")
        if self.array is not None and any(each.partition("=")[0].strip() == "seed" for each in self.overrides):
            raise InputError("--array sets the seed of each job: omit seed=...")

    def processes(self, *, embedded: bool) -> int:
        """Number of training processes over all nodes.

        Raises:
            InputError: there are not enough GPUs, or the embedded engine does not support the options.
        """
        if embedded:
            if self.vllm_gpus is not None:
                raise InputError("--vllm-gpus requires engine.kind=vllm, but this config has embedded: omit it")
            if self.nodes > 1:
                raise InputError(f"--nodes {self.nodes} requires engine.kind=vllm: embedded runs on one node only")
            return self.gpus
        if self.nodes == self.gpus == self.served_gpus == 1:
            return 1  # it shares the GPU with the server
        if self.served_gpus >= self.gpus:
            used = f"vLLM on {self.served_gpus} of --gpus {self.gpus}"
            raise InputError(f"{used} leaves none for training: use fewer --vllm-gpus or more GPUs")
        return (self.gpus - self.served_gpus) * self.nodes


def sbatch_script(job: SlurmJob, checkout: Path | None = None) -> str:
    """Return the text of the script.

    Args:
        checkout: folder with `.venv` and `configs` in which the job runs; default: the working folder.

    Raises:
        InputError: the job cannot work, or its config is invalid (`ConfigError`).
    """
    checkout = (checkout or Path.cwd()).absolute()
    job.check()
    texts = {"the config's path": [job.config], "override": job.overrides, "--sweep": job.sweep}
    for what, given in texts.items():
        for text in given:
            _check_printable(what, text)
    if not (checkout / ".venv/bin/activate").is_file():
        raise InputError(f"{checkout} has no .venv: run this command where ./setup.sh was run")
    document = read_config(job.config, job.overrides)
    pieces = _evaluation(job, document) if _is_evaluation(job, document) else _training(job, document, checkout)
    exports = {name: os.environ[name] for name in INHERITED if name in os.environ}
    for what, text in [("the working folder", str(checkout)), ("output.dir", pieces["root"]), *exports.items()]:
        _check_printable(what, text)
    if "'" in pieces["root"]:
        raise InputError(f'output.dir "{pieces["root"]}" contains a quote: choose another')
    options = {flag: getattr(job, flag) for flag in ("account", "partition", "qos", "constraint", "mem", "array")}
    if job.sweep:
        options["array"] = pieces["points"]
    values: dict[str, object] = {
        "note": "",
        "own": _ONE_JOB,
        "record": "",
        "server": "",
        "signal": 'kill -TERM "$program"',
        **pieces,
        "config": job.config,
        "plan": "".join(f"\n# {without_controls(line)[:300]}" for line in pieces.get("plan", "").splitlines()),
        "checkout": shlex.quote(str(checkout)),
        "exports": "".join(f"export {name}={shlex.quote(value)}\n" for name, value in exports.items()),
        "root": shlex.quote(pieces["root"]),
        "name": job.name,
        # Checked names only, because sbatch's rules for quotes differ between releases.
        "options": "".join(f"\n#SBATCH --{flag}={value}" for flag, value in options.items() if value is not None),
        "log_name": "%A_%a" if options["array"] else "%j",
        "wait": " --wait=300 --label" if job.nodes > 1 else "",  # if one node ends, the others have time to save
        "served": job.served_gpus,
        "visible": _visible(job),
        "gpus": f"{job.gpu_type}:{job.gpus}" if job.gpu_type else job.gpus,
        "modules": _MODULES + f"module load {' '.join(job.modules)} || exit 1\n" if job.modules else "",
        **{field: getattr(job, field) for field in ("time", "nodes", "cpus")},
    }
    return _Template(Path(__file__).with_name("slurm.sh.template").read_text(encoding="utf-8")).substitute(values)


def write_script(script: str, file: Path, *, force: bool = False) -> None:
    """Write the script to `file`, which must not exist unless `force`.

    Raises:
        OutputFolderError: `file` exists or cannot be written.
    """
    try:
        with file.open("w" if force else "x", encoding="utf-8") as target:
            target.write(script)
    except FileExistsError as error:
        raise OutputFolderError(f"{file} exists: choose another --output, or overwrite it with --force") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputFolderError(f"cannot write {str(file)!r}: {reason}") from error


def _is_evaluation(job: SlurmJob, document: Document) -> bool:
    """Whether the config is for evaluation (it has `models`) rather than for training (it has `model`)."""
    swept = {axis.split("=")[0].split(".")[0] for axis in job.sweep}
    kinds = {"model", "models"} & (swept | set(document.values))
    if len(kinds) != 1:
        has = "both model (training) and models (evaluation): remove one" if kinds else "neither model nor models"
        raise InputError(f"{job.config} has {has}")
    return "models" in kinds


def _evaluation(job: SlurmJob, document: Document) -> dict[str, str]:
    """Template values of an evaluation."""
    for name in ("array", "sweep", "vllm_gpus"):
        if getattr(job, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is for training, but {job.config} is an evaluation config: omit the option")
    if job.nodes > 1:
        raise InputError(f"--nodes {job.nodes}: an evaluation runs on one node, with a vLLM server on each of its GPUs")
    config = load_eval_config(job.config, job.overrides)
    if all(model.url for model in config.models.values()):
        raise InputError(f"{job.config}: all models are served at a url: run rg-env eval, without a job")
    if config.serving.gpus is not None:
        raise InputError("serving.gpus: a job uses all GPUs allocated by Slurm (--gpus): omit the key")
    if config.serving.kind == "embedded" and job.gpus > 1:
        raise InputError(f"--gpus {job.gpus}: serving.kind=embedded uses one GPU: use --gpus 1 or serving.kind=vllm")
    # If vLLM does not start, the job fails rather than evaluating on the CPU.
    serving = ["serving.kind=vllm"] if config.serving.kind == "auto" else []
    return {
        "settings": _lines("  ", *map(shlex.quote, [job.config, *job.overrides, *serving])),
        "root": config.output.dir or "outputs",
        "command": 'rg-env eval "$@" --resume',
    }


def _training(job: SlurmJob, document: Document, checkout: Path) -> dict[str, str]:
    """Template values of a training run, an array of seeds, or a sweep."""
    for axis in parse_axes(job.sweep):
        if axis.key in ("engine", "engine.kind"):
            raise InputError(f"--sweep {axis.key}: a script supports one engine.kind, write one script per engine")
    key = ("engine", "kind")
    embedded = (document.get(key) or EngineConfig().kind) == "embedded"
    processes = job.processes(embedded=embedded)
    pieces = {"settings": _lines("  ", *map(shlex.quote, [job.config, *job.overrides]))}
    if job.sweep:
        sweep = load_sweep(job.config, job.overrides, job.sweep, processes=processes)
        configs = sweep.configs
        pieces |= _sweep(sweep, f"{shlex.quote(configs[0].output.dir or 'outputs')}/{job.name}-JOBID")
        lines = [f"{counted(len(sweep.points), 'job')}, one per point", *notes(sweep)]
    else:
        configs = (load_train_config(job.config, job.overrides, processes=processes),)
        pieces |= {"own": _SEED} if job.array else {}
        lines = plan(configs[0], processes)
    guesses = [] if embedded else guessed_sizes(configs[0].model.name, job.served_gpus)
    pieces["plan"] = "\n".join([*lines, *_idle(job, embedded=embedded), *guesses])
    pieces["root"] = configs[0].output.dir or "outputs"
    if embedded:
        return pieces | _embedded(processes, checkout)
    if job.nodes == 1:
        # --processes lets the launcher check that the batch is divisible.
        command = _lines("    ", 'rg-env launch "$@"', f'--port "$port" --processes {processes}',
                         '--vllm-gpus "$vllm_gpus" -- --resume auto')  # fmt: skip
        return pieces | {"command": command}
    return pieces | _several_nodes(job, configs, processes, checkout)


def _idle(job: SlurmJob, *, embedded: bool) -> Iterator[str]:
    """Warnings about idle GPUs of the job."""
    if embedded and job.gpus > 1:
        waiting = f"{job.gpus - 1} wait{'s' * (job.gpus == 2)}"
        yield f"warning: engine.kind=embedded generates on one GPU while {waiting}; engine.kind=vllm uses all GPUs"
    if job.nodes > 1:
        yield f"warning: {job.served_gpus} of the {job.gpus} GPUs idle on all nodes but the first"


def _embedded(processes: int, checkout: Path) -> dict[str, str]:
    if processes == 1:
        return {"command": 'rg-env train "$@" --resume auto'}
    options = f"--num_processes {processes} --main_process_port 0"
    command = _lines("    ", _accelerate(checkout, "ddp.yaml"), options, '-m rg_env.cli.main train "$@" --resume auto')
    return {"command": command, "signal": _SIGNAL_WORKERS}


def _several_nodes(job: SlurmJob, configs: tuple[TrainConfig, ...], processes: int, checkout: Path) -> dict[str, str]:
    servers = {_server(job, config) for config in configs}
    if len(servers) > 1:
        raise InputError("--sweep: the points need different vLLM servers on several nodes, write one script per point")
    log = f"{job.name}-$SLURM_JOB_ID-vllm.log"
    command = _lines(
        "    ",
        f'CUDA_VISIBLE_DEVICES=$(cut -d, -f{job.served_gpus + 1}- <<<"{_visible(job)}")',
        _accelerate(checkout, "zero3_multinode.yaml"),
        f'--num_machines {job.nodes} --num_processes {processes} --machine_rank "$SLURM_NODEID"',
        '--main_process_ip "$first_node" --main_process_port "$((port + 1))"',
        '-m rg_env.cli.main train "$@" engine.host=127.0.0.1 "engine.port=$port" --resume auto',
    )
    server = _Template(_SERVER).substitute(log=log, server=servers.pop())
    return {"command": command, "server": server, "signal": _SIGNAL_WORKERS}


def _server(job: SlurmJob, config: TrainConfig) -> str:
    _check_printable("model.name", config.model.name)
    tensor, data = parallel_sizes(None, None, job.served_gpus, config.model.name)
    sizes = f"--max-model-len {longest_sequence(config)} --tensor-parallel-size {tensor} --data-parallel-size {data}"
    return f'rg-env vllm {shlex.quote(config.model.name)} --port "$port" {sizes}'


def _sweep(sweep: Sweep, folder: str) -> dict[str, str]:
    """Template values of a sweep: one job per point, numbered from 1; `folder` is shown in a comment."""
    cases = [
        f'{point.number}) leaf={shlex.quote(f"/{point.name}")} && set -- "$@" {shlex.join(point.overrides)} ;;'
        for point in sweep.points
    ]
    return {
        "note": f"\n# Compare its runs at any time with: rg-env compare {folder}",
        "points": f"1-{len(sweep.points)}",
        "own": _Template(_POINT).substitute(cases="\n".join(cases), count=len(sweep.points)),
        "record": _Template(_RECORD).substitute(text=to_yaml(sweep.described()), file=SWEEP_FILE),
    }


def _visible(job: SlurmJob) -> str:
    """Shell expression for the names of a node's GPUs."""
    return f"${{CUDA_VISIBLE_DEVICES:-{','.join(map(str, range(job.gpus)))}}}"


def _accelerate(checkout: Path, file: str) -> str:
    if not (checkout / "configs" / file).is_file():
        raise InputError(f"{checkout} has no configs/{file}: run this command in an rg_env checkout")
    return f"accelerate launch --config-file configs/{file}"


def _check_printable(what: str, text: str) -> None:
    """Raise `InputError` for characters that quoting does not protect: a line break ends even a comment."""
    if not text.isprintable():
        raise InputError(f"{what}: {text[:80]!r} contains line breaks or other unprintable characters")


def _lines(indent: str, *parts: str) -> str:
    """Join the parts of a command with line continuations."""
    return f" \\\n{indent}".join(parts)
