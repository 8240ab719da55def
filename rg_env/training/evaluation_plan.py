"""What the fixed evaluation asks, how and when: `EvaluationPlan`; and asking it: `FixedEvaluation`.

    unseen = load_environment("chain_sum", num_train_examples=0, num_eval_examples=50)
    train(trainer, evaluation=EvaluationPlan(every=20, rollouts_per_example=4, held_out=[unseen]))

The plan's own environment holds the questions of the training tasks; those of `held_out` are of tasks that are not
trained on. All are asked at the same time. Overall figures (`eval/accuracy`) are over the training tasks alone, those
over the held-out ones stand beside them (`eval/held_out/accuracy`), and each task has its own (`eval/<task>/accuracy`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verifiers import Environment

from rg_env.adapters.reward_errors import record_reward_errors
from rg_env.core.manifest import split_hash
from rg_env.errors import InputError
from rg_env.training.checks import check_eval_env
from rg_env.training.fixed_eval import ask, task_of
from rg_env.training.plan import evaluation_steps
from rg_env.training.resume_point import dataset_hash
from rg_env.training.scores import Evaluation
from rg_env.training.trainer import GRPOTrainer


@dataclass(frozen=True)
class EvaluationPlan:
    """The fixed evaluation of a run. Raises `InputError` for values that cannot work."""

    env: Environment | None = None
    """Whose evaluation rows are asked, of the training tasks; default: the trainer's."""
    held_out: Sequence[Environment] = ()
    """Whose evaluation rows are asked besides, of tasks that are not trained on."""
    every: int | None = None
    """Steps between evaluations; default: a fifth of the run; 0: before and after only."""
    before: bool = True
    """Evaluate before the first step."""
    after: bool = True
    """Evaluate after the last step."""
    rollouts_per_example: int = 1
    """Sampled answers to each question; above 1, pass@k is reported."""
    temperature: float | None = None
    """Of the sampled answers; default: that of training."""
    top_p: float | None = None
    """Of the sampled answers; default: that of training."""
    max_tokens: int | None = None
    """New tokens at most; default: those of training."""
    greedy: bool = True
    """Answer each question once more, without sampling."""

    def __post_init__(self) -> None:
        for name, least in (("every", 0), ("rollouts_per_example", 1), ("max_tokens", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise InputError(f"{name}={value} of the evaluation: must be at least {least}")
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature={self.temperature} of the evaluation: must be at least 0, and finite")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p={self.top_p} of the evaluation: must be above 0, and at most 1")
        if self.temperature == 0 and self.rollouts_per_example > 1:
            raise InputError(
                f"rollouts_per_example={self.rollouts_per_example} of the evaluation: with temperature 0 all answers "
                "are the same: take 1, or sample"
            )
        if self.temperature == 0 and self.greedy:
            raise InputError(
                "greedy=True of the evaluation: with temperature 0 that is the answer already: set it to False"
            )

    def due(self, step: int, max_steps: int) -> bool:
        """Whether there is an evaluation after `step` steps of `max_steps`, before the next one begins."""
        if step == 0:
            return self.before
        every = evaluation_steps(self.every, max_steps)
        return every > 0 and step % every == 0

    def overrides(self) -> dict[str, Any]:
        """The sampling arguments that are not those of training."""
        given = {name: getattr(self, name) for name in ("temperature", "top_p", "max_tokens")}
        return {name: value for name, value in given.items() if value is not None}


_SETTINGS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


class FixedEvaluation:
    """Asks a trainer's model what a plan says. All processes make one; the main process asks.

    Raises:
        InputError: an environment cannot be asked, or a task is trained on and held out.
    """

    def __init__(self, trainer: GRPOTrainer, plan: EvaluationPlan):
        self.trainer, self.plan = trainer, plan
        env = trainer.env if plan.env is None else plan.env
        self._envs: list[tuple[Environment, bool]] = [(each, True) for each in plan.held_out]
        if plan.env is not None or env.eval_dataset is not None:
            self._envs.insert(0, (env, False))
        self._arguments: dict[str, Any] = {**trainer._get_sampling_args(), **plan.overrides()}
        for each, _ in self._envs:
            check_eval_env(
                each,
                trainer.processing_class,
                engine=trainer.sampler.name,
                max_tokens=self._arguments["max_tokens"],
                max_context=trainer.sampler.max_context,
            )
        self.questions = [_described(each, held_out) for each, held_out in self._envs]
        """What is asked, an entry an environment; empty: nothing. See `Evaluation`."""
        seen = {task for entry in self.questions if not entry["held_out"] for task in entry["tasks"]}
        both = sorted(seen & {task for entry in self.questions if entry["held_out"] for task in entry["tasks"]})
        if both:
            raise InputError(f"{', '.join(both)}: a task is either trained on or held out: leave it out of held_out")

    def sampling(self) -> dict[str, Any]:
        """The settings, as results state them."""
        given = {**self._arguments, **self._arguments.get("extra_body", {})}
        settings = {name: given[name] for name in _SETTINGS if name in given}
        return {**settings, "rollouts_per_example": self.plan.rollouts_per_example, "greedy": self.plan.greedy}

    def manifests(self) -> list[dict[str, Any]]:
        """Those of the environments that are not the trainer's, as far as they have one."""
        others = [getattr(env, "manifest", None) for env, _ in self._envs if env is not self.trainer.env]
        return [manifest for manifest in others if manifest is not None]

    def check_same_questions(self, earlier: Sequence[list[dict[str, Any]]]) -> None:
        """Raise `InputError` unless earlier evaluations of the run that goes on asked what this one asks."""
        if self.questions and any(questions != self.questions for questions in earlier):
            raise InputError(
                "earlier evaluations of this run asked other questions than those given now: give the same tasks, "
                "sizes and eval_seed, or go on in another output folder"
            )

    def run(self, step: int) -> Evaluation:
        """Evaluate with the weights that the engine has. On the main process only.

        Raises:
            RewardError: a reward raised or returned no finite number.
            TrainingError: the engine failed.
        """
        generator, plan = self.trainer.async_generator, self.plan
        errors = [record_reward_errors(env.rubric) for env, _ in self._envs]

        async def job(client: Any) -> Any:
            try:
                return await ask(
                    self._envs,
                    client,
                    generator.model_name,
                    self._arguments,
                    times=plan.rollouts_per_example,
                    greedy=plan.greedy,
                )
            finally:
                found = [error for record in errors if (error := record.forget())]
                if found:
                    raise found[0]

        with self.trainer.sampler.aside():  # with or without an evaluation, training goes on alike
            problems = generator.run_job(job)
        return Evaluation.of(step, problems, sampling=self.sampling(), questions=self.questions)


def _described(env: Environment, held_out: bool) -> dict[str, Any]:
    dataset, manifest = env.eval_dataset, getattr(env, "manifest", None)
    assert dataset is not None
    infos = dataset["info"] if "info" in dataset.column_names else [{}]
    return {
        "tasks": sorted({task_of(info) for info in infos}),
        "held_out": held_out,
        "n": len(dataset),
        "manifest_sha256": None if manifest is None else split_hash(manifest, "eval"),
        "prompts_sha256": dataset_hash(dataset),
    }
