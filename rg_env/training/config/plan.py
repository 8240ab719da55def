"""A run's plan, and the keys that have no effect, as printed by `rg-env train CONFIG --dry-run`.

Imports neither torch nor reasoning_gym.
"""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from rg_env.core.config.files import leaves
from rg_env.core.config.yaml12 import to_yaml
from rg_env.core.processes import world_size
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.text import counted
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.config.schema import TrainConfig, evaluation_steps

_UNUSED: list[tuple[str, Callable[[TrainConfig], Any], str]] = [
    ("engine.kind: embedded", lambda c: c.engine.kind == "embedded",
     "engine.host engine.port engine.connect_timeout engine.weight_sync_timeout"),
    ("engine.kind: vllm", lambda c: c.engine.kind == "vllm", "engine.max_batch_size"),
    ("engine.importance_sampling_correction: false", lambda c: not c.engine.importance_sampling_correction,
     "engine.importance_sampling_cap"),
    ("training.num_train_epochs", lambda c: c.training.num_train_epochs is not None, "training.max_steps"),
    ("training.lr_scheduler_type: constant", lambda c: c.training.lr_scheduler_type == "constant",
     "training.warmup_steps"),
    # With one update per batch, the old and the current log-probabilities are equal, so the ratio is always 1.
    ("training.num_iterations: 1", lambda c: c.training.num_iterations == 1,
     "training.epsilon training.epsilon_high monitors.ratio_spike"),
    ("training.num_iterations: 1, engine.kind: embedded",
     lambda c: c.training.num_iterations == 1 and c.engine.kind == "embedded", "training.off_policy_mask_threshold"),
    ("training.filter_groups: false", lambda c: not c.training.filter_groups, "training.filter_groups_rounds"),
    ("prompt.system_prompt: ''", lambda c: not c.prompt.system_prompt, "prompt.placement"),
    ("evaluation.before: false, evaluation.after: false, evaluation.every: 0",
     lambda c: not (c.evaluation.before or c.evaluation.after) and c.evaluation.every == 0,
     "evaluation.rollouts_per_example evaluation.temperature evaluation.top_p evaluation.max_tokens"),
    ("splits.num_eval_examples: 0, evaluation.tasks: null",
     lambda c: not c.splits.num_eval_examples and not c.evaluation.tasks,
     "splits.eval_seed evaluation.rollouts_per_example"),
    ("the run has no more steps than evaluation.every",
     lambda c: (c.in_updates().evaluation.every or 0) >= c.in_updates().training.max_steps, "evaluation.every"),
    ("evaluation.temperature: 0", lambda c: c.evaluation.temperature == 0, "evaluation.top_p"),
    ("evaluation.tasks: null", lambda c: not c.evaluation.tasks, "evaluation.num_held_out_examples"),
    ("training.beta: 0, engine.importance_sampling_correction: false",
     lambda c: not c.training.beta and not c.engine.importance_sampling_correction, "monitors.kl_spike"),
    ("rewards.think_format: null", lambda c: "think_format" not in c.rewards, "monitors.format_rate"),
    ("logging.examples_every: 0", lambda c: not c.logging.examples_every, "logging.num_examples"),
    ("logging.report_to names neither wandb nor trackio", lambda c: not {"wandb", "trackio"} & {*c.logging.report_to},
     "logging.project logging.run_name"),
    ("hub.enabled: false", lambda c: not c.hub.enabled, "hub.repo_id hub.private hub.optimizer_state hub.every"),
    ("curriculum.schedule", lambda c: c.curriculum is not None and c.curriculum.schedule is not None,
     "curriculum.success_threshold curriculum.failure_threshold curriculum.check_every curriculum.step"),
    ("there is no other task", lambda c: len(c.tasks) == 1, "tasks.*.weight"),
    ("the run has fewer steps than monitors.window",
     lambda c: c.monitors.active() and c.in_updates().training.max_steps < c.monitors.window,
     "monitors.window monitors.stop_on"),
    ("data", lambda c: c.data, "splits.num_train_examples splits.by splits.seed"),
]  # fmt: skip
"""Reason as printed, condition, and the keys (or patterns) that have no effect if the condition holds."""


def without_effect(config: TrainConfig) -> str:
    """One line with the keys that have no effect and the reasons; empty if there are no such keys.

    Such keys are not errors, so an override like `engine.kind=embedded` also works with a config written for a server.
    Only keys with non-default values that are not false, 0 or empty are reported.
    """
    given = [key for key, value in leaves(config.model_dump(mode="json", exclude_defaults=True)) if value]
    reasons: dict[str, list[str]] = {}
    for reason, patterns in _reasons(config):
        keys = [key for pattern in patterns.split() for key in given if fnmatchcase(key, pattern)]
        reasons.setdefault(reason, []).extend(keys)
    parts = [f"{', '.join(keys)} ({reason})" for reason, keys in reasons.items() if keys]
    return f"without effect: {'; '.join(parts)}" if parts else ""


