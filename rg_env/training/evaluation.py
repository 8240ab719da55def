"""A training run's fixed evaluation, which uses the same frozen questions each time.

    unseen = load_environment("chain_sum", num_train_examples=0, num_eval_examples=50)
    plan = EvaluationPlan(every=20, rollouts_per_example=4, held_out=[unseen])
    train(trainer, evaluation=plan)
    results = evaluate_only(trainer, "outputs/AFTERWARDS", plan)   # evaluates a model without training it

A plan's `env` contains questions from the training tasks. Environments in `held_out` contain tasks that are not used
for training. Environments in `labelled` can contain anything, such as a training task at another difficulty. The
overall metrics (such as `eval/accuracy`) cover only the training tasks. There are separate metrics for the held-out
tasks as a group (`eval/held_out/accuracy`), for each task (`eval/<task>/accuracy`) and for each label
(`eval/<label>/accuracy`).

For every question, `evaluation.runner` samples answers (for `accuracy` and `reward`) and, unless `greedy` is False,
generates a greedy answer (for `greedy_accuracy`), using the trainer's engine. For a checkpoint, `evaluate_only`
reproduces the greedy answers from the evaluation at that step of training. With the embedded engine and the training
run's seed, `evaluate_only` also reproduces the sampled answers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, field_validator

from rg_env.adapters import as_environment
from rg_env.core.environment import Environment
from rg_env.core.grading.scoring import task_of
from rg_env.core.run_folder import RunFolder, checkpoint_step, locked
from rg_env.errors import InputError, OutputFolderError
from rg_env.evaluation.labels import label_problem
from rg_env.evaluation.local_models import LocalModel
from rg_env.evaluation.questions import Questions, TaskAnswers
from rg_env.evaluation.results import Results
from rg_env.evaluation.runner import ask_local
from rg_env.evaluation.scores import ModelSource, results_of
from rg_env.evaluation.tables import print_results
from rg_env.training.config.schema import RESERVED_LABELS, EvaluationSettings, evaluation_steps
from rg_env.training.trainer import GRPOTrainer

AnyEnvironment = Annotated[Environment, BeforeValidator(as_environment)]
"""Any environment that `GRPOTrainer` accepts."""


class EvaluationPlan(EvaluationSettings):
    """Questions, sampling and schedule of the fixed evaluation. Raises `InputError` for invalid values."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    env: AnyEnvironment | None = None
    """Environment with the training tasks' evaluation rows. Default: the trainer's environment."""
    held_out: Annotated[tuple[AnyEnvironment, ...], Field(strict=False)] = ()
    """Environments with evaluation rows from held-out tasks."""
    labelled: dict[str, AnyEnvironment] = Field(default_factory=dict)
    """Environments by label. Results on an environment's evaluation rows are reported under its label and do not count
    toward the overall metrics."""

    @field_validator("labelled")
    @classmethod
    def _are_labels(cls, labelled: dict[str, Environment]) -> dict[str, Environment]:
        for label in labelled:
            if problem := label_problem(label, RESERVED_LABELS):
                raise ValueError(f"{label!r}: {problem}")
        return labelled

    def due(self, step: int, max_steps: int) -> bool:
        """Whether an evaluation is due between step `step` (of `max_steps`) and the next step."""
        if step == 0:
            return self.before
        every = evaluation_steps(self.every, max_steps)
        return every > 0 and step % every == 0

    def questions(self, own: Environment) -> list[Questions]:
        """Return all questions in the plan. `own` is the trainer's environment."""
        env = own if self.env is None else self.env
        return [
            *([Questions(env, "training")] if self.env is not None or own.eval_rows else []),
            *(Questions(each, "held_out") for each in self.held_out),
            *(Questions(each, "labelled", label) for label, each in self.labelled.items()),
        ]

    def manifests(self, own: Environment) -> list[dict[str, Any]]:
        """Return the manifests of all environments other than `own` (the trainer's environment), with their labels."""
        return [
            {**({"label": each.label} if each.label else {}), **each.env.manifest}
            for each in self.questions(own)
            if each.env is not own and each.env.manifest is not None
        ]


