"""From a config to what it says: tasks, rewards, the environment, the arguments of the trainer. Plain values; nothing
heavy is imported.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.config.schema import TrainConfig
from rg_env.training.config.sections import TaskConfig


def gym(tasks: Mapping[str, TaskConfig]) -> list[dict[str, Any]]:
    """Tasks in the form that `Mixture.parse` takes."""
    return [{"name": name, **task.model_dump()} for name, task in tasks.items()]


def reward_list(config: TrainConfig) -> list[dict[str, Any]]:
    """Rewards in the form that `resolve_rewards` takes."""
    return [{"name": name, **reward.model_dump()} for name, reward in config.rewards.items()]


def environment_arguments(config: TrainConfig) -> dict[str, Any]:
    """Arguments of `load_environment`, without `gym`."""
    splits, prompt = config.splits, config.prompt
    return {
        "num_train_examples": splits.num_train_examples,
        "num_eval_examples": splits.num_eval_examples,
        "seed": config.seed if splits.seed is None else splits.seed,
        "eval_seed": splits.eval_seed,
        "split_by": splits.by,
        "manifest": splits.manifest,
        "system_prompt": prompt.system_prompt,
        "prompt_placement": prompt.placement,
        "preamble": prompt.preamble,
        "rewards": reward_list(config),
        "grading": config.grading,
    }


def evaluated_besides(config: TrainConfig) -> list[tuple[str | None, dict[str, Any]]]:
    """What is evaluated beside the training tasks, an entry an environment: its label, and all its arguments of
    `load_environment`. The held-out tasks share one, without a label."""
    evaluation = config.evaluation
    parts: list[tuple[str | None, list[str]]] = [(None, evaluation.held_out)] if evaluation.held_out else []
    parts += [(label, [label]) for label in evaluation.labels]
    found = []
    for label, names in parts:
        specs = [evaluation.gym(name) for name in names]
        # By largest remainder each task of a mixture gets as many rows as its weight says, where all weights add up.
        rows = {"num_train_examples": 0, "num_eval_examples": sum(spec["weight"] for spec in specs), "manifest": None}
        found.append((label, {**environment_arguments(config), "gym": specs, **rows}))
    return found


def grpo_config(config: TrainConfig, folder: Path | None = None) -> GRPOConfig:
    """`config.training` with what other sections say: the seed, the output folder, when checkpoints are saved."""
    output = config.output
    return config.training.model_copy(
        update={
            "seed": config.seed,
            "output_dir": None if folder is None else str(folder),
            "save_steps": output.save_every,
            "save_total_limit": output.save_total_limit,
        }
    )
