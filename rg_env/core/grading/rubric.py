"""A rubric: the rewards of an environment, their weights, its metrics, and how answers are graded before.

[scored] = rubric.score([rollout])
scored.reward, scored.rewards, scored.metrics
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from rg_env.core.grading.metrics import Metric
from rg_env.core.grading.rollout import Rollout
from rg_env.core.rewards.registry import WeightedReward

OFFERED = ("rollout", "prompt", "completion", "answer", "task", "info")
"""Parameter names that rewards may use; only Verifiers' v0 API has `state` and `parser` too."""
_GRADING_THREADS = 8
"""Threads that wait for graders in worker processes: more than there are of these, so that none of them is idle."""


class Scored(NamedTuple):
    """What one rollout earned."""

    reward: float
    """Weighted sum of `rewards`."""
    rewards: dict[str, float]
    """Each reward before its weight."""
    metrics: dict[str, float]
    """`accuracy`, `accuracy/<task>`, `status/<status>`: 0 or 1; those that do not apply to the rollout are missing."""


@dataclass(frozen=True)
class Rubric:
    """What rollouts earn. Picklable if its rewards are."""

    rewards: Sequence[WeightedReward]
    metrics: Sequence[Metric]
    in_workers: bool = False
    """Whether worker processes grade answers (`core.metrics.needs_workers`): then `grade` asks all of them at once."""

    def grade(self, rollouts: Sequence[Rollout]) -> None:
        """Grade all rollouts, in parallel where workers do it. `Rollout.score` is known afterwards.

        Raises:
            InputError: a rollout's `info` is broken.
        """
        if not self.in_workers:
            for rollout in rollouts:
                _ = rollout.score
            return
        executor = ThreadPoolExecutor(_GRADING_THREADS, "rg-env-grading")
        try:
            for _ in executor.map(lambda rollout: rollout.score, rollouts):
                pass
        finally:  # after Ctrl-C too: what has not begun is dropped, and what runs takes a second at most
            executor.shutdown(wait=False, cancel_futures=True)

    def score(self, rollouts: Sequence[Rollout]) -> list[Scored]:
        """What each rollout earned, in order.

        Raises:
            RewardError: a reward raised, or returned no finite number; with the reward and the rollout.
            InputError: a rollout's `info` is broken.
        """
        self.grade(rollouts)
        return [self._scored(rollout) for rollout in rollouts]

    def _scored(self, rollout: Rollout) -> Scored:
        available = offered(rollout)
        values = {reward.name: reward.value(rollout, available) for reward in self.rewards}
        total = sum(reward.weight * values[reward.name] for reward in self.rewards)
        found = {metric.name: metric.of(rollout) for metric in self.metrics}
        return Scored(total, values, {name: value for name, value in found.items() if value is not None})


def offered(rollout: Rollout, completion: Any = None) -> dict[str, Any]:
    """What `OFFERED` names, for a reward: of the rollout, with `completion` in another form than messages, if given."""
    return {
        "prompt": rollout.prompt,
        "completion": [{"role": "assistant", "content": rollout.text}] if completion is None else completion,
        "answer": rollout.answer,
        "info": rollout.info,
    }
