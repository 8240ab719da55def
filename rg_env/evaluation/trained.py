"""Settings and training questions that an evaluation takes from a checkpoint's training run.

    config, notes = as_trained(config)               # takes missing values from a model's training run
    questions.among(trained_on(model))               # questions to skip
    notes += changes_since_training(config, drawn)   # the user's own data may have changed

A model belongs to a run if it is the run's folder, a checkpoint in that folder, an export next to the checkpoints, or a
model that `rg-env push` published with the run's files. All models are evaluated with the same settings so that they
can be compared. The notes list the settings that match the run from which missing values are taken and, for each model,
any settings that were different in its training.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from rg_env.core.config.files import leaves
from rg_env.core.config.parsing import Section
from rg_env.core.data.manifest import read_manifest
from rg_env.core.rewards import resolve_rewards
from rg_env.core.run_folder import RunFolder, damaged
from rg_env.core.text import counted, listed, shortened
from rg_env.core.user_code import import_unchanged, opened
from rg_env.errors import InputError
from rg_env.evaluation.config import EvalConfig, EvalModel, EvalTask, SamplingConfig, run_of
from rg_env.evaluation.load import path_problems
from rg_env.evaluation.questions import Questions, hash_with_answer
from rg_env.evaluation.results import OVERLAP_UNKNOWN

_OPTIONS = {"config", "level", "levels"}
_OF_TRAINING = ("prompt.", "grading", "rewards.", "sampling.", "tasks.")
"""Prefixes of the keys of training settings. Other keys concern the run's evaluations."""
_OF_EVALUATION = ("sampling.temperature", "sampling.top_p")
_PLAIN = {f"sampling.{key}": value for key, value in SamplingConfig().model_dump(mode="json").items()}
_Section = TypeVar("_Section", bound=Section)


@dataclass(frozen=True)
class RunSettings:
    """Settings that an evaluation can take from a training run."""

    config: EvalConfig
    """The run's own evaluation. Values that the run did not record are unset."""
    options: dict[str, EvalTask]
    """Options of all tasks in the run, by name or label."""
    unknown_rewards: list[str]
    """Names of the run's custom rewards whose code has not been imported."""
    own_data: str | None
    """Path of the data file that the run used, if it is this user's own run."""


def as_trained(config: EvalConfig) -> tuple[EvalConfig, list[str]]:
    """Fill in missing config values (prompt, grading, rewards, sampling, seeds, split rule and task options) from the
    training run of the first model that has one. If the config has neither tasks nor data, the run's evaluation tasks
    and data are filled in as well.

    A run folder is replaced by its last checkpoint.

    If a run did not record its training questions, a note names the model.

    Raises:
        InputError: a model's folder is missing, a file in a run's folder is damaged, neither the config nor a run has
            evaluation tasks, or the user's data that a model was trained on is not on this machine.
    """
    models = {name: model.model_copy(update={"model": _checkpoint(model)}) for name, model in config.models.items()}
    config, notes = config.model_copy(update={"models": models}), list[str]()
    local = {name: each.model for name, each in models.items() if not each.url}
    if problem := next(path_problems(models.values()), None):
        raise InputError(problem)
    runs = {name: run for name, model in local.items() if (run := run_of(model))}
    trained = {name: settings for name, run in runs.items() if (settings := _settings(run, config.models))}
    for number, (name, settings) in enumerate(trained.items()):
        if settings.unknown_rewards and "rewards" not in config.model_fields_set:
            notes.append(
                f"{name}: evaluated without its training run's rewards, because the code for "
                f"{listed(settings.unknown_rewards)} is not imported (only unchanged files of your own runs are "
                "imported by themselves): pass --imports FILE, or set `imports` in an evaluation config"
            )
        if number == 0:
            filled = _filled(config, settings)
            data = None if config.data else filled.data
            path = Path(data.path).expanduser() if data and data.is_file else None
            if path and not (path.exists() and os.path.abspath(path) == settings.own_data):
                elsewhere = "in a run of another user or machine, so it is not read"
                why = elsewhere if path.exists() else "which is not on this machine"
                raise InputError(
                    f"{config.models[name].model} was trained on {str(path)!r}, {why}: pass --data FILE (or set `data` "
                    "in a config), or run the evaluation where the model was trained"
                )
            config = filled
        alike, other = _compared(settings, config)
        notes += [f"settings as in the training run of {name}: {', '.join(alike)}"] if number == 0 and alike else []
        notes += [f"{name}: trained with different values: {', '.join(other)}"] if other else []
    if not config.names:
        raise InputError(
            "tasks or data must be set, because the training runs of these models have no evaluation tasks that can be "
            "repeated; pass --tasks NAME or --data FILE"
        )
    notes += [
        f"{name}: not evaluated as in its training run, which recorded no eval_config in arguments.yaml"
        for name, run in runs.items()
        if name not in trained and run.config_file.is_file()
    ]
    for name, model in local.items():
        if name not in runs and (Path(model) / "resume.json").is_file():
            notes.append(
                f"{name}: not evaluated as in its training run, because the run's files are not next to the checkpoint"
            )
        elif name in runs and config.names and _trained(runs[name]) is None:
            notes.append(f"{name}: its training questions are not recorded, so {OVERLAP_UNKNOWN}")
    return config, notes


