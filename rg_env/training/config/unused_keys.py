"""Keys of a config that do nothing in a run of it, such as a server's port where there is no server.

They are no mistakes: `engine.kind=embedded` over a config for a server must work. But they are told, where they say
something else than the default. Not among them is what says what happens anyway (`warmup_steps: 0` beside a constant
rate), and what has some effect left: `curriculum.window` beside a schedule still is the window of a logged accuracy.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rg_env.core.config.files import Keys
from rg_env.core.config.parsing import Section
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import load_table
from rg_env.training.config.convert import gym
from rg_env.training.config.schema import TrainConfig
from rg_env.training.config.sections import rule_names
from rg_env.training.config.step_counts import in_updates


@dataclass(frozen=True)
class Rule:
    """Keys that have no effect where something holds."""

    keys: tuple[str, ...]
    """As in errors, with * for any part or piece of one."""
    holds: Callable[[TrainConfig, Keys], bool]
    """Of a config that has another value than the default at these keys."""
    reason: str


def without_effect(config: TrainConfig) -> str:
    """One line for people with the keys that have no effect, and why; empty if there are none."""
    given, parts = list(_given(config)), []
    for rule, patterns in _PATTERNS:
        found = [keys for pattern in patterns for keys in given if _fits(keys, pattern) and rule.holds(config, keys)]
        if found:
            parts.append(f"{', '.join('.'.join(keys) for keys in found)} ({rule.reason})")
    return f"without effect: {'; '.join(parts)}" if parts else ""


def _fits(keys: Keys, pattern: Keys) -> bool:
    same = len(keys) == len(pattern) and keys[0] == pattern[0]
    return same and all(map(fnmatchcase, keys, pattern))


def _given(section: Section, path: Keys = ()) -> Iterator[Keys]:
    """Where a value is another than the schema's default."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _given(value, (*path, name))
        elif isinstance(value, Mapping):
            for key, each in value.items():
                own = (*path, name, key)
                yield from _given(each, own) if isinstance(each, Section) else iter([own])
        elif field.is_required() or value != field.get_default(call_default_factory=True):
            yield (*path, name)


def _nothing_evaluated(config: TrainConfig, keys: Keys = ()) -> bool:
    return not config.splits.num_eval_examples and not config.evaluation.tasks


def _never_evaluated(config: TrainConfig, keys: Keys) -> bool:
    evaluation = config.evaluation
    return _nothing_evaluated(config) or not (evaluation.before or evaluation.after or evaluation.every != 0)


def _overruled(config: TrainConfig, keys: Keys) -> bool:
    """Whether all options that a level sets, of a task or of one of its attributes, are set by what wins over it."""
    name, *place = keys[keys.index("tasks") + 1 :]
    spec = config.evaluation.gym(name) if keys[0] == "evaluation" else gym({name: config.tasks[name]})[0]
    steps = load_table()[spec["name"]]["levels"]
    if place == ["level"]:
        attributes = [each for each in steps if each not in spec["levels"]]
        other = {**spec, "level": None}
    else:
        attributes = [place[1]]
        other = {**spec, "levels": {each: level for each, level in spec["levels"].items() if each != place[1]}}
    if not {option for each in attributes for step in steps[each] for option in step} <= spec["config"].keys():
        return False
    # Beside any level attributes that are not named stand at level 0, which need not be the task's defaults.
    return Mixture.parse(spec).tasks[0].config == Mixture.parse(other).tasks[0].config


def _begins_scheduled(config: TrainConfig, keys: Keys) -> bool:
    schedule = config.curriculum.schedule if config.curriculum else None
    return any(int(step) == 0 for step in schedule or ())


def _switched_off(config: TrainConfig, keys: Keys) -> bool:
    active = config.monitors.active()
    return not active if keys[1] == "window" else keys[1] not in active


def _ends_before(config: TrainConfig, keys: Keys) -> bool:
    """Whether the run has fewer steps than the window of its monitors."""
    return in_updates(config).training.max_steps < config.monitors.window


def _uploads_at_the_end(config: TrainConfig, keys: Keys) -> bool:
    updates = in_updates(config)
    return config.hub.enabled and updates.hub.every >= updates.training.max_steps


_NEEDS: dict[str, tuple[Callable[[TrainConfig], bool], str]] = {
    "kl_spike": (
        lambda config: config.training.beta == 0 and not config.engine.importance_sampling_correction,
        "training.beta: 0, engine.importance_sampling_correction: false",
    ),
    "ratio_spike": (lambda config: config.training.num_iterations == 1, "training.num_iterations: 1"),
    "format_rate": (lambda config: "think_format" not in config.rewards, "rewards have no think_format"),
}
"""Monitors whose metrics are not always logged: where they are not, and why."""


def _of_monitor(name: str) -> "tuple[Rule, Rule]":
    """Where a monitor has nothing to look at: of its threshold, and of a run that it is to end."""
    blind, reason = _NEEDS[name]
    return (
        Rule((f"monitors.{name}",), lambda config, keys: name in config.monitors.active() and blind(config), reason),
        Rule(
            ("monitors.stop_on",),
            lambda config, keys: name in config.monitors.stop_on and blind(config),
            f"{name} cannot fire with {reason}" if ":" in reason else f"{name} cannot fire, for {reason}",
        ),
    )


