"""Options for `rg-env doctor`, which is implemented in `rg_env.jobs.doctor`."""

import argparse
from typing import Any

from rg_env.cli.parser import options_of
from rg_env.errors import InputError


def add(commands: Any) -> None:
    """Add `rg-env doctor` to the subcommands. The `dest` of each option that replaces a config key is that key."""
    doctor = commands.add_parser(
        "doctor",
        help="check that a training run can start on this machine, and print a fix for each problem",
        usage="rg-env doctor [CONFIG [section.key=value ...]] [options]",
        examples=[
            "rg-env doctor configs/train/leg_counting_qwen7b.yaml engine.kind=vllm --processes 3",
            "rg-env doctor --model Qwen/Qwen2.5-1.5B-Instruct --tasks chain_sum",
        ],
    )
    key, number = doctor.key, doctor.number
    doctor.config("training config; alternatively, describe the run with the options below", required=False)
    key("--model", "model.name", "MODEL", "model folder, name on the Hub, or 'tiny'; default: a model for this machine")
    doctor.names("--tasks", metavar="TASK", help="Reasoning Gym tasks; default: leg_counting")
    engines = ["embedded", "vllm"]
    doctor.add_argument("--engine", dest="engine.kind", choices=engines, help="inference engine; default: embedded")
    key("--host", "engine.host", "HOST", "host of the vLLM server; default: 127.0.0.1")
    key("--port", "engine.port", "N", "port of the vLLM server; default: 8000", type=int)
    number("--processes", default=1, help="training processes; default: 1")
    for name, text in {
        "per_device_train_batch_size": "rollouts per micro-batch",
        "rollouts_per_step": "rollouts per step, across all processes",
        "num_generations": "rollouts per prompt; default: 8",
        "max_prompt_length": "maximum prompt length in tokens",
        "max_tokens": "maximum new tokens per completion",
    }.items():
        number(f"--{name.replace('_', '-')}", dest=f"training.{name}", help=text)
    key("--output-dir", "output.dir", "DIR", "output folder for the run; default: outputs/")
    doctor.flag("--json", help="print the results as JSON")
    doctor.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `rg-env doctor` and return the exit code, which is 1 if a check failed."""
    from rg_env.jobs.doctor import diagnose
    from rg_env.jobs.doctor.machine import PlannedRun, as_json, closing_line
    from rg_env.training.config.load import load_train_config
    from rg_env.training.config.schema import TrainConfig

    given = options_of(TrainConfig, options)
    if not options.config:
        planned = PlannedRun.of_options(given, options.processes)
    elif given:
        raise InputError(f"{next(iter(given))} cannot be combined with a config: use an override (section.key=value)")
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
