"""A reward that keeps what it was called with."""

from rg_env.core.grading.scoring import Rollout


class Seen:
    """A reward called `name` that keeps the rollouts that it receives and returns their scores."""

    def __init__(self, name: str = "seen") -> None:
        self.__name__ = name
        self.rollouts: list[Rollout] = []

    def __call__(self, rollout: Rollout) -> float:
        self.rollouts.append(rollout)
        return rollout.score.value
