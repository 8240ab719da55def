"""A task of your own: defined, registered by name, trained on.

    python examples/custom_task.py                    # any machine: the tiny policy, about a minute

By name it can be used everywhere, with options and levels, once this file is imported; in a run's config:

    imports: [custom_task.py]                         # relative to the config
    tasks: {dice_sum: {levels: {dice: 1}}}
"""

import argparse
from dataclasses import dataclass
from random import Random

from reasoning_gym.coaching import BaseCurriculum, ScalarAttributeDefinition
from reasoning_gym.factory import ProceduralDataset, register_dataset

import rg_env
from rg_env.commands import positive, run_command


@dataclass
class DiceConfig:
    dice: int = 3
    sides: int = 30
    seed: int | None = None  # these two are set by rg_env
    size: int = 500

    def validate(self):
        assert self.dice >= 2, "dice must be at least 2"


class DiceDataset(ProceduralDataset):
    def __init__(self, config):
        super().__init__(config=config, seed=config.seed, size=config.size)

    def __getitem__(self, index):
        rng = Random(self.seed + index)  # and nothing else: the same seeds give the same questions anywhere
        rolls = [rng.randint(1, self.config.sides) for _ in range(self.config.dice)]
        wording = "State the final answer to the following arithmetic problem: {} ="  # the tiny policy can read it
        return {"question": wording.format(" + ".join(map(str, rolls))), "answer": str(sum(rolls))}

    # Text of a model is data: never run it. Below 1.0 counts with `grading="partial"`, or as the reward "partial".
    def score_answer(self, answer, entry):
        try:
            miss = abs(int(answer) - int(entry["answer"]))
        except ValueError:
            return 0.0
        return 1.0 if miss == 0 else 0.1 if miss == 1 else 0.0


class DiceCurriculum(BaseCurriculum):
    def __init__(self):
        super().__init__("DiceCurriculum", DiceConfig)
        self._define_attributes(ScalarAttributeDefinition(name="dice", field_name="dice", levels=[2, 3, 4]))


register_dataset("dice_sum", DiceDataset, DiceConfig, DiceCurriculum)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder, name on the hub, or 'tiny' (default: by machine)")
    parser.add_argument("--max-steps", type=positive, help="optimizer steps (default: by model)")
    parser.add_argument("--output-dir", help="a new folder (default: a fresh one under outputs/)")
    options = parser.parse_args()

    from rg_env.training import GRPOTrainer, choose_folder, default_config, load_policy, train

    rg_env.import_user_code([__file__])  # the processes that draw and grade will import this file too
    policy = load_policy(options.model)
    env = rg_env.ReasoningGym(gym="dice_sum")
    args = default_config(policy, choose_folder(options.output_dir, "dice_sum"), max_steps=options.max_steps)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer)
    results = train(trainer, settings=vars(options))
    return 130 if results.get("interrupted") else 0


if __name__ == "__main__":  # not where it is imported
    run_command(main)
