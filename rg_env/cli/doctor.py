"""Options of `rg-env doctor`, implemented in `rg_env.jobs.doctor`."""

import argparse
from typing import Any

from rg_env.commands import Names, positive, take_overrides_anywhere
from rg_env.errors import InputError

_TRAINING = ("per_device_train_batch_size", "rollouts_per_step", "num_generations", "max_prompt_length", "max_tokens")
_KEYS = {"model": "model.name", "tasks": "tasks", "engine": "engine.kind", "host": "engine.host", "port": "engine.port"}
_KEYS |= {"output_dir": "output.dir", **{name: f"training.{name}" for name in _TRAINING}}
"""Options that describe a run without a config -> the config key that each one sets."""


def add(commands: Any) -> None:
    """Add `rg-env doctor` to the subcommands."""
    doctor = commands.add_parser(
        "doctor",
        help="check that a training run can start on this machine; print a fix for each problem",
        usage="rg-env doctor [CONFIG [section.key=value ...]] [options]",
        examples=[
            "rg-env doctor configs/train/leg_counting_qwen7b.yaml engine.kind=vllm --processes 3",
            "rg-env doctor --model Qwen/Qwen2.5-1.5B-Instruct --tasks chain_sum",
        ],
    )
    option = doctor.add_argument
    option("config", nargs="?", metavar="CONFIG", help="training config; alternatively, describe the run with options")
    option("overrides", nargs="*", default=[], metavar="section.key=value", help="config overrides")
    take_overrides_anywhere(doctor)
    option("--model", help="model folder, name on the Hub, or 'tiny'; default: depends on the machine")
    option("--tasks", action=Names, nargs="+", metavar="TASK", help="Reasoning Gym tasks; default: leg_counting")
    option("--engine", choices=["embedded", "vllm"], help="inference engine; default: embedded")
    option("--host", help="host of the vLLM server; default: 127.0.0.1")
    option("--port", type=int, metavar="N", help="port of the vLLM server; default: 8000")
    option("--processes", type=positive, default=1, metavar="N", help="training processes; default: 1")
    option("--per-device-train-batch-size", type=positive, metavar="N", help="rollouts per micro-batch")
    option("--rollouts-per-step", type=positive, metavar="N", help="rollouts per step, across all processes")
    option("--num-generations", type=positive, metavar="N", help="rollouts per prompt; default: 8")
    option("--max-prompt-length", type=positive, metavar="N", help="maximum prompt length in tokens")
    option("--max-tokens", type=positive, metavar="N", help="maximum new tokens per completion")
    option("--output-dir", help="output folder of the run; default: outputs/")
    option("--json", action="store_true", help="print the results as JSON")
    doctor.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `rg-env doctor` and return the exit code: 1 if a check failed."""
    from rg_env.jobs.doctor import PlannedRun, as_json, closing_line, diagnose
    from rg_env.training.config.load import load_train_config

    given = {key: value for name, key in _KEYS.items() if (value := getattr(options, name)) is not None}
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
