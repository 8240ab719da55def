"""Options for `rg-env doctor`, which is implemented in `rg_env.jobs.doctor`."""

import argparse
from typing import Any

from rg_env.core.text import counted


def add(commands: Any) -> None:
    """Add `rg-env doctor` to the subcommands."""
    doctor = commands.add_parser(
        "doctor",
        help="check that a training run can start on this machine, and print a fix for each problem",
        usage="rg-env doctor [CONFIG] [section.key=value ...] [--processes N]",
        epilog="Without CONFIG, the command checks a run of the tiny policy on leg_counting.",
        examples=[
            "rg-env doctor configs/train/leg_counting_qwen7b.yaml engine.kind=vllm --processes 3",
            "rg-env doctor model.name=Qwen/Qwen2.5-1.5B-Instruct tasks=[chain_sum]",
        ],
    )
    doctor.config("training config, such as configs/train/tiny.yaml", required=False)
    doctor.number("--processes", default=1, help="training processes; default: 1")
    doctor.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `rg-env doctor` and return the exit code, which is 1 if a check failed."""
    from rg_env.jobs.doctor import diagnose, planned_run

    found = []
    for check in diagnose(planned_run(options.config, options.overrides, options.processes)):
        print(check.line(), flush=True)
        found.append(check.status)
    print(f"{found.count('ok')} ok, {counted(found.count('warning'), 'warning')}, {found.count('failed')} failed")
    return 1 if "failed" in found else 0
