"""What a config comes to, for people: `rg-env train CONFIG --dry-run`. Imports neither torch nor reasoning_gym."""

from collections.abc import Mapping
from typing import Any

from rg_env.core.config_files import without_nulls
from rg_env.core.tasks import Mixture
from rg_env.core.yaml12 import to_yaml
from rg_env.training.config import TrainConfig
from rg_env.training.config_checks import gym
from rg_env.training.config_sections import TaskConfig
from rg_env.training.step_counts import in_updates, processes_here, rollouts_per_batch


def resolved_yaml(config: TrainConfig) -> str:
    """The whole config, defaults included, as a file that `load_train_config` reads to the same config."""
    return to_yaml(resolved(config))


def resolved(config: TrainConfig) -> dict[str, Any]:
    """The whole config as plain values."""
    values: dict[str, Any] = without_nulls(config.model_dump(mode="json"))
    return values


def describe(config: TrainConfig) -> str:
    """The resolved config, and what a run of it will do, as comments after it."""
    return "\n".join([resolved_yaml(config).rstrip(), "", "# The plan", *(f"#   {line}" for line in plan(config))])


def plan(config: TrainConfig) -> list[str]:
    """What a run will do, a line each."""
    processes = processes_here()
    config = in_updates(config, processes)
    training, splits, evaluation = config.training, config.splits, config.evaluation
    rollouts = rollouts_per_batch(training, processes)
    prompts = rollouts // training.num_generations
    batches = -(-training.max_steps // training.num_iterations)
    engine = config.engine
    place = "in the training process" if engine.kind == "embedded" else f"vf-vllm at {engine.host}:{engine.port}"
    how = "all weights" if config.lora is None else f"LoRA of rank {config.lora.r}"
    lines = [
        f"model       {config.model.name}, {how}; generation {place}",
        f"tasks       {_tasks(config.tasks, splits.num_train_examples)}",
        f"steps       {training.max_steps} of {rollouts} rollouts: {prompts} prompts x {training.num_generations}"
        f" ({training.per_device_train_batch_size} a device x {processes} process{'es' if processes > 1 else ''}"
        f" x {training.gradient_accumulation_steps} accumulated)",
        f"questions   {splits.num_train_examples} to train on, {batches * prompts} used: "
        f"{batches * prompts / splits.num_train_examples:.2g} epochs",
        f"tokens      up to {training.max_prompt_length} of prompt and {training.max_tokens} of answer",
        f"rewards     {', '.join(f'{reward.weight:g} {name}' for name, reward in config.rewards.items())}"
        f"; grading {config.grading}",
        f"evaluation  {_evaluation(config)}",
    ]
    if config.curriculum is not None:
        lines.append(f"curriculum  {', '.join(config.curriculum.tasks)}")
    if evaluation.tasks:
        questions = evaluation.num_held_out_examples * len(evaluation.tasks)
        lines.append(f"held out    {_tasks(evaluation.tasks, questions)}")
    save = f"a checkpoint every {config.output.save_every} steps" if config.output.save_every else "one checkpoint"
    lines.append(f"output      {config.output.dir or 'a fresh folder under outputs/'}, {save}")
    return lines


def evaluation_steps(every: int | None, max_steps: int) -> int:
    """Steps between two evaluations, a fifth of the run if `every` is None; 0: none on the way."""
    return max(1, max_steps // 5) if every is None else every


def _tasks(tasks: Mapping[str, TaskConfig], rows: int) -> str:
    counts = Mixture.parse(gym(tasks)).counts(rows)
    return ", ".join(f"{name} ({count})" for name, count in zip(tasks, counts, strict=True))


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
