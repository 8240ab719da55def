"""`rg-env slurm`: an sbatch script around a training run or an evaluation. Nothing is submitted, and no torch imported.

script = sbatch_script(SlurmJob("configs/train/leg_counting_qwen7b.yaml", gpus=4, time="04:00:00", account="lab"))

One node with `engine.kind: vllm` runs `rg-env launch`; with the embedded engine `rg-env train`, on several GPUs by DDP.
Several nodes run one vLLM on the first and ZeRO-3 on all. An evaluation is `rg-env eval` on one node, which starts
its servers itself. What all have stands in `job.sh.template`.
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from string import Template

from rg_env.core.config.parsing import parse_config, read_config
from rg_env.errors import InputError, OutputFolderError
from rg_env.inference.vllm.client import serve_command
from rg_env.jobs.launch import longest_sequence, served_model
from rg_env.jobs.slurm.array import Share, seed_share, sweep_share, swept_engine
from rg_env.jobs.slurm.eval import evaluation_settings, is_evaluation
from rg_env.jobs.slurm.job import SlurmJob, check_text
from rg_env.jobs.sweep.grid import load_sweep
from rg_env.training.config.load import load_train_config
from rg_env.training.config.schema import TrainConfig

TEMPLATE = Path(__file__).with_name("job.sh.template")
WARNING_S = 120
"""Seconds before the end of the job's time at which the program is told to save, and to end."""
PASSED_ON = ("HF_HOME", "RG_ENV_CACHE")
"""Variables that the script sets as they are where it is written. Keys are read from `.env` by the programs."""


def sbatch_script(job: SlurmJob, checkout: Path | None = None) -> str:
    """The text of the script. `checkout`: where the job works, with `.venv` and `configs`; default: here.

    Raises:
        InputError: the job cannot work, or its config has mistakes (`ConfigError`).
    """
    checkout = (checkout or Path.cwd()).absolute()
    job.check()
    if not (checkout / ".venv/bin/activate").is_file():
        raise InputError(f"no .venv in {checkout}: run this where ./setup.sh was run")
    share = Share()
    if is_evaluation(job):
        root, settings = evaluation_settings(job)
        start = _filled(["rg-env eval", *map(shlex.quote, settings), _FOLDER, "--resume"], words=_EVALUATION)
    else:
        root, share, start = _training(job, checkout)
    exports = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    for what, text in [("the working folder", str(checkout)), ("output.dir", root), *exports.items()]:
        check_text(what, text)
    if "'" in root:
        raise InputError(f'output.dir "{root}" has a quote in it: choose another')
    job_id = "SLURM_ARRAY_JOB_ID" if share.array else "SLURM_JOB_ID"
    return _Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        config=job.config,
        head=share.head,
        sbatch="\n".join(f"#SBATCH {option}" for option in _sbatch_options(job, share.array)),
        checkout=shlex.quote(str(checkout)),
        exports="".join(f"export {name}={shlex.quote(value)}\n" for name, value in exports.items()),
        root=shlex.quote(root),
        run=f"{job.name}-${job_id}",
        leaf=share.leaf,
        choice=share.choice,
        record=share.record,
        # The bare number of an array's first job stands for the whole array.
        job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if share.array else "$SLURM_JOB_ID",
        **{**start, "names": f"{start['names']}{share.names}"},
        srun=_srun(job),
    )


