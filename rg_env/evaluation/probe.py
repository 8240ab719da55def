"""Before training: which tasks, at which levels, can teach this model anything?

    found = judge(results)                    # of an evaluation of tasks at levels, several answers a question
    found["maze"].level                       # where to start; None: nowhere

GRPO learns from groups whose answers differ. A task that is always solved, or never, gives none of them; one that a
constant answer solves as often teaches that answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rg_env.core.tasks.task_table import load_table
from rg_env.errors import InputError, unknown_name
from rg_env.evaluation.results import Results, TaskResults

Verdict = Literal["too hard", "trainable", "too easy", "guessable"]
LEAST_INFORMATIVE = 0.15
"""Share of groups with right and other answers, below which most of what is generated teaches nothing."""
FLOOR = 0.2
"""A constant answer that is right as often as this is worth learning, to a policy."""
_LABEL = "-level"


@dataclass(frozen=True)
class Probed:
    """One task at one level."""

    task: str
    level: int | None
    """None: as the task is by default, which has no levels."""
    solved: float
    """Share of right answers."""
    informative: float
    """Share of the questions whose answers were some right, some not: of groups that teach."""
    truncated: float | None
    answered: float
    """Share of answers in the form that was asked for."""
    floor: float | None
    """Of the best constant answer."""
    verdict: Verdict
    rollouts: float | None
    """For one group that teaches; None: none was seen."""


@dataclass(frozen=True)
class Advice:
    """What to do with one task."""

    levels: tuple[Probed, ...]
    level: int | None
    """To start with; None: none of those that were probed, or the task has none."""
    trainable: bool


def labels(tasks: Iterable[str], levels: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Entries of an evaluation's `tasks`: each task at each of `levels` that it has.

    Raises:
        UnknownNameError: there is no such task.
        InputError: no level is left of a task that has some.
    """
    table = load_table()
    found: dict[str, dict[str, Any]] = {}
    for task in tasks:
        if task not in table:
            raise unknown_name("task", task, table)
        entry = table[task]
        if not entry["levels"]:
            found[task] = {}
            continue
        most = max(map(len, entry["levels"].values())) - 1
        usable = [level for level in levels if level <= most and str(level) not in entry["broken_levels"]]
        if not usable:
            raise InputError(
                f"{task} has levels 0 to {most}; none of the given ones ({', '.join(map(str, levels))}) can be drawn"
            )
        found |= {f"{task}{_LABEL}{level}": {"task": task, "level": level} for level in usable}
    return found


def judge(results: Results, model: str) -> dict[str, Advice]:
    """By task, what was found of `model`, and which level to start with: the hardest that is trainable."""
    by_task: dict[str, list[Probed]] = {}
    for name, task in results.tasks.items():
        level = name.removeprefix(f"{task_of(task)}{_LABEL}")
        found = probed(task, model, int(level) if level.isdecimal() and level != name else None)
        by_task.setdefault(found.task, []).append(found)
    advice = {}
    for name, levels in by_task.items():
        levels.sort(key=lambda each: each.level or 0)
        good = [each for each in levels if each.verdict == "trainable"]
        advice[name] = Advice(tuple(levels), good[-1].level if good else None, bool(good))
    return advice


def probed(task: TaskResults, model: str, level: int | None) -> Probed:
    """What one task's results say of `model`."""
    result = task.models[model]
    solved, (at_least, _) = result.scores.measured
    groups, scores = result.correct.values(), result.scores
    informative = sum(len(set(group)) > 1 for group in groups) / len(groups)
    size = task.sampling.rollouts_per_example
    unanswered = sum(scores.status.get(name, 0.0) for name in ("no_answer", "failed"))
    return Probed(
        task=task_of(task),
        level=level,
        solved=solved,
        informative=informative,
        truncated=scores.truncated,
        answered=1 - unanswered,
        floor=task.floor,
        verdict=_verdict(solved, at_least, informative, task.floor),
        rollouts=size / informative if informative else None,
    )


def task_of(results: TaskResults) -> str:
    """The task behind a label."""
    return str((results.spec or {}).get("name", results.task))


def _verdict(solved: float, at_least: float, informative: float, floor: float | None) -> Verdict:
    if informative < LEAST_INFORMATIVE:
        return "too easy" if solved > 0.5 else "too hard"
    if floor is not None and floor >= FLOOR and at_least <= floor:
        return "guessable"
    return "trainable"


def mixture(advice: dict[str, Advice]) -> dict[str, Any]:
    """`tasks` of a training config: those that are trainable, each at the level to start with.

    Raises:
        InputError: none is.
    """
    tasks = {
        name: {} if each.level is None else {"level": each.level} for name, each in advice.items() if each.trainable
    }
    if not tasks:
        raise InputError("none of these tasks is trainable for this model: try other levels (--levels), or other tasks")
    return {"tasks": tasks}
