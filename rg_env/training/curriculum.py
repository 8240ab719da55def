"""Curriculum that changes the difficulty levels of tasks during training.

    config = CurriculumConfig.model_validate({"tasks": {"chain_sum": {"start": 0, "highest": 4}}})
    curriculum = Curriculum(config, env, seed=0)
    trainer = GRPOTrainer(model=model, env=env, args=args, processing_class=tokenizer, curriculum=curriculum)

Each prompt for a curriculum task is replaced with a new question from the same task at the task's current level. Other
tasks, each task's share of the prompts, and the evaluation stay the same. A level rises by `step` when the accuracy
over the last `window` prompts at that level is above `success_threshold`, and falls by `step` when that accuracy is
below `failure_threshold`. Alternatively, levels follow a `schedule`. Each change of level resets the window.

The available levels are all levels from 0 to `highest` that work in Reasoning Gym. If a change would lead to a level
that does not work, the next working level in the same direction is used instead. If a level turns out to have no
questions, that level and all higher levels are dropped, a message is printed, and the task returns to the next lower
level. If no lower level exists, the run ends.

Task options come from the environment's tasks, the level and `gym` (the user's own options), in order of increasing
precedence. Without `gym`, all options of the environment's tasks are treated as the user's own options.

The curriculum runs only on the main process. The levels depend only on `state`, which is plain data and is saved with
each checkpoint, so a resumed run continues as if it had never stopped. A batch's questions never change once they have
been chosen. The accuracy on a question is recorded only if the task is still at the question's level.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import BaseModel, NonNegativeInt

from rg_env.core.data.dataset import DrawnRow, build_rows
from rg_env.core.environment import ReasoningGym
from rg_env.core.rewards import LEVEL
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import working_levels
from rg_env.core.text import counted
from rg_env.errors import GenerationError, InputError
from rg_env.training.config.load import curriculum_problems
from rg_env.training.config.schema import CurriculumConfig

FIRST_ROWS = 128
"""Initial number of questions in a pool. This number is enough for a few steps, and the questions are quick to generate
even for slow tasks."""

ToExamples = Callable[[list[DrawnRow]], list[dict[str, Any]]]


class QuestionPool:
    """A task's questions at one level, numbered from 0.

    Args:
        name: name of the pool in console lines and errors.
        build: generates the first n questions, which are always the same (`build_rows`).
        prepare: converts questions to training rows, excluding questions that are too long.
        end: number of distinct questions, if known from an earlier run. A resumed run must repeat the sequence after
            the same question.
        say: called with each line to print.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[int], list[DrawnRow]],
        prepare: ToExamples,
        *,
        end: int | None = None,
        say: Callable[[str], Any] = print,
    ) -> None:
        self.end = end
        """Number of distinct questions, or None until this number is known."""
        self._name, self._build, self._prepare, self._say = name, build, prepare, say
        self._known: set[str] = set()
        self._questions: list[dict[str, Any]] = []

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return question `number`. After the last question, the sequence repeats.

        Raises:
            InputError: Reasoning Gym rejects the options, or all questions are too long.
            GenerationError: no question can be generated.
        """
        while number >= len(self._questions) and len(self._known) != self.end:
            self._grow()
        return self._questions[number % len(self._questions)]

    def _grow(self) -> None:
        """Double the number of known questions, or determine that there are no more."""
        wanted = 2 * len(self._known) or FIRST_ROWS
        try:
            rows = self._build(wanted if self.end is None else min(wanted, self.end))
        except (InputError, GenerationError) as error:  # too few questions, or generation fails or takes too long
            found = max(getattr(error, "found", 0), len(self._known))
            if not found:
                raise
            self.end = found
            self._say(
                f"{self._name}: only {counted(found, 'distinct question')}; repeating from the first question: {error}"
            )
            rows = self._build(found) if found > len(self._known) else []
        new = [row for row in rows if row["question"] not in self._known]
        fitting = self._prepare(new)
        too_long = f"of {len(new)} questions are longer than max_prompt_length"
        if not self._questions and not fitting:
            raise InputError(f"{self._name}: {len(new)} {too_long}: raise max_prompt_length")
        # Print this only the first time that questions are excluded.
        if len(fitting) < len(new) and len(self._questions) == len(self._known):
            self._say(f"{self._name}: {len(new) - len(fitting)} {too_long}, and are excluded")
        self._known.update(row["question"] for row in new)
        self._questions += fitting


class TaskState(BaseModel):
    """State of a curriculum task."""

    level: NonNegativeInt
    levels: list[NonNegativeInt]
    """Available levels, in ascending order."""
    window: list[float] = []
    """Accuracies of the most recent prompts at `level`, newest last."""
    taken: dict[NonNegativeInt, NonNegativeInt] = {}
    """Number of questions used so far, by level."""
    ends: dict[NonNegativeInt, NonNegativeInt] = {}
    """Number of distinct questions by level, for levels where this number is known."""


CurriculumQuestion = tuple[str, NonNegativeInt, NonNegativeInt]
"""Task, level and number that identify a question."""


class CurriculumState(BaseModel):
    """Complete state of a curriculum."""

    tasks: dict[str, TaskState]
    looked: NonNegativeInt = 0
    """Step of the last accuracy check."""
    prompted: dict[NonNegativeInt, list[CurriculumQuestion | None]] = {}
    """Questions in each pending batch, by batch number, with None for prompts of other tasks."""


class Curriculum:
    """Changes the levels of some of an environment's tasks, and provides questions at the current levels.

    Args:
        config: the tasks whose levels change, and the rules for changing the levels.
        env: environment that builds the prompts and grades the answers.
        seed: seed for generating the questions.
        gym: tasks with the user's options (anything `Mixture.parse` accepts), which override the options set by the
            levels. Default: all options of the environment's tasks.

    Raises:
        InputError: `config` is invalid (for example, a task is not trained on or has no working level), or the user's
            options override all options that a task's levels change.
    """

    def __init__(self, config: CurriculumConfig, env: ReasoningGym, seed: int, *, gym: Any = None) -> None:
        env = getattr(env, "environment", env)
        self.config, self.env, self.seed = config, env, seed
        self._split_by = env.manifest["split_by"]
        self.say: Callable[[str], Any] = lambda line: print(line, flush=True)
        """Function that is called with each line to print."""
        self.prepare: ToExamples = env.to_examples
        """Function that converts questions to training rows. The trainer replaces this function to exclude overlong
        rows."""
        given = {task.name: task for task in env.mixture.tasks}
        own = {task.name: task for task in Mixture.parse(env.mixture if gym is None else gym).tasks}
        self._options: dict[str, dict[int, dict[str, Any]]] = {}
        for problem in curriculum_problems(config, {name: own[name] for name in given if name in own}):
            raise InputError(f"{'.'.join(problem.path)}: {problem.message}")
        for name, task in config.tasks.items():
            highest = math.inf if task.highest is None else task.highest
            self._options[name] = {
                level: {**given[name].config, **options, **own[name].config}
                for level, options in working_levels(name, task.attributes).items()
                if level <= highest
            }
            first, *others = self._options[name].values()
            if others and all(each == first for each in others):
                raise InputError(
                    f"curriculum: the config of {name!r} already sets all options that the task's levels change; "
                    "remove these options from the config"
                )
        self._pools: dict[tuple[str, int], QuestionPool] = {}
        self.start()

    def start(self, state: CurriculumState | None = None) -> None:
        """Start over, or resume from the `state` of another curriculum with the same `facts`."""
        if state is not None:
            self._pools = {}
        self.state = state or CurriculumState(
            tasks={
                name: TaskState(level=_up(list(self._options[name]), task.start), levels=list(self._options[name]))
                for name, task in self.config.tasks.items()
            }
        )

    def facts(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share with the original run, as JSON values."""
        options = {name: {str(level): each for level, each in levels.items()} for name, levels in self._options.items()}
        return {"config": self.config.model_dump(mode="json"), "seed": self.seed, "options": options}

    def check(self) -> None:
        """Generate each task's first questions so that errors are reported before training begins.

        Raises:
            InputError, GenerationError: a task has no questions.
        """
        for name, task in self.state.tasks.items():
            self._pool(name, task.level)[0]

    def replace(self, number: int, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return `rows`, the rows of batch `number` (one per prompt), with the rows of curriculum tasks replaced by new
        questions at the tasks' current levels.

        Raises:
            InputError, GenerationError: a task has no questions at its current level or below.
        """
        planned = self.state.prompted.get(number)  # the questions were chosen before the run was interrupted
        if planned is None:
            names = [row["info"]["rg_task"] for row in rows]
            planned = self.state.prompted[number] = [self._next(n) if n in self.state.tasks else None for n in names]
        return [row if asked is None else self._put(row, *asked) for row, asked in zip(rows, planned, strict=True)]

    def measure(self, number: int, accuracies: Iterable[float]) -> None:
        """Record the accuracy on each prompt in batch `number`."""
        for asked, accuracy in zip(self.state.prompted.pop(number), accuracies, strict=True):
            if asked is None or asked[1] != self.state.tasks[asked[0]].level:
                continue
            task = self.state.tasks[asked[0]]
            task.window = [*task.window, accuracy][-self.config.window :]

    def update_levels(self, step: int) -> None:
        """Make the level changes that are due after `step` optimizer steps, and print a line for each change."""
        if self.config.schedule is None and step - self.state.looked < self.config.check_every:
            return
        self.state.looked = step
        for name, task in self.state.tasks.items():
            level, reason = self._due(task, step)
            if level != task.level:
                self.say(f"step {step}: {name} {'rises' if level > task.level else 'falls'} to level {level} {reason}")
                task.level, task.window = level, []

    def metrics(self) -> dict[str, float]:
        """Return the metrics `curriculum/<task>/level` and, unless the window is empty,
        `curriculum/<task>/accuracy`."""
        found: dict[str, float] = {}
        for name, task in self.state.tasks.items():
            found[f"curriculum/{name}/level"] = float(task.level)
            if task.window:
                found[f"curriculum/{name}/accuracy"] = statistics.fmean(task.window)
        return found

    def _due(self, task: TaskState, step: int) -> tuple[int, str]:
        """Return the level that `task` should have after `step`, and the reason to print."""
        config = self.config
        if config.schedule is not None:
            begun = {int(start): level for start, level in config.schedule.items() if int(start) <= step}
            return (_down(task.levels, begun[max(begun)]) if begun else task.level), "(scheduled)"
        if len(task.window) < config.window:
            return task.level, ""
        accuracy = statistics.fmean(task.window)
        reason = f"(accuracy {accuracy:.2f} over {config.window} prompts)"
        if accuracy > config.success_threshold:
            return _up(task.levels, task.level + config.step), reason
        if accuracy < config.failure_threshold:
            return _down(task.levels, task.level - config.step), reason
        return task.level, reason

    def _next(self, name: str) -> CurriculumQuestion:
        """Return the next question of a task. If the current level has no questions, lower the level."""
        task = self.state.tasks[name]
        while True:
            level, number = task.level, task.taken.get(task.level, 0)
            try:
                self._question(name, level, number)
            except (InputError, GenerationError) as error:
                below = [each for each in task.levels if each < level]
                if not below:
                    raise
                self.say(f"{name}: level {level} has no questions; returning to level {below[-1]}: {error}")
                task.levels, task.level, task.window = below, below[-1], []
            else:
                task.taken[level] = number + 1
                return name, level, number

    def _question(self, name: str, level: int, number: int) -> dict[str, Any]:
        pool = self._pool(name, level)
        question = pool[number]
        if pool.end is not None:
            self.state.tasks[name].ends[level] = pool.end
        return question

    def _pool(self, name: str, level: int) -> QuestionPool:
        if (name, level) not in self._pools:
            spec = {"name": name, "config": self._options[name][level]}
            self._pools[name, level] = QuestionPool(
                f"{name} at level {level}",
                lambda n: build_rows(spec, "train", n, self.seed, split_by=self._split_by, on_few="error"),
                lambda rows: self.prepare(rows),
                end=self.state.tasks[name].ends.get(level),
                say=lambda line: self.say(line),
            )
        return self._pools[name, level]

    def _put(self, row: dict[str, Any], name: str, level: int, number: int) -> dict[str, Any]:
        """Replace `row` with question `number`, but keep the row's `share`."""
        question = self._question(name, level, number)
        return {**row, **question, "info": {**question["info"], "share": row["info"]["share"], LEVEL: str(level)}}


def _up(levels: Sequence[int], wanted: int) -> int:
    """Return the lowest of `levels` (ascending) that is at least `wanted`, or the highest level if all levels are
    lower."""
    return next((level for level in levels if level >= wanted), levels[-1])


def _down(levels: Sequence[int], wanted: int) -> int:
    """Return the highest of `levels` (ascending) that is at most `wanted`, or the lowest level if all levels are
    higher."""
    return next((level for level in reversed(levels) if level <= wanted), levels[0])
