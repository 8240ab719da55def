"""Measure the effect of the curriculum in `configs/train/tiny_curriculum.yaml` over several seeds.

    .venv/bin/python benchmarks/curriculum.py                # three seeds, six runs, about six minutes on two cores

The runs with and without the curriculum train the tiny policy for the same number of steps and are evaluated on the
same questions, which have one to three animals. The script prints the mean difference in accuracy with its 95%
confidence interval (Student's t over seeds), whether or not the difference is significant.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rg_env.core.statistics import mean_interval

CONFIG = Path(__file__).parents[1] / "configs" / "train" / "tiny_curriculum.yaml"


def run(folder: Path, seed: int, steps: int, overrides: list[str]) -> list[dict[str, Any]]:
    """Train once and return the metrics, one dict per line of the run's metrics file."""
    command = [
        sys.executable, "-m", "rg_env.cli.main", "train", str(CONFIG), f"output.dir={folder}", f"seed={seed}",
        f"training.max_steps={steps}", "logging.examples_every=0", "splits.num_eval_examples=100",
        "evaluation.every=5", *overrides,
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=CONFIG.parents[2])
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def accuracy_at(lines: list[dict[str, Any]], step: int) -> float:
    return next(float(line["eval/accuracy"]) for line in lines if line["step"] == step and "eval/accuracy" in line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="at least 2")
    parser.add_argument("--steps", type=int, default=15, help="a multiple of 5")
    options = parser.parse_args()
    sides: dict[str, list[list[dict[str, Any]]]] = {"curriculum": [], "without": []}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(options.seeds):
            for side, overrides in (("curriculum", []), ("without", ["curriculum=null"])):
                lines = run(Path(scratch) / f"{side}-{seed}", seed, options.steps, overrides)
                sides[side].append(lines)
                levels = [
                    line["curriculum/leg_counting/level"] for line in lines if "curriculum/leg_counting/level" in line
                ]
                moved = f", level {levels[0]:.0f} -> {levels[-1]:.0f}" if levels else ""
                print(f"seed {seed}, {side}: accuracy {accuracy_at(lines, options.steps):.3f}{moved}", flush=True)
    for step in range(5, options.steps + 1, 5):
        means = {side: statistics.fmean(accuracy_at(lines, step) for lines in runs) for side, runs in sides.items()}
        pairs = zip(sides["curriculum"], sides["without"], strict=True)
        differences = [accuracy_at(one, step) - accuracy_at(other, step) for one, other in pairs]
        low, high = mean_interval([[each] for each in differences]) or (math.nan, math.nan)
        print(
            f"step {step}: curriculum {means['curriculum']:.3f}, without {means['without']:.3f}, difference "
            f"{statistics.fmean(differences):+.3f} ± {(high - low) / 2:.3f} (95%, {options.seeds} seeds)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