def _reasons(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """The reasons that apply, each with the keys or patterns that it affects."""
    monitors = config.monitors
    for reason, holds, keys in _UNUSED:
        if holds(config):
            yield reason, keys
            for name in [name for name in monitors.stop_on if f"monitors.{name}" in keys.split()]:
                yield f"{name} cannot fire with {reason}", "monitors.stop_on"
    off = (name for name in monitors.rule_names() if name not in monitors.active())
    yield "monitors.off", " ".join(f"monitors.{name}" for name in off)


def describe(config: TrainConfig, own_rows: int | None = None) -> str:
    """The resolved config as YAML, followed by the run's plan as comments."""
    comments = (f"#   {line}" for line in plan(config, own_rows=own_rows))
    return "\n".join([to_yaml(config.resolved()).rstrip(), "", "# The plan", *comments])


def plan(config: TrainConfig, processes: int | None = None, own_rows: int | None = None) -> list[str]:
    """Describe a run's plan, one topic per line.

    Args:
        processes: number of training processes. Default: the number that the launcher started.
        own_rows: number of training rows in `data`, if known.
    """
    unused, config = without_effect(config), config.in_updates(own_rows)
    training, evaluation, engine = config.training, config.evaluation, config.engine
    drawn = list(config.curriculum.tasks) if config.curriculum else []
    place = "in the training process" if engine.kind == "embedded" else f"vLLM at {engine.host}:{engine.port}"
    how = "all weights" if config.lora is None else f"LoRA of rank {config.lora.r}"
    lines = [
        f"model       {config.model.name}, {how}; generation {place}",
        f"steps       {training.max_steps} of {training.rollouts_per_step} rollouts: "
        f"{counted(training.prompts_per_step, 'prompt')} x {training.num_generations} "
        f"({_parts(training, processes or world_size())})",
        *_rows(config, drawn, own_rows),
        f"tokens      up to {training.max_prompt_length} for the prompt and {training.max_tokens} for the answer",
        f"rewards     {', '.join(f'{reward.weight:g} {name}' for name, reward in config.rewards.items())}"
        f"; grading {config.grading}",
        f"evaluation  {_evaluation(config)}",
    ]
    if drawn:
        lines.append(f"curriculum  {', '.join(drawn)}")
    sizes = {name: "{name} ({weight})".format(**evaluation.gym(name)) for name in evaluation.tasks}
    if evaluation.held_out:
        lines.append(f"held out    {', '.join(sizes[name] for name in evaluation.held_out)}")
    if evaluation.labels:
        lines.append(f"labels      {', '.join(f'{label}: {sizes[label]}' for label in evaluation.labels)}")
    every = config.output.save_every
    save = f"a checkpoint {_every(every)} and at the end" if 0 < every < training.max_steps else "one checkpoint"
    lines.append(f"output      {config.output.dir or 'a fresh folder under outputs/'}, {save}")
    if config.hub.enabled:
        lines.append(f"upload      {_upload(config)}")
    return [*lines, *([unused] if unused else [])]


def _every(steps: int) -> str:
    return "every step" if steps == 1 else f"every {steps} steps"


def _parts(training: GRPOConfig, processes: int) -> str:
    parts = training.accumulation(processes)
    return f"{counted(processes, 'process')} x {counted(parts, 'micro-batch')} of {training.micro_batch(processes)}"


def _upload(config: TrainConfig) -> str:
    hub = config.hub
    way = f"{_every(hub.every)} and " if 0 < hub.every < config.training.max_steps else ""
    state = ", with the optimizer state" if hub.optimizer_state == "full" else ""
    return f"{hub.repo_id} on the Hugging Face Hub{' (private)' if hub.private else ''}, {way}at the end{state}"


def _rows(config: TrainConfig, drawn: list[str], own_rows: int | None) -> Iterator[str]:
    """Describe the training data: the number of questions for each task (or its share of the prompts, if questions are
    drawn during training), and the number of epochs."""
    training, rows = config.training, config.splits.num_train_examples
    batches = -(-training.max_steps // training.num_iterations)
    prompts = batches * training.prompts_per_step
    if config.data is not None:
        yield f"data        {config.data.path}"
        if own_rows is None:
            return
        rows, counts = own_rows, {"data": own_rows}
    else:
        counts = dict(zip(config.tasks, Mixture.parse(config.gym).counts(rows), strict=True))
        shown = {name: f"{100 * n / rows:.3g}% of the prompts" if name in drawn else n for name, n in counts.items()}
        yield f"tasks       {', '.join(f'{name} ({each})' for name, each in shown.items())}"
    fixed = sum(count for name, count in counts.items() if name not in drawn)
    if not fixed:
        yield f"questions   drawn for each of {prompts} prompts, at its task's level"
        return
    epochs = batches / (rows // training.prompts_per_step)  # rows that do not fill a batch are left out of an epoch
    times = f"{epochs:.2g}" if epochs < 10 else f"{epochs:.0f}"
    text = f"{fixed} to train on, {prompts} prompts: {times} epoch{'' if times == '1' else 's'}"
    own = f"; those for {', '.join(drawn)} drawn for each prompt, at its task's level" if drawn else ""
    yield f"questions   {text}{own}"


def _evaluation(config: TrainConfig) -> str:
    evaluation = config.evaluation
    if not config.splits.num_eval_examples and not evaluation.tasks:
        return "none"
    every = evaluation_steps(evaluation.every, config.training.max_steps)
    during = 0 < every < config.training.max_steps  # `after` alone decides about the last step
    times = {"before": evaluation.before, _every(every): during, "after": evaluation.after}
    when = ", ".join(name for name, wanted in times.items() if wanted) or "never"
    greedy = " and 1 greedy" if evaluation.greedy else ""
    answers = f"{evaluation.rollouts_per_example} sampled{greedy} for each"
    return f"{counted(config.splits.num_eval_examples, 'question')}, answers: {answers}; {when}"
