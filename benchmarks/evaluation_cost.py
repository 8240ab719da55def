"""Measure the time per rollout in the fixed evaluation and in generation for training, both in one run on the CPU.

    .venv/bin/python benchmarks/evaluation_cost.py

The run trains the tiny policy on `leg_counting` with the embedded engine and 16 prompts x 8 rollouts per step. Before
each step, the fixed evaluation samples the same number of rollouts with the same weights and sampling parameters, so
the answers have about the same mean length. Both times include scoring and are medians over steps, excluding the first
step (warm-up). Absolute times depend on the machine; only the ratio is meaningful.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

PROMPTS, ROLLOUTS = 16, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps must be at least 2, because the first step is warm-up and is not measured")

    from rg_env.commands import prepare_process

    prepare_process()  # must run before the libraries are imported, as in all rg_env programs

    from rg_env import ReasoningGym
    from rg_env.training import EvaluationPlan, GRPOTrainer, default_config, load_policy, train

    policy = load_policy("tiny")
    rows = PROMPTS * options.steps
    env = ReasoningGym(policy.mixture("leg_counting"), num_train_examples=rows, num_eval_examples=PROMPTS)
    with tempfile.TemporaryDirectory() as scratch:
        args = default_config(
            policy, Path(scratch) / "run", max_steps=options.steps, seed=options.seed, use_cpu=True,
            num_generations=ROLLOUTS, rollouts_per_step=PROMPTS * ROLLOUTS,
            per_device_train_batch_size=PROMPTS * ROLLOUTS // 2,
        )  # fmt: skip
        trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, engine="embedded")
        train(trainer, evaluation=EvaluationPlan(every=1, after=False, rollouts_per_example=ROLLOUTS, greedy=False))
    log = trainer.state.log_history
    evaluation = [(e["time/evaluation"], e["eval/mean_completion_tokens"]) for e in log if "time/evaluation" in e]
    training = [(e["time/generation"], e["completions/mean_length"]) for e in log if "time/generation" in e]
    assert len(evaluation) == len(training) == options.steps

    def cost(measured: list[tuple[Any, Any]]) -> tuple[float, float]:
        """Return the median times per rollout and per generated token, in microseconds."""
        rollouts = [1e6 * seconds / (PROMPTS * ROLLOUTS) for seconds, _ in measured[1:]]
        tokens = [each / length for each, (_, length) in zip(rollouts, measured[1:], strict=True)]
        return statistics.median(rollouts), statistics.median(tokens)

    ours, theirs = cost(evaluation), cost(training)
    print(f"fixed evaluation     {ours[0]:8.0f} us/rollout   {ours[1]:6.1f} us/token")
    print(f"training generation  {theirs[0]:8.0f} us/rollout   {theirs[1]:6.1f} us/token")
    print(f"ratio                {ours[0] / theirs[0]:8.2f}              {ours[1] / theirs[1]:6.2f}")


if __name__ == "__main__":
    main()
