"""Evaluation on frozen problems while a model trains: the same rows, prompts, extraction and scoring each time.

Every problem is answered twice, sampled as in training (`accuracy`, `reward`) and greedily (`greedy_accuracy`).
"""

import asyncio
import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rg_env.adapters.v0_rubric import kept_rollout
from rg_env.training.curriculum import LEVEL


@dataclass(frozen=True)
class Scores:
    """Means over `n` problems, each with its standard error (sample deviation / sqrt(n)).

    None where there is nothing to average: accuracies, if the rubric has no `accuracy` metric; tokens, if the server
    reports no usage.
    """

    n: int
    accuracy: float | None
    accuracy_se: float | None
    greedy_accuracy: float | None
    greedy_accuracy_se: float | None
    reward: float | None
    reward_se: float | None
    greedy_reward: float | None
    greedy_reward_se: float | None
    mean_completion_tokens: float | None
    mean_completion_tokens_se: float | None
    status: dict[str, float]
    """Share of each status among the sampled answers (`core.scoring.Status`); empty in other environments."""

    def flat(self) -> dict[str, Any]:
        """All figures, the statuses as `status/<name>`."""
        figures = asdict(self)
        return figures | {f"status/{name}": share for name, share in figures.pop("status").items()}


@dataclass(frozen=True)
class Evaluation:
    """One pass over the frozen problems, after `step` optimizer steps."""

    step: int
    overall: Scores
    tasks: dict[str, Scores]
    rollouts: list[dict[str, Any]]

    def summary(self) -> dict[str, Any]:
        """The scores as JSON, those of each task under `tasks`."""
        return {
            "step": self.step,
            **asdict(self.overall),
            "tasks": {task: asdict(scores) for task, scores in self.tasks.items()},
        }

    def as_json(self) -> dict[str, Any]:
        return {**self.summary(), "rollouts": self.rollouts}

    def metrics(self) -> dict[str, float]:
        """Flat metrics under the field's names: `eval/accuracy`, `eval/<task>/accuracy`, …"""
        named = {"eval": self.overall} | {f"eval/{task}": scores for task, scores in self.tasks.items()}
        return {
            f"{prefix}/{name}": value
            for prefix, scores in named.items()
            for name, value in scores.flat().items()
            if value is not None and name != "n" and not name.endswith("_se")
        }


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Those that a run has left in `folder`, in the order of their steps."""
    found = []
    for path in folder.glob("eval_results/eval_step_*.json"):
        values = json.loads(path.read_text(encoding="utf-8"))
        names = [field.name for field in fields(Scores)]
        overall = Scores(**{name: values[name] for name in names})
        tasks = {task: Scores(**scores) for task, scores in values["tasks"].items()}
        found.append(Evaluation(values["step"], overall, tasks, values["rollouts"]))
    return sorted(found, key=lambda evaluation: evaluation.step)


async def evaluate(env: Any, client: Any, model: str, sampling: dict[str, Any], *, step: int) -> Evaluation:
    """Answer each problem of the environment's evaluation set once with `sampling` and once greedily.

    Raises:
        RewardError: a reward raised or returned no finite number.
    """
    problems = env.get_eval_dataset()

    def answers(**changes: Any) -> Any:
        arguments = {**sampling, **changes}
        return env.a_generate(problems, client=client, model=model, sampling_args=arguments, use_tqdm=False)

    # At the same time, so that the embedded engine generates both as one batch.
    sampled, greedy = await asyncio.gather(answers(), answers(temperature=0.0))
    rollouts = [
        {
            **rollout,
            "greedy_completion": other["completion"],
            "greedy_reward": other["reward"],
            "greedy_correct": other["correct"],
        }
        for rollout, other in zip(rollout_records(sampled), rollout_records(greedy), strict=True)
    ]
    tasks = sorted({rollout["task"] for rollout in rollouts})
    per_task = {task: _scores([r for r in rollouts if r["task"] == task]) for task in tasks}
    return Evaluation(step, _scores(rollouts), per_task, rollouts)


def rollout_records(outputs: Any, limit: int | None = None) -> list[dict[str, Any]]:
    """The first `limit` rollouts of verifiers' `GenerateOutputs` as JSON: what was asked, answered, and paid."""
    correct = outputs.metrics.get("accuracy")
    return [
        {
            "task": task_of(outputs.info[i]),
            **_level(outputs.info[i]),
            "question": _text(outputs.prompt[i]),
            "answer": outputs.answer[i],
            "completion": _text(outputs.completion[i]),
            "completion_tokens": _completion_tokens(outputs.state[i]),
            "reward": outputs.reward[i],
            "correct": None if correct is None else correct[i] == 1.0,
            **_score(outputs.state[i]),
        }
        for i in range(len(outputs.prompt))[:limit]
    ]


def _score(state: Any) -> dict[str, str]:
    """Status of the answer, and why if it could not be graded; nothing in other environments."""
    rollout = kept_rollout(state)
    if rollout is None:
        return {}
    return {"status": rollout.score.status, **({"detail": rollout.score.detail} if rollout.score.detail else {})}


def accuracies(outputs: Any) -> dict[str, float]:
    """`accuracy` and, for mixtures, `accuracy/<task>` of verifiers' `GenerateOutputs`; empty if the rubric has none."""
    correct = outputs.metrics.get("accuracy")
    if not correct:
        return {}
    by_task: dict[str, list[float]] = {}
    for info, value in zip(outputs.info, correct, strict=True):
        by_task.setdefault(task_of(info), []).append(value)
    result = {"accuracy": sum(correct) / len(correct)}
    if len(by_task) > 1:
        result |= {f"accuracy/{task}": sum(values) / len(values) for task, values in sorted(by_task.items())}
    return result


def task_of(info: Any) -> str:
    """The task a row belongs to; "default" for rows of other environments."""
    return str(info.get("rg_task", "default")) if isinstance(info, dict) else "default"


def _level(info: Any) -> dict[str, Any]:
    """The level that a curriculum asked the question at; nothing without one."""
    return {"level": int(info[LEVEL])} if isinstance(info, dict) and LEVEL in info else {}


def _text(messages: Any) -> str:
    return messages if isinstance(messages, str) else (messages[-1]["content"] or "") if messages else ""


def _completion_tokens(state: dict[str, Any]) -> int | None:
    usages = [getattr(response, "usage", None) for response in state.get("responses", [])]
    known = [usage.completion_tokens for usage in usages if usage is not None]
    return sum(known) if known and len(known) == len(usages) else None


def _scores(rollouts: Sequence[dict[str, Any]]) -> Scores:
    def mean(key: str) -> tuple[float, float] | tuple[None, None]:
        values = [float(rollout[key]) for rollout in rollouts if rollout[key] is not None]
        if not values:
            return None, None
        average = statistics.fmean(values)
        return average, statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0

    figures: dict[str, Any] = {}
    for name, key in (
        ("accuracy", "correct"),
        ("greedy_accuracy", "greedy_correct"),
        ("reward", "reward"),
        ("greedy_reward", "greedy_reward"),
        ("mean_completion_tokens", "completion_tokens"),
    ):
        figures[name], figures[f"{name}_se"] = mean(key)
    statuses = Counter(rollout["status"] for rollout in rollouts if "status" in rollout)
    shares = {name: count / len(rollouts) for name, count in sorted(statuses.items())}
    return Scores(n=len(rollouts), status=shares, **figures)
