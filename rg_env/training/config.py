"""What a training run is, as a typed config: the schema of the files in `configs/train/`.

    config = load_train_config("configs/train/tiny.yaml", ["training.learning_rate=2e-6"])

Everything that can be known without the model is checked here, and neither torch nor reasoning_gym is imported for it.
What the fields mean stands under each; `docs/configuration.md` is made from that.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from rg_env.core.config import Problem, Section, config_error, parse_config, read_config
from rg_env.core.config_files import Document
from rg_env.core.config_sections import PromptConfig, Rewards, Seed, Text, default_rewards, named
from rg_env.core.imports import import_user_code
from rg_env.core.world import world_size
from rg_env.errors import InputError
from rg_env.training.config_evaluation import EvaluationConfig
from rg_env.training.config_monitors import MonitorsConfig
from rg_env.training.config_sections import (
    CurriculumConfig,
    EngineConfig,
    HubConfig,
    LoggingConfig,
    LoraConfig,
    ModelConfig,
    OutputConfig,
    SplitsConfig,
    TaskConfig,
)
from rg_env.training.grpo_config import GRPOConfig


class TrainConfig(Section):
    """A training run."""

    imports: list[Text] = Field(default_factory=list)
    """Modules, or .py files (relative to the config that names them), that register tasks or rewards of your own."""
    seed: Seed = 0
    """Of everything that is random: questions, their order, sampling, new weights."""
    grading: Literal["hardened", "partial", "upstream"] = "hardened"
    """"hardened": right or not; "partial": real progress counts; "upstream": the library's own formulas, for comparison
    with published numbers."""
    model: ModelConfig
    tasks: Annotated[dict[str, TaskConfig], Field(min_length=1)]
    """What is trained on."""
    splits: SplitsConfig = SplitsConfig()
    prompt: PromptConfig = PromptConfig()
    rewards: Rewards = Field(default_factory=default_rewards)
    """What a rollout is paid for."""
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


def load_train_config(file: str | Path, overrides: Sequence[str] = (), *, processes: int | None = None) -> TrainConfig:
    """Read, resolve and check the config of a run, which `processes` train together (default: as many as this is one
    of).

    Raises:
        InputError: a file cannot be read; `processes` is not given, and what a launcher sets is no number.
        ConfigError: wrong keys, types, ranges, names or combinations: all that there are; or what `imports` names
            cannot be imported.
    """
    return checked_config(read_config(file, overrides), processes=processes)


def checked_config(document: Document, *, processes: int | None = None) -> TrainConfig:
    """The config that `document` holds. Raises as `load_train_config`."""
    from rg_env.training.config_checks import problems

    config = parse_config(document, TrainConfig)
    try:
        import_user_code(config.imports)
    except InputError as error:
        raise config_error(document, [Problem(("imports",), str(error))]) from error
    if found := problems(config, processes or world_size()):
        raise config_error(document, found)
    return config
