"""Compare models on the same frozen questions, from Python.

    python examples/evaluate.py                                             # the tiny policy on its three tasks
    python examples/evaluate.py --models tiny outputs/RUN/checkpoint-25
    python examples/evaluate.py --models NAME@http://127.0.0.1:8000/v1 --tasks maze --max-tokens 2048

This script does the same as `rg-env eval`; see docs/reference/evaluation.md for options and files.
"""

from rg_env.commands import OptionParser, positive, run_command


def main() -> None:
    parser = OptionParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["tiny"], help="folders, names on the Hub, 'tiny' or NAME@URL")
    parser.add_argument("--tasks", nargs="+", default=["leg_counting", "chain_sum", "simple_equations"])
    parser.add_argument("--num-examples", type=positive, default=50, help="questions per task; default: 50")
    parser.add_argument("--max-tokens", type=positive, default=90, help="maximum new tokens per answer; default: 90")
    options = parser.parse_args()

    from rg_env.evaluation import evaluate

    sampling = {"max_tokens": options.max_tokens}
    results, folder = evaluate(options.models, options.tasks, num_examples=options.num_examples, sampling=sampling)
    for name, model in results.models.items():
        low, high = model.intervals["accuracy"]
        print(f"{name}: accuracy {model.accuracy:.3f} (95% interval {low:.3f} to {high:.3f}), averaged over tasks")
    for pair in results.comparisons:
        low, high = pair.interval
        print(f"{pair.a} - {pair.b}: {pair.difference:+.3f} ({low:+.3f} to {high:+.3f}), p = {pair.p_value:.4f}")
    print(f"files in {folder}")


if __name__ == "__main__":
    run_command(main)
