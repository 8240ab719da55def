"""Options for `rg-env slurm`, which is implemented in `rg_env.jobs.slurm`."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from rg_env.cli import sweep
from rg_env.cli.parser import request_of
from rg_env.commands import require
from rg_env.core.text import shortened
from rg_env.errors import InputError


def add(commands: Any) -> None:
    """Add `rg-env slurm` to the subcommands."""
    slurm = commands.add_parser(
        "slurm",
        help="write an sbatch script for a training or evaluation config",
        usage="rg-env slurm CONFIG --gpus N --time TIME [options] [key=value ...]",
        epilog="The command does not submit the job. API keys stay in .env, which is read on the node.",
        examples=[
            "rg-env slurm configs/train/leg_counting_qwen7b.yaml engine.kind=vllm --gpus 4 --time 04:00:00",
            "rg-env slurm configs/eval/paper_tables.yaml --gpus 8 --gpu-type a100 --time 02:00:00",
        ],
    )
    option, number = slurm.add_argument, slurm.number
    slurm.config("training or evaluation config, such as configs/train/tiny.yaml")
    number("--gpus", required=True, help="GPUs per node")
    option("--time", required=True, help="time limit for the job, such as 04:00:00 or 1-12 (days-hours)")
    option("--account", metavar="A", help="Slurm account to charge")
    option(
        "--partition", metavar="P", help="partitions for the job, such as gpu or gpu,long; default: set by the cluster"
    )
    option("--qos", metavar="Q", help="quality of service (QOS) for the job; default: set by the cluster")
    option("--gpu-type", metavar="T", help="the cluster's name for the GPU type, such as a100 or h100")
    option("--constraint", metavar="C", help="required node features, such as 'a100&nvlink'")
    option("--modules", nargs="+", default=(), metavar="M", help="environment modules to load, such as cuda/12.8 gcc")
    option(
        "--python",
        metavar="PATH",
        help="Python of the job's environment (conda, pip); default: .venv here, or the environment of this command",
    )
    number("--nodes", default=1, help="number of nodes; default: 1")
    number("--cpus-per-task", help="CPU cores per node; default: 8 per GPU")
    option("--mem", metavar="200G", help="memory per node; default: set by the cluster")
    option(
        "--array",
        metavar="SEEDS",
        help="seeds, such as 0-4 or 1,7,9, with one job for each (0-9%%2 runs two at a time)",
    )
    sweep.add_option(slurm)
    number("--vllm-gpus", metavar="K", help="GPUs for vLLM on the first node; default: 1")
    option("--job-name", metavar="NAME", help="job name; default: the config's name")
    option("--output", type=Path, metavar="FILE", help="script to write; default: NAME.sbatch")
    slurm.flag("--force", help="overwrite an existing FILE")
    slurm.flag("--dry-run", help="print the script without writing it")
    slurm.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `rg-env slurm` and return the exit code."""
    require("jinja2", extra="train")
    from rg_env.jobs.slurm import SlurmJob, sbatch_script, write_script
    from rg_env.jobs.sweep import fixed_and_swept

    if others := [word for word in options.overrides if "=" not in word]:
        name = shortened(others[0])
        raise InputError(f"unexpected argument {name}: for the Slurm account, use --account {others[0]}")
    if options.sweep:
        options.overrides, options.sweep = fixed_and_swept(options.overrides, options.sweep)
    job = request_of(SlurmJob, options)
    script = sbatch_script(job)
    if options.dry_run:
        print(script, end="")
        return 0
    file = options.output or Path(f"{job.name}.sbatch")
    write_script(script, file, force=options.force)
    print(f"submit the job with: sbatch {shlex.quote(str(file))}")
    # Print the run's plan and, for a sweep, the command that compares its runs.
    for line in script.partition("\n#SBATCH")[0].splitlines()[2:]:
        print(line.removeprefix("# "))
    return 0
