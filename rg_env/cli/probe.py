"""Options for `rg-env probe`, which is implemented in `rg_env.evaluation.probe`."""

import argparse
from pathlib import Path
from typing import Any

from rg_env.commands import end_signals_as_ctrl_c, require


def add(commands: Any) -> None:
    """Add `rg-env probe` to the subcommands."""
    parser = commands.add_parser(
        "probe",
        help="find tasks and levels that a model can learn from",
        epilog="Checkpoints are prompted as in training. The command writes the same files as an "
        "evaluation, plus mixture.yaml, which a training config can extend.",
        examples=["rg-env probe --model Qwen/Qwen2.5-1.5B-Instruct --tasks chain_sum,leg_counting --levels 0 1 2"],
    )
    option, number = parser.add_argument, parser.number
    option(
        "--model", required=True, help="model folder, GGUF file, name on the Hub, 'tiny', or NAME@URL for an endpoint"
    )
    parser.names("--tasks", required=True, metavar="TASK", help="tasks to probe, or 'all' for every task")
    option("--levels", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="difficulty levels; default: 0 1 2")
    number(
        "-n",
        "--num-examples",
        default=20,
        help="questions per task and level (a verdict requires at least 16); default: 20",
    )
    number("-r", "--rollouts-per-example", default=8, help="answers per question (at least 2); default: 8")
    number(
        "--max-tokens",
        help="token limit per answer; default: the training run's limit, otherwise 1024 (for a local model, "
        "at most half its context length)",
    )
    option("--output-dir", metavar="DIR", help="output folder; default: a new folder under outputs/")
    parser.flag("--resume", help="resume the probe in the output folder")
    parser.hints["--data"] = "for your own questions, use rg-env eval --models MODEL --data FILE -r 8"
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `rg-env probe` and return the exit code."""
    from rg_env.core.config.yaml12 import to_yaml
    from rg_env.core.files import write_aside
    from rg_env.core.run_folder import free_folder
    from rg_env.core.tasks.task_table import load_table
    from rg_env.errors import InputError
    from rg_env.evaluation.load import load_eval_config
    from rg_env.evaluation.probe import (
        EXAMPLES,
        LEAST_QUESTIONS,
        TRIAL,
        fitted,
        judge,
        labels,
        mixture,
        print_probed,
        with_examples,
    )
    from rg_env.evaluation.runner import run_evaluation
    from rg_env.evaluation.trained import as_trained

    if options.rollouts_per_example < 2:
        raise InputError("--rollouts-per-example 1: use at least 2, because a single answer has no variance")
    tasks = sorted(load_table()) if options.tasks == ["all"] else options.tasks
    given = {
        "models": [options.model],
        "tasks": labels(tasks, options.levels),
        "num_examples": options.num_examples,
        "rollouts_per_example": options.rollouts_per_example,
    }
    if options.output_dir or not options.resume:
        given["output.dir"] = options.output_dir or str(
            free_folder(None, f"probe-{'+'.join(options.tasks[:3])}", create=True)
        )
    given |= {"sampling.max_tokens": options.max_tokens} if options.max_tokens else {}
    require("scipy", "matplotlib", extra="eval")  # fail before generating answers
    config, _ = as_trained(load_eval_config(None, options=given))
    if options.num_examples < LEAST_QUESTIONS:
        print(
            f"note: -n {options.num_examples} is too low; a verdict and mixture.yaml require at least {LEAST_QUESTIONS}"
        )
    with end_signals_as_ctrl_c():
        config, skipped = fitted(config)
        for line in skipped:
            print(line, flush=True)
        results, folder = run_evaluation(config, resume=options.resume, trial=TRIAL)
        (model,) = config.models
        found = judge(results, model)
        if again := with_examples(config, found, folder):
            tasks = ", ".join(again.tasks)
            print(
                f"\nhardly any reply to {tasks} has the form <answer>...</answer>: trying {EXAMPLES} few-shot examples"
            )
            try:
                again, more = fitted(again)
            except InputError as error:
                more = [f"with {EXAMPLES} few-shot examples, {error}"]
            else:
                results, _ = run_evaluation(again, resume=options.resume, trial=TRIAL)
                found += judge(results, model, EXAMPLES)
            skipped += more
    print_probed(found)
    for line in skipped:
        print(line)
    try:
        text = to_yaml(mixture(found))
    except InputError as error:
        print(f"mixture.yaml was not written: {error}; files in {folder}")
        return 1
    file = Path(folder) / "mixture.yaml"
    head = f"# Written by rg-env probe: tasks that {options.model} can learn from, each at its starting level."
    write_aside(file, f"{head}\n{text}")
    print(
        f"{file}: extend this file in a training config (`extends:`), or pass its tasks to rg-env train; "
        f"files in {folder}"
    )
    return 0
