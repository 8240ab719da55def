"""Load and validate a training config.

    config = load_train_config("configs/train/tiny.yaml", ["training.learning_rate=2e-6"])

This module checks a config's keys and values. For example, it finds unknown task and reward names and conflicting
values. It imports neither torch nor reasoning_gym.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rg_env.core.config import parsing
from rg_env.core.config.files import Document, Keys
from rg_env.core.config.parsing import Problem
from rg_env.core.processes import world_size
from rg_env.core.run_folder import gguf_file
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import load_table, working_levels
from rg_env.core.text import counted
from rg_env.errors import InputError
from rg_env.evaluation.labels import entry_problems, name_problems
from rg_env.inference.protocol import Sampling
from rg_env.training.config.grpo import GRPOSettings, batch_problems
from rg_env.training.config.schema import RESERVED_LABELS, CurriculumConfig, EngineConfig, TrainConfig


def load_train_config(file: str | Path, overrides: Sequence[str] = (), *, processes: int | None = None) -> TrainConfig:
    """Read, resolve and check a config for `processes` training processes (default: the number that the launcher
    started).

    Raises:
        InputError: a file cannot be read, or `processes` is not given and an environment variable set by the launcher
            is not a valid number.
        ConfigError: keys, types, ranges, names or combinations are invalid (one error reports all problems found), or
            an entry of `imports` cannot be imported.
    """
    return checked_config(parsing.read_config(file, overrides), processes=processes)


def checked_config(document: Document, *, processes: int | None = None) -> TrainConfig:
    """Parse and check the config in `document`. Raises the same errors as `load_train_config`."""
    count, given = processes or world_size(), document.get(("training",))

    def names(config: TrainConfig) -> Iterator[Problem]:
        yield from _names(config)
        used = _BATCH & {*given} if isinstance(given, dict) else set()
        if used <= config.training.model_fields_set:  # parsing did not drop any of these keys as invalid
            yield from _batch(config, count)

    config = parsing.parse_config(document, TrainConfig, names)
    if found := [*_names(config), *problems(config, count)]:
        raise parsing.config_error(document, found)
    return config


def _names(config: TrainConfig) -> Iterator[Problem]:
    return name_problems(config, _tasks(config))


def problems(config: TrainConfig, processes: int = 1) -> Iterator[Problem]:
    """Yield the problems caused by values that are invalid, individually or in combination, in a run with `processes`
    training processes."""
    training, splits, model, hub = config.training, config.splits, config.model, config.hub
    yield from _batch(config, processes)
    if not config.rewards:
        yield _at("rewards", "is empty: add a reward, such as {correctness: 1.0}")
    elif not any(reward.weight for reward in config.rewards.values()):
        yield _at("rewards", "all weights are 0, so there is nothing to learn: set at least one nonzero weight")
    yield from _rows(config)
    if config.evaluation.every and not (splits.num_eval_examples or config.evaluation.tasks):
        yield _at(
            "evaluation.every",
            "there is nothing to evaluate because splits.num_eval_examples is 0 and evaluation.tasks is empty",
        )
    save_every = config.output.save_every
    if hub.enabled and hub.every and not save_every:
        yield _at("hub.every", "output.save_every is 0, so there are no checkpoints to upload during training")
    elif hub.enabled and hub.every and hub.every % save_every:
        least = math.ceil(hub.every / save_every) * save_every
        yield _at("hub.every", f"must be a multiple of output.save_every ({save_every}); try {least}")
    steps, has_warmup = config.training_for().max_steps, training.lr_scheduler_type != "constant"
    if has_warmup and config.training_for().warmup_steps > steps:
        yield _at("training.warmup_steps", f"exceeds the run's {counted(steps, 'step')}: use at most {steps}")
    packages: list[tuple[str, str]] = [("logging.report_to", service) for service in config.logging.report_to]
    packages += [("training.optim", "bitsandbytes")] if training.optim.endswith("8bit") else []
    packages += [("training.use_liger_kernel", "liger-kernel")] if training.use_liger_kernel else []
    for key, package in packages:
        if find_spec(package.replace("-", "_")) is None:
            yield _at(key, f"needs {package}, which is not installed: run `pip install {package}`")
    if model.dtype == "bfloat16" and config.lora is None:
        yield _at(
            "model.dtype",
            "without LoRA, small updates are rounded away; use auto, with training.bf16 to compute in bfloat16",
        )
    is_path = model.name.startswith(("/", "./", "../", "~"))
    if is_path and not os.path.isdir(model.name) and gguf_file(model.name) is None:
        yield _at("model.name", "is not an existing folder")
    yield from contradictions(training, config.engine, config.curriculum)
    if config.curriculum is not None:
        yield from curriculum_problems(config.curriculum, config.tasks)


def _at(key: str, message: str) -> Problem:
    """Return a problem at a dotted key."""
    return Problem(tuple(key.split(".")), message)


_BATCH = {"rollouts_per_step", "num_generations", "per_device_train_batch_size"}
"""Settings in `training` that must be consistent with each other."""


def _batch(config: TrainConfig, processes: int) -> Iterator[Problem]:
    for key, message in batch_problems(config.training, processes):
        yield _at(f"training.{key}", message)


def _rows(config: TrainConfig) -> Iterator[Problem]:
    splits, tasks, prompts = config.splits, len(config.tasks), config.training.prompts_per_step
    if splits.manifest and config.curriculum:
        yield _at("splits.manifest", "cannot be used with a curriculum, which draws new questions")
    elif splits.manifest and config.data:
        yield _at("splits.manifest", "cannot be used with data, which provides its own questions")
    if config.data is not None:
        for key in [key for key in ("tasks", "curriculum") if getattr(config, key)]:
            yield _at("data", f"cannot be used with {key}: remove one of the two, for example with {key}=null")
        return
    if not config.tasks:
        yield _at("tasks", "is empty: add at least one task, or use your own questions (data)")
    if splits.num_train_examples < (least := max(tasks, prompts)):
        sizes = f"{counted(prompts, 'prompt')} in a step or the {counted(tasks, 'task')}"
        yield _at("splits.num_train_examples", f"fewer than the {sizes}: use at least {least}")
    if 0 < splits.num_eval_examples < tasks:
        text = f"fewer than the {counted(tasks, 'task')}: use at least {tasks}, or 0 for none"
        yield _at("splits.num_eval_examples", text)


def contradictions(training: GRPOSettings, engine: EngineConfig, curriculum: object) -> Iterator[Problem]:
    """Yield the problems caused by values in `training` and `engine` that conflict with each other or with
    `curriculum`."""
    if training.filter_groups and curriculum is not None:
        yield _at(
            "training.filter_groups",
            "samples prompts other than the curriculum's: use only filter_groups or only curriculum",
        )
    for key in ("num_batches_ahead", "importance_sampling_correction"):
        if engine.kind == "embedded" and getattr(engine, key):
            text = "applies only to engine.kind: vllm; the embedded engine samples from the policy"
            yield _at(f"engine.{key}", text)
    # These compare the sampler's log-probabilities with the trainer's, which are those of the entire vocabulary.
    comparing = {
        "engine.importance_sampling_correction": engine.importance_sampling_correction,
        "training.off_policy_mask_threshold": training.off_policy_mask_threshold and engine.num_batches_ahead,
    }
    for key in [key for key, is_set in comparing.items() if is_set and not training.sampling.is_plain]:
        plain = {
            name: value for name, value in vars(Sampling()).items() if name not in ("temperature", "max_tokens", "stop")
        }
        changed = [f"training.{name}: {value}" for name, value in plain.items() if getattr(training, name) != value]
        yield _at(key, f"needs {', '.join(changed)}, because the trainer computes probabilities without these settings")


def curriculum_problems(curriculum: CurriculumConfig, tasks: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems found in a curriculum's configuration. `tasks` are the training tasks by name, each with
    `level` and `levels`."""
    if not curriculum.tasks:
        yield _at("curriculum.tasks", "is empty: add a task, such as {spell_backward: {start: 0}}")
    if curriculum.failure_threshold >= (success := curriculum.success_threshold):
        yield _at("curriculum.failure_threshold", f"must be below success_threshold ({success:g})")
    for name, task in curriculum.tasks.items():
        path: Keys = ("curriculum", "tasks", name)
        if name not in tasks:
            if tasks:  # if there are no tasks, `_rows` reports the problem
                yield Problem(path, f"is not a training task: the training tasks are {', '.join(tasks)}")
            continue
        if tasks[name].level is not None or tasks[name].levels:
            text = f"its level is set by the curriculum: use curriculum.tasks.{name}.start instead"
            yield Problem(("tasks", name), text)
        if name not in load_table():
            continue  # this problem is reported at `tasks`
        try:
            working = working_levels(name, task.attributes)
        except InputError as error:  # an attribute is unknown
            yield Problem((*path, "attributes"), str(error))
            continue
        levels = load_table()[name]["levels"]
        top = max((len(levels[each]) for each in task.attributes or levels), default=0) - 1
        highest = top if task.highest is None else task.highest
        if not any(level <= highest for level in working):
            yield Problem(path, f"no level up to {highest} works with the installed reasoning-gym: remove this task")
            continue
        for key in ("start", "highest"):
            if (getattr(task, key) or 0) > top:
                yield Problem((*path, key), f"the highest level is {top}")
        if highest < task.start <= top:
            yield Problem((*path, "start"), f"is above highest ({highest})")
        for step, level in (curriculum.schedule or {}).items():
            if level > top:
                yield Problem(("curriculum", "schedule", step), f"the highest level of {name} is {top}")


def _tasks(config: TrainConfig) -> Iterator[Problem]:
    for spec in config.gym:
        yield from parsing.problems_within(("tasks", spec["name"]), spec, Mixture.parse)
    evaluation = config.evaluation
    reserved = RESERVED_LABELS | ({config.data.task_name: "the data"} if config.data else {})
    for name in evaluation.tasks:
        path: Keys = ("evaluation", "tasks", name)
        label = name if name in evaluation.labels else None
        if label is None and name in config.tasks:
            yield Problem(
                path,
                "is already evaluated as a training task: remove it here, or evaluate it with other options under its "
                f"own label, such as {name}_hard: {{task: {name}, config: {{...}}}}",
            )
        else:
            yield from entry_problems(path, evaluation.gym(name), label, reserved)
