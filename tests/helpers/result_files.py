"""Results as written by `rg-env eval` and training runs, for tests of the code that reads them."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from rg_env.core.environment import Environment
from rg_env.evaluation import results as schema
from rg_env.evaluation.questions import Questions, TaskAnswers
from rg_env.evaluation.results import ModelResult, Results, Scores, TaskPart, TaskResults, summary_of
from rg_env.evaluation.scores import ModelSource, results_of
from rg_env.inference.protocol import Sampling

USAGE = {"prompt_tokens": 1000, "completion_tokens": 2000, "cost": None}


def model_result(accuracy: float = 0.5, n: int = 20, rollouts: int = 1, **scores: Any) -> ModelResult:
    """Return results of a model that answers the share `accuracy` of `n` questions correctly. `scores` overrides
    derived scores."""
    rng = random.Random(0)
    correct = {f"q{number}": [rng.random() < accuracy for _ in range(rollouts)] for number in range(n)}
    half = 1.96 * (accuracy * (1 - accuracy) / max(1, n)) ** 0.5
    interval = [max(0.0, accuracy - half), min(1.0, accuracy + half)]
    found: dict[str, Any] = {
        **dict.fromkeys(Scores.model_fields),
        "errors": {},
        "n": n,
        "answers": n * rollouts,
        "accuracy": accuracy,
        "intervals": {"accuracy": interval, "reward": interval},
        "guess_adjusted": None,
        "reward": accuracy,
        "pass_at_k": {},
        "mean_completion_tokens": 30.0,
        "truncated": 0.0,
        "status": {"correct": accuracy, "wrong": 1 - accuracy},
        "failed": 0,
        "left_out": 0,
        **scores,
    }
    return ModelResult.model_validate(
        {
            "source": "tiny",
            "kind": "tiny",
            "engine": "embedded",
            "system_prompt": None,
            "scores": Scores.model_validate(found, strict=False),
            "usage": USAGE,
            "correct": correct,
        },
        strict=False,
    )


def task_results(models: Mapping[str, float | ModelResult], task: str = "maze", **changes: Any) -> TaskResults:
    """Return results of one task, from accuracies by model; `changes` overrides fields, also of `questions` and
    `sampling`."""
    questions = {"n": 20, "seed": 0, "manifest_sha256": f"m-{task}", "prompts_sha256": f"p-{task}"}
    sampling = {"rollouts_per_example": 1, "temperature": 1.0, "top_p": 1.0, "max_tokens": 64}
    for group in (questions, sampling):
        group |= {name: changes.pop(name) for name in list(changes) if name in group}
    made = {
        name: each if isinstance(each, ModelResult) else model_result(each, questions["n"])  # type: ignore[arg-type]
        for name, each in models.items()
    }
    return TaskResults.model_validate(
        {
            "task": task,
            "spec": {"name": task},
            "category": "games",
            "questions": questions,
            "sampling": schema.EvaluationSampling(**sampling),
            "system_prompt": "Think.",
            "grading": "hardened",
            "floor": 0.25,
            "models": made,
            "comparisons": [],
            **changes,
        }
    )


def all_results(tasks: Sequence[TaskResults], **changes: Any) -> Results:
    """Return results of all tasks, with the macro averages of all models."""
    models = {
        name: summary_of(name, [task for task in tasks if name in task.models])
        for name in dict.fromkeys(name for task in tasks for name in task.models)
    }
    fixed: dict[str, Any] = {"created": "2025-01-01T12:00:00+00:00", "versions": {"reasoning-gym": "0.1.25"}}
    values = {"tasks": {task.task: task for task in tasks}, "models": models, "comparisons": [], **changes}
    return Results.model_validate(fixed | values)


def of_task(task: TaskResults) -> Results:
    """Return results as in the file of a single task."""
    return all_results([task]).of_task(task.task)


def run_evaluation(step: int, problems: Sequence[Sequence[dict[str, Any]]], **sampling: Any) -> Results:
    """Return an evaluation in a training run, given the records of the answers to each problem. The first record of a
    problem may also have the greedy answer's fields (`greedy_completion`, ...)."""
    found: list[dict[str, Any]] = []
    groups: dict[tuple[TaskPart, str], list[Sequence[dict[str, Any]]]] = {}
    for problem in problems:
        groups.setdefault((problem[0]["part"], problem[0]["task"]), []).append(problem)
    answer_sets: list[TaskAnswers] = []
    for (part, task), of_task in groups.items():
        rows = [{"prompt": (text := f"{each[0].get('question', 'q')}"), "question": f"{text} ({n})",
                 "info": {"rg_task": task}} for n, each in enumerate(of_task)]  # fmt: skip
        questions = Questions(
            Environment(eval_rows=rows, system_prompt=None), part, task if part == "labelled" else None
        )
        greedy = any("greedy_correct" in problem[0] for problem in of_task)
        settings = Sampling(**{"max_tokens": 64, **sampling})
        answers = TaskAnswers(f"step {step}", questions, settings, len(of_task[0]), greedy)
        answer_sets.append(answers)
        for number, problem in enumerate(of_task):
            known = {"row": questions.hashes[number], "problem": number, "status": None, "prompt_tokens": None,
                     "completion_tokens": None}  # fmt: skip
            records = [
                {**known, "rollout": k, "draw": "sampled", **_without_greedy(each), "problem": number}
                for k, each in enumerate(problem)
            ]
            best = {k.removeprefix("greedy_"): v for k, v in problem[0].items() if k.startswith("greedy_")}
            records += [{**records[0], "rollout": 0, "draw": "greedy", **best}] if greedy else []
            for record in records:
                assert answers.load(record)
            found += records
    return results_of(answer_sets, {f"step {step}": ModelSource("tiny", "tiny", "embedded")}, step=step, rollouts=found)


def _without_greedy(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if not key.startswith("greedy_")}
