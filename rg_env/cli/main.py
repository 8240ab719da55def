"""The `rg-env` command: parsing only. What the subcommands do stands in the layers below.

rg-env tasks [NAME] [--show N]       the tasks, or one task's options and examples
rg-env tasks --audit                 what was measured of the tasks' graders
rg-env train CONFIG [key=value ...]  train as a config says; --dry-run: what it comes to; --sweep: a grid of runs
rg-env compare FOLDER                the runs of a sweep, side by side
rg-env eval CONFIG [key=value ...]   models on tasks, with intervals: endpoints, checkpoints, adapters
rg-env probe --model M --tasks T ...  which tasks, at which levels, can teach a model anything
rg-env plot FILE... [--title T]       a picture of results, or of learning curves
rg-env report RUN_OR_RESULTS         one HTML page about a run or an evaluation, rollouts and all
rg-env export CHECKPOINT [--out DIR]  a model folder that anyone can load, proven to be the trained model
rg-env push RUN --repo-id USER/NAME   a trained model to the Hugging Face Hub, with a card made from the run's files
rg-env serve --model DIR [--port N]  the embedded engine as an OpenAI-compatible server on 127.0.0.1
rg-env doctor [CONFIG] [...]         would a training run start here? every failed line ends with the fix
rg-env vllm MODEL [...]              a vLLM server that a training run can send weights to
rg-env launch CONFIG|SCRIPT [...]    a vLLM server and the training run that uses it, as one
rg-env slurm CONFIG --gpus N [...]   an sbatch script around a run
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rg_env.cli import eval, export, launch, plot, probe, push, report, slurm, sweep, train, vllm
from rg_env.commands import positive, run_command, take_overrides_anywhere
from rg_env.errors import InputError

if TYPE_CHECKING:
    from rg_env.jobs.doctor import AskedRun


def main() -> None:
    """Entry point of the `rg-env` command."""
    run_command(lambda: run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one subcommand; returns the exit code. Argument errors exit with 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="rg-env", description="Reasoning Gym environment and GRPO training.")
    commands = parser.add_subparsers(dest="command", required=True)

    tasks = commands.add_parser("tasks", help="list the tasks, show one, or audit the graders")
    tasks.add_argument("name", nargs="*", help="a task; several with --audit")
    tasks.add_argument("--level", type=int, help="of difficulty, for one task")
    tasks.add_argument("--show", type=positive, default=0, metavar="N", help="print N example rows of one task")
    tasks.add_argument("--audit", action="store_true", help="the table of graders: gold answers, agreement, exploits")
    tasks.set_defaults(run=_tasks)

    train.add(commands)
    sweep.add(commands)
    eval.add(commands)
    plot.add(commands)
    probe.add(commands)
    report.add(commands)
    export.add(commands)
    push.add(commands)

    serve = commands.add_parser("serve", help="serve a model folder over HTTP on 127.0.0.1, for any OpenAI client")
    serve.add_argument("--model", required=True, help="folder, name on the hub, or 'tiny'")
    serve.add_argument("--port", type=int, default=8000, help="default: 8000; 0 takes a free one")
    serve.add_argument("--seed", type=int, help="of the sampling; default: random")
    serve.set_defaults(run=_serve)

    doctor = commands.add_parser(
        "doctor",
        help="look whether a training run would start here, and what to mend",
        usage="rg-env doctor [CONFIG [section.key=value ...]] [options]",
    )
    doctor.add_argument("config", nargs="?", metavar="CONFIG", help="of the run; or say it by options")
    doctor.add_argument("overrides", nargs="*", metavar="section.key=value", help="over what the config says")
    take_overrides_anywhere(doctor)
    doctor.add_argument("--model", help="folder, name on the hub, or 'tiny' (default: by machine)")
    doctor.add_argument("--task", nargs="+", metavar="TASK", help="Reasoning Gym tasks; default: leg_counting")
    doctor.add_argument("--engine", choices=["embedded", "vllm"], help="default: embedded")
    doctor.add_argument("--vllm-host", metavar="HOST", help="default: 127.0.0.1")
    doctor.add_argument("--vllm-port", type=int, metavar="N", help="default: 8000")
    doctor.add_argument("--processes", type=positive, metavar="N", help="that train, one a GPU; default: 1")
    doctor.add_argument("--per-device-batch-size", type=positive, metavar="N", help="rollouts (default: by model)")
    doctor.add_argument(
        "--rollouts-per-step", type=positive, metavar="N", help="rollouts of all processes (default: by model)"
    )
    doctor.add_argument("--num-generations", type=positive, metavar="N", help="rollouts a prompt; default: 8")
    doctor.add_argument("--max-prompt-length", type=positive, metavar="N", help="tokens (default: by model)")
    doctor.add_argument("--max-tokens", type=positive, metavar="N", help="new ones at most (default: by model)")
    doctor.add_argument("--output-dir", help="where the run would write (default: outputs/)")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(run=_doctor)

    vllm.add(commands)
    launch.add(commands)
    slurm.add(commands)
    arguments = list(arguments)
    launches = arguments[:1] == ["launch"]
    options = launch.parse(parser, arguments) if launches else parser.parse_args(arguments)
    code: int = options.run(options)
    return code


def _tasks(options: argparse.Namespace) -> int:
    from rg_env.cli import describe

    if options.audit:
        return 0 if describe.show_audit(lambda line: print(line, flush=True), options.name) else 1
    if len(options.name) > 1:
        raise InputError(f"one task at a time, not {len(options.name)} (several go with --audit)")
    if not options.name and (options.level is not None or options.show):
        raise InputError("--level and --show need the name of a task")
    print(describe.one_task(options.name[0], options.level, options.show) if options.name else describe.all_tasks())
    return 0


def _serve(options: argparse.Namespace) -> int:
    from rg_env.training import best_device, load_policy  # first: it tells what to install where torch is missing

    from rg_env.inference.embedded.engine import EmbeddedEngine  # isort: skip
    from rg_env.inference.embedded.server import HOST, bind, serve

    with bind(options.port) as listener:  # before the model is loaded, which may take minutes
        policy = load_policy(options.model)
        policy.model.to(best_device())
        engine = EmbeddedEngine(policy.model, policy.tokenizer, model_name=options.model, seed=options.seed)
        print(f"serving {options.model!r} at http://{HOST}:{listener.getsockname()[1]}/v1 (Ctrl-C ends it)", flush=True)
        serve(engine, listener)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from rg_env.jobs.doctor import as_json, closing_line, diagnose

    checks = []
    for check in diagnose(_asked_run(options)):
        checks.append(check)
        if not options.json:
            print(check.line(), flush=True)
    print(as_json(checks) if options.json else closing_line(checks))
    return 1 if any(check.status == "failed" for check in checks) else 0


def _asked_run(options: argparse.Namespace) -> "AskedRun":
    from rg_env.jobs.doctor import AskedRun

    given = {name: value for name, value in vars(options).items() if value is not None}
    fields = {
        "per_device_batch_size": "per_device_train_batch_size",
        **{name: name for name in ("rollouts_per_step", "num_generations", "max_prompt_length", "max_tokens")},
    }
    named = ("model", "engine", "vllm_host", "vllm_port", "processes", "output_dir")
    if options.config:
        from rg_env.training.config.load import load_train_config

        if others := [name for name in (*named, "task", *fields) if name in given and name != "processes"]:
            flag = others[0].replace("_", "-")
            raise InputError(f"--{flag} beside a config: say it there, or by an override (section.key=value)")
        processes = options.processes or 1
        config = load_train_config(options.config, options.overrides, processes=processes)
        return AskedRun.of(config, processes)
    asked = {name: given[name] for name in named if name in given}
    asked |= {"gym": given["task"]} if "task" in given else {}
    settings = {field: given[name] for name, field in fields.items() if name in given}
    return AskedRun(**asked, settings=settings, asked=bool(asked or settings))


if __name__ == "__main__":
    main()