def _compared(settings: RunSettings, config: EvalConfig) -> tuple[list[str], list[str]]:
    """Return a run's training settings that are the same in `config`, and the settings that differ."""
    ours, alike, other = dict(leaves(config.model_dump(mode="json"))), list[str](), list[str]()
    theirs = settings.config.model_dump(mode="json", exclude_unset=True)
    options = {name: each for name, each in settings.options.items() if name in config.tasks}
    theirs["tasks"] = {name: each.model_dump(include=_OPTIONS) for name, each in options.items()}
    values = dict(leaves(theirs))
    for key in [key for prefix in _OF_TRAINING for key in values if key.startswith(prefix)]:
        if key in _OF_EVALUATION:
            continue
        if ours.get(key) != values[key]:
            other.append(f"{key}={shortened(values[key])}")
        elif key == "sampling.max_tokens" or values[key] not in (None, "", {}, [], _PLAIN.get(key)):
            alike.append(f"{key}={shortened(values[key])}")
    return alike, other


def _checkpoint(model: EvalModel) -> str:
    folder = Path(model.model)
    if model.url or (folder / "config.json").is_file() or not RunFolder.is_run(folder):
        return model.model
    return str(RunFolder(folder).last_checkpoint() or folder)


def _settings(run: RunFolder, models: Mapping[str, EvalModel]) -> RunSettings | None:
    """Read the settings of a run, or return None if the run did not record them."""
    if not run.config_file.is_file() or not (recorded := run.arguments().get("eval_config")):
        return None
    own = opened(run.arguments().get("own_files"))  # a downloaded folder must not name code or files of this machine
    import_unchanged(own.get("imports", {}))
    try:
        tasks = {name: EvalTask(**task) for name, task in recorded["tasks"].items()}
        evaluated = {name: each for name, each in tasks.items() if each.num_examples}
        values = {**recorded, "models": dict(models), "tasks": evaluated}
        if unknown := _unknown(recorded.get("rewards", {})):
            del values["rewards"]
        options = {name: EvalTask(**each.model_dump(include=_OPTIONS)) for name, each in tasks.items()}
        return RunSettings(EvalConfig.model_validate(values), options, unknown, own.get("data"))
    except (LookupError, TypeError, AttributeError, ValidationError) as error:
        raise damaged(run.path, f"its files do not describe a training run: {error!r}") from error


