"""What the fixed evaluation of a run asks, how and when.

    unseen = load_environment("chain_sum", num_train_examples=0, num_eval_examples=50)
    train(trainer, evaluation=EvaluationPlan(every=20, rollouts_per_example=4, held_out=[unseen]))

The plan's own environment holds the questions of the training tasks; those of `held_out` are of tasks that are not
trained on; those of `labelled` are whatever their labels say, such as a training task at another difficulty. Overall
figures (`eval/accuracy`) are over the training tasks alone, those over the held-out ones have names of their own
(`eval/held_out/accuracy`), and so have each task and each label (`eval/<task>/accuracy`, `eval/<label>/accuracy`).
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from rg_env.adapters import as_environment
from rg_env.core.config.parsing import Problem, problems_in
from rg_env.core.environment import Environment
from rg_env.core.text import shortened
from rg_env.errors import InputError
from rg_env.evaluation.questions import Questions
from rg_env.training.config.schema import EvaluationSettings, evaluation_steps, label_problem

AnyEnvironment = Annotated[Environment, BeforeValidator(as_environment)]
"""Whatever `GRPOTrainer` takes."""


class EvaluationPlan(EvaluationSettings):
    """The fixed evaluation of a run. Raises `InputError` for values that cannot work."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    env: AnyEnvironment | None = None
    """Environment of the evaluation rows of the training tasks; default: the trainer's."""
    held_out: Annotated[tuple[AnyEnvironment, ...], Field(strict=False)] = ()
    """Environments whose evaluation rows are also asked, of tasks that are not trained on."""
    labelled: dict[str, AnyEnvironment] = Field(default_factory=dict)
    """Environments whose evaluation rows are also asked: each reported under its label, in no overall figure."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems = list(problems_in(type(self), error, kind="setting"))
        else:
            found = ((label, label_problem(label)) for label in self.labelled)
            problems = [*self.contradictions(), *(Problem(("labelled", label), text) for label, text in found if text)]
        if problems:
            raise InputError("; ".join(_line(problem, values) for problem in problems))

    def due(self, step: int, max_steps: int) -> bool:
        """Whether there is an evaluation after `step` steps of `max_steps`, before the next one begins."""
        if step == 0:
            return self.before
        every = evaluation_steps(self.every, max_steps)
        return every > 0 and step % every == 0

    def asked(self, own: Environment) -> list[Questions]:
        """All that is asked. `own`: the trainer's environment."""
        env = own if self.env is None else self.env
        return [
            *([Questions(env, "training")] if self.env is not None or own.eval_rows else []),
            *(Questions(each, "held_out") for each in self.held_out),
            *(Questions(each, "labelled", label) for label, each in self.labelled.items()),
        ]

    def manifests(self, own: Environment) -> list[dict[str, Any]]:
        """Manifests of the environments other than `own`, the trainer's, with their labels."""
        return [
            {**({"label": asked.label} if asked.label else {}), **manifest}
            for asked in self.asked(own)
            if asked.env is not own and (manifest := getattr(asked.env, "manifest", None)) is not None
        ]

    def overrides(self) -> dict[str, Any]:
        """The sampling arguments that are not those of training."""
        given = {name: getattr(self, name) for name in ("temperature", "top_p", "max_tokens")}
        return {name: value for name, value in given.items() if value is not None}


def _line(problem: Problem, values: Mapping[str, Any]) -> str:
    name, value = ".".join(problem.path), values.get(problem.path[0])
    shown = f"={shortened(value)}" if isinstance(value, int | float | str) else ""  # not a whole environment
    return f"{name}{shown} of the evaluation: {problem.message}"
