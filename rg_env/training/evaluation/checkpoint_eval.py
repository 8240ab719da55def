"""Evaluate a model without training it: a checkpoint of a run, or any other.

    policy = load_policy("outputs/RUN/checkpoint-25")
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, engine="embedded")
    evaluation = evaluate_only(trainer, "outputs/AFTERWARDS")

The trainer brings what generates; an optimizer gets no state. A model that was evaluated in training gives the
same greedy answers here, and with the embedded engine and the seed of that run the same sampled ones.
"""

from pathlib import Path

from rg_env.core.run_folder import RunFolder, checkpoint_step
from rg_env.errors import InputError, OutputFolderError
from rg_env.training.evaluation.plan import EvaluationPlan
from rg_env.training.evaluation.runner import FixedEvaluation
from rg_env.training.evaluation.scores import Evaluation
from rg_env.training.reporting.summary import print_evaluation
from rg_env.training.trainer import GRPOTrainer


def evaluate_only(
    trainer: GRPOTrainer, folder: str | Path, plan: EvaluationPlan | None = None, *, step: int | None = None
) -> Evaluation:
    """Evaluate the trainer's model, write `eval_results/eval_step_N.json` in `folder`, and print the scores.

    Args:
        trainer: with the model and the engine; a vLLM server gets the model's weights first.
        plan: what is asked and how; when is of no account. Default: as `train`.
        step: N; default: that of the checkpoint folder that the model was loaded from, otherwise 0.

    Raises:
        InputError: the plan cannot work, there is nothing to ask, or several processes were launched.
        OutputFolderError: `folder` has that evaluation already, or cannot be written.
        RewardError: a reward raised or returned no finite number.
    """
    if trainer.accelerator.num_processes > 1:
        raise InputError("an evaluation alone is made by one process: start it without `accelerate launch`")
    evaluation = FixedEvaluation(trainer, plan or EvaluationPlan())
    if not evaluation.questions:
        raise InputError("nothing to evaluate: the environment has no evaluation rows, and no task is held out")
    step = step_of_model(trainer.model_name) if step is None else step
    file = RunFolder(Path(folder)).evaluation_file(step)
    if file.exists():
        raise OutputFolderError(f"{file} already exists: choose another output folder")
    run = RunFolder.create(folder)
    trainer.sync_weights()
    result = evaluation.run(step)
    run.write_evaluation(step, result.as_json())
    print_evaluation(file, result)
    return result


def step_of_model(name: str | Path) -> int:
    """The step that a model was saved after, by the name of its folder: N for checkpoint-N, 0 for any other."""
    return checkpoint_step(Path(name)) or 0
