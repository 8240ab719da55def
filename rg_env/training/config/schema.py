"""What a training run is, as a typed config: the schema of the files in `configs/train/`.

The fields are documented under each; `docs/configuration.md` is made from that. `config_loading` reads such files.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from rg_env.core.config.parsing import PromptConfig, Rewards, Section, Seed, Text, default_rewards, named
from rg_env.training.config.grpo import GRPOConfig
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
