"""Define a custom task, register it by name and train on it.

    python examples/custom_task.py                    # without a GPU: the tiny policy, in about a minute

Once this file has been imported, the task can be used by name like any other task, with options and levels.
In a run's config:

    imports: [custom_task.py]                         # relative to the config
    tasks: {dice_sum: {levels: {dice: 1}}}
"""

from dataclasses import dataclass
from random import Random

from reasoning_gym.coaching import BaseCurriculum, ScalarAttributeDefinition
from reasoning_gym.factory import ProceduralDataset, register_dataset

import rg_env
from rg_env.commands import OptionParser, positive, run_command


@dataclass
class DiceConfig:
    dice: int = 3
    sides: int = 30
    seed: int | None = None  # rg_env sets seed and size
    size: int = 500

    def validate(self):
        assert self.dice >= 2, "dice must be at least 2"


class DiceDataset(ProceduralDataset):
    def __init__(self, config):
        super().__init__(config=config, seed=config.seed, size=config.size)

    def __getitem__(self, index):
        rng = Random(self.seed + index)  # the only source of randomness: a seed always yields the same questions
        rolls = [rng.randint(1, self.config.sides) for _ in range(self.config.dice)]
        wording = "State the final answer to the following arithmetic problem: {} ="  # known to the tiny policy
        return {"question": wording.format(" + ".join(map(str, rolls))), "answer": str(sum(rolls))}

    # Never execute a model's text. By default, scores between 0 and 1 are used only by the reward "partial".
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
    parser = OptionParser(description=__doc__)
    parser.add_argument("--model", help="folder, name on the Hub, or 'tiny' (default depends on the machine)")
    parser.add_argument("--max-steps", type=positive, help="optimizer steps (default depends on the model)")
    parser.add_argument("--output-dir", help="new output folder (default: created under outputs/)")
    options = parser.parse_args()

    from rg_env.training import GRPOTrainer, choose_folder, default_config, load_policy, train

    rg_env.import_user_code([__file__])  # so that worker processes also import this file
    policy = load_policy(options.model)
    env = rg_env.ReasoningGym(gym="dice_sum")
    args = default_config(policy, choose_folder(options.output_dir, "dice_sum"), max_steps=options.max_steps)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer)
    results = train(trainer, settings=vars(options))
    return 130 if results.get("interrupted") else 0


if __name__ == "__main__":  # not when imported by a worker
    run_command(main)
