"""What a config comes to, for people: `rg-env train CONFIG --dry-run`. Imports neither torch nor reasoning_gym."""

from collections.abc import Collection, Mapping
from typing import Any

from rg_env.core.config.files import without_nulls
from rg_env.core.config.yaml12 import to_yaml
from rg_env.core.distributed_env import world_size
from rg_env.core.tasks.mixture import Mixture
from rg_env.training.config.convert import gym
from rg_env.training.config.grpo import OWNED_ELSEWHERE, GRPOConfig
from rg_env.training.config.schema import TrainConfig
from rg_env.training.config.sections import TaskConfig
from rg_env.training.config.step_counts import evaluation_steps, in_updates
from rg_env.training.config.unused_keys import without_effect


def resolved_yaml(config: TrainConfig) -> str:
    """The whole config, defaults included, as a file that `load_train_config` reads to the same config."""
    return to_yaml(resolved(config))


def resolved(config: TrainConfig) -> dict[str, Any]:
    """The whole config as plain values."""
    dumped = config.model_dump(mode="json", exclude={"training": set(OWNED_ELSEWHERE)})
    values: dict[str, Any] = without_nulls(dumped)
    return values


def describe(config: TrainConfig) -> str:
    """The resolved config, and what a run of it will do, as comments after it."""
    return "\n".join([resolved_yaml(config).rstrip(), "", "# The plan", *(f"#   {line}" for line in plan(config))])


def plan(config: TrainConfig) -> list[str]:
    """What a run will do, a line each."""
    processes = world_size()
    idle, config = without_effect(config), in_updates(config)
    training, splits, evaluation = config.training, config.splits, config.evaluation
    prompts = training.prompts_per_step
    batches = -(-training.max_steps // training.num_iterations)
    engine, drawn = config.engine, [*(config.curriculum.tasks if config.curriculum else ())]
    place = "in the training process" if engine.kind == "embedded" else f"vLLM at {engine.host}:{engine.port}"
    how = "all weights" if config.lora is None else f"LoRA of rank {config.lora.r}"
    lines = [
        f"model       {config.model.name}, {how}; generation {place}",
        f"tasks       {_tasks(config.tasks, splits.num_train_examples, drawn)}",
        f"steps       {training.max_steps} of {training.rollouts_per_step} rollouts: {prompts} prompts x "
        f"{training.num_generations} ({_parts(training, processes)})",
        f"questions   {_questions(config, prompts, batches, drawn)}",
        f"tokens      up to {training.max_prompt_length} of prompt and {training.max_tokens} of answer",
        f"rewards     {', '.join(f'{reward.weight:g} {name}' for name, reward in config.rewards.items())}"
        f"; grading {config.grading}",
        f"evaluation  {_evaluation(config)}",
    ]
    if config.curriculum is not None:
        lines.append(f"curriculum  {', '.join(config.curriculum.tasks)}")
    asked = {name: "{name} ({weight})".format(**evaluation.gym(name)) for name in evaluation.tasks}
    if evaluation.held_out:
        lines.append(f"held out    {', '.join(asked[name] for name in evaluation.held_out)}")
    if evaluation.labels:
        lines.append(f"labelled    {', '.join(f'{label}: {asked[label]}' for label in evaluation.labels)}")
    every = config.output.save_every
    save = f"a checkpoint every {every} steps and at the end" if 0 < every < training.max_steps else "one checkpoint"
    lines.append(f"output      {config.output.dir or 'a fresh folder under outputs/'}, {save}")
    if config.hub.enabled:
        lines.append(f"upload      {_upload(config)}")
    return [*lines, *filter(None, [idle])]


def _parts(training: GRPOConfig, processes: int) -> str:
    parts = training.accumulation(processes)
    return (
        f"{processes} process{'es' if processes > 1 else ''} x {parts} micro-batch{'es' if parts > 1 else ''} of "
        f"{training.per_device_train_batch_size}"
    )


def _upload(config: TrainConfig) -> str:
    hub = config.hub
    way = f"every {hub.every} steps and " if 0 < hub.every < config.training.max_steps else ""
    state = ", with the optimizer's state" if hub.optimizer_state == "full" else ""
    return f"{hub.repo_id} on the Hugging Face Hub{' (private)' if hub.private else ''}, {way}at the end{state}"


def _tasks(tasks: Mapping[str, TaskConfig], rows: int, drawn: Collection[str] = ()) -> str:
    """With their numbers of questions, or their share where questions are drawn while training goes on."""
    counts = zip(tasks, Mixture.parse(gym(tasks)).counts(rows), strict=True)
    shown = {name: f"{100 * n / rows:.3g} % of the prompts" if name in drawn else n for name, n in counts}
    return ", ".join(f"{name} ({each})" for name, each in shown.items())


def _questions(config: TrainConfig, prompts: int, batches: int, drawn: Collection[str]) -> str:
    rows = config.splits.num_train_examples
    counts = zip(config.tasks, Mixture.parse(gym(config.tasks)).counts(rows), strict=True)
    fixed = sum(count for name, count in counts if name not in drawn)
    if not fixed:
        return f"drawn for each of {batches * prompts} prompts, at its task's level"
    epochs = batches / (rows // prompts)  # what would not fill a batch is left out of an epoch
    shown = f"{epochs:.2g}" if epochs < 10 else f"{epochs:.0f}"
    text = f"{fixed} to train on, {batches * prompts} prompts: {shown} epochs"
    return f"{text}; those of {', '.join(drawn)} drawn for each prompt, at its level" if drawn else text


def _evaluation(config: TrainConfig) -> str:
    evaluation = config.evaluation
    if not config.splits.num_eval_examples and not evaluation.tasks:
        return "none"
    every = evaluation_steps(evaluation.every, config.training.max_steps)
    when = [
        *(["before"] if evaluation.before else []),
        *([f"every {every} steps"] if every else []),
        *(["after"] if evaluation.after else []),
    ]
    greedy = " and 1 greedy" if evaluation.greedy else ""
    answers = f"{evaluation.rollouts_per_example} sampled{greedy} for each"
    return f"{config.splits.num_eval_examples} questions, answers: {answers}; {', '.join(when) or 'never'}"
