"""Checks of the names in training and evaluation configs: imports, rewards, tasks, and the labels of evaluation tasks,
which name their results."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rg_env.core.config.files import Keys
from rg_env.core.config.parsing import Problem, problem_of, problems_within
from rg_env.core.rewards import OFFERED, check_offered, resolve_rewards
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import load_table
from rg_env.core.user_code import import_user_code

_LABEL = re.compile(r"\w[\w.-]{0,79}")
_LABEL_BYTES = 200
"""Maximum length of a label in bytes. Labels become part of file names, which are limited to 255 bytes."""


def name_problems(config: Any, tasks: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems with a config's imports, tasks and rewards, and a missing data file.

    Args:
        config: a training or evaluation config.
        tasks: iterator over the problems with the config's tasks. The config's imports run first because imported
            modules can register names.
    """
    failed = [*problem_of(("imports",), lambda: import_user_code(config.imports))]
    yield from failed or tasks
    for name, reward in config.rewards.items() if not failed else ():
        spec = {"name": name, **reward.model_dump()}
        yield from problems_within(("rewards", name), spec, _check_reward)
    if config.data is not None:
        yield from problem_of(("data", "path"), config.data.check_exists)
        if config.prompt is not None and type(config.prompt.few_shot) is int and config.prompt.few_shot:
            yield Problem(("prompt", "few_shot"), "with your own data, write the examples as messages, not a number")


def _check_reward(spec: Mapping[str, Any]) -> None:
    check_offered(resolve_rewards([spec]), OFFERED, "this environment")


def label_problem(label: str, reserved: Mapping[str, str]) -> str | None:
    """Return the reason why `label` is not a valid name for a task's results, or None if it is valid.

    Args:
        reserved: names that are already in use, mapped to what they refer to.
    """
    if not _LABEL.fullmatch(label) or len(label.encode()) > _LABEL_BYTES:
        return (
            "a label may contain only letters, digits, '_', '-' and '.', must not start with '-' or '.', and may have "
            f"at most 80 characters and {_LABEL_BYTES} bytes"
        )
    taken = "a task" if label in load_table() else reserved.get(label)
    return taken and f"is the name of {taken}: choose another label"


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