_EVALUATION = ("rollouts_per_example", "temperature", "top_p", "max_tokens", "greedy")
_SERVER = ("host", "port", "connect_timeout", "weight_sync_*")

RULES = (
    Rule(
        tuple(f"engine.{key}" for key in _SERVER),
        lambda config, keys: config.engine.kind == "embedded",
        "engine.kind: embedded",
    ),
    Rule(
        ("engine.importance_sampling_cap",),
        lambda config, keys: not config.engine.importance_sampling_correction,
        "engine.importance_sampling_correction: false",
    ),
    Rule(
        ("training.warmup_steps",),
        lambda config, keys: config.training.lr_scheduler_type == "constant" and config.training.warmup_steps > 0,
        "training.lr_scheduler_type: constant",
    ),
    Rule(
        ("training.adam_beta*",),
        lambda config, keys: "adamw" not in config.training.optim,
        "training.optim is no AdamW",
    ),
    # The only update of a batch takes its own log-probabilities for the old ones: the ratio is 1.
    Rule(
        ("training.epsilon", "training.epsilon_high"),
        lambda config, keys: config.training.num_iterations == 1,
        "training.num_iterations: 1",
    ),
    Rule(
        ("training.off_policy_mask_threshold",),
        lambda config, keys: config.training.num_iterations == 1 and config.engine.kind == "embedded",
        "training.num_iterations: 1, engine.kind: embedded",
    ),
    Rule(
        ("training.filter_groups_rounds",),
        lambda config, keys: not config.training.filter_groups,
        "training.filter_groups: false",
    ),
    Rule(
        ("training.shuffle_dataset",),
        lambda config, keys: len(config.tasks) == 1 and config.curriculum is not None,
        "the curriculum draws all questions",
    ),
    Rule(
        ("tasks.*.weight",),
        lambda config, keys: len(config.tasks) == 1,
        "there is no other task",
    ),
    Rule(
        ("tasks.*.level", "tasks.*.levels.*", "evaluation.tasks.*.level", "evaluation.tasks.*.levels.*"),
        _overruled,
        "the task's config or levels set the same options",
    ),
    Rule(("prompt.placement",), lambda config, keys: not config.prompt.system_prompt, "prompt.system_prompt is empty"),
    Rule(
        ("rewards.cosine.options.wrong_*",),
        lambda config, keys: config.rewards["cosine"].when == "correct",
        "rewards.cosine.when: correct",
    ),
    Rule(
        ("rewards.cosine.options.correct_*",),
        lambda config, keys: config.rewards["cosine"].when == "not_correct",
        "rewards.cosine.when: not_correct",
    ),
    Rule(("splits.eval_seed",), _nothing_evaluated, "nothing is evaluated"),
    Rule(tuple(f"evaluation.{key}" for key in _EVALUATION), _never_evaluated, "nothing is evaluated"),
    Rule(
        ("evaluation.top_p",),
        lambda config, keys: config.evaluation.temperature == 0 and not _never_evaluated(config, keys),
        "evaluation.temperature: 0",
    ),
    Rule(
        ("evaluation.num_held_out_examples",),
        lambda config, keys: not config.evaluation.tasks,
        "evaluation.tasks names none",
    ),
    Rule(
        ("curriculum.success_threshold", "curriculum.failure_threshold", "curriculum.check_every", "curriculum.step"),
        lambda config, keys: config.curriculum is not None and config.curriculum.schedule is not None,
        "curriculum.schedule",
    ),
    Rule(("curriculum.tasks.*.start",), _begins_scheduled, "curriculum.schedule has step 0"),
    Rule(
        tuple(f"monitors.{key}" for key in ("window", *rule_names())),
        _switched_off,
        "monitors.off",
    ),
    Rule(
        ("monitors.window", "monitors.stop_on"),
        lambda config, keys: _ends_before(config, keys) and bool(config.monitors.active()),
        "the run has fewer steps than monitors.window",
    ),
    *(rule for name in _NEEDS for rule in _of_monitor(name)),
    Rule(
        ("logging.project", "logging.run_name"),
        lambda config, keys: not {"wandb", "trackio"} & set(config.logging.report_to),
        "logging.report_to names neither wandb nor trackio",
    ),
    Rule(
        ("hub.repo_id", "hub.private", "hub.optimizer_state", "hub.every"),
        lambda config, keys: not config.hub.enabled,
        "hub.enabled: false",
    ),
    Rule(("hub.every",), _uploads_at_the_end, "the run has no more steps"),
    Rule(
        ("logging.num_examples",), lambda config, keys: not config.logging.examples_every, "logging.examples_every: 0"
    ),
)
_PATTERNS = [(rule, [tuple(each.split(".")) for each in rule.keys]) for rule in RULES]
