"""Describe a run's plan, as printed by `rg-env train CONFIG --dry-run`.

This module imports neither torch nor reasoning_gym.
"""

from collections.abc import Iterator

from rg_env.core.config import yaml12
from rg_env.core.processes import world_size
from rg_env.core.text import counted
from rg_env.training.config.grpo import GRPOSettings
from rg_env.training.config.schema import TrainConfig, evaluation_steps


def describe(config: TrainConfig, own_rows: int | None = None, evaluated: str | None = None) -> str:
    """Return the resolved config as YAML, followed by the run's plan as comments."""
    comments = (f"#   {line}" for line in plan(config, own_rows=own_rows, evaluated=evaluated))
    return "\n".join([yaml12.to_yaml(config.resolved()).rstrip(), "", "# The plan", *comments])


def plan(
    config: TrainConfig, processes: int | None = None, own_rows: int | None = None, evaluated: str | None = None
) -> list[str]:
    """Describe a run's plan, one topic per line.

    Args:
        processes: number of training processes. Default: the number that the launcher started.
        own_rows: number of training rows in `data`, if known.
        evaluated: model or checkpoint of a run that evaluates without training.
    """
    training, evaluation, engine, hub = config.training_for(own_rows), config.evaluation, config.engine, config.hub
    processes = processes or world_size()
    parts = counted(training.accumulation(processes), "micro-batch")
    place = (
        f"in {'this' if evaluated else 'the training'} process"
        if engine.kind == "embedded"
        else f"vLLM at {engine.host}:{engine.port}"
    )
    how = "all weights" if config.lora is None else f"LoRA of rank {config.lora.r}"
    training_lines = [
        f"steps       {training.max_steps} of {training.rollouts_per_step} rollouts: "
        f"{counted(training.prompts_per_step, 'prompt')} x {training.num_generations} "
        f"({counted(processes, 'process')} x {parts} of {training.micro_batch(processes)})",
        *_rows(config, training, own_rows),
    ]
    source = f"data        {config.data.path}" if config.data else f"tasks       {', '.join(config.tasks)}"
    lines = [
        f"model       {evaluated or f'{config.model.name}, {how}'}; generation {place}",
        *([source] if evaluated else training_lines),
        f"tokens      up to {training.max_prompt_length} for the prompt and {training.max_tokens} for the answer",
        f"rewards     {', '.join(f'{reward.weight:g} {name}' for name, reward in config.rewards.items())}"
        f"; grading {config.grading}",
        f"evaluation  {_evaluation(config, training.max_steps, when=not evaluated)}",
    ]
    sizes = {name: "{name} ({weight})".format(**evaluation.gym(name)) for name in evaluation.tasks}
    if evaluation.held_out:
        lines.append(f"held out    {', '.join(sizes[name] for name in evaluation.held_out)}")
    if evaluation.labels:
        lines.append(f"labels      {', '.join(f'{label}: {sizes[label]}' for label in evaluation.labels)}")
    save = "" if evaluated else f", a checkpoint {_saved(config.output.save_every, training.max_steps)}"
    lines.append(f"output      {config.output.dir or 'a fresh folder under outputs/'}{save}")
    if hub.enabled and not evaluated:
        place = f"{hub.repo_id} on the Hugging Face Hub{' (private)' if hub.private else ''}"
        state = ", with the optimizer state" if hub.optimizer_state == "full" else ""
        lines.append(f"upload      {place}, {_saved(hub.every, training.max_steps)}{state}")
    return lines


def _every(steps: int) -> str:
    return "every step" if steps == 1 else f"every {steps} steps"


def _saved(every: int, steps: int) -> str:
    return f"{_every(every)} and at the end" if 0 < every < steps else "at the end"


def _rows(config: TrainConfig, training: GRPOSettings, own_rows: int | None) -> Iterator[str]:
    """Yield the lines that describe the training data: the number of questions for each task (or the task's share of
    the prompts, if questions are drawn during training), and the number of epochs."""
    rows = config.splits.num_train_examples
    drawn = list(config.curriculum.tasks) if config.curriculum else []
    if config.data is not None:
        yield f"data        {config.data.path}"
        rows, counts = own_rows or 0, {"data": own_rows or 0}
    else:
        counts = dict(zip(config.tasks, config.mixture.counts(rows), strict=True))
        shown = {name: f"{100 * n / rows:.3g}% of the prompts" if name in drawn else n for name, n in counts.items()}
        yield f"tasks       {', '.join(f'{name} ({each})' for name, each in shown.items())}"
    if fixed := sum(count for name, count in counts.items() if name not in drawn):
        batches = -(-training.max_steps // training.num_iterations)
        share = batches / (rows // training.prompts_per_step)  # an incomplete last batch is not used
        epochs = round(share, 2) or float(f"{share:.1g}")
        prompts = f"{batches * training.prompts_per_step} prompts: {epochs:g} epoch{'' if epochs == 1 else 's'}"
        yield f"questions   {fixed} to train on, {prompts}"
    if drawn:
        yield f"curriculum  {', '.join(drawn)}: a new question for each prompt, at its task's level"


def _evaluation(config: TrainConfig, max_steps: int, when: bool) -> str:
    evaluation = config.evaluation
    if not config.splits.num_eval_examples and not evaluation.tasks:
        return "none"
    every = evaluation_steps(evaluation.every, max_steps)
    # Only `after` determines whether the last step is followed by an evaluation.
    during = 0 < every < max_steps
    times = {"before": evaluation.before, _every(every): during, "after": evaluation.after}
    at = ", ".join(name for name, wanted in times.items() if wanted) or "never"
    greedy = " and 1 greedy" if evaluation.greedy else ""
    answers = f"{evaluation.rollouts_per_example} sampled{greedy} for each"
    return f"{counted(config.splits.num_eval_examples, 'question')}, answers: {answers}{when * f'; {at}'}"
