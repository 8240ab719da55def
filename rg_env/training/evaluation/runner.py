"""Asking frozen problems of a model while it trains: the same rows, prompts, extraction and scoring each time.

    evaluation = FixedEvaluation(trainer, EvaluationPlan(rollouts_per_example=4)).run(step=0)

Every problem is answered so many times, sampled (`accuracy`, `reward`), and once greedily (`greedy_accuracy`). What is
asked, how and when is the plan's to say (`evaluation_plan`); what was found is an `Evaluation` (`scores`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rg_env.core.data.manifest import split_hash
from rg_env.core.grading.rollout import UNNAMED_TASK
from rg_env.errors import InputError
from rg_env.inference.protocol import Sampling
from rg_env.training.checkpointing.save import hash_of_rows
from rg_env.training.checks import check_eval_env
from rg_env.training.data.batches import repeated
from rg_env.training.evaluation.plan import Asked, EvaluationPlan
from rg_env.training.evaluation.scores import Answers, Evaluation
from rg_env.training.rollouts import RolloutSampler
from rg_env.training.trainer import GRPOTrainer


class FixedEvaluation:
    """Asks a trainer's model what a plan says. All processes make one; the main process asks.

    Raises:
        InputError: an environment cannot be asked, or a task is trained on and held out.
    """

    def __init__(self, trainer: GRPOTrainer, plan: EvaluationPlan):
        self.trainer, self.plan = trainer, plan
        self._asked = plan.asked(trainer.env)
        self._sampling: Sampling = replace(trainer.sampling, **plan.overrides())
        for asked in self._asked:
            check_eval_env(
                asked.env,
                trainer.sampler.encoder,
                engine=trainer.engine.name,
                max_tokens=self._sampling.max_tokens or 1,
                max_context=trainer.engine.max_context,
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
        return {
            **vars(self._sampling),
            "rollouts_per_example": self.plan.rollouts_per_example,
            "greedy": self.plan.greedy,
        }

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
        with self.trainer.engine.aside():  # with or without an evaluation, training continues alike
            problems = ask(
                self.trainer.sampler,
                self._asked,
                self._sampling,
                times=self.plan.rollouts_per_example,
                greedy=self.plan.greedy,
            )
        return Evaluation.of(step, problems, sampling=self.sampling(), questions=self.questions)


def ask(
    sampler: RolloutSampler, asked: Sequence[Asked], sampling: Sampling, *, times: int, greedy: bool
) -> list[Answers]:
    """Answer each problem of the environments' evaluation rows: `times` times with `sampling`, and once greedily.

    Returns:
        A list of records for each problem.

    Raises:
        RewardError: a reward raised or returned no finite number.
    """
    problems: list[Answers] = []
    for each in asked:
        rows = each.env.eval_rows
        name = {} if each.label is None else {"task": each.label}
        records = [r | name for r in sampler.sample(repeated(rows, times), sampling, each.env).records()]
        best = sampler.sample(rows, replace(sampling, temperature=0.0), each.env).records() if greedy else []
        for number in range(len(rows)):
            of_problem = records[number * times : (number + 1) * times]
            sampled = [{"problem": len(problems), "part": each.part, **record} for record in of_problem]
            if greedy:
                sampled[0] |= {f"greedy_{key}": best[number][key] for key in _GREEDY}
            problems.append(sampled)
    return problems


_GREEDY = ("completion", "completion_tokens", "reward", "correct")
"""What is kept of a greedy answer's record."""


def _described(asked: Asked) -> dict[str, Any]:
    rows, manifest = asked.env.eval_rows, asked.env.manifest
    return {
        "part": asked.part,
        "label": asked.label,
        "tasks": sorted({str(row["info"].get("rg_task", UNNAMED_TASK)) for row in rows}),
        "n": len(rows),
        "manifest_sha256": None if manifest is None else split_hash(manifest, "eval"),
        "prompts_sha256": hash_of_rows(rows),
    }
