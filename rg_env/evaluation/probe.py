"""Find tasks and levels that a model can learn from, before training.

    found = judge(results, "tiny")            # from an evaluation of tasks at levels, with several answers per question
    starts(found)["maze"].level               # level to start with

GRPO learns from groups with both right and wrong answers ("groups that teach"). A task that is always or never solved
has no such groups. If a constant answer is right at least as often as the model's answers, the model may learn to give
only that answer. The level to start with is the one with the most groups that teach. Only levels whose solve rate is
between 10% and 80%, and above the accuracy of the best constant answer, are considered.

If hardly any reply has the required form, `with_examples` returns a second probe with few-shot examples in the prompt.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from rg_env.core.grading import audit
from rg_env.core.run_folder import base_model
from rg_env.core.tasks.task_table import load_table, working_levels
from rg_env.errors import InputError, unknown_name
from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.endpoints import endpoint
from rg_env.evaluation.local_models import require_torch
from rg_env.evaluation.questions import ChatRequest, draw
from rg_env.evaluation.results import Results, TaskResults
from rg_env.evaluation.tables import TableConsole, cell, form_obstacle, form_problem, print_table
from rg_env.inference.protocol import Sampling

Verdict = Literal["too few", "too hard", "trainable", "too easy", "guessable"]
LEAST_QUESTIONS = 16
"""Minimum number of questions for a verdict. Fewer questions say too little: even if none of ten questions is solved,
the true solve rate may be as high as 28%."""
TRAINABLE_RATES = (0.1, 0.8)
"""Lower and upper bounds on the fraction of right answers at trainable levels."""
LEAST_INFORMATIVE = 0.15
"""Minimum fraction of groups that teach for a level to be trainable. Below this fraction, too few rollouts provide a
learning signal."""
FLOOR = 0.2
"""Minimum accuracy of a constant answer at which a policy might learn to give only that answer."""
EXAMPLES = 2
"""Number of few-shot examples in the second probe of tasks to which hardly any reply has the required form."""
TRIAL = 16
"""Number of replies after which a task is stopped if none of them has the required form. Of tasks where a fifth of the
replies have the form, 3% are stopped."""
_LABEL = "-level"
_MAX_TOKENS = 1024
_ABOUT = (
    "'groups that teach' is the share of questions with both right and wrong answers, and 'rollouts for one' is the "
    "number of rollouts per such question. 'cut off' is the share of answers cut off by the token limit, and "
    "'answered' is the share of answers in the required form. 'constant' is the accuracy of the best constant answer "
    "to the task. At trainable levels, the model solves 10% to 80% of the questions, and more than a constant answer "
    "would. A task is 'stopped' after its first questions if no reply to them has the required form."
)


@dataclass(frozen=True)
class Probed:
    """Metrics and verdict for one task at one level."""

    task: str
    level: int | None
    """Level, or None if the task does not have levels."""
    questions: int
    solved: float
    """Fraction of right answers."""
    informative: float
    """Fraction of groups that teach (questions with both right and wrong answers)."""
    truncated: float | None
    """Fraction of answers cut off by the token limit."""
    answered: float
    """Fraction of answers in the required form."""
    floor: float | None
    """Accuracy of the best constant answer to the task, or None if it is unknown."""
    verdict: Verdict
    rollouts: float | None
    """Rollouts per group that teaches, or None if there are no such groups."""
    replies: int
    """Number of replies."""
    few_shot: int = 0
    """Number of few-shot examples that the probe added to the prompt."""
    stopped: bool = False
    """Whether no reply to the first questions has the required form, so that the others were not asked."""

    @property
    def name(self) -> str:
        """Name of the entry in the evaluation config (see `labels`)."""
        return self.task if self.level is None else f"{self.task}{_LABEL}{self.level}"

    @property
    def obstacle(self) -> Literal["form", "length"] | None:
        """The reason why the model does not solve the task, if it is the form or the length of its replies rather than
        their contents."""
        return form_obstacle(self.answered, self.truncated) if self.verdict == "too hard" else None

    @property
    def is_cut_off(self) -> bool:
        """Whether most replies are cut off, so that few show whether the model would write the form."""
        return (self.truncated or 0.0) > 0.5

    def explained(self, again: "Probed | None" = None) -> str | None:
        """Return a line about the obstacle and its remedy, if there is an obstacle. `again` is the probe of the same
        task with examples."""
        name = self.task if self.level is None else f"{self.task} at level {self.level}"
        if not self.obstacle or not again:
            return form_problem(name, self.answered, self.truncated) if self.obstacle else None
        counts = [f"{round(each.answered * each.replies)} of {each.replies} replies" for each in (self, again)]
        obstacle = form_obstacle(again.answered, again.truncated)
        remedy = {
            None: f"set prompt.few_shot: {again.few_shot} in the training config",
            "length": "raise --max-tokens",
            "form": f"{'raise --max-tokens, or ' if again.is_cut_off else ''}use a model that follows instructions",
        }[obstacle]
        return (
            f"{name}: {counts[0]} have a complete <answer>...</answer>; with {again.few_shot} few-shot examples, "
            f"{counts[1]}: {remedy}"
        )


def labels(tasks: Iterable[str], levels: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return entries for `tasks` in an evaluation config. Each task has one entry for each of the `levels` that it
    supports, or a single entry if it does not have levels.

    Raises:
        UnknownNameError: a task is unknown.
        InputError: a task has levels, but does not support any level in `levels`.
    """
    table = load_table()
    found: dict[str, dict[str, Any]] = {}
    for task in tasks:
        if task not in table:
            raise unknown_name("task", task, table)
        if not table[task]["levels"]:
            found[task] = {}
        elif usable := [level for level in levels if level in working_levels(task)]:
            found |= {f"{task}{_LABEL}{level}": {"task": task, "level": level} for level in usable}
        else:
            given, has = (", ".join(map(str, each)) for each in (levels, working_levels(task)))
            remedy = f"choose --levels from {has}" if has else "remove the task"
            raise InputError(f"{task} cannot be generated at any of the given levels ({given}): {remedy}")
    return found


