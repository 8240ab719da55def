"""Define a custom reward, register it by name and combine it with other rewards.

    python examples/custom_reward.py                  # without a GPU: the tiny policy, in about a minute

In a run's config:

    imports: [custom_reward.py]                       # relative to the config
    rewards: {correctness: 1.0, format: 0.1, shows_work: {weight: 0.2, options: {lines: 2}}}
"""

import rg_env
from rg_env.commands import OptionParser, positive, run_command


# Arguments are passed by name (rollout, prompt, completion, answer, task, info). Never execute a model's text.
@rg_env.reward
def shows_work(rollout, lines=2):
    """Return the number of nonblank lines before the answer as a fraction of `lines`, capped at 1.0."""
    work = rollout.text.partition("<answer>")[0]
    return min(1.0, sum(bool(line.strip()) for line in work.splitlines()) / lines)


def main() -> int:
    parser = OptionParser(description=__doc__)
    parser.add_argument("--model", help="folder, name on the Hub, or 'tiny' (default depends on the machine)")
    parser.add_argument("--max-steps", type=positive, help="optimizer steps (default depends on the model)")
    parser.add_argument("--output-dir", help="new output folder (default: created under outputs/)")
    options = parser.parse_args()

    from rg_env.training import GRPOTrainer, choose_folder, default_config, load_policy, train

    policy = load_policy(options.model)
    rewards = [("correctness", 1.0), ("format", 0.1), {"name": "shows_work", "weight": 0.2, "when": "correct"}]
    env = rg_env.ReasoningGym(gym=policy.mixture("leg_counting"), rewards=rewards)
    args = default_config(policy, choose_folder(options.output_dir, "custom_reward"), max_steps=options.max_steps)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer)
    results = train(trainer, settings=vars(options))
    return 130 if results.get("interrupted") else 0


if __name__ == "__main__":
    run_command(main)
