"""Metrics of a rollout beside its rewards: accuracy, that of each task, and what became of the answer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, get_args

from rg_env.core.grading.rollout import Rollout
from rg_env.core.grading.scoring import Grading, Status, in_worker
from rg_env.core.rewards.registry import WeightedReward
from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import InputError


@dataclass(frozen=True)
class Accuracy:
    """1 for a correct rollout; of one task, if given."""

    task: str | None = None

    @property
    def name(self) -> str:
        """`accuracy`, or `accuracy/<task>`."""
        return f"accuracy/{self.task}" if self.task else "accuracy"

    def of(self, rollout: Rollout) -> float | None:
        """0 or 1; None for a rollout of another task."""
        return None if self.task not in (None, rollout.task) else float(rollout.score.status == "correct")

    def value(self, rollout: Rollout) -> float:
        """The same for who averages every metric over all rollouts, those of other tasks too, and for whom a NaN would
        poison a weighted sum (0 * NaN is NaN): a correct rollout of the task counts as the inverse of the task's share
        of the rows. Over a whole dataset the mean is exact, over a batch it is right on average (and may exceed 1)."""
        if not self.of(rollout):
            return 0.0
        return 1.0 if self.task is None else float(1 / Fraction(rollout.info["share"]))


@dataclass(frozen=True)
class StatusShare:
    """1 for a rollout whose score has this status."""

    status: Status

    @property
    def name(self) -> str:
        """`status/<status>`."""
        return f"status/{self.status}"

    def of(self, rollout: Rollout) -> float:
        """0 or 1."""
        return float(rollout.score.status == self.status)

    value = of


Metric = Accuracy | StatusShare


def metrics_of(rewards: Iterable[WeightedReward], mixture: Mixture, grading: Grading) -> list[Metric]:
    """The accuracy, that of each task of a mixture, and the share of each status that `grading` can give.

    Raises `InputError` for a reward with the name of such a metric.
    """
    metrics: list[Metric] = [Accuracy()]
    if len(mixture.tasks) > 1:
        metrics += map(Accuracy, mixture.names)
    never = {"correct"} | ({"partial"} if grading == "hardened" else set())
    never |= set() if needs_workers(mixture, grading) else {"timed_out"}
    metrics += [StatusShare(status) for status in get_args(Status) if status not in never]
    return _apart(metrics, rewards)


def metrics_of_rows(rewards: Iterable[WeightedReward], rows: Sequence[Mapping[str, Any]]) -> list[Metric]:
    """Those of rows that rg_env did not draw: accuracy and statuses if every row has an answer, else none. Raises as
    `metrics_of`."""
    if not all(row["answer"] for row in rows):
        return []
    return _apart([Accuracy(), StatusShare("wrong"), StatusShare("no_answer"), StatusShare("too_long")], rewards)


def _apart(metrics: list[Metric], rewards: Iterable[WeightedReward]) -> list[Metric]:
    names = {metric.name for metric in metrics}
    for reward in rewards:
        if reward.name in names:
            raise InputError(f"reward {reward.name!r} has the name of a metric of this environment: choose another")
    return metrics


def needs_workers(mixture: Mixture, grading: Grading) -> bool:
    """Whether answers to some task of `mixture` are graded in a worker process."""
    return any(in_worker(task, grading) for task in mixture.names)
