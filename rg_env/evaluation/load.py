"""Read and check evaluation configs.

    config = load_eval_config("configs/eval/tiny.yaml", ["num_examples=50"])
    config = load_eval_config(None, ["models=tiny", "tasks=leg_counting"])

Validation does not load a model or import torch or reasoning_gym. API keys, the values of task options and the contents
of data files are checked later, in `runner.prepared`. If a model belongs to a training run, values missing from the
config are taken from that run (see `evaluation.trained`).
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from rg_env.core.config.files import COMMAND_LINE, Document, overridden, read_config
from rg_env.core.config.parsing import Problem, config_error, parse_config
from rg_env.core.run_folder import model_path_problem
from rg_env.core.tasks.task_table import load_table
from rg_env.core.text import listed
from rg_env.evaluation.config import TASKS_BY_NAME, EvalConfig, EvalModel, run_of
from rg_env.evaluation.labels import entry_problems, name_problems
from rg_env.tiny import TINY

_NAME = re.compile(r"[^\s/\\\x00-\x1f][^\\\x00-\x1f]{0,119}")
_ALL_TASKS = "all_tasks"
"""Label used in the names of files that cover all tasks."""
_MOST_ANSWERS = 10_000_000
"""Maximum number of answers per model and task. At this limit, the answers take up several gigabytes of memory."""
_SECRET = (
    "contains a password or a query: put the key in an environment variable, and name the variable in key_variable"
)


def load_eval_config(
    file: str | Path | None, overrides: Sequence[str] = (), options: Mapping[str, Any] = MappingProxyType({})
) -> EvalConfig:
    """Read, resolve and validate an evaluation config.

    Args:
        file: the config file, or None for a config from `overrides` and `options` alone.
        overrides: values by key, as `section.key=value`. They take precedence over `options`.
        options: values of command-line options, by dotted key. A list of names under `tasks` selects from the file's
            tasks. Files under `imports` are added to those of the file.

    Raises:
        InputError: a file cannot be read.
        ConfigError: keys, types, ranges, names or combinations are invalid. All errors are reported at once.
    """
    document = read_config(file) if file else Document({}, Path(COMMAND_LINE))
    _use_held_out_tasks(document)
    for key, value in options.items():
        if file and key == "tasks":
            value = _selected(value, document.get(("tasks",)))
        elif key == "imports":
            own = [os.path.abspath(name) if name.endswith(".py") else name for name in value]
            value = [*(document.get(("imports",)) or []), *own]
        document.set(tuple(key.split(".")), value, COMMAND_LINE)
    return checked_eval_config(overridden(document, overrides))


def checked_eval_config(document: Document) -> EvalConfig:
    """Create a config from `document`. Raises the same errors as `load_eval_config`."""
    config = parse_config(document, EvalConfig, _names)
    if found := [problem for check in (_names, _models, _sampling, _required) for problem in check(config)]:
        raise config_error(document, found)
    return config


def _by_name(tasks: Any) -> dict[str, Any]:
    """Convert a `tasks` section to entries by name. Raises `ValueError` if the schema will reject it."""
    if not isinstance(entries := TASKS_BY_NAME(tasks or {}), dict):
        raise ValueError("not a mapping")
    return entries


def _use_held_out_tasks(document: Document) -> None:
    """Move tasks under `evaluation` to `tasks`. Files that define held-out tasks for training list them under
    `evaluation`."""
    held_out = document.get(("evaluation",))
    if isinstance(held_out, dict) and [*held_out] == ["tasks"]:
        with contextlib.suppress(ValueError):  # the schema reports invalid tasks
            document.values["tasks"] = _by_name(held_out["tasks"]) | _by_name(document.get(("tasks",)))
            del document.values["evaluation"]


def _selected(names: list[str], tasks: Any) -> Any:
    """Return the entries for the tasks called `names`, with their options from a config file's `tasks`. A category's
    name selects the file's tasks in that category, if there are any."""
    selected: dict[str, Any] = {}
    try:
        entries = _by_name(tasks)
    except ValueError:  # the names replace the invalid section
        return names
    for name in names:
        of_category = {label: entry for label, entry in entries.items() if _category(label, entry) == name}
        selected |= of_category or {name: entries.get(name, {})}
    return selected


