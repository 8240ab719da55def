"""The section `evaluation` of a run's config, and the settings that it shares with `EvaluationPlan`."""

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, field_validator

from rg_env.core.config import Problem, Section
from rg_env.core.config_sections import Count, From0, Positive, TaskOptions, Text, named
from rg_env.core.task_table import load_table

_LABEL = re.compile(r"\w[\w.-]{0,79}")
_FIGURES = ("held_out", "status")
"""Names under `eval/` that are no task's."""


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


class EvaluationTask(TaskOptions):
    """One entry, under the name of its task or under a label."""

    task: Text | None = None
    """The task, where the entry's name is a label."""
    num_examples: Positive | None = None
    """Distinct questions; default: `num_held_out_examples`."""


class EvaluationConfig(EvaluationSettings):
    """The fixed evaluation: the same questions before training, while it goes on, and after."""

    tasks: dict[str, EvaluationTask] = Field(default_factory=dict)
    """What is asked beside the training tasks: held-out tasks, each under its name; and any task, such as a training
    task at another difficulty, under a label of your own, whose figures then are in no overall one."""
    num_held_out_examples: Positive = 50
    """Distinct questions of each of `tasks` that does not say how many."""

    _named = field_validator("tasks", mode="before")(
        named("{name: b, num_examples: 20}", "give the second one a label: {name: LABEL, task: NAME}")
    )

    @property
    def held_out(self) -> list[str]:
        """The entries of tasks under their own names."""
        return [name for name, entry in self.tasks.items() if entry.task in (None, name)]

    @property
    def labels(self) -> list[str]:
        """The entries under labels."""
        return [name for name in self.tasks if name not in self.held_out]

    def gym(self, name: str) -> dict[str, Any]:
        """An entry in the form that `Mixture.parse` takes; its weight is its number of questions."""
        entry = self.tasks[name]
        options = entry.model_dump(exclude={"task", "num_examples"})
        return {"name": entry.task or name, "weight": entry.num_examples or self.num_held_out_examples, **options}


def contradictions(settings: EvaluationSettings) -> Iterator[Problem]:
    """Settings that do not go together."""
    if settings.temperature != 0:  # training's, which is the default, is above 0
        return
    if settings.rollouts_per_example > 1:
        yield Problem(("rollouts_per_example",), "with temperature 0 all answers are the same: take 1, or sample")
    if settings.greedy:
        yield Problem(("greedy",), "with temperature 0 that is the answer already: turn it off")


def label_problem(label: str) -> str | None:
    """Why figures cannot stand under `label`; None: they can."""
    if not _LABEL.fullmatch(label):
        return "a label holds letters, digits, '_', '-' and '.', 80 at most"
    if label in _FIGURES:
        return f"is the name of a figure (eval/{label}): choose another label"
    if label in load_table():
        return "is the name of a task: choose another label"
    return None
