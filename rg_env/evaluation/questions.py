"""Frozen questions: the evaluation rows of an environment, and which of them a checkpoint was trained on.

questions = Questions(ReasoningGym("maze", 0, 100))
questions.prompt(0)                   # the first one, as messages
questions.by_name()                   # {"maze": [0, 1, ...]}
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rg_env.core.data.manifest import hash_of_rows, split_hash
from rg_env.core.data.splits import question_hash
from rg_env.core.environment import Environment, ReasoningGym, Row
from rg_env.core.grading.rollout import UNNAMED_TASK
from rg_env.core.grading.scoring import score
from rg_env.core.run_folder import RunFolder
from rg_env.core.text import shortened
from rg_env.errors import InputError
from rg_env.evaluation import results
from rg_env.evaluation.config import EvalConfig, EvalModel
from rg_env.evaluation.results import Part

_CONSTANTS = 3
"""How many of the most frequent gold answers are tried as a constant one."""
_MANIFEST = "manifest.json"
_OPTIONS = ("config", "level", "levels")


@dataclass(frozen=True, eq=False)
class Questions:
    """The evaluation rows of an environment, and the name that their figures are reported under."""

    env: Environment
    part: Part | None = None
    """What they are to a training run; None outside of one."""
    label: str | None = None
    """Name of their figures; None: each row's task."""
    floor: float | None = None
    """Accuracy of the best constant answer; None: not measured."""

    @property
    def rows(self) -> Sequence[Row]:
        return self.env.eval_rows

    @cached_property
    def hashes(self) -> list[str]:
        """The hash of each question."""
        return [question_hash(question_of(row)) for row in self.env.eval_rows]

    def name(self, number: int) -> str:
        """What figures of a row are reported under."""
        return self.label or str(self.env.eval_rows[number]["info"].get("rg_task", UNNAMED_TASK))

    def by_name(self) -> dict[str, list[int]]:
        """Indices of the rows by the name of their figures, in alphabetical order."""
        found: dict[str, list[int]] = {}
        for number in range(len(self.env.eval_rows)):
            found.setdefault(self.name(number), []).append(number)
        return dict(sorted(found.items()))

    def prompt(self, number: int, system_prompt: str | None = None) -> Any:
        """The prompt of a row; with a model's own `system_prompt` instead of the environment's, if given."""
        row = self.env.eval_rows[number]
        if system_prompt is None:
            return row["prompt"]
        return replace(self.env.prompt_options, system_prompt=system_prompt).messages(row["question"])

    @property
    def manifest_sha256(self) -> str | None:
        return None if self.env.manifest is None else split_hash(self.env.manifest, "eval")

    def described(self) -> results.Environment:
        """As results state it."""
        tasks = {str(row["info"].get("rg_task", UNNAMED_TASK)) for row in self.env.eval_rows}
        return results.Environment(
            part=self.part,
            label=self.label,
            tasks=sorted(tasks),
            n=len(self.env.eval_rows),
            manifest_sha256=self.manifest_sha256,
            prompts_sha256=hash_of_rows(self.env.eval_rows),
        )


def question_of(row: Row) -> str:
    """The text of a row's question; of rows without one, the last message of the prompt."""
    prompt = row["prompt"]
    found = row.get("question")
    return str(found if found is not None else prompt if isinstance(prompt, str) else prompt[-1]["content"])


def draw(config: EvalConfig, name: str) -> Questions:
    """The questions of the entry `name` of the tasks, from the evaluation split: the same ones everywhere.

    Raises:
        InputError: options that the library refuses; the task has fewer questions.
        GenerationError: generating a row takes too long.
    """
    env = ReasoningGym(
        config.gym(name),
        num_train_examples=0,
        num_eval_examples=config.count(name),
        eval_seed=config.eval_seed,
        rewards=config.reward_list,
        system_prompt=config.prompt.system_prompt,
        prompt_placement=config.prompt.placement,
        preamble=config.prompt.preamble,
        grading=config.grading,
        split_by=config.split_by,
    )
    floor = None if env.rubric.in_workers else _floor(env)
    return Questions(env, label=name, floor=floor)


def _floor(env: Environment) -> float:
    golds = Counter(row["answer"] for row in env.eval_rows if row["answer"].strip())
    shares = [
        sum(score(f"<answer>{gold}</answer>", row["info"]).status == "correct" for row in env.eval_rows)
        / len(env.eval_rows)
        for gold, _ in golds.most_common(_CONSTANTS)
    ]
    return max(shares, default=0.0)