def _category(label: str, entry: Any) -> str | None:
    task = (isinstance(entry, Mapping) and entry.get("task")) or label
    return str(load_table()[task]["category"]) if task in load_table() else None


def _names(config: EvalConfig) -> Iterator[Problem]:
    return name_problems(config, _tasks(config))


def _url_problem(url: str) -> str | None:
    """Return the reason why `url` is not a valid endpoint, or None if it is valid."""
    # These characters may belong to a secret, which would be written to all output files.
    if {"@", "?", "#"} & set(url):
        return _SECRET
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not url.isprintable() or " " in url:
        return "must be the URL of an endpoint, such as http://127.0.0.1:8000/v1"
    return None


def _models(config: EvalConfig) -> Iterator[Problem]:
    for name, model in config.models.items():
        path = ("models", name)
        if not _NAME.fullmatch(name):
            yield Problem(
                path, "must have at most 120 characters, without line breaks, backslashes, or a leading space or slash"
            )
        if model.url is None and model.key_variable is not None:
            yield Problem((*path, "key_variable"), "is only for endpoints: set url, or remove key_variable")
        if model.url is None and "@" in model.model and not os.path.exists(model.model):
            at = model.model.rpartition("@")[2]
            yield Problem(
                (*path, "model"), f"is not a folder; for an endpoint, pass the complete URL: NAME@http://{at}"
            )
        if model.url is not None and (problem := _url_problem(model.url)):
            yield Problem((*path, "url"), problem, secret=problem == _SECRET)


def path_problems(models: Iterable[EvalModel]) -> Iterator[str]:
    """Yield the reasons why models on this machine cannot be loaded from their paths."""
    for model in models:
        if not model.url and model.model != TINY and (problem := model_path_problem(model.model, adapters=True)):
            yield problem


def _tasks(config: EvalConfig) -> Iterator[Problem]:
    if not config.rewards:
        yield Problem(("rewards",), "is empty: add a reward, such as {correctness: 1.0}")
    reserved = {_ALL_TASKS: "the files that cover all tasks", config.data_name or "": "the data"}
    for name, entry in config.tasks.items():
        if config.count(name) * config.rollouts_per_example > _MOST_ANSWERS:
            message = f"has more than {_MOST_ANSWERS:,} answers: lower num_examples or rollouts_per_example"
            yield Problem(("tasks", name), message)
        label = None if entry.task in (None, name) else name
        yield from entry_problems(("tasks", name), config.gym(name), label, reserved)


def _sampling(config: EvalConfig) -> Iterator[Problem]:
    if 0 in {config.sampling_of(name).temperature for name in config.names}:
        if config.rollouts_per_example > 1:
            yield Problem(
                ("rollouts_per_example",),
                "with temperature 0, all answers are the same: set this key to 1, or raise the temperature",
            )
        if config.greedy:
            yield Problem(("greedy",), "temperature 0 is already greedy: turn greedy off")
    gpus = config.serving.gpus
    if gpus is not None and (not gpus or len(set(gpus)) < len(gpus)):
        yield Problem(("serving", "gpus"), "must list at least one GPU, and no GPU twice")


def _required(config: EvalConfig) -> Iterator[Problem]:
    if not config.names and not any(run_of(each.model) for each in config.models.values()):
        found = [Problem(("models",), problem) for problem in path_problems(config.models.values())]
        absent = [each.model for each in config.models.values() if not each.url and not os.path.exists(each.model)]
        absent = [name for name in absent if name != TINY]
        required = Problem(("tasks",), "is required: list at least one task, or set data (there is a default only for "
                      "checkpoints of a training run: the run's tasks"
                      f"{f'; {listed(absent)}: no such folder' if absent else ''})")  # fmt: skip
        yield from found or [required]