def _unknown(rewards: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of custom rewards whose code has not been imported."""
    unknown = []
    for name, reward in rewards.items():
        try:
            resolve_rewards([{"name": name, **reward}])
        except InputError:
            unknown.append(name)
    return unknown


def _filled(config: EvalConfig, settings: RunSettings) -> EvalConfig:
    """Fill in values missing from the config. If the config has neither tasks nor data, the run's own evaluation is
    repeated."""
    theirs = settings.config
    if not config.names:
        filled = _merged(config, theirs)
        if "num_examples" in config.model_fields_set:  # replaces the run's numbers of questions
            tasks = {name: each.model_copy(update={"num_examples": None}) for name, each in filled.tasks.items()}
            filled = filled.model_copy(update={"tasks": tasks})
        return filled
    own = {"tasks", "data", "rollouts_per_example", "greedy"}
    tasks = {
        name: _merged(entry, settings.options[name])
        if name in settings.options and entry.task in (None, name) and not entry.model_fields_set & _OPTIONS
        else entry
        for name, entry in config.tasks.items()
    }
    filled = _merged(config, theirs, own if config.data and config.data == theirs.data else own | {"num_examples"})
    return filled.model_copy(update={"tasks": tasks})


def _merged(ours: _Section, theirs: _Section, without: Collection[str] = ()) -> _Section:
    """Return `ours`, with values that only `theirs` sets, except the fields in `without`."""
    update = {}
    for name in theirs.model_fields_set.difference(without):
        own, other = getattr(ours, name), getattr(theirs, name)
        if name not in ours.model_fields_set:
            update[name] = other
        elif isinstance(own, Section):
            update[name] = _merged(own, other)
    return ours.model_copy(update=update)


# Questions


def trained_on(model: str) -> frozenset[str]:
    """Identify the questions that a checkpoint was trained on, using the manifest of the checkpoint's run. Return the
    hashes of these questions and the keys of the problems that they pose. A reworded question has the same key as the
    original question. Questions from the user's own data do not have keys. If the checkpoint does not belong to a run,
    the result is empty.

    By construction, none of these questions is an evaluation question of a task, unless the evaluation's `split_by`
    differs from the run's `split_by`.

    Raises:
        InputError: the manifest is damaged.
    """
    run = run_of(model)
    return (_trained(run) if run else None) or frozenset()


def _trained(run: RunFolder) -> frozenset[str] | None:
    """Return the hashes and keys of the questions used for training in a run, or None if the run did not record the
    questions."""
    rows = run.manifest().get("rows", "")
    if rows is None:
        train = _own_rows(run).get("train")
        return None if train is None else frozenset(train)
    if rows == "":
        return frozenset()
    try:
        split = read_manifest(rows)["splits"]["train"]
    except InputError as error:
        raise damaged(run.manifest_file, str(error)) from error
    return frozenset([*split["question_hashes"], *(split.get("problems") or ())])


def _own_rows(run: RunFolder) -> dict[str, list[str]]:
    """Return the hashes of the user's own rows (see `questions.own_rows`), or an empty mapping if the run did not
    record the hashes."""
    try:
        return TypeAdapter(dict[str, list[str]]).validate_python(run.manifest().get("own_rows") or {})
    except ValidationError as error:
        raise damaged(run.manifest_file, "own_rows is malformed") from error


def changes_since_training(config: EvalConfig, drawn: Iterable[Questions]) -> list[str]:
    """Return notes about models that were trained on the config's data and are evaluated on the same part of the data.
    A model is included only if questions or gold answers in that part have changed since training."""
    found = next((questions for questions in drawn if config.data and questions.name == config.data_name), None)
    if not config.data or not found:
        return []
    notes, data, ours = [], config.data.model_dump(exclude_none=True), list(map(hash_with_answer, found.rows))
    for name, model in config.models.items():
        run = None if model.url else run_of(model.model)
        if not run or not run.config_file.is_file():
            continue
        theirs, recorded = _own_rows(run).get("eval", [])[: config.num_examples], run.arguments().get("eval_config", {})
        is_same_part = (recorded.get("data"), recorded.get("eval_seed")) == (data, config.eval_seed)
        if is_same_part and (changed := len(set(theirs).difference(ours))):
            those = f"{changed} of the {counted(len(theirs), 'evaluation question')} from its training run"
            notes.append(
                f"{name}: {those} are missing or have different answers, because {config.data.path} was changed"
            )
    return notes
