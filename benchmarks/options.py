"""Measure the effects of training options on the tiny policy and on the cost of a step, over several seeds.

    .venv/bin/python benchmarks/options.py                     # every loss option with three seeds: ten minutes
    .venv/bin/python benchmarks/options.py --only dapo previous

All runs of a study use the same questions for training and evaluation; each run has its own process. For accuracy and
the share of truncated completions, the script prints the mean difference from the plain run with the same seed and its
95% confidence interval (Student's t over seeds), whether or not the difference is significant. It also prints mean
ratios of lengths, tokens, seconds per step and memory.
"""

import argparse
import contextlib
import io
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from rg_env.commands import prepare_process

prepare_process()

import rg_env.training.trainer  # noqa: E402, F401  # slow imports, before processes are forked
from rg_env.core.statistics import mean_interval  # noqa: E402
from rg_env.training.config.load import load_train_config  # noqa: E402
from rg_env.training.from_config import run_config  # noqa: E402

CONFIG = Path(__file__).parents[1] / "configs" / "train" / "tiny.yaml"
PLAIN = "plain"


class Study(NamedTuple):
    base: list[str]
    """Overrides for all runs, including the plain one."""
    options: dict[str, list[str]]
    """Additional overrides by option name."""


STUDIES = {
    "loss": Study(
        [],
        {
            "grpo": ["training.loss_type=grpo"],
            "dr_grpo": ["training.loss_type=dr_grpo"],
            "dapo": ["training.loss_type=dapo"],
            "batch": ["training.scale_rewards=batch"],
            "none": ["training.scale_rewards=none"],
            "truncated": ["training.mask_truncated_completions=true"],
            "initial": ["training.beta=0.04"],
            "previous": ["training.beta=0.04", "training.kl_reference=previous"],
            "filter": ["training.filter_groups=true"],
            "twice": ["training.num_iterations=2"],
            "twice-off-policy": ["training.num_iterations=2", "training.off_policy_mask_threshold=0.1"],
        },
    ),
    # The recipes in the documentation.
    "memory": Study(
        [],
        {
            "micro": ["training.per_device_train_batch_size=16"],
            "checkpointing": ["training.gradient_checkpointing=true"],
            "both": ["training.per_device_train_batch_size=16", "training.gradient_checkpointing=true"],
        },
    ),
    "speed": Study(
        [],
        {
            "whole": ["training.per_device_train_batch_size=128"],
            "twice": ["training.num_iterations=2"],
        },
    ),
    "results": Study(
        [],
        {
            "rollouts": ["training.rollouts_per_step=256"],
            "groups": ["training.num_generations=16"],
            "unbiased": ["training.loss_type=dr_grpo", "training.scale_rewards=none"],
        },
    ),
    # For these questions, answers that show their work have up to 59 tokens.
    "long": Study(
        ["training.max_tokens=40"],
        {
            "masked": ["training.mask_truncated_completions=true"],
            "soft": [
                "rewards.overlong_penalty.weight=0.5",
                "rewards.overlong_penalty.options.max_tokens=40",
                "rewards.overlong_penalty.options.margin=15",
            ],
            "longer": ["training.max_tokens=90"],
        },
    ),
    # With one right answer in six and groups of four, half of the groups have no right answer and thus no signal.
    "sparse": Study(
        [
            "tasks={chain_sum: {config: {min_terms: 3, max_terms: 3, min_digits: 2, max_digits: 2}}}",
            "training.num_generations=4",
        ],
        {
            "filter": ["training.filter_groups=true"],
            "groups": ["training.num_generations=16"],
        },
    ),
}


