"""What GRPO's options do on the tiny policy: each against the plain run, over seeds, and what a step costs.

    .venv/bin/python benchmarks/options.py                     # three seeds of every option, some ten minutes
    .venv/bin/python benchmarks/options.py --only dapo previous

All runs train on the same questions and are asked the same ones. Reported are mean differences to the plain run of the
same seed, with their 95 % interval by Student's t over seeds, whatever they are; and the ratio of seconds a step.
"""

import argparse
import contextlib
import io
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rg_env.commands import prepare_process

prepare_process()

from rg_env.training.config import load_train_config  # noqa: E402
from rg_env.training.from_config import run_config  # noqa: E402

CONFIG = Path(__file__).parents[1] / "configs" / "train" / "tiny.yaml"
PLAIN = "plain"
OPTIONS: dict[str, list[str]] = {
    PLAIN: [],
    "grpo": ["loss_type=grpo"],
    "dr_grpo": ["loss_type=dr_grpo"],
    "dapo": ["loss_type=dapo"],
    "batch": ["scale_rewards=batch"],
    "none": ["scale_rewards=none"],
    "truncated": ["mask_truncated_completions=true"],
    "initial": ["beta=0.04"],
    "previous": ["beta=0.04", "kl_reference=previous"],
    "filter": ["filter_groups=true"],
    "twice": ["num_iterations=2"],
    "twice-off-policy": ["num_iterations=2", "off_policy_mask_threshold=0.1"],
}
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Two-sided 95 % quantiles of Student's t by the number of differences (one degree of freedom less)."""


def run(folder: Path, name: str, seed: int, steps: int) -> dict[str, float]:
    """Figures of one run: accuracy half-way and at the end, mean length, tokens made, seconds a step."""
    overrides = [
        f"output.dir={folder / f'{name}-{seed}'}", f"seed={seed}", f"training.max_steps={steps}",
        "logging.examples_every=0", "splits.num_eval_examples=100", f"evaluation.every={steps // 2}",
        "evaluation.before=false", "evaluation.greedy=false", *(f"training.{each}" for each in OPTIONS[name]),
    ]  # fmt: skip
    config = load_train_config(CONFIG, overrides)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run_config(config)
    lines = [json.loads(line) for line in (folder / f"{name}-{seed}" / "metrics.jsonl").read_text().splitlines()]
    accuracy = {line["step"]: line["eval/accuracy"] for line in lines if "eval/accuracy" in line}
    made = [line for line in lines if "step_time" in line]
    return {
        "half": accuracy[steps // 2],
        "end": accuracy[steps],
        "length": [line["completions/mean_length"] for line in lines if "completions/mean_length" in line][-1],
        "tokens": [line["num_tokens"] for line in lines if "num_tokens" in line][-1],
        "step": statistics.median(line["step_time"] for line in made[1:]),
    }


def with_interval(differences: list[float]) -> str:
    n = len(differences)
    mean = statistics.fmean(differences)
    return f"{mean:+.3f} ± {STUDENT_95[n] * statistics.stdev(differences) / math.sqrt(n):.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, choices=sorted(STUDENT_95))
    parser.add_argument("--steps", type=int, default=8, help="an even number")
    parser.add_argument("--only", nargs="+", choices=[name for name in OPTIONS if name != PLAIN], default=[])
    options = parser.parse_args()
    names = [PLAIN, *(options.only or [name for name in OPTIONS if name != PLAIN])]
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        run(Path(scratch), PLAIN, 10**6, 2)  # what is loaded and compiled at first use counts for nobody
        for seed in range(options.seeds):
            for name in names:
                figures[name].append(run(Path(scratch), name, seed, options.steps))
                print(f"seed {seed}, {name}: {shown(figures[name][-1])}", flush=True)
    half, end = options.steps // 2, options.steps
    print(
        f"\n| option | accuracy after {half} steps | after {end} | length at the end | tokens made | seconds a step |"
    )
    print("|---|---|---|---|---|---|")
    plain = figures[PLAIN]
    means = {key: statistics.fmean(each[key] for each in plain) for key in plain[0]}
    print(f"| {PLAIN} | {means['half']:.3f} | {means['end']:.3f} | {means['length']:.0f} | {means['tokens']:.0f} | "
          f"{means['step']:.2f} |")  # fmt: skip
    for name in names[1:]:
        pairs = list(zip(figures[name], plain, strict=True))
        cells = [with_interval([one[key] - other[key] for one, other in pairs]) for key in ("half", "end")]
        ratios: dict[str, Any] = {
            key: statistics.fmean(one[key] / other[key] for one, other in pairs) for key in ("length", "tokens", "step")
        }
        cells += [f"{ratios[key]:.2f} times" for key in ("length", "tokens", "step")]
        print(f"| `{', '.join(OPTIONS[name])}` | {' | '.join(cells)} |")
    return 0


def shown(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in figures.items())


if __name__ == "__main__":
    sys.exit(main())
