"""Asking frozen problems of a model while it trains: the same rows, prompts, extraction and scoring each time.

    evaluation = FixedEvaluation(trainer, EvaluationPlan(rollouts_per_example=4)).run(step=0)

Every problem is answered so many times, sampled (`accuracy`, `reward`), and once greedily (`greedy_accuracy`). What is
asked, how and when is the plan's to say (`evaluation_plan`); what was found is an `Evaluation` (`scores`).
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from rg_env.adapters.reward_errors import record_reward_errors
from rg_env.core.manifest import split_hash
from rg_env.errors import InputError
from rg_env.training.checks import check_eval_env
from rg_env.training.evaluation_plan import Asked, EvaluationPlan
from rg_env.training.records import rollout_records, task_of
from rg_env.training.resume_point import dataset_hash
from rg_env.training.scores import Answers, Evaluation
from rg_env.training.trainer import GRPOTrainer

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
        self._asked = plan.asked(trainer.env)
        self._arguments: dict[str, Any] = {**trainer._get_sampling_args(), **plan.overrides()}
        for asked in self._asked:
            check_eval_env(
                asked.env,
                trainer.processing_class,
                engine=trainer.sampler.name,
                max_tokens=self._arguments["max_tokens"],
                max_context=trainer.sampler.max_context,
            )
        self.questions = [_described(asked) for asked in self._asked]
        """What is asked, an entry an environment; empty: nothing. See `Evaluation`."""
        trained, unseen = (
            {task for entry in self.questions if entry["part"] == part for task in entry["tasks"]}
            for part in ("training", "held_out")
        )
        if both := sorted(trained & unseen):
            raise InputError(
                f"{', '.join(both)}: a task is either trained on or held out: leave it out of held_out, or ask it "
                "under a label (labelled={LABEL: environment})"
            )

    def sampling(self) -> dict[str, Any]:
        """The settings, as results state them."""
        given = {**self._arguments, **self._arguments.get("extra_body", {})}
        settings = {name: given[name] for name in _SETTINGS if name in given}
        return {**settings, "rollouts_per_example": self.plan.rollouts_per_example, "greedy": self.plan.greedy}

    def check_same_questions(self, earlier: Sequence[list[dict[str, Any]]]) -> None:
        """Raise `InputError` unless earlier evaluations of the run that goes on asked what this one asks."""
        if self.questions and any(questions != self.questions for questions in earlier):
            raise InputError(
                "earlier evaluations of this run asked other questions than those given now: give the same tasks, "
                "labels, sizes and eval_seed, or go on in another output folder"
            )

    def run(self, step: int) -> Evaluation:
        """Evaluate with the weights that the engine has. On the main process only.

        Raises:
            RewardError: a reward raised or returned no finite number.
            TrainingError: the engine failed.
        """
        generator, plan = self.trainer.async_generator, self.plan
        errors = [record_reward_errors(asked.env.rubric) for asked in self._asked]

        async def job(client: Any) -> Any:
            try:
                return await ask(
                    self._asked,
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


async def ask(
    asked: Sequence[Asked], client: Any, model: str, sampling: dict[str, Any], *, times: int, greedy: bool
) -> list[Answers]:
    """Answer each problem of the environments' evaluation sets: `times` times with `sampling`, and once greedily.

    Returns:
        A list of records a problem.

    Raises:
        RewardError: a reward raised or returned no finite number.
    """

    def answers(env: Any, times: int, **changes: Any) -> Any:
        arguments = {**sampling, **changes}
        return env.a_generate(
            _repeated(env.eval_dataset, times), client=client, model=model, sampling_args=arguments, use_tqdm=False
        )

    # At the same time, so that the embedded engine generates all of it as one batch.
    jobs = [answers(each.env, times) for each in asked]
    jobs += [answers(each.env, 1, temperature=0.0) for each in asked] if greedy else []
    outputs = await asyncio.gather(*jobs)
    problems: list[Answers] = []
    for index, each in enumerate(asked):
        name = {} if each.label is None else {"task": each.label}
        records = [record | name for record in rollout_records(outputs[index])]
        best = rollout_records(outputs[len(asked) + index]) if greedy else []
        for first in range(0, len(records), times):
            of_problem = records[first : first + times]
            sampled = [{"problem": len(problems), "part": each.part, **record} for record in of_problem]
            if greedy:
                sampled[0] |= {f"greedy_{key}": best[first // times][key] for key in _GREEDY}
            problems.append(sampled)
    return problems


def _repeated(dataset: Any, times: int) -> dict[str, list[Any]]:
    """The columns of `dataset`, each row so many times in a row: one call of many rollouts costs less than many."""
    columns = {name: dataset[name] for name in dataset.column_names}
    return {
        name: [dict(value) if isinstance(value, dict) else value for value in column for _ in range(times)]
        for name, column in columns.items()
    }


_GREEDY = ("completion", "completion_tokens", "reward", "correct")
"""What is kept of a greedy answer's record."""


def _described(asked: Asked) -> dict[str, Any]:
    dataset, manifest = asked.env.eval_dataset, getattr(asked.env, "manifest", None)
    assert dataset is not None
    infos = dataset["info"] if "info" in dataset.column_names else [{}]
    return {
        "part": asked.part,
        "label": asked.label,
        "tasks": sorted({task_of(info) for info in infos}),
        "n": len(dataset),
        "manifest_sha256": None if manifest is None else split_hash(manifest, "eval"),
        "prompts_sha256": dataset_hash(dataset),
    }