def _training(job: SlurmJob, checkout: Path) -> tuple[str, Share, dict[str, str]]:
    """Of a training run: the folder of its runs, what is a job's own in an array, and what the template says of it."""
    # The engine first: it decides on how many processes the batch is checked for.
    if job.sweep:
        processes = job.processes(embedded=swept_engine(job) == "embedded")
        sweep = load_sweep(job.config, job.overrides, job.sweep, processes=processes)
        configs = sweep.configs
    else:
        kind = parse_config(read_config(job.config, job.overrides), TrainConfig).engine.kind
        processes = job.processes(embedded=kind == "embedded")
        configs = (load_train_config(job.config, job.overrides, processes=processes),)
    root = configs[0].output.dir or "outputs"
    share = seed_share(job.array) if job.array else Share()
    if job.sweep:
        share = sweep_share(sweep, f"{shlex.quote(root)}/{job.name}-JOBID")
    start, *others = (_start(job, config, share.settings, processes, checkout) for config in configs)
    if any(other != start for other in others):
        raise InputError("--sweep: the points need different vLLM servers on several nodes: write a script for each")
    return root, share, start


def write_script(script: str, file: Path, *, force: bool = False) -> None:
    """Write it to `file`, which must not exist unless `force`.

    Raises:
        OutputFolderError: it does, or cannot be written.
    """
    try:
        with file.open("w" if force else "x", encoding="utf-8") as target:
            target.write(script)
    except FileExistsError as error:
        raise OutputFolderError(f"{file} exists: choose another --output, or write over it with --force") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputFolderError(f"cannot write {str(file)!r}: {reason}") from error


def _sbatch_options(job: SlurmJob, array: str | None) -> list[str]:
    """Checked names and numbers only: what quoting sbatch knows here differs by release."""
    given = {"account": job.account, "partition": job.partition, "qos": job.qos, "mem": job.mem, "array": array}
    return [
        f"--job-name={job.name}",
        *(f"--{flag}={value}" for flag, value in given.items() if value is not None),
        f"--time={job.time}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={job.gpus}",
        f"--cpus-per-task={job.cpus}",
        f"--output=%x-{'%A_%a' if array else '%j'}.out",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:TERM@{WARNING_S}",
    ]


def _start(job: SlurmJob, config: TrainConfig, own: Sequence[str], processes: int, checkout: Path) -> dict[str, str]:
    """What the template says of the run itself. `own`: settings of one job of an array."""
    settings = [shlex.quote(job.config), *map(shlex.quote, job.overrides), *own]
    settings += [_FOLDER]
    if config.engine.kind == "embedded":
        if processes == 1:
            return _filled(["rg-env train", *settings, "--resume auto"])
        launcher = _accelerate(checkout, "ddp.yaml", f"--num_processes {processes} --main_process_port 0")
        return _filled([*launcher, *settings, "--resume auto"], workers=True)
    # --processes: the launcher checks the batch for as many, and without it for one.
    launch = ["rg-env launch", *settings, f'--port "$port" --processes {processes}']
    if job.nodes == job.gpus == 1:
        return _filled([*launch, "-- --resume auto"], before=_PORT, names="port")
    served = job.vllm_gpus or 1
    gpus = _gpus(job)
    before = _PORT + _SPLIT.substitute(gpus=gpus, served=served)
    if job.nodes == 1:
        return _filled([*launch, '--vllm-gpus "$vllm_gpus"', "-- --resume auto"], before=before, names="port vllm_gpus")
    launcher = _accelerate(
        checkout,
        "zero3_multinode.yaml",
        f'--num_machines {job.nodes} --num_processes {processes} --machine_rank "$SLURM_NODEID"',
        '--main_process_ip "$first_node" --main_process_port "$((port + 1))"',
    )
    return _filled(
        [*launcher, *settings, "engine.host=127.0.0.1", '"engine.port=$port"', "--resume auto"],
        before=before + _SERVER.substitute(log=f"{job.name}-$SLURM_JOB_ID-vllm.log", server=_server(config, served)),
        first=[gpus, f'CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${{gpus[*]:{served}}}")', "export CUDA_VISIBLE_DEVICES"],
        names="port first_node",
        workers=True,
    )


_FOLDER = "\"output.dir='$output_dir'\""  # quoted once more for YAML, as which a setting is read
_TRAINING = {
    "what": "GRPO training",
    "kind": "run",
    "resumed": "--resume auto goes on from its newest checkpoint",
    "told": "the trainer saves",
}
_EVALUATION = {
    "what": "An evaluation",
    "kind": "evaluation",
    "resumed": "--resume asks what is missing there",
    "told": "the servers end in good order",
}


