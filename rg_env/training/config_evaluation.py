"""The section `evaluation` of a run's config, and the settings that it shares with `EvaluationPlan`."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, field_validator

from rg_env.core.config import Problem, Section
from rg_env.training.config_sections import Count, From0, Positive, TaskConfig, named


class EvaluationSettings(Section):
    """When the fixed evaluation is made, and how its questions are answered."""

    every: Count | None = None
    """Steps between evaluations; default: a fifth of the run; 0: before and after only."""
    before: bool = True
    """Evaluate before the first step."""
    after: bool = True
    """Evaluate after the last step."""
    rollouts_per_example: Positive = 1
    """Sampled answers to each question; above 1, pass@k is reported."""
    temperature: From0 | None = None
    """Of the sampled answers; default: that of training."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of the sampled answers; default: that of training."""
    max_tokens: Positive | None = None
    """New tokens at most; default: those of training."""
    greedy: bool = True
    """Answer each question once more, without sampling."""


class EvaluationConfig(EvaluationSettings):
    """The fixed evaluation: the same questions before training, while it goes on, and after."""

    tasks: dict[str, TaskConfig] = Field(default_factory=dict)
    """Held-out tasks, evaluated beside those that are trained on."""
    num_held_out_examples: Positive = 50
    """Distinct questions of a held-out task; of several with weights, on average."""

    _named = field_validator("tasks", mode="before")(named("{name: b, level: 1}", "name it once"))


def contradictions(settings: EvaluationSettings) -> Iterator[Problem]:
    """Settings that do not go together."""
    if settings.temperature != 0:  # training's, which is the default, is above 0
        return
    if settings.rollouts_per_example > 1:
        yield Problem(("rollouts_per_example",), "with temperature 0 all answers are the same: take 1, or sample")
    if settings.greedy:
        yield Problem(("greedy",), "with temperature 0 that is the answer already: turn it off")
