"""Train as a config says, from Python: what `rg-env train` does, with a hand on the values in between.

    python examples/train_from_config.py configs/train/tiny.yaml training.max_steps=10

Three learning rates, say, are a loop over `load_train_config(file, [f"training.learning_rate={rate}"])`.
"""

import sys

from rg_env.commands import run_command
from rg_env.training import load_train_config, run_config


def main() -> int:
    file, *overrides = sys.argv[1:] or ["configs/train/tiny.yaml"]
    config = load_train_config(file, overrides)  # frozen; mistakes are reported before heavy imports
    print(f"{config.model.name} on {', '.join(config.tasks)}: {config.training.max_steps} steps")
    results = run_config(config)  # what train_results.json holds
    before, after = results.get("eval_before"), results.get("eval_after")
    if before and after:  # on the main process, if there are both
        print(f"greedy accuracy {before['greedy_accuracy']} -> {after['greedy_accuracy']}")
    return 130 if results.get("interrupted") else int(bool(results.get("stopped_by")))


if __name__ == "__main__":
    run_command(main)
