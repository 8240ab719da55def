"""What a run of a config will do, and which keys change nothing: `rg-env train CONFIG --dry-run`.

Imports neither torch nor reasoning_gym.
"""

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from rg_env.core.config.files import leaves
from rg_env.core.config.yaml12 import to_yaml
from rg_env.core.processes import world_size
from rg_env.core.tasks.mixture import Mixture
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.config.schema import TrainConfig, evaluation_steps

Condition = Mapping[str, Any]
"""Values by dotted key; None: a key that has none, or is not there."""

_NO_KL = {"training.beta": 0.0, "engine.importance_sampling_correction": False}
_NO_EVALUATION = {"evaluation.before": False, "evaluation.after": False, "evaluation.every": 0}
_UNUSED: list[tuple[Condition, str]] = [
    ({"engine.kind": "embedded"}, "engine.host engine.port engine.connect_timeout engine.weight_sync_timeout"),
    ({"engine.importance_sampling_correction": False}, "engine.importance_sampling_cap"),
    ({"training.lr_scheduler_type": "constant"}, "training.warmup_steps"),
    # The old log-probabilities of the only update of a batch are its own: the ratio is 1.
    ({"training.num_iterations": 1}, "training.epsilon training.epsilon_high monitors.ratio_spike"),
    ({"training.num_iterations": 1, "engine.kind": "embedded"}, "training.off_policy_mask_threshold"),
    ({"training.filter_groups": False}, "training.filter_groups_rounds"),
    ({"prompt.system_prompt": ""}, "prompt.placement"),
    (_NO_EVALUATION, "evaluation.rollouts_per_example evaluation.temperature evaluation.top_p evaluation.max_tokens"),
    ({"splits.num_eval_examples": 0, "evaluation.tasks": None}, "splits.eval_seed evaluation.rollouts_per_example"),
    ({"evaluation.temperature": 0.0}, "evaluation.top_p"),
    ({"evaluation.tasks": None}, "evaluation.num_held_out_examples"),
    (_NO_KL, "monitors.kl_spike"),
    ({"rewards.think_format": None}, "monitors.format_rate"),
    ({"logging.examples_every": 0}, "logging.num_examples"),
    ({"hub.enabled": False}, "hub.repo_id hub.private hub.optimizer_state hub.every"),
]
"""Where all of these values are in effect, these keys change nothing."""

_BLIND: dict[str, Condition] = {
    "kl_spike": _NO_KL,
    "ratio_spike": {"training.num_iterations": 1},
    "format_rate": {"rewards.think_format": None},
}
"""Monitors whose metrics are not logged then."""


def without_effect(config: TrainConfig) -> str:
    """One line with the keys that have no effect, and why; empty if all have.

    They are not mistakes: `engine.kind=embedded` over a config for a server must work. Reported are keys with another
    value than the default; not those that turn something off, which happens anyway.
    """
    given = [key for key, value in leaves(config.model_dump(mode="json", exclude_defaults=True)) if value]
    values = dict(leaves(config.resolved()))
    reasons: dict[str, list[str]] = {}
    for condition, keys in _UNUSED:
        if _holds(condition, values):
            reasons.setdefault(_shown(condition), []).extend(key for key in keys.split() if key in given)
    for reason, holds, pattern in _other_reasons(config, values):
        if holds:
            reasons.setdefault(reason, []).extend(key for key in given if fnmatchcase(key, pattern))
    parts = [f"{', '.join(keys)} ({reason})" for reason, keys in reasons.items() if keys]
    return f"without effect: {'; '.join(parts)}" if parts else ""


def _other_reasons(config: TrainConfig, values: Mapping[str, Any]) -> Iterator[tuple[str, bool, str]]:
    """Reason, whether it holds, and the keys that it is about."""
    curriculum, monitors = config.curriculum, config.monitors
    scheduled = curriculum is not None and curriculum.schedule is not None
    for key in ("success_threshold", "failure_threshold", "check_every", "step"):
        yield "curriculum.schedule", scheduled, f"curriculum.{key}"
    yield "there is no other task", len(config.tasks) == 1, "tasks.*.weight"
    services = {"wandb", "trackio"} & set(config.logging.report_to)
    for key in ("project", "run_name"):
        yield "logging.report_to names neither wandb nor trackio", not services, f"logging.{key}"
    for name in monitors.rule_names():
        yield "monitors.off", name not in monitors.active(), f"monitors.{name}"
    short = bool(monitors.active()) and config.in_updates().training.max_steps < monitors.window
    for key in ("window", "stop_on"):
        yield "the run has fewer steps than monitors.window", short, f"monitors.{key}"
    for name, condition in _BLIND.items():
        blind = name in monitors.stop_on and _holds(condition, values)
        yield f"{name} cannot fire with {_shown(condition)}", blind, "monitors.stop_on"


def _holds(condition: Condition, values: Mapping[str, Any]) -> bool:
    def is_absent(key: str) -> bool:
        return not values.get(key) and not any(each.startswith(f"{key}.") for each in values)

    return all(is_absent(key) if value is None else values.get(key) == value for key, value in condition.items())


