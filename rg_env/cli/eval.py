"""Options for `rg-env eval`, which is implemented in `rg_env.evaluation`."""

import argparse
import re
import shlex
from typing import Any

from rg_env.cli.parser import options_of
from rg_env.commands import end_signals_as_ctrl_c, print_plan, require, seed
from rg_env.errors import InputError


def add(commands: Any) -> None:
    """Add `rg-env eval` to the subcommands. The `dest` of each option that sets a config key is that key."""
    parser = commands.add_parser(
        "eval",
        help="compare models (endpoints, checkpoints, adapters) on tasks",
        usage="rg-env eval [CONFIG] [section.key=value ...] [--models MODEL ...] [--tasks TASK ...]\n    "
        "[--data FILE] [options]",
        epilog="A MODEL is a folder, a name on the Hugging Face Hub, 'tiny', or NAME@URL for an OpenAI-compatible "
        "endpoint (its API key is read from OPENAI_API_KEY). To rename a model, use models.NAME=MODEL. For a "
        "checkpoint, missing settings are taken from its training run. "
        "docs/reference/evaluation.md lists all keys.",
        examples=[
            "rg-env eval --models tiny --tasks leg_counting --max-tokens 90 -n 20",
            "rg-env eval configs/eval/tiny.yaml output.dir=outputs/comparison",
        ],
    )
    option, number, key = parser.add_argument, parser.number, parser.key
    parser.config("evaluation config (optional if --models is given)", required=False)
    option("--models", "--model", nargs="+", metavar="MODEL", help="models to evaluate (see below)")
    parser.names(
        "--tasks",
        metavar="TASK",
        help="tasks or categories; default: the evaluation tasks and data of a model's training run",
    )
    key("--data", "data.path", "FILE", "your own questions: a CSV, TSV, JSON, JSONL or Parquet file, or a Hub dataset")
    number("-n", "--num-examples", "--limit", help="questions per task; default: 100")
    number("-r", "--rollouts-per-example", help="sampled answers per question; default: 1")
    number("--max-tokens", dest="sampling.max_tokens", help="token limit per answer; default: 1024")
    key("--temperature", "sampling.temperature", "T", "sampling temperature; default: 1", type=float)
    option("--imports", action="append", metavar="FILE", help="file with your own rewards or tasks (repeatable)")
    option("--seed", type=seed, help="sampling seed for the embedded engine; default: 0")
    key("--gpus", "serving.gpus", "0,1,...", "GPUs for vLLM servers on this machine; default: all", type=gpu_numbers)
    key("--output-dir", "output.dir", "DIR", "output folder; default: a new folder under outputs/")
    parser.flag("--resume", help="resume the evaluation in the output folder")
    parser.flag("--dry-run", help="print the resolved config and the plan, then exit")
    parser.set_defaults(run=run)


def gpu_numbers(text: str) -> list[int]:
    """Parse comma-separated GPU numbers (an argparse type)."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be GPU numbers, such as 0 or 0,1") from None


def run(options: argparse.Namespace) -> int:
    """Run `rg-env eval` and return the exit code."""
    from rg_env.core.config.yaml12 import to_yaml
    from rg_env.evaluation.config import EvalConfig
    from rg_env.evaluation.load import load_eval_config

    given = options_of(EvalConfig, options)
    overrides = [*options.overrides, *_pop_overrides(given)]
    for name in {"models", "tasks"} & given.keys():
        if single := next((each for each in overrides if each.startswith(f"{name}.")), None):
            raise InputError(
                f"--{name} and {single} cannot be combined because one would replace the other; set each item as "
                f"{name}.NAME=..."
            )
    if not options.config and not any(re.match("models[.=]", each) for each in (*overrides, *map("{}=".format, given))):
        raise InputError("pass a config, such as configs/eval/tiny.yaml, or --models and --tasks (or --data)")
    config = load_eval_config(options.config, overrides, given)
    from rg_env.evaluation.runner import prepared, run_evaluation

    if options.dry_run:
        from rg_env.core.data.dataset import SplitRequest

        config, notes, folder = prepared(config, resume=options.resume)
        requests = [SplitRequest(config.mixture(name), "eval", config.count(name), 0) for name in config.tasks]
        notes += dict.fromkeys(line for request in requests for line in request.expected_shortage())
        plan = [*config.plan(), f"output      {folder}", *notes]
        print_plan(to_yaml(config.model_dump(mode="json")), "# The plan", *(f"#   {line}" for line in plan))
        return 0
    require("scipy", "matplotlib", extra="eval")  # fail before calling any model
    from rg_env.evaluation.tables import print_results

    with end_signals_as_ctrl_c():
        results, folder = run_evaluation(config, resume=options.resume)
    print_results(results)
    print(f"files in {folder}; `rg-env report {shlex.quote(str(folder))}` makes a page with the results and answers")
    return 0


def _pop_overrides(given: dict[str, Any]) -> list[str]:
    """Remove overrides (`key=value`) from the lists of models and tasks in `given`, and return them. The lists contain
    overrides because argparse treats every argument after `--models` as a name."""
    from rg_env.evaluation.config import EvalConfig

    overrides = []
    for name in ("models", "tasks"):
        words = given.pop(name, [])
        of_config = [word for word in words if "=" in word and re.split("[.=]", word)[0] in EvalConfig.model_fields]
        overrides += of_config
        if names := [word for word in words if word not in of_config]:
            given[name] = names
    return overrides
