"""The whole training config (the files in `configs/train/`), and the views of it that other layers use.

    config = load_train_config("configs/train/tiny.yaml")    # see `load`
    env = ReasoningGym(**config.environment_arguments())

Imports neither torch nor reasoning_gym.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from rg_env.core.config.files import without_nulls
from rg_env.core.config.parsing import PromptConfig, Rewards, Section, Seed, Text, default_rewards, named
from rg_env.core.data.user_rows import DataConfig
from rg_env.core.tasks.mixture import Mixture
from rg_env.tiny import TINY, tiny_mixture
from rg_env.training.config.grpo import OWNED_ELSEWHERE, GRPOConfig
from rg_env.training.config.other_names import OTHER_SECTIONS, RUN_KEYS
from rg_env.training.config.sections import (
    CurriculumConfig,
    EngineConfig,
    EvaluationConfig,
    HubConfig,
    LoggingConfig,
    LoraConfig,
    ModelConfig,
    MonitorsConfig,
    OutputConfig,
    SplitsConfig,
    TaskConfig,
)


class TrainConfig(Section):
    """A training run's config."""

    renamed: ClassVar = RUN_KEYS
    other_sections: ClassVar = OTHER_SECTIONS
    mistaken: ClassVar = {
        "reasoning_gym": "this is a config for Reasoning Gym's own trainer: see configs/train/paper for the "
        "paper's runs",
        "distributed_type": "this is an accelerate config: pass it to `accelerate launch --config-file`, or to "
        "`rg-env launch --accelerate-config`",
        "models": "this is an evaluation config: use rg-env eval",
        "script": "this file records a script's run and is not a config: run the script again with its options",
    }

    imports: list[Text] = Field(default_factory=list)
    """Modules or .py files that register your own tasks or rewards. Paths are relative to the config file that lists
    them."""
    seed: Seed = 0
    """Seed for the training questions, their order, sampling and newly initialized weights."""
    grading: Literal["hardened", "partial", "upstream"] = "hardened"
    """Grading of answers. "hardened" scores an answer as right or wrong. "partial" also gives credit for real progress.
    "upstream" uses Reasoning Gym's own formulas, for comparison with published numbers."""
    model: ModelConfig
    tasks: dict[str, TaskConfig] = Field(default_factory=dict)
    """Tasks to train on. Required unless `data` is given."""
    data: DataConfig | None = None
    """Your own questions and answers, used instead of `tasks`. `splits.num_eval_examples` of the rows, selected with
    `splits.eval_seed`, are held out for evaluation; the rest are trained on."""
    splits: SplitsConfig = SplitsConfig()
    prompt: PromptConfig = PromptConfig()
    rewards: Rewards = Field(default_factory=default_rewards)
    """Reward functions, by name. A rollout's reward is their weighted sum."""
    engine: EngineConfig = EngineConfig()
    training: GRPOConfig = GRPOConfig()
    lora: LoraConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    curriculum: CurriculumConfig | None = None
    monitors: MonitorsConfig = MonitorsConfig()
    logging: LoggingConfig = LoggingConfig()
    output: OutputConfig = OutputConfig()
    hub: HubConfig = HubConfig()

    _named = field_validator("tasks", mode="before")(
        named("{name: b, weight: 2}", "name it once, with the sum of weights")
    )

    @property
    def gym(self) -> list[dict[str, Any]]:
        """The tasks in the form that `Mixture.parse` accepts."""
        return [{"name": name, **task.model_dump()} for name, task in self.tasks.items()]

    @property
    def reward_specs(self) -> list[dict[str, Any]]:
        """The rewards in the form that `resolve_rewards` accepts."""
        return [{"name": name, **reward.model_dump()} for name, reward in self.rewards.items()]

    @property
    def trained_on(self) -> list[str]:
        """Names of the training tasks, or of the data file, to use in the run's name."""
        return [self.data.name] if self.data else list(self.tasks)

    def prompt_arguments(self) -> dict[str, Any]:
        """Keyword arguments for any `Environment`: the prompt and the rewards."""
        prompt = self.prompt
        return {
            "system_prompt": prompt.system_prompt,
            "prompt_placement": prompt.placement,
            "preamble": prompt.preamble,
            "rewards": self.reward_specs,
        }

    def environment_arguments(self, gym: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """Keyword arguments for `ReasoningGym`, with `gym` as its tasks. Default: the training tasks."""
        splits, gym = self.splits, self.gym if gym is None else gym
        return {
            "gym": tiny_mixture(gym) if self.model.name == TINY else Mixture.parse(gym),
            "num_train_examples": splits.num_train_examples,
            "num_eval_examples": splits.num_eval_examples,
            "seed": self.seed if splits.seed is None else splits.seed,
            "eval_seed": splits.eval_seed,
            "split_by": splits.by,
            "manifest": splits.manifest,
            **self.prompt_arguments(),
            "grading": self.grading,
        }

    def evaluation_environments(self) -> list[tuple[str | None, dict[str, Any]]]:
        """Environments to evaluate in addition to the training tasks, each as a label and keyword arguments for
        `ReasoningGym`. The held-out tasks share one environment, with None as the label."""
        evaluation = self.evaluation
        parts: list[tuple[str | None, list[str]]] = [(None, evaluation.held_out)] if evaluation.held_out else []
        parts += [(label, [label]) for label in evaluation.labels]
        environments = []
        for label, names in parts:
            gym = [evaluation.gym(name) for name in names]
            # The weights add up to the number of rows, so that each task gets exactly as many rows as its weight.
            rows = {"num_train_examples": 0, "num_eval_examples": sum(spec["weight"] for spec in gym), "manifest": None}
            environments.append((label, {**self.environment_arguments(gym), **rows}))
        return environments

    def grpo_config(self, folder: Path | None = None) -> GRPOConfig:
        """The `training` section, completed with the seed, the output folder and the save interval from other
        sections."""
        return self.training.model_copy(
            update={
                "seed": self.seed,
                "output_dir": None if folder is None else str(folder),
                "save_steps": self.output.save_every,
                "save_total_limit": self.output.save_total_limit,
            }
        )

    def resolved(self) -> dict[str, Any]:
        """The whole config, including defaults, as plain values. `load_train_config` turns them back into an equal
        config."""
        values: dict[str, Any] = without_nulls(self.model_dump(mode="json", exclude={"training": set(OWNED_ELSEWHERE)}))
        return values

    def in_updates(self, own_rows: int | None = None) -> "TrainConfig":
        """The same config with all step counts given in rollouts (`training.rollouts_as_steps`) converted to updates,
        rounded up, and with `training.num_train_epochs` converted to steps.

        Args:
            own_rows: number of training rows in `data`. Without it, epochs over `data` are not converted.
        """
        rows = own_rows if self.data else self.splits.num_train_examples
        training = self.training if rows is None else self.training.for_rows(rows)
        has_epochs = training is not self.training
        if not training.rollouts_as_steps:
            return self.model_copy(update={"training": training}) if has_epochs else self

        def updates(rollouts: int | None) -> int | None:
            return None if rollouts is None else -(-rollouts * training.num_iterations // training.rollouts_per_step)

        def counted(section: Any, *names: str) -> Any:
            return section and section.model_copy(update={name: updates(getattr(section, name)) for name in names})

        curriculum = counted(self.curriculum, "check_every")
        if curriculum is not None and curriculum.schedule is not None:
            # Sorted so that, if several entries fall on the same update, the latest one wins.
            starts = sorted((int(start), level) for start, level in curriculum.schedule.items())
            schedule = {str(updates(start)): level for start, level in starts}
            curriculum = curriculum.model_copy(update={"schedule": schedule})
        training = counted(training, "warmup_steps", *([] if has_epochs else ["max_steps"]))
        changes = {
            "training": training.model_copy(update={"rollouts_as_steps": False}),
            "output": counted(self.output, "save_every"),
            "hub": counted(self.hub, "every"),
            "logging": counted(self.logging, "examples_every"),
            "evaluation": counted(self.evaluation, "every"),
            "curriculum": curriculum,
        }
        return self.model_copy(update=changes)
