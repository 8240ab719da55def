"""Options for `rg-env train`, which is implemented in `rg_env.training.from_config`."""

import argparse
import os
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rg_env.cli import sweep
from rg_env.commands import print_plan, require
from rg_env.errors import InputError

if TYPE_CHECKING:
    from rg_env.training.config.schema import TrainConfig


def add(commands: Any) -> None:
    """Add `rg-env train` to the subcommands."""
    train = commands.add_parser(
        "train",
        help="train a model from a config",
        usage="rg-env train CONFIG [section.key=value ...] [options]",
        epilog="docs/reference/configuration.md lists all keys.",
        examples=[
            "rg-env train configs/train/tiny.yaml",
            "rg-env train configs/train/tiny.yaml training.max_steps=50 output.dir=outputs/try --resume auto",
            "rg-env train configs/train/tiny.yaml --sweep training.learning_rate=3e-5,1e-4 seed=0,1,2",
            "rg-env train configs/train/tiny.yaml --eval-only --checkpoint outputs/try/checkpoint-50",
        ],
    )
    option = train.add_argument
    train.config("training config, such as configs/train/tiny.yaml")
    train.flag("--dry-run", help="print the resolved config and the plan, then exit")
    option(
        "--resume",
        metavar="auto|PATH",
        type=no_override,
        help="resume from a checkpoint (auto: the newest in the output folder)",
    )
    train.flag("--eval-only", help="evaluate the config's model without training")
    option("--checkpoint", metavar="PATH", type=no_override, help="checkpoint or adapters to evaluate with --eval-only")
    sweep.add_option(train)
    train.hints["--data"] = "to set the config's data, write data=FILE (and tasks=null if the config has tasks)"
    train.hints["--model"] = "to set the config's model, write model=NAME"
    for name in ("--grid", "--multirun", "-m"):
        train.hints[name] = "to train with several values, use --sweep KEY=VALUE,VALUE"
    train.set_defaults(run=run)


def no_override(text: str) -> str:
    """Return a path (an argparse type). Reject an override, which argparse took for the value of the option before."""
    if re.match(r"[a-z_.]+=", text) and not os.path.exists(text):
        raise argparse.ArgumentTypeError(f"{text} is an override, not a path: write the option's value before it")
    return text


def run(options: argparse.Namespace) -> int:
    """Run `rg-env train` and return the exit code."""
    from rg_env.jobs.sweep import refuse_sweep
    from rg_env.training.config.load import load_train_config

    if options.resume is not None and options.eval_only:
        raise InputError("--resume cannot be combined with --eval-only; to evaluate a checkpoint, use --checkpoint")
    if options.checkpoint is not None and not options.eval_only:
        raise InputError("--checkpoint requires --eval-only; use --resume to continue training")
    if options.sweep:
        return sweep.run(options)
    config = load_train_config(options.config, options.overrides)
    refuse_sweep(config.output.dir)
    if options.dry_run:
        from rg_env.training.config.plan import describe
        from rg_env.training.preflight import check_start

        start = check_start(config, resume=options.resume, checkpoint=options.checkpoint, wait=False)
        notes = [f"#   note        {note}" for note in start.notes]
        evaluated = (options.checkpoint or config.model.name) if options.eval_only else None
        print_plan(describe(config, start.train_rows, evaluated), *notes)
        if start.found_model and find_spec("torch") and not evaluated:  # the checks are about training
            print_model_checks(config)
        return 0
    require("torch", extra="train")
    from rg_env.training import evaluate_config, run_config

    if options.eval_only:
        evaluate_config(config, options.checkpoint)
        return 0
    results = run_config(config, resume=options.resume)
    return 130 if results.get("interrupted") else int(bool(results.get("stopped_by")))


def print_model_checks(config: "TrainConfig") -> None:
    """Print what the model's files say about the run: whether the prompts in its data fit, and its memory. This imports
    torch. Raises `InputError` if the run would refuse the prompts, or a model on this machine."""
    from rg_env.jobs.doctor import model_checks

    required = {"prompts", "model"} if os.path.exists(config.model.name) else {"prompts"}
    for check in model_checks(config):
        if check.name in required and check.status == "failed":
            raise InputError(check.finding)
        problem = f"{check.status}: " if check.status in ("failed", "warning") else ""
        fix = f"; fix: {check.fix}" if check.fix else ""
        print_plan(f"#   {check.name:<11} {problem}{check.finding}{fix}")
