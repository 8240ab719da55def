"""Train a language model with GRPO on Reasoning Gym tasks.

    python examples/train_ultra_minimal.py                         # without a GPU: the tiny policy, in about a minute
    python examples/train_ultra_minimal.py --tasks leg_counting chain_sum simple_equations
    python examples/train_ultra_minimal.py --model Qwen/Qwen2.5-1.5B-Instruct      # one GPU, no server

On a GPU node, with vLLM on one GPU and training on the others (--dry-run prints the commands for two terminals):

    rg-env launch examples/train_ultra_minimal.py --model Qwen/Qwen2.5-7B-Instruct --vllm-gpus 0 --gpus 1,2,3 \\
        -- --rollouts-per-step 120
"""

import argparse

from rg_env.commands import Names, positive, run_command, seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", action=Names, nargs="+", default=["leg_counting"], help="see `rg-env tasks`")
    parser.add_argument("--model", help="folder, name on the Hub, or 'tiny' (default depends on the machine)")
    parser.add_argument("--engine", choices=["embedded", "vllm"], default="embedded")
    parser.add_argument("--max-steps", type=positive, help="optimizer steps (default depends on the model)")
    parser.add_argument("--rollouts-per-step", type=positive, help="total number of rollouts per step (default: 128)")
    parser.add_argument("--output-dir", help="new output folder (default: created under outputs/)")
    parser.add_argument("--resume", metavar="auto|PATH", help="checkpoint to resume from; auto: newest in --output-dir")
    parser.add_argument("--seed", type=seed, default=0)
    parser.add_argument("--manifest", help="manifest.json of a run; train on exactly the rows of that run, or fail")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()

    from rg_env import ReasoningGym
    from rg_env.training import EngineConfig, GRPOTrainer, choose_folder, default_config, load_policy, run_name, train

    choose_folder(options.output_dir, "check", options.resume)  # reports an invalid folder before the model is loaded
    policy = load_policy(options.model)
    env = ReasoningGym(gym=policy.mixture(options.tasks), seed=options.seed, manifest=options.manifest)
    folder = choose_folder(options.output_dir, run_name(options.tasks, policy.label), options.resume)
    sizes = {"max_steps": options.max_steps, "rollouts_per_step": options.rollouts_per_step}
    args = default_config(policy, folder, seed=options.seed, **sizes)
    engine = EngineConfig(kind=options.engine, host=options.host, port=options.port)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, engine=engine)
    results = train(trainer, settings=vars(options), resume=options.resume)
    return 130 if results.get("interrupted") else 0


if __name__ == "__main__":
    run_command(main)
