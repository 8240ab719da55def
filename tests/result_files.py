"""Results as `rg-env eval` leaves them, made through their schema, for tests of what reads them."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from rg_env.evaluation.results import AllResults, ModelResult, ModelScores, ModelSummary, TaskResults

USAGE = {"prompt_tokens": 1000, "completion_tokens": 2000, "cost": None}


def model_result(accuracy: float = 0.5, n: int = 20, rollouts: int = 1, seed: int = 0, **scores: Any) -> ModelResult:
    """A model that got `accuracy` of `n` questions right; `scores` over those that follow."""
    rng = random.Random(seed)
    correct = {f"q{number}": [rng.random() < accuracy for _ in range(rollouts)] for number in range(n)}
    half = 1.96 * (accuracy * (1 - accuracy) / max(1, n)) ** 0.5
    interval = [max(0.0, accuracy - half), min(1.0, accuracy + half)]
    found: dict[str, Any] = {
        "n": n,
        "rollouts": n * rollouts,
        "accuracy": accuracy,
        "accuracy_interval": interval,
        "guess_adjusted": None,
        "reward": accuracy,
        "reward_interval": interval,
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
            "scores": ModelScores.model_validate(found, strict=False),
            "usage": USAGE,
            "correct": correct,
        },
        strict=False,
    )


def task_results(models: Mapping[str, float | ModelResult], task: str = "maze", **changes: Any) -> TaskResults:
    """Models by name, with their accuracies; `changes` of fields, and of those of `questions` and `sampling`."""
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
            "created": "2025-01-01T12:00:00+00:00",
            "versions": {"reasoning-gym": "0.1.25"},
            "task": task,
            "spec": {"name": task},
            "category": "games",
            "questions": questions,
            "sampling": sampling,
            "system_prompt": "Think.",
            "grading": "hardened",
            "floor": 0.25,
            "models": made,
            "comparisons": [],
            **changes,
        }
    )


def all_results(tasks: Sequence[TaskResults], **changes: Any) -> AllResults:
    """All tasks, with the macro averages of all models in them."""
    models = {}
    for name in dict.fromkeys(name for task in tasks for name in task.models):
        scores = [task.models[name].scores for task in tasks if name in task.models]
        mean = sum(each.accuracy for each in scores) / len(scores)
        models[name] = ModelSummary.model_validate(
            {
                "accuracy": mean,
                "accuracy_interval": (max(0.0, mean - 0.05), min(1.0, mean + 0.05)),
                "guess_adjusted": None,
                "categories": {"games": mean},
                "usage": USAGE,
                "failed": sum(each.failed for each in scores),
            }
        )
    return AllResults.model_validate(
        {
            "created": "2025-01-01T12:00:00+00:00",
            "versions": {"reasoning-gym": "0.1.25"},
            "tasks": {task.task: task for task in tasks},
            "models": models,
            "comparisons": [],
            **changes,
        }
    )
