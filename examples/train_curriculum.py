"""Train with GRPO and a curriculum that raises the level once the model answers enough questions correctly.

    python examples/train_curriculum.py                    # without a GPU: the tiny policy on sums, in a minute or two
    python examples/train_curriculum.py --schedule 0:0 10:1 20:2         # fixed schedule: STEP:LEVEL pairs
    python examples/train_curriculum.py --task spell_backward --model Qwen/Qwen2.5-1.5B-Instruct --max-steps 200

`rg-env tasks NAME` lists a task's levels and the options that they set.
"""

import argparse

from rg_env.commands import OptionParser, positive, run_command, seed


def step_and_level(text: str) -> tuple[str, int]:
    step, _, level = text.partition(":")
    if not (step.isdecimal() and level.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not STEP:LEVEL, such as 100:1")
    return step, int(level)


def main() -> int:
    parser = OptionParser(description=__doc__)
    parser.add_argument("--task", default="chain_sum", help="Reasoning Gym task with levels (`rg-env tasks`)")
    parser.add_argument("--highest", type=positive, default=2, help="highest level")
    parser.add_argument("--schedule", nargs="+", type=step_and_level, metavar="STEP:LEVEL", help="fixed level schedule")
    parser.add_argument("--model", help="folder, name on the Hub, or 'tiny' (default depends on the machine)")
    parser.add_argument("--max-steps", type=positive, help="optimizer steps (default depends on the model)")
    parser.add_argument("--output-dir", help="new output folder (default: created under outputs/)")
    parser.add_argument("--resume", metavar="auto|PATH", help="checkpoint to resume from; auto: newest in --output-dir")
    parser.add_argument("--seed", type=seed, default=0)
    options = parser.parse_args()

    from rg_env import ReasoningGym
    from rg_env.training import (
        Curriculum,
        CurriculumConfig,
        GRPOTrainer,
        choose_folder,
        default_config,
        load_policy,
        run_name,
        train,
    )

    config = CurriculumConfig(
        tasks={options.task: {"highest": options.highest}},
        schedule=dict(options.schedule) if options.schedule else None,
        success_threshold=0.6,  # for the mean accuracy over the last `window` prompts at the current level
        failure_threshold=0.1,
        window=32,
    )
    choose_folder(options.output_dir, "check", options.resume)  # reports an invalid folder before the model is loaded
    policy = load_policy(options.model)
    env = ReasoningGym(gym=policy.mixture(options.task), seed=options.seed)
    # The user's options, passed as `gym`, override the level's options, which override the tiny policy's problem sizes.
    curriculum = Curriculum(config, env, options.seed, gym=options.task)
    folder = choose_folder(options.output_dir, f"curriculum-{run_name([options.task], policy.label)}", options.resume)
    args = default_config(policy, folder, max_steps=options.max_steps, seed=options.seed)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, curriculum=curriculum)
    results = train(trainer, settings=vars(options), resume=options.resume)
    return 130 if results.get("interrupted") else 0


if __name__ == "__main__":
    run_command(main)
