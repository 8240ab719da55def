"""Mixtures of tasks with their options and weights: `TaskSpec` and `Mixture`.

    Mixture.parse("leg_counting")
    Mixture.parse(["leg_counting", {"name": "chain_sum", "weight": 2, "config": {"max_terms": 3}}])
    Mixture.parse([{"name": "maze", "level": 2}, {"name": "spell_backward", "levels": {"word_len": 3}}])

Task names, option names and levels are checked against the task table, so typos are reported before any slow import.
The library itself checks the values of options (`core.data.generation.check_options`) before anything slow starts.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rg_env.core.config.files import OTHER_NAMES
from rg_env.core.config.parsing import TaskOptions, Text, Weight, input_error
from rg_env.core.tasks import library
from rg_env.core.tasks.task_table import SET_BY_ROWS, load_table, resolve_levels
from rg_env.core.text import counted, shortened
from rg_env.errors import InputError, unknown_name


class TaskSpec(TaskOptions):
    """One task in a mixture. Build a `TaskSpec` with `Mixture.parse`, which checks names and levels.

    `config` is in JSON form (dates as ISO text) and includes the options set by levels, which explicit options
    override.
    """

    name: Text
    """Name of a task from Reasoning Gym or from the user."""
    weight: Weight = 1.0
    """Weight that determines the task's share of rows, relative to the mixture's other tasks."""

    @property
    def config_json(self) -> str:
        """`config` as JSON with sorted keys, so that equal configs have equal text."""
        return json.dumps(self.config, sort_keys=True)


class Mixture(BaseModel):
    """The tasks from which questions are drawn. Each task can occur only once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: tuple[TaskSpec, ...]

    @classmethod
    def parse(cls, gym: object) -> "Mixture":
        """Parse and check a mixture.

        Args:
            gym: a task name, a mapping with the keys of `TaskSpec`, a list of these, or a `Mixture`.

        Raises:
            UnknownNameError: a task, option or attribute does not exist.
            InputError: the mixture is invalid for any other reason.
        """
        if isinstance(gym, Mixture):
            return gym
        if isinstance(gym, str | Mapping | TaskSpec):
            gym = [gym]
        if not isinstance(gym, Sequence):
            raise InputError(f"gym must be a task name, a mapping or a list of these, not {shortened(gym)}")
        if not gym:
            raise InputError("gym is an empty list: add at least one task")
        tasks = tuple(_parse_task(item) for item in gym)
        for name, times in Counter(task.name for task in tasks).items():
            if times > 1:
                raise InputError(f"task {name!r} is listed {times} times: list it once, with the sum of the weights")
        return cls(tasks=tasks)

    @property
    def names(self) -> list[str]:
        """Task names in the given order."""
        return [task.name for task in self.tasks]

    def counts(self, n: int) -> list[int]:
        """Return the number of rows for each task. The `n` rows are divided with the largest-remainder method, with at
        least one row per task.

        Raises `InputError` if `n` is above 0 but below the number of tasks, because a task without rows would not have
        a meaningful accuracy.
        """
        if n == 0:
            return [0] * len(self.tasks)
        if n < len(self.tasks):
            too_few = f"{counted(n, 'example')} {'is' if n == 1 else 'are'} too few for {len(self.tasks)} tasks"
            raise InputError(f"{too_few}: request at least {len(self.tasks)}")
        total = math.fsum(task.weight for task in self.tasks)
        quotas = [n * (task.weight / total) for task in self.tasks]
        counts = [math.floor(quota) for quota in quotas]
        by_remainder = sorted(range(len(quotas)), key=lambda i: (counts[i] - quotas[i], i))
        for i in by_remainder[: n - sum(counts)]:
            counts[i] += 1
        while 0 in counts:  # if a weight is tiny, a row is taken from the task with the most rows
            counts[counts.index(max(counts))] -= 1
            counts[counts.index(0)] += 1
        return counts


def _parse_task(item: object) -> TaskSpec:
    if isinstance(item, str):
        item = {"name": item}
    elif isinstance(item, TaskSpec):
        item = item.model_dump()
    if not isinstance(item, Mapping) or "name" not in item:
        known = isinstance(item, Mapping) and all(name in load_table() for name in item)
        advice = ": for several tasks, write [{'name': NAME, 'weight': WEIGHT}, ...]" if item and known else ""
        raise InputError(f"a task must be a name, or a mapping with a name, not {shortened(item)}{advice}")
    task = item["name"]
    if isinstance(task, str) and task not in load_table():
        hint = "write several tasks as a list: [a, b]" if "," in task else OTHER_NAMES["tasks"].get(task, "")
        raise unknown_name("task", task, load_table(), hint=hint)
    try:
        spec = TaskSpec.model_validate({key: value for key, value in item.items() if value is not None})
    except ValidationError as error:
        raise input_error(TaskSpec, error, item, f"task {shortened(task)}: ") from error
    levels = resolve_levels(task, spec.level, spec.levels)
    return spec.model_copy(update={"config": {**levels, **_plain_options(task, spec.config)}})


def _plain_options(task: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in JSON form. Raises `InputError` for options that the task does not have."""
    options = load_table()[task]["options"]
    for option in config:
        if option in SET_BY_ROWS:
            raise InputError(
                f"task {task!r}: {option!r} is not a task option; set the seed and number of examples on the "
                f"environment"
            ).at("config", option)
        if option not in options:
            raise unknown_name(f"option of task {task!r}", option, options).at("config", str(option))
    try:
        return json.loads(json.dumps(dict(config), default=library.to_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"task {task!r}: config cannot be written as JSON: {error}") from error
