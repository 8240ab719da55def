"""Mixtures of tasks with their options and weights: `TaskSpec` and `Mixture`.

    Mixture.parse("leg_counting")
    Mixture.parse(["leg_counting", {"name": "chain_sum", "weight": 2, "config": {"max_terms": 3}}])
    Mixture.parse([{"name": "maze", "level": 2}, {"name": "spell_backward", "levels": {"word_len": 3}}])

Task names, option names and levels are checked against the task table, so typos are reported before any slow import.
The library itself checks the values of options, through `check_options`, before anything slow starts.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rg_env.core.child_main import ParentPipe
from rg_env.core.config.files import OTHER_NAMES, Keys
from rg_env.core.config.parsing import Problem, TaskOptions, Text, Weight, input_error, label_problem, problems_within
from rg_env.core.processes import JsonProcess, bare_environment
from rg_env.core.tasks import library
from rg_env.core.tasks.task_table import SET_BY_ROWS, is_user_task, load_table, resolve_levels
from rg_env.core.text import counted, shortened
from rg_env.core.user_code import import_same, sources
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
            gym = list(gym.tasks)
        elif isinstance(gym, str | Mapping | TaskSpec):
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
        raise InputError(f"a task must be a name, or a mapping with a name, not {shortened(item)}")
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


# The library checks the values of options when it builds a task's config object. The check runs in a child process,
# which imports only the given tasks because importing the entire library takes 2.5 s.

_OPTION_CHECK = f"{__name__}:serve_option_check"
_CHECK_TIMEOUT_S = 10.0


def check_options(specs: Mapping[str, TaskSpec]) -> None:
    """Raise `InputError` if the library rejects the options of a task. `specs` maps each task's key in the config to
    the task.

    Options that the library rejects only while it draws questions are not detected.
    """
    changed = {key: [spec.name, spec.config] for key, spec in specs.items() if spec.config}
    if not changed:
        return
    process = JsonProcess(_OPTION_CHECK, bare_environment())
    try:
        process.send([sources(), *changed.values()])
        problems = process.receive(time.monotonic() + _CHECK_TIMEOUT_S)
    except (EOFError, TimeoutError):
        return  # the options are checked again when questions are drawn
    finally:
        process.kill()
    if found := [f"{key}.config: {problem}" for key, problem in zip(changed, problems, strict=True) if problem]:
        raise InputError("; ".join(found))


def serve_option_check() -> None:
    """Check tasks' options. This is the main function of the child process, which receives a single list: the sources
    of the user's code, followed by the tasks with their options. The reply contains, for each task, the problem, or ""
    if the options are valid."""
    parent = ParentPipe()
    own, *tasks = parent.receive()
    import_same(own)
    problems = []
    for task, config in tasks:
        if not is_user_task(task):
            library.import_only(task, load_table()[task]["module"])
        try:
            library.task_config(task, config)
            problems.append("")
        except InputError as error:
            problems.append(str(error))
    parent.send(problems)


def entry_problems(
    path: Keys, spec: Mapping[str, Any], label: str | None, reserved: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield the problems with the entry at `path` in a config's evaluation tasks.

    Args:
        spec: the task's name and options, as accepted by `Mixture.parse`.
        label: the entry's key, if it is not the name of the task.
        reserved: names that cannot be labels, mapped to what they refer to.
    """
    is_unknown = spec["name"] not in load_table()
    if label is not None and (problem := label_problem(label, reserved)):
        yield Problem(path, problem)
    if label is not None and is_unknown:
        path = (*path, "task")
    hint = "; for your own label, set task: NAME" if label is None and is_unknown else ""
    yield from problems_within(path, spec, Mixture.parse, hint)
