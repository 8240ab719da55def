"""Check the values of task options before anything slow starts.

The library checks values when it builds a task's config object. That happens in a child process, which imports only the
given tasks, because importing the whole library takes 2.5 s.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rg_env.core.child_process import ParentPipe
from rg_env.core.processes import JsonProcess, bare_environment
from rg_env.core.tasks import library
from rg_env.core.tasks.task_table import is_user_task, load_table
from rg_env.errors import InputError

if TYPE_CHECKING:
    from rg_env.core.tasks.mixture import TaskSpec

_MAIN = "rg_env.core.tasks.option_values:serve"
_TIMEOUT_S = 10.0


def check_options(specs: Mapping[str, "TaskSpec"]) -> None:
    """Raise `InputError` if the library rejects the options of a task. `specs`: tasks by their key in the config.

    Options that are rejected only while questions are drawn are not detected.
    """
    changed = {key: spec for key, spec in specs.items() if spec.config}
    shipped = {key: (spec.name, spec.config) for key, spec in changed.items() if not is_user_task(spec.name)}
    problems = {key: _problem(spec.name, spec.config) for key, spec in changed.items() if key not in shipped}
    if shipped:
        process = JsonProcess(_MAIN, bare_environment())
        try:
            process.send([*shipped.values()])
            problems |= zip(shipped, process.receive(time.monotonic() + _TIMEOUT_S), strict=True)
        except (EOFError, TimeoutError):
            pass  # checked again when questions are drawn
        finally:
            process.kill()
    if found := [f"{key}.config: {problem}" for key, problem in problems.items() if problem]:
        raise InputError("; ".join(found))


def serve() -> None:
    """The main function of the child process. It receives one list of tasks with their options, and replies with the
    problem of each task, or ""."""
    parent = ParentPipe()
    problems = []
    for task, config in parent.receive():
        library.import_only(task, load_table()[task]["module"])
        problems.append(_problem(task, config))
    parent.send(problems)


def _problem(task: str, config: Mapping[str, Any]) -> str:
    try:
        library.task_config(task, config)
    except InputError as error:
        return str(error)
    return ""
