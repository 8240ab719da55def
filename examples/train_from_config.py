"""Train from a config file, like `rg-env train`, but with access to the config and the results from Python.

    python examples/train_from_config.py configs/train/tiny.yaml training.max_steps=10

To try several learning rates, call `load_train_config(file, [f"training.learning_rate={rate}"])` for each rate.
"""

from rg_env.commands import OptionParser, run_command
from rg_env.training import load_train_config, run_config


def main() -> int:
    parser = OptionParser(description=__doc__)
    parser.add_argument("config", nargs="?", default="configs/train/tiny.yaml")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    options = parser.parse_args()
    config = load_train_config(options.config, options.overrides)  # immutable; one exception lists all errors
    print(f"learning rate {config.training.learning_rate:g}")
    results = run_config(config)  # the contents of train_results.json
    before, after = results.get("eval_before"), results.get("eval_after")
    if before and after:  # only in the main process, and only if both evaluations ran
        print(f"greedy accuracy {before['greedy_accuracy']} -> {after['greedy_accuracy']}")
    return 130 if results.get("interrupted") else int(bool(results.get("stopped_by")))


if __name__ == "__main__":
    run_command(main)
