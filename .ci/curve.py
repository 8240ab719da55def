"""Print the learning curves of the runs in a folder; the exit code is 1 if there are no runs.

Usage: python .ci/curve.py FOLDER, where FOLDER contains copies of run folders (train_results.json, metrics.jsonl).
"""

import json
import sys
from pathlib import Path


def describe(run: Path) -> str:
    """Return a description of one run: accuracy before and after training, and the reward of every step."""
    results = json.loads((run / "train_results.json").read_text())
    before, after = results["eval_before"], results["eval_after"]
    lines = [f"{run.name}: {results['steps']} steps, {results['seconds']:.0f} s, n = {after['n']}"]
    lines += [f"  {name:<16} {before[name]:.3f} -> {after[name]:.3f}" for name in ("accuracy", "greedy_accuracy")]
    metrics = run / "metrics.jsonl"
    if metrics.exists():
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        lines.append("  reward by step   " + " ".join(f"{row['reward']:.2f}" for row in rows if "reward" in row))
    return "\n".join(lines)


def main(folder: Path) -> int:
    runs = sorted(path.parent for path in folder.rglob("train_results.json"))
    if not runs:
        print(f"no train_results.json under {folder}: did the end-to-end test run?", file=sys.stderr)
        return 1
    print("\n".join(describe(run) for run in runs))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
