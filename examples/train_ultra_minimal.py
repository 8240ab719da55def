"""Train a language model with GRPO on Reasoning Gym tasks.

    python examples/train_ultra_minimal.py                         # without a GPU: the tiny policy, in about a minute
    python examples/train_ultra_minimal.py --tasks leg_counting chain_sum simple_equations
    python examples/train_ultra_minimal.py --task-option max_animals=20              # `rg-env tasks NAME` lists options
    python examples/train_ultra_minimal.py --model Qwen/Qwen2.5-1.5B-Instruct --max-steps 100       # one GPU, no server

`train_minimal.py` has more options, and also trains on several GPUs with vLLM. `rg-env train` does the same from a
config.
"""

from rg_env.commands import Names, OptionParser, option, positive, run_command


def main() -> int:
    parser = OptionParser(description=__doc__)
    parser.add_argument("--tasks", action=Names, nargs="+", default=["leg_counting"], help="see `rg-env tasks`")
    parser.add_argument("--task-option", action="append", default=[], type=option, metavar="NAME=VALUE")
    parser.add_argument("--model", help="folder, name on the Hub, or 'tiny' (default depends on the machine)")
    parser.add_argument("--max-steps", type=positive, help="optimizer steps (default depends on the model)")
    options = parser.parse_args()

    import rg_env
    from rg_env.training import GRPOTrainer, choose_folder, default_config, load_policy, run_name, train

    policy = load_policy(options.model)
    gym = [{"name": task, "config": dict(options.task_option)} for task in options.tasks]
    env = rg_env.ReasoningGym(gym=policy.mixture(gym))
    folder = choose_folder(None, run_name(options.tasks, policy.label))  # a new folder in outputs/
    config = default_config(policy, folder, max_steps=options.max_steps)
    trainer = GRPOTrainer(policy.model, env, config, policy.tokenizer)
    results = train(trainer, settings=vars(options))
    return 130 if results.get("interrupted") else 0


if __name__ == "__main__":
    run_command(main)
