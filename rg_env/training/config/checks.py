"""What a config's types cannot tell: names of tasks and rewards, and values that do not go together.

Nothing heavy is imported. What depends on the model, or on the library's own checks, is told later.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec

from rg_env.core.config.files import Keys
from rg_env.core.config.parsing import Problem, problems_within
from rg_env.core.hub_names import repo_problem
from rg_env.core.rewards.builtin import resolve_rewards
from rg_env.core.tasks.levels import working_levels
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import load_table
from rg_env.training.config.convert import gym, reward_list
from rg_env.training.config.grpo import OWNED_ELSEWHERE, batch_problems
from rg_env.training.config.schema import TrainConfig
from rg_env.training.config.sections import CurriculumConfig, contradictions, label_problem
from rg_env.training.config.step_counts import in_updates


def problems(config: TrainConfig, processes: int = 1) -> list[Problem]:
    """All that is wrong with `config` for a run of so many processes; empty if nothing is."""
    sized = [*_batch(config, processes), *_splits(config), *_hub(config)]
    return [*sized, *(problem for check in _CHECKS for problem in check(config))]


def _tasks(config: TrainConfig) -> Iterator[Problem]:
    for spec in gym(config.tasks):
        yield from problems_within(("tasks", spec["name"]), spec, Mixture.parse)


def _evaluation_tasks(config: TrainConfig) -> Iterator[Problem]:
    evaluation, table = config.evaluation, load_table()
    for name in evaluation.tasks:
        path: Keys = ("evaluation", "tasks", name)
        spec, hint = evaluation.gym(name), ""
        if name in evaluation.labels:
            if text := label_problem(name):
                yield Problem(path, text)
            if spec["name"] not in table:
                path = (*path, "task")
        elif name in config.tasks:
            yield Problem(
                path,
                "is trained on, and so evaluated anyway: leave it out here, or ask it with other options under a label "
                f"of its own, such as {name}_hard: {{task: {name}, config: {{...}}}}",
            )
            continue
        elif name not in table:
            hint = "; a label of your own needs task: NAME"
        yield from problems_within(path, spec, Mixture.parse, hint)


def _splits(config: TrainConfig) -> Iterator[Problem]:
    splits, tasks = config.splits, len(config.tasks)
    prompts = config.training.prompts_per_step
    if splits.num_train_examples < max(tasks, prompts):
        yield Problem(
            ("splits", "num_train_examples"),
            f"fewer than the {prompts} prompts of a step, or than the {tasks} tasks: at least {max(tasks, prompts)}",
        )
    if 0 < splits.num_eval_examples < tasks:
        yield Problem(("splits", "num_eval_examples"), f"fewer than the {tasks} tasks: at least {tasks}, or 0 for none")


def _rewards(config: TrainConfig) -> Iterator[Problem]:
    if not config.rewards:
        yield Problem(("rewards",), "names no reward: such as {correctness: 1.0}")
    elif not any(reward.weight for reward in config.rewards.values()):
        yield Problem(("rewards",), "every weight is 0: there is nothing to learn from")
    for spec in reward_list(config):
        yield from problems_within(("rewards", spec["name"]), spec, lambda spec: resolve_rewards([spec]))


def _batch(config: TrainConfig, processes: int) -> Iterator[Problem]:
    for key, message in batch_problems(config.training, processes):
        yield Problem(("training", key), message)


def _hub(config: TrainConfig) -> Iterator[Problem]:
    hub, save_every = config.hub, config.output.save_every
    if hub.repo_id is None and hub.enabled:
        yield Problem(("hub", "repo_id"), "hub.enabled needs it: USER/NAME, the repository to upload to")
    if hub.repo_id is not None and (problem := repo_problem(hub.repo_id)):
        yield Problem(("hub", "repo_id"), problem)
    if hub.enabled and hub.every:
        if not save_every:
            yield Problem(("hub", "every"), "output.save_every is 0: there are no checkpoints to upload on the way")
            return
        updates = in_updates(config)
        if updates.hub.every % updates.output.save_every:
            least = -(-hub.every // save_every) * save_every
            yield Problem(
                ("hub", "every"),
                f"checkpoints are what is uploaded, and output.save_every is {save_every}: such as {least}",
            )


def _training(config: TrainConfig) -> Iterator[Problem]:
    training = config.training
    for key in OWNED_ELSEWHERE.keys() & training.model_fields_set:
        yield Problem(("training", key), f"is set outside of training: {OWNED_ELSEWHERE[key]}")
    if training.lr_scheduler_type != "constant" and training.warmup_steps > training.max_steps:
        yield Problem(("training", "warmup_steps"), f"more than the {training.max_steps} steps of the run")
    if training.filter_groups and config.curriculum is not None:
        yield Problem(("training", "filter_groups"), "asks other prompts than the curriculum's: leave out one of them")
    if training.optim.endswith("8bit") and find_spec("bitsandbytes") is None:
        yield Problem(("training", "optim"), "needs bitsandbytes, which is not installed: `pip install bitsandbytes`")
    if training.use_liger_kernel and find_spec("liger_kernel") is None:
        yield Problem(
            ("training", "use_liger_kernel"), "needs liger-kernel, which is not installed: `pip install liger-kernel`"
        )
    if config.model.dtype == "bfloat16" and config.lora is None:
        yield Problem(
            ("model", "dtype"),
            "without LoRA small updates round to nothing: take auto, and training.bf16 to compute in bfloat16",
        )
    name = config.model.name
    if name.startswith(("/", "./", "../", "~")) and not os.path.isdir(name):
        yield Problem(("model", "name"), "there is no such folder here")


def _engine(config: TrainConfig) -> Iterator[Problem]:
    engine, training = config.engine, config.training
    if engine.kind == "embedded":
        for key in ("num_batches_ahead", "importance_sampling_correction"):
            if getattr(engine, key):
                yield Problem(("engine", key), "is for engine.kind: vllm; the embedded engine samples from the policy")
    if engine.importance_sampling_correction and training.top_p < 1:
        yield Problem(("engine", "importance_sampling_correction"), "needs training.top_p: 1.0")


def _evaluation(config: TrainConfig) -> Iterator[Problem]:
    evaluation = config.evaluation
    for problem in contradictions(evaluation):
        yield Problem(("evaluation", *problem.path), problem.message)
    if not config.splits.num_eval_examples and not evaluation.tasks and evaluation.every:
        yield Problem(("evaluation", "every"), "there is nothing to evaluate: splits.num_eval_examples is 0")


def _curriculum(config: TrainConfig) -> Iterator[Problem]:
    curriculum = config.curriculum
    if curriculum is None:
        return
    if not curriculum.tasks:
        yield Problem(("curriculum", "tasks"), "names no task: such as {spell_backward: {start: 0}}")
    if config.splits.manifest is not None:
        yield Problem(("splits", "manifest"), "cannot be kept with a curriculum, which draws new questions")
    if curriculum.failure_threshold >= curriculum.success_threshold:
        yield Problem(
            ("curriculum", "failure_threshold"), f"must be below success_threshold ({curriculum.success_threshold:g})"
        )
    for name in curriculum.tasks:
        yield from _curriculum_task(config, curriculum, name)


def _curriculum_task(config: TrainConfig, curriculum: CurriculumConfig, name: str) -> Iterator[Problem]:
    path, task = ("curriculum", "tasks", name), curriculum.tasks[name]
    if name not in config.tasks:
        yield Problem(path, f"is not trained on: the tasks are {', '.join(config.tasks)}")
        return
    if config.tasks[name].level is not None or config.tasks[name].levels:
        yield Problem(("tasks", name), f"its level is set by the curriculum: say curriculum.tasks.{name}.start instead")
    if (entry := load_table().get(name)) is None:
        return  # told elsewhere
    levels = entry["levels"]
    if not levels:
        yield Problem(path, "has no levels")
        return
    for number, attribute in enumerate(task.attributes):
        if attribute not in levels:
            yield Problem(
                (*path, "attributes"), f"number {number + 1}: no attribute of this task: {', '.join(sorted(levels))}"
            )
    top = max((len(levels[each]) for each in task.attributes or levels if each in levels), default=1) - 1
    for key in ("start", "highest"):
        if (value := getattr(task, key)) is not None and value > top:
            yield Problem((*path, key), f"the highest level is {top}")
    if task.highest is not None and task.start > task.highest:
        yield Problem((*path, "start"), f"is above highest ({task.highest})")
    highest = top if task.highest is None else task.highest
    known = [each for each in task.attributes if each in levels]
    if not any(level <= highest for level in working_levels(name, known)):
        yield Problem(path, f"no level up to {highest} works in the installed reasoning-gym: leave this task out")
    for step, level in (curriculum.schedule or {}).items():
        if level > top:
            yield Problem(("curriculum", "schedule", step), f"the highest level of {name} is {top}")


def _logging(config: TrainConfig) -> Iterator[Problem]:
    for service in config.logging.report_to:
        if find_spec(service) is None:
            # Trackio 0.21 and later need a huggingface_hub that the trainer's transformers cannot live with.
            package = "'trackio<0.21'" if service == "trackio" else service
            yield Problem(("logging", "report_to"), f"{service} is not installed: `pip install {package}`")


_CHECKS = (_tasks, _evaluation_tasks, _rewards, _training, _engine, _evaluation, _curriculum, _logging)
