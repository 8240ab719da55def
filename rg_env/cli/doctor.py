"""`rg-env doctor`: its options. It is implemented in `rg_env.jobs.doctor`."""

import argparse
from typing import Any

from rg_env.commands import positive, take_overrides_anywhere
from rg_env.errors import InputError


def add(commands: Any) -> None:
    """Add the subcommand to those of `rg-env`."""
    doctor = commands.add_parser(
        "doctor",
        help="check whether a training run would start here, and print how to fix what would stop it",
        usage="rg-env doctor [CONFIG [section.key=value ...]] [options]",
    )
    doctor.add_argument("config", nargs="?", metavar="CONFIG", help="config of the run; or describe it by options")
    doctor.add_argument("overrides", nargs="*", metavar="section.key=value", help="overrides of the config")
    take_overrides_anywhere(doctor)
    doctor.add_argument("--model", help="folder, name on the hub, or 'tiny' (default: depends on the machine)")
    doctor.add_argument("--task", nargs="+", metavar="TASK", help="Reasoning Gym tasks; default: leg_counting")
    doctor.add_argument("--engine", choices=["embedded", "vllm"], help="default: embedded")
    doctor.add_argument("--vllm-host", metavar="HOST", help="default: 127.0.0.1")
    doctor.add_argument("--vllm-port", type=int, metavar="N", help="default: 8000")
    doctor.add_argument("--processes", type=positive, default=1, metavar="N", help="training processes; default: 1")
    doctor.add_argument("--per-device-batch-size", type=positive, metavar="N", help="rollouts of a micro-batch")
    doctor.add_argument("--rollouts-per-step", type=positive, metavar="N", help="rollouts of all processes")
    doctor.add_argument("--num-generations", type=positive, metavar="N", help="rollouts of a prompt; default: 8")
    doctor.add_argument("--max-prompt-length", type=positive, metavar="N", help="most tokens of a prompt")
    doctor.add_argument("--max-tokens", type=positive, metavar="N", help="most new tokens of a completion")
    doctor.add_argument("--output-dir", help="output folder of the run; default: outputs/")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run it; returns the exit code: 1 if a check failed."""
    from rg_env.jobs.doctor import OPTIONS, PlannedRun, as_json, closing_line, diagnose
    from rg_env.training.config.load import load_train_config

    given = {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    if not options.config:
        planned = PlannedRun.of_options(given, options.processes)
    elif given:
        flag = next(iter(given)).replace("_", "-")
        raise InputError(f"--{flag} together with a config: set it there, or by an override (section.key=value)")
    else:
        config = load_train_config(options.config, options.overrides, processes=options.processes)
        planned = PlannedRun(config, options.processes)
    checks = []
    for check in diagnose(planned):
        checks.append(check)
        if not options.json:
            print(check.line(), flush=True)
    print(as_json(checks) if options.json else closing_line(checks))
    return 1 if any(check.status == "failed" for check in checks) else 0