def _shown(condition: Condition) -> str:
    return to_yaml(dict(condition)).strip().replace("\n", ", ").replace("0.0", "0")


def describe(config: TrainConfig) -> str:
    """The resolved config, and what a run of it will do, as comments after it."""
    lines = [to_yaml(config.resolved()).rstrip(), "", "# The plan", *(f"#   {line}" for line in plan(config))]
    return "\n".join(lines)


def plan(config: TrainConfig) -> list[str]:
    """What a run will do, a line each."""
    unused, config = without_effect(config), config.in_updates()
    training, evaluation, engine = config.training, config.evaluation, config.engine
    drawn = [*(config.curriculum.tasks if config.curriculum else ())]
    place = "in the training process" if engine.kind == "embedded" else f"vLLM at {engine.host}:{engine.port}"
    how = "all weights" if config.lora is None else f"LoRA of rank {config.lora.r}"
    lines = [
        f"model       {config.model.name}, {how}; generation {place}",
        f"tasks       {_tasks(config, drawn)}",
        f"steps       {training.max_steps} of {training.rollouts_per_step} rollouts: {training.prompts_per_step} "
        f"prompts x {training.num_generations} ({_parts(training, world_size())})",
        f"questions   {_questions(config, drawn)}",
        f"tokens      up to {training.max_prompt_length} of prompt and {training.max_tokens} of answer",
        f"rewards     {', '.join(f'{reward.weight:g} {name}' for name, reward in config.rewards.items())}"
        f"; grading {config.grading}",
        f"evaluation  {_evaluation(config)}",
    ]
    if config.curriculum is not None:
        lines.append(f"curriculum  {', '.join(config.curriculum.tasks)}")
    sizes = {name: "{name} ({weight})".format(**evaluation.gym(name)) for name in evaluation.tasks}
    if evaluation.held_out:
        lines.append(f"held out    {', '.join(sizes[name] for name in evaluation.held_out)}")
    if evaluation.labels:
        lines.append(f"labelled    {', '.join(f'{label}: {sizes[label]}' for label in evaluation.labels)}")
    every = config.output.save_every
    save = f"a checkpoint every {every} steps and at the end" if 0 < every < training.max_steps else "one checkpoint"
    lines.append(f"output      {config.output.dir or 'a fresh folder under outputs/'}, {save}")
    if config.hub.enabled:
        lines.append(f"upload      {_upload(config)}")
    return [*lines, *([unused] if unused else [])]


def _parts(training: GRPOConfig, processes: int) -> str:
    parts = training.accumulation(processes)
    several = f"{processes} process{'es' if processes > 1 else ''} x {parts} micro-batch{'es' if parts > 1 else ''}"
    return f"{several} of {training.per_device_train_batch_size}"


def _upload(config: TrainConfig) -> str:
    hub = config.hub
    way = f"every {hub.every} steps and " if 0 < hub.every < config.training.max_steps else ""
    state = ", with the optimizer's state" if hub.optimizer_state == "full" else ""
    return f"{hub.repo_id} on the Hugging Face Hub{' (private)' if hub.private else ''}, {way}at the end{state}"


def _counts(config: TrainConfig) -> dict[str, int]:
    """Training questions by task."""
    counts = Mixture.parse(config.gym).counts(config.splits.num_train_examples)
    return dict(zip(config.tasks, counts, strict=True))


def _tasks(config: TrainConfig, drawn: Collection[str]) -> str:
    """With their numbers of questions, or their share if questions are drawn during training."""
    rows = config.splits.num_train_examples
    counts = _counts(config).items()
    shown = {name: f"{100 * n / rows:.3g} % of the prompts" if name in drawn else n for name, n in counts}
    return ", ".join(f"{name} ({each})" for name, each in shown.items())


def _questions(config: TrainConfig, drawn: Collection[str]) -> str:
    training, rows = config.training, config.splits.num_train_examples
    batches = -(-training.max_steps // training.num_iterations)
    prompts = batches * training.prompts_per_step
    fixed = sum(count for name, count in _counts(config).items() if name not in drawn)
    if not fixed:
        return f"drawn for each of {prompts} prompts, at its task's level"
    epochs = batches / (rows // training.prompts_per_step)  # what would not fill a batch is left out of an epoch
    text = f"{fixed} to train on, {prompts} prompts: {f'{epochs:.2g}' if epochs < 10 else f'{epochs:.0f}'} epochs"
    return f"{text}; those of {', '.join(drawn)} drawn for each prompt, at its level" if drawn else text


def _evaluation(config: TrainConfig) -> str:
    evaluation = config.evaluation
    if not config.splits.num_eval_examples and not evaluation.tasks:
        return "none"
    every = evaluation_steps(evaluation.every, config.training.max_steps)
    times = {"before": evaluation.before, f"every {every} steps": every, "after": evaluation.after}
    when = ", ".join(name for name, wanted in times.items() if wanted) or "never"
    greedy = " and 1 greedy" if evaluation.greedy else ""
    answers = f"{evaluation.rollouts_per_example} sampled{greedy} for each"
    return f"{config.splits.num_eval_examples} questions, answers: {answers}; {when}"