def _filled(
    command: Sequence[str],
    *,
    before: str = "",
    first: Sequence[str] = (),
    names: str = "",
    workers: bool = False,
    words: dict[str, str] = _TRAINING,
) -> dict[str, str]:
    """`command` for the template; `first`: lines before it; `workers`: it launches those that train; `words`: what the
    comments say."""
    lines = [*first, *f"{_lines(*command)} &".splitlines()]
    why = (
        ". A launcher would kill its trainers 30 seconds after a signal of its own, in the middle of\n"
        "# a large save: it gets none"
    )
    return {
        **words,
        "before": before,
        "why": why if workers else "",
        "commands": "\n".join(f"  {line}" for line in lines),
        "tell": 'pkill -TERM -P "$program"' if workers else 'kill -TERM "$program"',
        "names": f" {names}".rstrip(),
    }


def _gpus(job: SlurmJob) -> str:
    """Reads the names that Slurm gives to the GPUs of a node."""
    return f'IFS=, read -ra gpus <<<"${{CUDA_VISIBLE_DEVICES:-{",".join(map(str, range(job.gpus)))}}}"'


def _srun(job: SlurmJob) -> str:
    # It does not take --cpus-per-task over from sbatch, since Slurm 22.05.
    command = f"srun --export=ALL --nodes={job.nodes} --ntasks-per-node=1 --cpus-per-task={job.cpus}"
    # Where one node's trainer ends, the others have time to notice and to save.
    return command if job.nodes == 1 else f"{command} --wait=300 --label"


def _lines(command: str, *arguments: str) -> str:
    return " \\\n  ".join([command, *arguments])


def _accelerate(checkout: Path, file: str, *options: str) -> list[str]:
    if not (checkout / "configs" / file).is_file():
        raise InputError(f"no configs/{file} in {checkout}: run this in a checkout of rg_env")
    return [f"accelerate launch --config-file configs/{file}", *options, "-m rg_env.cli.main train"]


def _server(config: TrainConfig, gpus: int) -> str:
    check_text("model.name", config.model.name)
    arguments = serve_command(
        served_model(config.model.name),
        max_model_len=longest_sequence(config),
        tensor_parallel=gpus,
    )
    number = arguments.index("--port") + 1
    words = [shlex.quote(word) if place != number else '"$port"' for place, word in enumerate(arguments)]
    python = 'CUDA_VISIBLE_DEVICES="$vllm_gpus" python -c "$with_keys"'
    return _lines(python, " ".join(words), '>>"$server_log" 2>&1 &')


class _Template(Template):
    delimiter = "@@"  # shell scripts are full of $


_PORT = """\
# Two ports that no other job on this node has, below those that the system gives away itself.
port=$((10000 + SLURM_JOB_ID % 10000 * 2))

"""

_SPLIT = _Template("""\
# The first GPUs are vLLM's, by the names that Slurm gives them.
@@{gpus}
vllm_gpus=$(IFS=, && echo "${gpus[*]:0:@@{served}}")

""")

_SERVER = _Template("""\
# The server keeps to 127.0.0.1, as it asks nobody for credentials: of all trainers only rank 0
# talks to it, which runs on this node too. What goes from node to node is not encrypted: use
# a network that you trust.
first_node=$SLURMD_NODENAME
server_log="@@{log}"
with_keys='import os, sys; from rg_env.commands import load_keys; load_keys(); os.execvp(sys.argv[1], sys.argv[1:])'
@@{server}
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
  if ! kill -0 "$server" 2>/dev/null || [ "$SECONDS" -gt 1200 ]; then
    echo "vLLM ended, or was not ready after 20 minutes: see $server_log" >&2
    exit 1
  fi
  sleep 1
done

""")