class FixedEvaluation:
    """Evaluates a trainer's model according to a plan. All processes create an instance, but only the main process
    evaluates.

    Raises:
        InputError: an environment has no evaluation rows, or a task is both trained on and held out.
    """

    def __init__(self, trainer: GRPOTrainer, plan: EvaluationPlan):
        self.trainer, self.plan = trainer, plan
        self._questions = plan.questions(trainer.env)
        changed = {name: getattr(plan, name) for name in ("temperature", "top_p", "max_tokens")}
        self._sampling = replace(trainer.sampling, **{name: v for name, v in changed.items() if v is not None})
        engine = trainer.engine
        self._model = LocalModel(f"the {engine.name} engine", engine, trainer.sampler.encoder)
        for each in self._questions:
            if not each.rows:
                raise InputError("an environment in the plan has no evaluation rows: set num_eval_examples above 0")
            for task in each.tasks:
                prompts = (row["prompt"] for row in each.rows if task_of(row["info"]) == task)
                self._model.check_fits(task, prompts, self._sampling.max_tokens)
        self.questions = [each.described().model_dump() for each in self._questions]
        """Descriptions of the environments, in the format of `Results.environments`. The list is empty if there is
        nothing to evaluate."""
        trained, unseen = (
            {task for entry in self.questions if entry["part"] == part for task in entry["tasks"]}
            for part in ("training", "held_out")
        )
        if both := sorted(trained & unseen):
            raise InputError(
                f"{', '.join(both)}: a task cannot be both trained on and held out, so remove it from held_out, or "
                "evaluate it under a label (`labelled={LABEL: environment}`)"
            )

    @property
    def answers(self) -> int:
        """Number of answers in one evaluation."""
        return sum(entry["n"] for entry in self.questions) * (self.plan.rollouts_per_example + self.plan.greedy)

    def sampling(self) -> dict[str, Any]:
        """Return the sampling settings, as recorded in results."""
        answers = {"rollouts_per_example": self.plan.rollouts_per_example, "greedy": self.plan.greedy}
        return {**vars(self._sampling), "stop": list(self._sampling.stop), **answers}

    def check_same_questions(self, earlier: Sequence[Results]) -> None:
        """Raise `InputError` unless a resumed run's earlier evaluations used the same questions."""
        if self.questions and any([q.model_dump() for q in each.environments] != self.questions for each in earlier):
            raise InputError(
                "earlier evaluations of this run used different questions: use the same tasks, labels, sizes and "
                "eval_seed, or another output folder"
            )

    def run(self, step: int, progress: Callable[[int, int], Any] | None = None) -> Results:
        """Evaluate with the engine's current weights. Call this method only on the main process. `progress` is called
        with the number of answers so far and the total number.

        Raises:
            RewardError: a reward raised an exception or did not return a finite number.
            TrainingError: the engine failed.
        """
        name, records, plan = f"step {step}", list[dict[str, Any]](), self.plan

        def keep(record: dict[str, Any]) -> None:
            records.append(record)
            if progress:
                progress(len(records), self.answers)

        with self.trainer.engine.aside():  # an evaluation must not affect training
            answer_sets = [
                TaskAnswers(name, of_task, self._sampling, plan.rollouts_per_example, plan.greedy)
                for each in self._questions
                for of_task in each.by_task()
            ]
            for each in answer_sets:
                each.on_record = keep
            ask_local(self._model, answer_sets, self.trainer.sampler.scoring)
        source = ModelSource(self.trainer.model_name, "folder", self.trainer.engine.name)
        return results_of(answer_sets, {name: source}, step=step, rollouts=records)


def evaluate_only(
    trainer: GRPOTrainer, folder: str | Path, plan: EvaluationPlan | None = None, *, step: int | None = None
) -> Results:
    """Evaluate the trainer's model, write `eval_results/eval_step_N.json` in `folder`, and print the scores.

    Args:
        trainer: trainer with the model and the engine. With a vLLM server, the model's weights are first sent to the
            server.
        plan: questions and sampling. The schedule is ignored. Default: the plan that `train` uses by default.
        step: the number N in the file name. Default: the step of the checkpoint that the model was loaded from, or 0.

    Raises:
        InputError: the plan is invalid, there is nothing to evaluate, or several processes were launched.
        OutputFolderError: `folder` already contains this evaluation, or is not writable.
        RewardError: a reward raised an exception or did not return a finite number.
    """
    if trainer.accelerator.num_processes > 1:
        raise InputError(
            "evaluation without training runs in one process: start the evaluation without `accelerate launch`"
        )
    evaluation = FixedEvaluation(trainer, plan or EvaluationPlan())
    if not evaluation.questions:
        raise InputError(
            "there is nothing to evaluate because the environment has no evaluation rows and no task is held out"
        )
    step = checkpoint_step(Path(trainer.model_name)) or 0 if step is None else step
    file = RunFolder(Path(folder)).evaluation_file(step)
    if file.exists():
        raise OutputFolderError(f"{file} already exists: choose another output folder")
    run = RunFolder.create(folder)
    with locked(run.path):
        trainer.sync_weights()
        results = evaluation.run(step)
        run.write_evaluation(step, results.model_dump(mode="json"))
    print_results(results)
    print(f"Scores and rollouts written to {file}", flush=True)
    return results


def metrics_of(results: Results) -> dict[str, float]:
    """Return the metrics that a run logs for an evaluation, such as `eval/accuracy`, `eval/<task>/accuracy`,
    `eval/held_out/accuracy` and `eval/<label>/accuracy`."""
    named = {f"eval/{name}": task.scores for name, task in results.tasks.items()}
    for prefix, overall in (("eval", results.overall()), ("eval/held_out", results.overall("held_out"))):
        if overall is not None:
            named[prefix] = overall
    return {f"{prefix}/{name}": value for prefix, scores in named.items() for name, value in scores.figures().items()}
