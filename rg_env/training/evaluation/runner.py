"""The fixed evaluation of a training run: the same frozen questions of the trainer's model each time.

    results = FixedEvaluation(trainer, EvaluationPlan(rollouts_per_example=4)).run(step=0)
    results = evaluate_only(trainer, "outputs/AFTERWARDS")         # without training: a checkpoint, or any model

Every question is answered several times by sampling (`accuracy`, `reward`), and once greedily (`greedy_accuracy`), by
`evaluation.runner` with the trainer's engine. A model that was evaluated in training gives the same greedy answers
alone, and with the embedded engine and the seed of that run the same sampled ones.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rg_env.core.run_folder import RunFolder, checkpoint_step
from rg_env.errors import InputError, OutputFolderError
from rg_env.evaluation.models import LocalModel
from rg_env.evaluation.questions import Questions
from rg_env.evaluation.results import Results
from rg_env.evaluation.runner import TaskWork, ask_local
from rg_env.evaluation.scores import Tally
from rg_env.evaluation.summary import Source, results_of
from rg_env.evaluation.tables import print_results
from rg_env.inference.protocol import Sampling
from rg_env.training.evaluation.plan import EvaluationPlan
from rg_env.training.trainer import GRPOTrainer


class FixedEvaluation:
    """Asks a trainer's model the questions of a plan. All processes create one; the main process asks.

    Raises:
        InputError: an environment cannot be asked, or a task is trained on and held out.
    """

    def __init__(self, trainer: GRPOTrainer, plan: EvaluationPlan):
        self.trainer, self.plan = trainer, plan
        self._asked = plan.asked(trainer.env)
        self._sampling: Sampling = replace(trainer.sampling, **plan.overrides())
        engine = trainer.engine
        self._model = LocalModel(f"the {engine.name} engine", engine, trainer.sampler.encoder)
        for asked in self._asked:
            if not asked.rows:
                raise InputError(
                    "an environment to evaluate on has no evaluation rows: give it num_eval_examples above 0"
                )
            prompts = (row["prompt"] for row in asked.rows)
            self._model.check_fits("the evaluation", prompts, self._sampling.max_tokens)
        self.questions = [asked.described().model_dump() for asked in self._asked]
        """The environments, as `Results.environments`; empty: there is nothing to ask."""
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
        answers = {"rollouts_per_example": self.plan.rollouts_per_example, "greedy": self.plan.greedy}
        return {**vars(self._sampling), **answers}

    def check_same_questions(self, earlier: Sequence[list[dict[str, Any]]]) -> None:
        """Raise `InputError` unless earlier evaluations of a resumed run asked the same questions."""
        if self.questions and any(questions != self.questions for questions in earlier):
            raise InputError(
                "earlier evaluations of this run asked other questions than those given now: give the same tasks, "
                "labels, sizes and eval_seed, or resume in another output folder"
            )

    def run(self, step: int) -> Results:
        """Evaluate with the weights that the engine has. On the main process only.

        Raises:
            RewardError: a reward raised or returned no finite number.
            TrainingError: the engine failed.
        """
        with self.trainer.engine.aside():  # training continues alike with or without an evaluation
            return evaluated(
                self._model,
                self._asked,
                self._sampling,
                step=step,
                source=self.trainer.model_name,
                rollouts_per_example=self.plan.rollouts_per_example,
                greedy=self.plan.greedy,
                lock=self.trainer.sampler.scoring,
            )


def evaluated(
    model: LocalModel,
    questions: Sequence[Questions],
    sampling: Sampling,
    *,
    step: int,
    source: str,
    rollouts_per_example: int = 1,
    greedy: bool = True,
    lock: AbstractContextManager[Any] | None = None,
) -> Results:
    """The results of a model in training, after `step` steps.

    Raises:
        RewardError: a reward raised or returned no finite number.
    """
    name, records = f"step {step}", list[dict[str, Any]]()
    works = []
    for each in questions:
        tally = Tally(each.hashes, rollouts_per_example)
        works.append(TaskWork(name, each, sampling, tally, keep=records.append))
        if greedy:
            likeliest = replace(sampling, temperature=0.0)
            works.append(TaskWork(name, each, likeliest, Tally(each.hashes, 1), "greedy", keep=records.append))
    ask_local(model, works, lock)
    engine = "vllm" if "vllm" in model.name else "embedded"
    return results_of(works, {name: Source(source, "folder", engine)}, step=step, rollouts=records)


def evaluate_only(
    trainer: GRPOTrainer, folder: str | Path, plan: EvaluationPlan | None = None, *, step: int | None = None
) -> Results:
    """Evaluate the trainer's model, write `eval_results/eval_step_N.json` in `folder`, and print the scores.

    Args:
        trainer: with the model and the engine; a vLLM server gets the model's weights first.
        plan: what is asked and how; its schedule does not matter. Default: as `train`.
        step: N; default: that of the checkpoint folder that the model was loaded from, otherwise 0.

    Raises:
        InputError: the plan cannot work, there is nothing to ask, or several processes were launched.
        OutputFolderError: `folder` has that evaluation already, or cannot be written.
        RewardError: a reward raised or returned no finite number.
    """
    if trainer.accelerator.num_processes > 1:
        raise InputError("one process evaluates without training: start it without `accelerate launch`")
    evaluation = FixedEvaluation(trainer, plan or EvaluationPlan())
    if not evaluation.questions:
        raise InputError("nothing to evaluate: the environment has no evaluation rows, and no task is held out")
    step = step_of_model(trainer.model_name) if step is None else step
    file = RunFolder(Path(folder)).evaluation_file(step)
    if file.exists():
        raise OutputFolderError(f"{file} already exists: choose another output folder")
    run = RunFolder.create(folder)
    trainer.sync_weights()
    results = evaluation.run(step)
    run.write_evaluation(step, results.model_dump(mode="json"))
    print_results(results)
    print(f"Scores and rollouts in {file}", flush=True)
    return results


def step_of_model(name: str | Path) -> int:
    """The step that a model was saved after, by the name of its folder: N for checkpoint-N, 0 for any other."""
    return checkpoint_step(Path(name)) or 0


def metrics_of(results: Results) -> dict[str, float]:
    """The metrics that a run logs: `eval/accuracy`, `eval/<task>/accuracy`, `eval/held_out/accuracy`,
    `eval/<label>/accuracy`."""
    named = {f"eval/{name}": next(iter(task.models.values())).scores for name, task in results.tasks.items()}
    for prefix, overall in (("eval", results.overall()), ("eval/held_out", results.overall("held_out"))):
        if overall is not None:
            named[prefix] = overall
    return {f"{prefix}/{name}": value for prefix, scores in named.items() for name, value in scores.figures().items()}
