"""Rubrics, which score rollouts: the weighted sum of an environment's rewards, and its metrics (accuracy, accuracy per
task, and answer statuses).

    [scored] = rubric.score([rollout])
    scored.reward, scored.rewards, scored.metrics

A rubric grades the answers before it calls rewards. With async rewards, the rollouts of a batch are scored
concurrently, in an event loop on a background thread. The background loop also works in a notebook and keeps
connections to judge models open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, get_args

from rg_env.core.event_loop import run_each
from rg_env.core.grading.scoring import Grading, Rollout, Status, in_worker, threads
from rg_env.core.rewards.registry import WeightedReward
from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import InputError


@dataclass(frozen=True)
class Metric:
    """A metric that is 1 for rollouts with `status` and 0 for other rollouts. With `task`, the metric applies only to
    rollouts from that task."""

    name: str
    """`accuracy`, `accuracy/<task>` or `status/<status>`."""
    status: Status = "correct"
    task: str | None = None

    def of(self, rollout: Rollout) -> float | None:
        """Return 0 or 1, or None for a rollout from another task."""
        return None if self.task not in (None, rollout.task) else float(rollout.score.status == self.status)

    def value(self, rollout: Rollout) -> float:
        """Return the metric's value for frameworks that average every metric over all rollouts, including those from
        other tasks.

        Rollouts from other tasks cannot have NaN as their value, because 0 * NaN is NaN and the weighted sums would
        also be NaN. The value is therefore 0 for rollouts from other tasks, and 1 divided by the task's share of rows
        for a correct rollout from the task. With these values, the mean over an entire dataset is exact. Over a batch,
        the mean is unbiased and may exceed 1.
        """
        if not self.of(rollout):
            return 0.0
        return 1.0 if self.task is None else float(1 / Fraction(rollout.info["share"]))


class Scored(NamedTuple):
    """One rollout's reward and metrics."""

    reward: float
    """Weighted sum of `rewards`."""
    rewards: dict[str, float]
    """Unweighted rewards by name."""
    metrics: dict[str, float]
    """`accuracy`, `accuracy/<task>` and `status/<status>`, each 0 or 1. Metrics that do not apply to the rollout are
    omitted."""
    status: Status | None = None
    """The answer's status. None for rollouts that another library has scored."""


LEVEL = "rg_level"
"""Key in a row's `info` for the question's curriculum level (a string)."""
RolloutRecord = dict[str, Any]
"""A scored rollout as a JSON-compatible dict."""


def question_of(row: Mapping[str, Any]) -> str:
    """Return the text of a row's question. If the row does not have a question, return the prompt's text or last
    message."""
    if (question := row.get("question")) is not None:
        return str(question)
    prompt = row["prompt"]
    return str(prompt if isinstance(prompt, str) else prompt[-1]["content"])


def record_of(rollout: Rollout, scored: Scored) -> RolloutRecord:
    """Convert a scored rollout to a JSON-compatible dict."""
    level, correct = rollout.info.get(LEVEL), scored.metrics.get("accuracy")
    score = rollout.score if "status/wrong" in scored.metrics else None
    return {
        "task": rollout.task,
        **({} if level is None else {"level": int(level)}),
        "question": question_of(rollout.row),
        "answer": rollout.answer,
        "completion": rollout.text,
        "completion_tokens": rollout.completion_tokens,
        "truncated": rollout.truncated,
        "extracted": score.answer if score else None,
        "score": score.value if score else None,
        "correct": None if correct is None else correct == 1.0,
        "reward": scored.reward,
        "rewards": scored.rewards,
        "status": score.status if score else None,
        "detail": score.detail if score else "",
    }


@dataclass(frozen=True)
class Rubric:
    """Scores rollouts. A rubric is picklable if its rewards are."""

    rewards: Sequence[WeightedReward]
    metrics: Sequence[Metric]
    in_workers: bool = False
    """Whether worker processes grade answers, in which case `grade` uses them in parallel."""

    def __post_init__(self) -> None:
        names = {metric.name for metric in self.metrics}
        for reward in self.rewards:
            if reward.name in names:
                raise InputError(f"reward {reward.name!r} has the same name as a metric: choose another name")

    @classmethod
    def of_tasks(cls, rewards: Sequence[WeightedReward], mixture: Mixture, grading: Grading) -> "Rubric":
        """Return a rubric with metrics for accuracy, accuracy per task in a mixture, and each status other than
        "correct" that is possible under `grading`.

        Raises `InputError` if a reward has the same name as one of these metrics.
        """
        workers = any(in_worker(task, grading) for task in mixture.names)
        never = {"correct"} | ({"partial"} if grading == "hardened" else set()) | (set() if workers else {"timed_out"})
        by_task = [Metric(f"accuracy/{task}", task=task) for task in mixture.names] if len(mixture.tasks) > 1 else []
        statuses = [Metric(f"status/{status}", status) for status in get_args(Status) if status not in never]
        return cls(rewards, [Metric("accuracy"), *by_task, *statuses], workers)

    @classmethod
    def of_rows(cls, rewards: Sequence[WeightedReward], rows: Sequence[Mapping[str, Any]]) -> "Rubric":
        """Return a rubric for the user's own rows, with metrics for accuracy and statuses if every row has an answer.
        Raises the same errors as `of_tasks`."""
        statuses: list[Status] = ["wrong", "no_answer", "too_long"]
        metrics = [Metric("accuracy"), *(Metric(f"status/{status}", status) for status in statuses)]
        return cls(rewards, metrics if all(row["answer"] for row in rows) else [])

    def grade(self, rollouts: Sequence[Rollout]) -> None:
        """Grade all rollouts, in parallel if workers are used. Grading also caches `Rollout.score`.

        Raises `InputError` if a rollout's `info` is invalid.
        """
        pending = [threads().submit(getattr, rollout, "score") for rollout in rollouts] if self.in_workers else []
        try:
            for future in pending:
                future.result()
        finally:  # also runs after Ctrl-C; pending calls are dropped, and running calls end within a few seconds
            for future in pending:
                future.cancel()
        for rollout in rollouts:
            _ = rollout.score

    def score(self, rollouts: Sequence[Rollout]) -> list[Scored]:
        """Score rollouts and return the results in the same order.

        Raises:
            RewardError: a reward raises an exception or does not return a finite number. The error message names the
                reward and the rollout.
            InputError: a rollout's `info` is invalid.
        """
        self.grade(rollouts)
        if any(reward.is_async for reward in self.rewards):
            values = run_each(self._values, rollouts)
        else:
            values = [{reward.name: reward.value(each, offered(each)) for reward in self.rewards} for each in rollouts]
        return [self._scored(*each) for each in zip(rollouts, values, strict=True)]

    async def _values(self, rollout: Rollout) -> dict[str, float]:
        return {reward.name: await reward.avalue(rollout, offered(rollout)) for reward in self.rewards}

    def _scored(self, rollout: Rollout, values: dict[str, float]) -> Scored:
        total = sum(reward.weight * values[reward.name] for reward in self.rewards)
        found = {metric.name: metric.of(rollout) for metric in self.metrics}
        metrics = {name: value for name, value in found.items() if value is not None}
        return Scored(total, values, metrics, rollout.score.status)


def offered(rollout: Rollout, completion: Any = None) -> dict[str, Any]:
    """Return the arguments for rewards, keyed by name, except `rollout` and `task`. If `completion` is given, it
    replaces the message made from the rollout's text."""
    return {
        "prompt": rollout.prompt,
        "completion": [{"role": "assistant", "content": rollout.text}] if completion is None else completion,
        "answer": rollout.answer,
        "info": rollout.info,
    }