def fitted(config: EvalConfig) -> tuple[EvalConfig, list[str]]:
    """Return the config without the tasks whose prompts are too long for the model's context, together with one line
    about each omitted task.

    The token limit defaults to 1024 or, for a local model, to half the context length if that is less. For a model
    at an endpoint, each task's longest prompt is sent once to check whether the endpoint accepts it.

    Raises:
        InputError: the model cannot be loaded, its endpoint does not answer, or no task fits.
        MissingExtraError: a package needed to load the model is not installed.
    """
    (model,) = config.models.values()
    drawn = {name: draw(config, name) for name in config.tasks}
    prompts = {name: [each.prompt(number) for number in range(len(each.rows))] for name, each in drawn.items()}
    if model.url:
        reasons = asyncio.run(_refusals(config, {name: max(each, key=_length) for name, each in prompts.items()}))
    else:
        context, encoder = _context(model.model, config.prompt.chat_template_kwargs)
        if "max_tokens" not in config.sampling.model_fields_set:
            sampling = config.sampling.model_copy(update={"max_tokens": min(_MAX_TOKENS, context // 2)})
            config = config.model_copy(update={"sampling": sampling})
        limit = config.sampling.max_tokens
        longest = {name: max(len(encoder(prompt)) for prompt in each) for name, each in prompts.items()}
        reasons = {
            name: f"a prompt of {tokens} tokens plus {limit} new tokens exceeds the context length of {context}"
            for name, tokens in longest.items()
            if tokens + limit > context
        }
    tasks = {name: entry for name, entry in config.tasks.items() if name not in reasons}
    lines = [f"{name}: skipped: {reason}" for name, reason in reasons.items()]
    if not tasks:
        # An endpoint's other errors are not about the length.
        too_long = not model.url or any(re.match("HTTP (400|413|422)", reason) for reason in reasons.values())
        remedy = "; lower --max-tokens, or choose easier levels" if too_long else ""
        raise InputError(f"no task can be probed: {lines[0]}{remedy}")
    return config.model_copy(update={"tasks": tasks}), lines


def _length(prompt: Any) -> int:
    return sum(len(message["content"]) for message in prompt)


def _context(model: str, template_kwargs: Mapping[str, Any]) -> tuple[int, Callable[[Any], list[int]]]:
    """Return a local model's context length in tokens, and its prompt encoder."""
    require_torch()
    from rg_env.inference.models import describe_model
    from rg_env.inference.protocol import PromptEncoder, context_length

    described = describe_model(base_model(model))
    encoder = PromptEncoder(described.tokenizer, template_kwargs)
    return context_length(described.config, described.tokenizer), encoder


async def _refusals(config: EvalConfig, prompts: Mapping[str, Any]) -> dict[str, str]:
    """Return the reasons why an endpoint rejects prompts, by task."""
    (model,) = config.models.values()
    ready = await endpoint(model, config)
    async with ready.client() as client:
        replies = {
            name: await ready.reply(ChatRequest(prompt, Sampling(**config.sampling_of(name).model_dump())), client)
            for name, prompt in prompts.items()
        }
    return {name: reply.error for name, reply in replies.items() if reply.error}


def with_examples(config: EvalConfig, found: Iterable[Probed], folder: Path) -> EvalConfig | None:
    """Return a probe, with few-shot examples, of the tasks and levels at which the form of the replies is the obstacle,
    or None if there is no such task or the prompt already has examples."""
    names = [each.name for each in found if each.obstacle == "form"]
    if not names or config.prompt.few_shot:
        return None
    return config.model_copy(
        update={
            "tasks": {name: config.tasks[name] for name in names},
            "prompt": config.prompt.model_copy(update={"few_shot": EXAMPLES}),
            "output": config.output.model_copy(update={"dir": str(folder / "few_shot")}),
        }
    )


def judge(results: Results, model: str, few_shot: int = 0) -> list[Probed]:
    """Return the metrics and verdict for `model` on each task and level. `few_shot` is the number of examples that the
    probe added."""
    found = (_probed(name, task, model, few_shot) for name, task in results.tasks.items())
    return sorted(found, key=lambda each: (each.task, each.level or 0))


def _probed(name: str, results: TaskResults, model: str, few_shot: int) -> Probed:
    task = str((results.spec or {}).get("name", results.task))
    level = name.removeprefix(f"{task}{_LABEL}")
    result = results.models[model]
    groups, scores = result.correct.values(), result.scores
    informative = sum(len(set(group)) > 1 for group in groups) / len(groups)
    stopped = scores.n + scores.left_out < results.questions.n
    # With few questions, two equal gold answers can make a constant answer look good, so the accuracy from the shipped
    # audit is preferred.
    floor = known.constant if (known := audit.kept().get(task)) else results.floor
    return Probed(
        task=task,
        level=int(level) if level.isdecimal() and level != name else None,
        questions=len(groups),
        solved=scores.measured[0],
        informative=informative,
        truncated=scores.truncated,
        answered=1 - sum(scores.status.get(status, 0.0) for status in ("no_answer", "failed")),
        floor=floor,
        verdict="too hard" if stopped else _verdict(len(groups), *scores.measured, informative, floor or 0.0),
        rollouts=results.sampling.rollouts_per_example / informative if informative else None,
        replies=sum(map(len, groups)),
        few_shot=few_shot,
        stopped=stopped,
    )


def _verdict(questions: int, solved: float, interval: tuple[float, float], informative: float, floor: float) -> Verdict:
    least, most = TRAINABLE_RATES
    if questions < LEAST_QUESTIONS:
        return "too few"
    if solved > most:
        return "too easy"
    if solved < least or informative < LEAST_INFORMATIVE:
        return "too hard"
    if solved <= floor or (floor >= FLOOR and interval[0] <= floor):
        return "guessable"
    return "trainable"


def starts(found: Iterable[Probed]) -> dict[str, Probed]:
    """Return the level to start with, by task. This is the trainable level with the most groups that teach, or the
    hardest such level if several are tied. Levels that need examples are considered only if no others are trainable.
    """
    trainable, best = [each for each in found if each.verdict == "trainable"], dict[str, Probed]()
    fewest = min((each.few_shot for each in trainable), default=0)
    for each in trainable:
        if each.few_shot == fewest and each.informative >= getattr(best.get(each.task), "informative", 0.0):
            best[each.task] = each
    return best


def mixture(found: Sequence[Probed]) -> dict[str, Any]:
    """Return the `tasks` section of a training config, with the trainable tasks, each at the level to start with, and
    the number of examples if they need any.

    Raises:
        InputError: no task is trainable, or there are too few questions to judge.
    """
    if chosen := starts(found):
        tasks = {name: {} if each.level is None else {"level": each.level} for name, each in chosen.items()}
        few_shot = max(each.few_shot for each in chosen.values())
        return {"tasks": tasks, **({"prompt": {"few_shot": few_shot}} if few_shot else {})}
    if any(each.verdict == "too few" for each in found):
        raise InputError(f"too few questions to judge; probe with --num-examples {LEAST_QUESTIONS} or more")
    raise InputError("none of these tasks is trainable for this model: try other levels (--levels), or other tasks")


def print_probed(found: Sequence[Probed], console: Console | None = None) -> None:
    """Print the metrics and verdict for each task and level, and mark the level to start with for each task."""
    console = console or TableConsole(highlight=False)
    chosen = starts(found).values()

    heads = ["task", "level", "solved", "groups that teach", "cut off", "answered", "constant", "rollouts for one"]
    rows = []
    for each in found:
        shares = map(cell, (each.solved, each.informative, each.truncated, each.answered, each.floor))
        level, count = cell(None) if each.level is None else str(each.level), each.rollouts
        verdict = f"{each.verdict}{' <- start' if each in chosen else ' (stopped)' if each.stopped else ''}"
        task = f"{each.task}, {each.few_shot} examples" if each.few_shot else each.task
        rows.append([task, level, *shares, cell(None) if count is None else f"{count:.0f}", verdict])
    print_table(console, [*heads, "verdict"], rows)
    console.print(_ABOUT, markup=False)
    again = {each.name: each for each in found if each.few_shot}
    for each in found:
        if not each.few_shot and (line := each.explained(again.get(each.name))):
            console.print(line, markup=False)
