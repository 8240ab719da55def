"""Rubrics: an environment's rewards, their weights, and its metrics (accuracy, accuracy per task, and answer statuses).
Answers are graded before rewards are called.

    [scored] = rubric.score([rollout])
    scored.reward, scored.rewards, scored.metrics
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, get_args

from rg_env.core.grading.scoring import Grading, Rollout, Status, in_worker, threads
from rg_env.core.rewards import WeightedReward, run_each
from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import InputError

OFFERED = ("rollout", "prompt", "completion", "answer", "task", "info")
"""Parameter names that rewards may use; only Verifiers' v0 API also provides `state` and `parser`."""


@dataclass(frozen=True)
class Metric:
    """A metric that is 1 for rollouts with this status, and 0 for others; restricted to one task, if given."""

    name: str
    """`accuracy`, `accuracy/<task>` or `status/<status>`."""
    status: Status = "correct"
    task: str | None = None

    def of(self, rollout: Rollout) -> float | None:
        """0 or 1; None for a rollout of another task."""
        return None if self.task not in (None, rollout.task) else float(rollout.score.status == self.status)

    def value(self, rollout: Rollout) -> float:
        """The metric for frameworks that average every metric over all rollouts, including those of other tasks.

        A NaN would spoil their weighted sums (0 * NaN is NaN), so a correct rollout of the task counts as the inverse
        of the task's share of the rows. The mean over a whole dataset is exact. Over a batch it is unbiased and may
        exceed 1.
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
    """`accuracy`, `accuracy/<task>` and `status/<status>`: 0 or 1; missing if they do not apply to the rollout."""


@dataclass(frozen=True)
class Rubric:
    """Scores rollouts. Picklable if its rewards are."""

    rewards: Sequence[WeightedReward]
    metrics: Sequence[Metric]
    in_workers: bool = False
    """Whether worker processes grade answers (`needs_workers`); if so, `grade` uses them in parallel."""

    def grade(self, rollouts: Sequence[Rollout]) -> None:
        """Grade all rollouts, in parallel if workers are used. `Rollout.score` is cached afterwards.

        Raises:
            InputError: a rollout's `info` is invalid.
        """
        pending = [threads().submit(getattr, rollout, "score") for rollout in rollouts] if self.in_workers else []
        try:
            for future in pending:
                future.result()
        finally:  # after Ctrl-C too: pending calls are dropped, and running ones take at most a second
            for future in pending:
                future.cancel()
        for rollout in rollouts:
            _ = rollout.score

    def score(self, rollouts: Sequence[Rollout]) -> list[Scored]:
        """Score rollouts; the results are in the same order.

        Raises:
            RewardError: a reward raised or returned a non-finite value; the message names the reward and the rollout.
            InputError: a rollout's `info` is invalid.
        """
        self.grade(rollouts)
        if any(reward.is_async for reward in self.rewards):
            return [self._scored(*each) for each in zip(rollouts, run_each(self._values, rollouts), strict=True)]
        return [
            self._scored(rollout, {reward.name: reward.value(rollout, offered(rollout)) for reward in self.rewards})
            for rollout in rollouts
        ]

    async def _values(self, rollout: Rollout) -> dict[str, float]:
        return {reward.name: await reward.avalue(rollout, offered(rollout)) for reward in self.rewards}

    def _scored(self, rollout: Rollout, values: dict[str, float]) -> Scored:
        total = sum(reward.weight * values[reward.name] for reward in self.rewards)
        found = {metric.name: metric.of(rollout) for metric in self.metrics}
        return Scored(total, values, {name: value for name, value in found.items() if value is not None})


def offered(rollout: Rollout, completion: Any = None) -> dict[str, Any]:
    """Arguments for rewards by the names in `OFFERED`. `completion` replaces the rollout's messages, if given."""
    return {
        "prompt": rollout.prompt,
        "completion": [{"role": "assistant", "content": rollout.text}] if completion is None else completion,
        "answer": rollout.answer,
        "info": rollout.info,
    }


def metrics_of(rewards: Iterable[WeightedReward], mixture: Mixture, grading: Grading) -> list[Metric]:
    """Metrics for accuracy, accuracy per task in a mixture, and each possible status under `grading`.

    Raises `InputError` if a reward has the name of such a metric.
    """
    metrics = [Metric("accuracy")]
    if len(mixture.tasks) > 1:
        metrics += [Metric(f"accuracy/{task}", task=task) for task in mixture.names]
    never = {"correct"} | ({"partial"} if grading == "hardened" else set())
    never |= set() if needs_workers(mixture, grading) else {"timed_out"}
    metrics += [Metric(f"status/{status}", status) for status in get_args(Status) if status not in never]
    return _apart(metrics, rewards)


def metrics_of_rows(rewards: Iterable[WeightedReward], rows: Sequence[Mapping[str, Any]]) -> list[Metric]:
    """Metrics for the user's own rows: accuracy and statuses if every row has an answer, else none.

    Raises as `metrics_of`.
    """
    if not all(row["answer"] for row in rows):
        return []
    statuses: list[Status] = ["wrong", "no_answer", "too_long"]
    return _apart([Metric("accuracy"), *(Metric(f"status/{status}", status) for status in statuses)], rewards)


def _apart(metrics: list[Metric], rewards: Iterable[WeightedReward]) -> list[Metric]:
    names = {metric.name for metric in metrics}
    for reward in rewards:
        if reward.name in names:
            raise InputError(f"reward {reward.name!r} has the name of a metric of this environment: choose another")
    return metrics


def needs_workers(mixture: Mixture, grading: Grading) -> bool:
    """Whether answers to some task of `mixture` are graded in a worker process."""
    return any(in_worker(task, grading) for task in mixture.names)
