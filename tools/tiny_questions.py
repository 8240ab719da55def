"""Reasoning Gym questions from one task and one split, as defined by `rg_env.core.data.splits`."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import reasoning_gym

from rg_env.core.data.problem_keys import problem_key
from rg_env.core.data.splits import Split, split_of
from rg_env.tiny import TASKS

_CHUNK = 1024


def questions(task: str, split: Split, seed: int) -> Iterator[dict[str, Any]]:
    """Yield an infinite stream of entries of `task`, configured as in `TASKS`, whose problems belong to `split`."""
    # Reasoning Gym draws item i of seed s from Random(s + i), so the seeds of consecutive chunks are one chunk apart.
    for start in itertools.count(seed, _CHUNK):
        for entry in reasoning_gym.create_dataset(task, size=_CHUNK, seed=start, **TASKS[task]):
            if split_of(problem_of(task, entry)) == split:
                yield entry


def problem_of(task: str, entry: dict[str, Any]) -> str:
    """Return the problem key of an entry, the same as in rows."""
    return problem_key(task, json.loads(json.dumps(entry)))


def take(task: str, split: Split, seed: int, count: int) -> list[dict[str, Any]]:
    """Return the first `count` entries of `questions`."""
    return list(itertools.islice(questions(task, split, seed), count))
