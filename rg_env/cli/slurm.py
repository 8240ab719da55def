"""`rg-env slurm`: its options. It is implemented in `rg_env.jobs.slurm`."""

import argparse
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

from rg_env.cli import sweep
from rg_env.commands import positive, take_overrides_anywhere


def add(commands: Any) -> None:
    """Add the subcommand to those of `rg-env`."""
    slurm = commands.add_parser(
        "slurm",
        help="write an sbatch script that trains, or evaluates, by a config",
        usage="rg-env slurm CONFIG --gpus N --time TIME [options] [key=value ...]",
        epilog="Nothing is submitted. Keys stay in .env, which the programs read on the node.",
        examples=[
            "rg-env slurm configs/train/leg_counting_qwen7b.yaml engine.kind=vllm --gpus 4 --time 04:00:00",
            "rg-env slurm configs/eval/paper_tables.yaml --gpus 8 --gpu-type a100 --time 02:00:00",
        ],
    )
    slurm.add_argument("config", metavar="CONFIG", help="such as configs/train/tiny.yaml, or one of configs/eval")
    slurm.add_argument("overrides", nargs="*", metavar="key=value", help="over the config's own")
    slurm.add_argument("--gpus", type=positive, required=True, metavar="N", help="on each node")
    slurm.add_argument("--time", required=True, help="of the job: 04:00:00, 1-12, ...")
    slurm.add_argument("--account", metavar="A", help="to be charged")
    slurm.add_argument("--partition", metavar="P")
    slurm.add_argument("--qos", metavar="Q")
    slurm.add_argument("--gpu-type", metavar="T", help="as the cluster names it: a100, h100, ...")
    slurm.add_argument("--constraint", metavar="C", help="features that the nodes must have: 'a100&nvlink'")
    slurm.add_argument("--modules", nargs="+", default=(), metavar="M", help="to load in the job: cuda/12.8 gcc")
    slurm.add_argument("--nodes", type=positive, default=1, metavar="N", help="default: 1")
    slurm.add_argument("--cpus-per-task", type=positive, metavar="N", help="on each node; default: 8 a GPU")
    slurm.add_argument("--mem", metavar="200G", help="on each node; default: the cluster's")
    slurm.add_argument("--array", metavar="SEEDS", help="a job for each seed: 0-4, or 1,7,9 (0-9%%2: two at a time)")
    sweep.add_option(slurm)
    slurm.add_argument("--vllm-gpus", type=positive, metavar="K", help="of the first node, for vLLM; default: 1")
    slurm.add_argument("--job-name", metavar="NAME", help="default: the config's")
    slurm.add_argument("--output", type=Path, metavar="FILE", help="for the script; default: NAME.sbatch")
    slurm.add_argument("--force", action="store_true", help="write over FILE")
    slurm.add_argument("--dry-run", action="store_true", help="print the script instead")
    slurm.set_defaults(run=run)
    take_overrides_anywhere(slurm)


def run(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from rg_env.jobs.slurm import SlurmJob, sbatch_script, write_script

    given = {field.name: getattr(options, field.name) for field in fields(SlurmJob)}
    given |= {name: tuple(given[name] or ()) for name in ("overrides", "sweep", "modules")}
    job = SlurmJob(**given)
    script = sbatch_script(job)
    if options.dry_run:
        print(script, end="")
        return 0
    file = options.output or Path(f"{job.name}.sbatch")
    write_script(script, file, force=options.force)
    print(f"submit it with: sbatch {shlex.quote(str(file))}")
    head = script.partition("\n#SBATCH")[0].splitlines()[2:]  # the plan, and how runs are compared
    for line in head:
        print(line.removeprefix("# "))
    return 0
