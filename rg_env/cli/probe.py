"""`rg-env probe`: its options. `rg_env.evaluation.probe` judges what it finds."""

import argparse
import json
from pathlib import Path
from typing import Any

from rg_env.commands import Names, end_signals_as_ctrl_c, positive, require


def add(commands: Any) -> None:
    """Add the subcommand to those of `rg-env`."""
    parser = commands.add_parser(
        "probe",
        help="which tasks, at which levels, can teach a model anything",
        epilog="A checkpoint is prompted as it was trained. Writes mixture.yaml, which a training config can extend, "
        "next to the files of an evaluation.",
        examples=["rg-env probe --model Qwen/Qwen2.5-1.5B-Instruct --tasks chain_sum,leg_counting --levels 0 1 2"],
    )
    parser.add_argument("--model", required=True, help="folder, name on the hub, 'tiny', or NAME@URL of an endpoint")
    parser.add_argument("--tasks", action=Names, nargs="+", required=True, metavar="TASK", help="'all' for all of them")
    parser.add_argument("--levels", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="default: 0 1 2")
    parser.add_argument(
        "-n", "--num-examples", type=positive, default=20, help="questions a level; default: 20, at least 16 to judge"
    )
    parser.add_argument("-r", "--rollouts-per-example", type=positive, default=8, help="answers to each; default: 8")
    parser.add_argument(
        "--max-tokens",
        type=positive,
        help="limit of an answer; default: as trained, otherwise 1024, or half the context",
    )
    parser.add_argument("--output-dir", metavar="DIR", help="default: a new folder under outputs/")
    parser.add_argument("--resume", action="store_true", help="continue what the output folder holds")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from rg_env.core.config.yaml12 import to_yaml
    from rg_env.core.run_folder import write_aside
    from rg_env.core.tasks.task_table import load_table
    from rg_env.errors import InputError
    from rg_env.evaluation.config import eval_config_of
    from rg_env.evaluation.probe import fitted, judge, labels, mixture, print_probed
    from rg_env.evaluation.run import run_evaluation
    from rg_env.evaluation.trained import as_trained

    if options.rollouts_per_example < 2:
        raise InputError("--rollouts-per-example 1: at least 2 answers are needed to differ; training has groups of 8")
    tasks = sorted(load_table()) if options.tasks == ["all"] else options.tasks
    given = {
        "models": [options.model],
        "tasks": labels(tasks, options.levels),
        "num_examples": options.num_examples,
        "rollouts_per_example": options.rollouts_per_example,
    }
    given |= {"output.dir": options.output_dir} if options.output_dir else {}
    given |= {"sampling.max_tokens": options.max_tokens} if options.max_tokens else {}
    for package in ("scipy", "matplotlib"):  # before anything is generated
        require(package, "eval")
    config, _ = as_trained(eval_config_of([f"{key}={json.dumps(value)}" for key, value in given.items()]))
    with end_signals_as_ctrl_c():
        config, skipped = fitted(config)
        for line in skipped:
            print(line, flush=True)
        results, folder = run_evaluation(config, resume=options.resume)
    found = judge(results, next(iter(config.models)))
    print_probed(found)
    for line in skipped:
        print(line)
    try:
        text = to_yaml(mixture(found))
    except InputError as error:
        print(f"{error}; files in {folder}")
        return 1
    file = Path(folder) / "mixture.yaml"
    write_aside(
        file, f"# Made by rg-env probe for {options.model}: tasks that can teach it, at the level to start.\n{text}"
    )
    print(f"{file}: for `extends:` of a training config, or rg-env train CONFIG with these tasks; files in {folder}")
    return 0
