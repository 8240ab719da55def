"""Options of `rg-env eval`, implemented in `rg_env.evaluation`."""

import argparse
import json
import re
from typing import Any

from rg_env.commands import Names, end_signals_as_ctrl_c, positive, require, seed, take_overrides_anywhere
from rg_env.errors import InputError


def add(commands: Any) -> None:
    """Add `rg-env eval` to the subcommands."""
    parser = commands.add_parser(
        "eval",
        help="compare models (endpoints, checkpoints, adapters) on tasks",
        usage="rg-env eval [CONFIG] [section.key=value ...] [--models MODEL ...] [--tasks TASK ...] "
        "[--data FILE] [--external BENCHMARK ...] [options]",
        epilog="A MODEL is a folder, a name on the Hugging Face Hub, 'tiny', or NAME@URL of an OpenAI-compatible "
        "endpoint (its API key is read from OPENAI_API_KEY); models.NAME=MODEL renames it. For a checkpoint, "
        "missing settings are taken from its training run. docs/reference/evaluation.md lists all keys. This "
        "example runs anywhere: rg-env eval --models tiny --tasks leg_counting --max-tokens 90 -n 20",
    )
    option = parser.add_argument
    option(
        "config",
        nargs="?",
        help="evaluation config, such as configs/eval/tiny.yaml; optional if --models and --tasks are given",
    )
    option("overrides", nargs="*", default=[], metavar="section.key=value", help="config overrides")
    option("--models", "--model", nargs="+", metavar="MODEL", help="models to evaluate (see below)")
    option(
        "--tasks",
        action=Names,
        nargs="+",
        metavar="TASK",
        help="task or category names (`rg-env tasks` lists both); default: the tasks and data of the training run",
    )
    option(
        "--data", metavar="FILE", help="your own questions: a .csv, .json, .jsonl or .parquet file, or a Hub dataset"
    )
    option(
        "--external",
        action=Names,
        nargs="+",
        metavar="BENCHMARK",
        help="benchmarks of lm-evaluation-harness or rg-env's own, such as gsm8k_rg (requires the extra eval-external)",
    )
    option(
        "-n",
        "--num-examples",
        "--limit",
        type=positive,
        metavar="N",
        help="questions per task; default: 100 for tasks, all for benchmarks",
    )
    option("-r", "--rollouts-per-example", type=positive, metavar="N", help="sampled answers per question; default: 1")
    option(
        "--max-tokens",
        type=positive,
        metavar="N",
        help="maximum new tokens per answer; default: 1024, or the benchmark's",
    )
    option("--temperature", type=float, metavar="T", help="sampling temperature; default: 1, or the benchmark's")
    option("--seed", type=seed, help="sampling seed of the embedded engine; default: 0")
    option("--gpus", metavar="0,1,...", help="GPUs for models served by vLLM on this machine; default: all")
    option("--output-dir", metavar="DIR", help="output folder; default: a new folder under outputs/")
    option("--resume", action="store_true", help="resume the evaluation in the output folder")
    option("--dry-run", action="store_true", help="print the resolved config and the plan, and exit")
    take_overrides_anywhere(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `rg-env eval` and return the exit code."""
    from rg_env.core.config.files import is_config_file
    from rg_env.core.config.yaml12 import to_yaml
    from rg_env.evaluation.config import eval_config_of, load_eval_config

    if options.config and not is_config_file(options.config) and "=" in options.config:  # an override
        options.overrides, options.config = [options.config, *options.overrides], None
    _take_overrides_out_of_lists(options)
    given = _given(options)
    if options.config:
        config = load_eval_config(options.config, [*options.overrides, *given])
    elif any(re.match("models[.=]", override) for override in (*given, *options.overrides)):
        config = eval_config_of([*given, *options.overrides])
    else:
        raise InputError("pass a config, such as configs/eval/tiny.yaml, or --models and --tasks (or --data)")
    from rg_env.evaluation.runner import prepared, run_evaluation

    if options.dry_run:
        config, notes, folder = prepared(config, resume=options.resume)
        plan = [*config.plan(), f"output      {folder}", *notes]
        print(to_yaml(config.model_dump(mode="json")), "# The plan", *(f"#   {line}" for line in plan), sep="\n")
        return 0
    for package in ("scipy", "matplotlib"):  # before any model call
        require(package, "eval")
    from rg_env.evaluation.tables import print_results

    with end_signals_as_ctrl_c():
        results, folder = run_evaluation(config, resume=options.resume)
    print_results(results)
    print(f"files in {folder}")
    return 0


def _take_overrides_out_of_lists(options: argparse.Namespace) -> None:
    """Move `key=value` arguments to the overrides: argparse takes every argument after `--models` as a name.

    Raises:
        InputError: a list and an override of a single model or task are given, and one would replace the other.
    """
    from rg_env.evaluation.config import EvalConfig

    for name in ("models", "tasks", "external"):
        words = getattr(options, name) or []
        overrides = [word for word in words if "=" in word and re.split("[.=]", word)[0] in EvalConfig.model_fields]
        options.overrides = [*options.overrides, *overrides]
        setattr(options, name, [word for word in words if word not in overrides] or None)
        single = next((each for each in options.overrides if each.startswith(f"{name}.")), None)
        if single and getattr(options, name) and name != "external":
            raise InputError(f"--{name} and {single}: one would replace the other; set each as {name}.NAME=...")


def _given(options: argparse.Namespace) -> list[str]:
    """Config overrides equivalent to the options."""
    named: dict[str, Any] = {
        "models": options.models,
        "tasks": options.tasks,
        "data.path": options.data,
        "external.tasks": options.external,
        "num_examples": options.num_examples,
        "rollouts_per_example": options.rollouts_per_example,
        "sampling.max_tokens": options.max_tokens,
        "sampling.temperature": options.temperature,
        "seed": options.seed,
        "serving.gpus": _gpus(options.gpus),
        "output.dir": options.output_dir,
    }
    if options.external:  # these options override the benchmarks' own settings
        named |= {f"external.{name}": getattr(options, name) for name in ("num_examples", "max_tokens", "temperature")}
    return [f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None]


def _gpus(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--gpus {text}: expected comma-separated GPU numbers") from None