def run(results: Connection, folder: Path, overrides: list[str], seed: int, steps: int) -> None:
    """Train once and send the figures to the parent process: accuracy halfway and at the end, and other metrics."""
    config = load_train_config(
        CONFIG,
        [
            f"output.dir={folder}", f"seed={seed}", f"training.max_steps={steps}", "logging.examples_every=0",
            "splits.num_eval_examples=100", f"evaluation.every={steps // 2}", "evaluation.before=false",
            "evaluation.greedy=false", *overrides,
        ],
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run_config(config)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    accuracy = {line["step"]: line["eval/accuracy"] for line in lines if "eval/accuracy" in line}
    steps_made = [line for line in lines if "step_time" in line]
    generated = [line for line in steps_made if "completions/mean_length" in line]  # one per batch, not per update
    last = steps_made[-1]
    results.send({
        "half": accuracy[steps // 2],
        "end": accuracy[steps],
        "cut off": statistics.fmean(line["completions/clipped_ratio"] for line in generated),
        "length": generated[-1]["completions/mean_length"],
        "tokens": generated[-1]["num_tokens"],
        "seconds": statistics.median(line["step_time"] for line in steps_made[1:]),
        "memory": last["memory/peak_rss_gb"],
    })  # fmt: skip


def figures_of(folder: Path, overrides: list[str], seed: int, steps: int) -> dict[str, float]:
    """Return the figures from a run in its own process, which is forked so that imports happen only once."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=run, args=(there, folder, overrides, seed, steps))
    process.start()
    there.close()
    try:
        figures: dict[str, float] = here.recv()
    except EOFError:
        sys.exit(f"the run with {' '.join(overrides) or 'no overrides'} failed")
    process.join()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", choices=sorted(STUDIES), default="loss")
    parser.add_argument("--seeds", type=int, default=3, help="at least 2")
    parser.add_argument("--steps", type=int, default=8, help="an even number")
    parser.add_argument("--only", nargs="+", metavar="OPTION", default=[])
    options = parser.parse_args()
    study = STUDIES[options.study]
    if unknown := set(options.only) - set(study.options):
        parser.error(f"unknown option {', '.join(unknown)} in {options.study}; choose from {', '.join(study.options)}")
    chosen = {name: study.options[name] for name in options.only} or study.options
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (PLAIN, *chosen)}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(options.seeds):
            for name, overrides in {PLAIN: [], **chosen}.items():
                folder = Path(scratch) / f"{name}-{seed}"
                found[name].append(figures_of(folder, [*study.base, *overrides], seed, options.steps))
                print(f"seed {seed}, {name}: {shown(found[name][-1])}", flush=True)
    print_table(chosen, found, options.steps)
    return 0


def print_table(options: dict[str, list[str]], found: dict[str, list[dict[str, float]]], steps: int) -> None:
    plain = found[PLAIN]
    differences, ratios = ("half", "end", "cut off"), ("length", "tokens", "seconds", "memory")
    print(f"\n| option | accuracy after {steps // 2} steps | after {steps} | share truncated | final length | "
          "tokens generated | seconds per step | peak memory |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    means = {key: statistics.fmean(each[key] for each in plain) for key in plain[0]}
    print(f"| {PLAIN} | {means['half']:.3f} | {means['end']:.3f} | {means['cut off']:.3f} | {means['length']:.0f} | "
          f"{means['tokens']:.0f} | {means['seconds']:.2f} | {means['memory']:.2f} GB |")  # fmt: skip
    for name, overrides in options.items():
        pairs = list(zip(found[name], plain, strict=True))
        cells = [with_interval([one[key] - other[key] for one, other in pairs]) for key in differences]
        cells += [f"{statistics.fmean(one[key] / other[key] for one, other in pairs):.2f} times" for key in ratios]
        print(f"| `{' '.join(overrides)}` | {' | '.join(cells)} |")


def with_interval(values: list[float]) -> str:
    low, high = mean_interval([[value] for value in values]) or (math.nan, math.nan)
    return f"{statistics.fmean(values):+.3f} ± {(high - low) / 2:.3f}"


def shown(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in figures.items())


if __name__ == "__main__":
    sys.exit(main())
