"""`rg-env eval`: its options. What it does stands in `rg_env.evaluation`."""

import argparse
import re
from typing import Any

from rg_env.commands import Names, end_signals_as_ctrl_c, positive, require, seed, take_overrides_anywhere
from rg_env.errors import InputError


def add(commands: Any) -> None:
    """Add the subcommand to those of `rg-env`."""
    parser = commands.add_parser(
        "eval",
        help="compare models on tasks: endpoints, checkpoints, adapters",
        usage="rg-env eval [CONFIG] [section.key=value ...] [--models MODEL ...] [--tasks TASK ...] "
        "[--external BENCHMARK,...] [options]",
        epilog="A MODEL is a folder, a name on the hub, 'tiny', or NAME@URL at an OpenAI-compatible endpoint, whose "
        "key is in OPENAI_API_KEY. Names of your own: models.NAME=MODEL in the place of --models. Defaults are of what "
        "CONFIG does not say. docs/reference/evaluation.md has the rest. To try it on any machine: "
        "rg-env eval --models tiny --tasks leg_counting --max-tokens 90 -n 20",
    )
    parser.add_argument("config", nargs="?", help="such as configs/eval/tiny.yaml; or say it all by options")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="over what the config says")
    parser.add_argument("--models", "--model", nargs="+", metavar="MODEL", help="what is asked: see below")
    parser.add_argument(
        "--tasks", action=Names, nargs="+", metavar="TASK", help="what it is asked: `rg-env tasks` lists them"
    )
    parser.add_argument(
        "--external",
        action=Names,
        nargs="+",
        metavar="BENCHMARK",
        help="tasks of lm-evaluation-harness, or of ours for it, such as gsm8k_rg (extra eval-external)",
    )
    parser.add_argument(
        "-n",
        "--num-examples",
        type=positive,
        metavar="N",
        help="questions of each task; default: 100, of benchmarks all",
    )
    parser.add_argument("-r", "--rollouts-per-example", type=positive, metavar="N", help="answers to each; default: 1")
    parser.add_argument(
        "--max-tokens", type=positive, metavar="N", help="of an answer; default: 1024, or the benchmark's"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="default: 1, or the benchmark's")
    parser.add_argument("--seed", type=seed, help="of the sampling by the embedded engine; default: 0")
    parser.add_argument("--gpus", metavar="0,1,...", help="for models that vLLM serves here; default: all")
    parser.add_argument("--output-dir", metavar="DIR", help="default: a fresh folder under outputs/")
    parser.add_argument("--resume", action="store_true", help="go on with what the output folder holds")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config, and end")
    take_overrides_anywhere(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from rg_env.core.config.files import is_config_file
    from rg_env.core.config.yaml12 import to_yaml
    from rg_env.evaluation.config import eval_config_of, load_eval_config

    if options.config and not is_config_file(options.config) and "=" in options.config:  # no config, but overrides
        options.overrides, options.config = [options.config, *options.overrides], None
    _take_overrides_out_of_lists(options)
    given = _given(options)
    if options.config:
        config = load_eval_config(options.config, [*options.overrides, *given])
    else:
        said = {override.split("=")[0].split(".")[0] for override in (*given, *options.overrides)}
        needed = ["models"] if "external" in said else ["models", "tasks"]
        if missing := [flag for flag in needed if flag not in said]:
            raise InputError(f"give a config, such as configs/eval/tiny.yaml, or --{' and --'.join(missing)}")
        config = eval_config_of([*given, *options.overrides])
    if options.dry_run:
        print(to_yaml(config.model_dump(mode="json")), end="")
        return 0
    for package in ("scipy", "matplotlib"):  # before anything is asked
        require(package, "eval")
    from rg_env.evaluation.evaluate import run_evaluation
    from rg_env.evaluation.tables import print_results

    with end_signals_as_ctrl_c():
        results, folder = run_evaluation(config, resume=options.resume)
    print_results(results)
    print(f"files in {folder}")
    return 0


def _take_overrides_out_of_lists(options: argparse.Namespace) -> None:
    """Of all words after `--models` and the like argparse makes names; those that set a key of a config are overrides.

    Raises:
        InputError: a single model or task is set besides the list, which would be gone.
    """
    from rg_env.evaluation.config import EvalConfig

    for name in ("models", "tasks", "external"):
        words = getattr(options, name) or []
        overrides = [word for word in words if "=" in word and re.split("[.=]", word)[0] in EvalConfig.model_fields]
        options.overrides = [*options.overrides, *overrides]
        setattr(options, name, [word for word in words if word not in overrides] or None)
    for name in ("models", "tasks"):
        single = next((each for each in options.overrides if each.startswith(f"{name}.")), None)
        if single and getattr(options, name):
            raise InputError(f"--{name} beside {single}: one would replace the other: give each as {name}.NAME=...")


def _given(options: argparse.Namespace) -> list[str]:
    """The options as overrides of a config."""
    import json

    named: dict[str, Any] = {
        "models": options.models,
        "tasks": options.tasks,
        "external.tasks": options.external,
        "num_examples": options.num_examples,
        "rollouts_per_example": options.rollouts_per_example,
        "sampling.max_tokens": options.max_tokens,
        "sampling.temperature": options.temperature,
        "seed": options.seed,
        "serving.gpus": _gpus(options.gpus),
        "output.dir": options.output_dir,
    }
    if options.external:  # their own settings give way to what is said here
        for name in ("num_examples", "max_tokens", "temperature"):
            named[f"external.{name}"] = getattr(options, name)
    return [f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None]


def _gpus(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--gpus {text}: numbers of GPUs, with commas between") from None
