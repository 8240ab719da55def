"""Groups that teach something in the place of those that do not: "dynamic sampling" (Yu et al., 2025, DAPO,
arXiv:2503.14476, section 3.2).

A group whose answers are all right, or all wrong, has no advantage. `fill` asks other prompts, in rounds, until as many
groups as a batch has are mixed, or the rounds are used up; places that stay empty carry no loss.

Accuracy alone decides. Rewards that also pay for form or length nearly always vary within a group, and a filter on them
would keep what they vary in: the policy learns the form.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rg_env.errors import TrainingError
from rg_env.training.rollouts import Rollouts

EMPTY_BATCHES = 3
"""Batches in a row without a single mixed group, after which a run ends."""


@dataclass(frozen=True)
class Filtered:
    """What `fill` made of a batch."""

    batch: Rollouts
    """As many groups as the batch had, the mixed ones first."""
    empty: list[int]
    """Rollouts of it that carry no loss."""
    asked: int
    """Prompts asked, those of the batch included."""
    mixed: int
    """Of them, mixed groups."""

    def metrics(self) -> dict[str, float]:
        """As they are logged."""
        return {
            "filter_groups/asked": float(self.asked),
            "filter_groups/mixed": self.mixed / self.asked,
            "filter_groups/empty": len(self.empty) / len(self.batch),
        }


def fill(batch: Rollouts, num_generations: int, ask: Callable[[int, int], Rollouts], rounds: int) -> Filtered:
    """Replace the groups of `batch` that are not mixed.

    Args:
        ask: of a round (from 0) and a number of prompts, the rollouts in groups of so many, or of fewer.
        rounds: at most.
    """
    places = len(batch) // num_generations
    batches, mixed = [batch], [(0, group) for group in _mixed(batch, num_generations)]
    asked = places
    for number in range(rounds):
        missing = places - len(mixed)
        if missing <= 0:
            break
        # As many as will probably do, by the share so far; without any, as many as there are places.
        count = min(places, math.ceil(missing * asked / len(mixed))) if mixed else places
        batches.append(ask(number, count))
        asked += len(batches[-1]) // num_generations
        mixed += [(len(batches) - 1, group) for group in _mixed(batches[-1], num_generations)]
    rest = [(0, group) for group in range(places) if (0, group) not in mixed]
    picked = [*mixed, *rest][:places]
    filled = Rollouts.joined([batches[number].rows(_rollouts(group, num_generations)) for number, group in picked])
    empty = range(len(mixed) * num_generations, places * num_generations)
    return Filtered(filled, list(empty), asked, len(mixed))


class EmptyBatches:
    """Counts batches in which no group was mixed."""

    def __init__(self) -> None:
        self._count = 0

    def look(self, filtered: Filtered) -> None:
        """Raise `TrainingError` when this is the last that a run may have in a row."""
        self._count = 0 if filtered.mixed else self._count + 1
        if self._count < EMPTY_BATCHES:
            return
        accuracies = filtered.batch.accuracies or [0.0]
        accuracy = sum(accuracies) / len(accuracies)
        raise TrainingError(
            f"filter_groups left nothing of {EMPTY_BATCHES} batches: all answers to a prompt are right, or all wrong "
            f"(accuracy {accuracy:.2f}): take {'harder' if accuracy > 0.5 else 'easier'} tasks, another level, or a "
            "larger num_generations"
        )


def _mixed(batch: Rollouts, size: int) -> list[int]:
    """The groups with right and other answers."""
    correct = batch.accuracies or []
    groups = range(len(correct) // size)
    return [group for group in groups if len({correct[row] == 1.0 for row in _rollouts(group, size)}) > 1]


def _rollouts(group: int, size: int) -> Sequence[int]:
    return range(group * size, (group + 1) * size)