def as_trained(config: EvalConfig) -> tuple[EvalConfig, list[str]]:
    """The config with what it leaves open taken from the training run of its first model that has one: prompt, grading,
    token limit, and the options of tasks. A run's folder stands for its last checkpoint.

    All models are asked the same, for comparison; the notes say what was taken, and what other runs had otherwise.

    Raises:
        InputError: a file of a run is damaged.
    """
    models = {name: model.model_copy(update={"model": _checkpoint(model)}) for name, model in config.models.items()}
    config, notes = config.model_copy(update={"models": models}), []
    runs = {name: run for name, each in models.items() if not each.url and (run := run_of(each.model))}
    settings = {name: _settings(RunFolder(run)) for name, run in runs.items()}
    for number, (name, trained) in enumerate(settings.items()):
        if number == 0:
            config = _with(config, trained)
        asked = _settings_of(config, trained)
        shown = ", ".join(f"{key}={shortened(value)}" for key, value in trained.items() if asked[key] == value)
        other = ", ".join(f"{key}={shortened(value)}" for key, value in trained.items() if asked[key] != value)
        notes += [f"{name}: asked as it was trained: {shown}"] if number == 0 and shown else []
        notes += [f"{name}: asked otherwise than it was trained, which was with {other}"] if other else []
    return config, notes


def _checkpoint(model: EvalModel) -> str:
    folder = Path(model.model)
    if model.url or (folder / "config.json").is_file() or not RunFolder.is_run(folder):
        return model.model
    return str(RunFolder(folder).last_checkpoint() or folder)


def _settings(run: RunFolder) -> dict[str, Any]:
    """What a run asked its model, by the key of an evaluation's config."""
    if not run.config_file.is_file():
        return {}
    config, arguments = run.config(), run.arguments()
    environment, training = (arguments.get(name) or {} for name in ("environment", "training"))
    prompt = config.get("prompt") or environment
    found = {f"prompt.{key}": prompt.get(key) for key in ("system_prompt", "placement", "preamble")}
    found |= {"grading": environment.get("grading"), "sampling.max_tokens": training.get("max_tokens")}
    for task in environment.get("gym") or []:
        options = {key: task[key] for key in _OPTIONS if task.get(key)}
        found |= {f"tasks.{task['name']}": options} if options else {}
    return {key: value for key, value in found.items() if value is not None}


def _with(config: EvalConfig, settings: dict[str, Any]) -> EvalConfig:
    """The config with these settings, except for those that it gives itself."""
    update: dict[str, Any] = {}
    for section in ("prompt", "sampling"):
        values: Any = getattr(config, section)
        given = values.model_fields_set
        new = {key: settings[f"{section}.{key}"] for key in type(values).model_fields if f"{section}.{key}" in settings}
        update[section] = values.model_copy(update={key: value for key, value in new.items() if key not in given})
    if "grading" in settings and "grading" not in config.model_fields_set:
        update["grading"] = settings["grading"]
    update["tasks"] = {
        name: entry
        if entry.task not in (None, name) or set(_OPTIONS) & entry.model_fields_set
        else entry.model_copy(update=settings.get(f"tasks.{name}", {}))
        for name, entry in config.tasks.items()
    }
    return config.model_copy(update=update)


def _settings_of(config: EvalConfig, like: dict[str, Any]) -> dict[str, Any]:
    """The settings of a config that `like` names; tasks that are not asked count as alike."""
    values = config.model_dump()
    found: dict[str, Any] = {}
    for key, value in like.items():
        section, _, name = key.partition(".")
        if section != "tasks":
            found[key] = values[section][name] if name else values[section]
        elif name in values["tasks"]:
            found[key] = {option: values["tasks"][name][option] for option in value}
        else:
            found[key] = value
    return found


@dataclass(frozen=True)
class Trained:
    """What a model was trained on, if the manifest of its run says."""

    questions: frozenset[str] = frozenset()
    """Hashes of questions."""
    problems: frozenset[str] = frozenset()
    """Keys of the problems that they state."""

    def among(self, questions: Questions) -> frozenset[int]:
        """Indices of the questions that it was trained on, in these or in other words."""
        problems = [row["info"].get("problem") for row in questions.env.eval_rows]
        asked = enumerate(zip(questions.hashes, problems, strict=True))
        return frozenset(n for n, (each, problem) in asked if each in self.questions or problem in self.problems)


def run_of(model: str) -> Path | None:
    """The folder of the training run that a model folder of ours belongs to: its own, the one above, or `run/` in a
    download of what `rg-env push` published."""
    folder = Path(model)
    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        return None
    return next(
        (each for each in (folder, folder / "run", folder.absolute().parent) if (each / _MANIFEST).is_file()), None
    )


def trained_on(model: str) -> Trained:
    """What a checkpoint of ours was trained on, by the manifest of its run; empty for others.

    By construction none of it is among evaluation questions, unless they are split otherwise (`split_by`) than those of
    the run, or the rows were somebody's own.

    Raises:
        InputError: the manifest is damaged.
    """
    if (run := run_of(model)) is None:
        return Trained()
    file = run / _MANIFEST
    try:
        rows: Mapping[str, Any] | None = json.loads(file.read_text(encoding="utf-8"))["rows"]
        train = {"question_hashes": ()} if rows is None else rows["splits"]["train"]
        return Trained(frozenset(train["question_hashes"]), frozenset(train.get("problems", ())))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is damaged: what {model} was trained on cannot be left out") from error
