"""Curriculum: tasks whose level of difficulty changes during training.

    config = CurriculumConfig.model_validate({"tasks": {"chain_sum": {"start": 0, "highest": 4}}})
    curriculum = Curriculum(config, env, seed=0)
    trainer = GRPOTrainer(model=model, env=env, args=args, processing_class=tokenizer, curriculum=curriculum)

Each prompt of a curriculum task is replaced by a fresh question of that task at its present level; other tasks, the
shares of the tasks and the evaluation stay as they are. A level rises when the accuracy over the last `window` prompts
at that level is above `success_threshold`, falls when it is below `failure_threshold`, by `step`; or it follows a
`schedule`. After each change the window is empty.

The levels to choose from are those that work, from 0 to `highest`. A level that is broken in the library is skipped,
upward when the level rises and downward when it falls. A level that turns out in training not to give a single question
is dropped with all above it, reported in one line, and the task returns to the one below; without one, the run ends.

Options come, the later the stronger, from the environment's tasks, from the level, and from `gym`: what the user set
for the task. Without `gym` all options of the environment count as the user's.

All of this happens on the main process. What the levels depend on is plain data, `state`, saved with each checkpoint:
with it a run resumes as if it had never stopped. A batch that was prompted keeps its questions, and counts for the
level that it was prompted at.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, NonNegativeInt, ValidationError

from rg_env.core.data.dataset import Row, build_rows
from rg_env.core.data.splits import SplitBy
from rg_env.core.environment import ReasoningGym
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import options_at, working_levels
from rg_env.errors import GenerationError, InputError, TooFewQuestionsError
from rg_env.evaluation.records import LEVEL
from rg_env.training.config.load import curriculum_problems
from rg_env.training.config.schema import CurriculumConfig

FIRST_ROWS = 128
"""Questions drawn at first: enough for a few steps, and little work for tasks that are slow to draw from."""

Prepare = Callable[[list[Row]], list[dict[str, Any]]]


class QuestionPool:
    """Questions by number, from 0 up.

    Args:
        name: what lines and errors call it.
        spec: the task, as `Mixture.parse` takes it.
        seed: picks the questions.
        split_by: what decides which of them are for training (`core.data.splits`).
        prepare: makes rows of a training dataset from them; those that it leaves out are too long.
        end: how many there are, where that is known from an earlier run: how long it is worth to look for more depends
            on the machine's speed, and a resumed run must start over where the first one did.
        say: takes lines for the user.
    """

    def __init__(
        self,
        name: str,
        spec: Mapping[str, Any],
        *,
        seed: int,
        prepare: Prepare,
        split_by: SplitBy = "problem",
        end: int | None = None,
        say: Callable[[str], Any] = print,
    ) -> None:
        self.end = end
        """How many distinct ones there are, once that is known."""
        self._name, self._spec, self._seed, self._prepare, self._say = name, spec, seed, prepare, say
        self._split_by: SplitBy = split_by
        self._known: set[str] = set()
        self._questions: list[dict[str, Any]] = []
        self._reported_too_long = False

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Question `number`; beyond the last one they start over.

        Raises:
            InputError: no question: the library refuses the options, or all are too long.
            GenerationError: none can be generated.
        """
        while number >= len(self._questions) and len(self._known) != self.end:
            self._grow()
        return self._questions[number % len(self._questions)]

    def _grow(self) -> None:
        wanted = 2 * len(self._known) or FIRST_ROWS
        try:
            rows = self._build(wanted if self.end is None else min(wanted, self.end))
        except TooFewQuestionsError as error:
            found = max(error.found, len(self._known))
            if not found:
                raise
            rows = self._build(found)
            self._ends(found)
        except (InputError, GenerationError) as error:  # draws that fail, or take for ever: what there is will do
            if not self._known:
                raise
            self._ends(len(self._known), f" ({error})")
            return
        new = [row for row in rows if row["question"] not in self._known]
        self._known.update(row["question"] for row in new)
        fitting = self._prepare(new)
        self._questions += fitting
        if not self._questions:
            raise InputError(f"{self._name}: all {len(new)} questions are longer than max_prompt_length: raise it")
        if len(fitting) < len(new) and not self._reported_too_long:
            self._reported_too_long = True
            self._say(
                f"{self._name}: {len(new) - len(fitting)} of {len(new)} questions are longer than max_prompt_length "
                f"and are left out"
            )

    def _build(self, n: int) -> list[Row]:
        return build_rows(self._spec, "train", n, self._seed, split_by=self._split_by)

    def _ends(self, found: int, reason: str = "") -> None:
        self.end = found
        self._say(f"{self._name}: there are {found} distinct questions{reason}; after the last they start over")


class TaskState(BaseModel):
    """The state of one task."""

    level: NonNegativeInt
    levels: list[NonNegativeInt]
    """Those to choose from, ascending."""
    window: list[float] = []
    """Accuracy of the last prompts at `level`, the newest last."""
    taken: dict[NonNegativeInt, NonNegativeInt] = {}
    """Questions asked so far, by level."""
    ends: dict[NonNegativeInt, NonNegativeInt] = {}
    """Distinct questions that there are, by level, where that is known."""


CurriculumQuestion = tuple[str, NonNegativeInt, NonNegativeInt]
"""Task, level and number of a question."""


class CurriculumState(BaseModel):
    """All that a curriculum depends on."""

    tasks: dict[str, TaskState]
    looked: NonNegativeInt = 0
    """Step of the last look at the accuracies."""
    prompted: dict[NonNegativeInt, list[CurriculumQuestion | None]] = {}
    """By number of the batch: its questions, while its rollouts are awaited; None: a prompt of another task."""


def read_state(text: str) -> CurriculumState:
    """The state that `model_dump_json` wrote. Raises `InputError` for any other text."""
    try:
        return CurriculumState.model_validate_json(text)
    except ValidationError as error:
        raise InputError("the curriculum's state is truncated, or damaged") from error


class Curriculum:
    """The levels of some of an environment's tasks, and their questions.

    Args:
        config: which tasks, and when their levels change.
        env: asks and grades the questions.
        seed: picks them.
        gym: the tasks with the options that the user set himself (anything `Mixture.parse` takes); they win over the
            levels' own. Default: those of the environment, all of them.

    Raises:
        InputError: a task that is not trained on, that has no working level, or that no level changes.
    """

    def __init__(self, config: CurriculumConfig, env: ReasoningGym, seed: int, *, gym: Any = None) -> None:
        env = getattr(env, "environment", env)
        self.config, self.env, self.seed = config, env, seed
        self._split_by = env.manifest["split_by"]
        self.say: Callable[[str], Any] = lambda line: print(line, flush=True)
        """Takes lines for the user."""
        self.prepare: Prepare = env.to_examples
        """Makes rows to train on; the trainer sets one that leaves out what is too long for it."""
        given = {task.name: task for task in env.mixture.tasks}
        own = {task.name: task for task in Mixture.parse(env.mixture if gym is None else gym).tasks}
        self._options: dict[str, dict[int, dict[str, Any]]] = {}
        for problem in curriculum_problems(config, {name: own[name] for name in given if name in own}):
            raise InputError(f"{'.'.join(problem.path)}: {problem.message}")
        for name, task in config.tasks.items():
            highest = math.inf if task.highest is None else task.highest
            levels = [level for level in working_levels(name, task.attributes) if level <= highest]
            self._options[name] = {
                level: {**given[name].config, **options_at(name, level, task.attributes), **own[name].config}
                for level in levels
            }
            if len(levels) > 1 and all(each == self._options[name][levels[0]] for each in self._options[name].values()):
                raise InputError(
                    f"curriculum: every option of {name!r} that a level sets is set by its config: leave them out there"
                )
        self._pools: dict[tuple[str, int], QuestionPool] = {}
        self.start()

    def start(self, state: CurriculumState | None = None) -> None:
        """Start over, or resume from `state`, of a curriculum with the same `facts`."""
        if state is not None:
            self._pools = {}
        self.state = state or CurriculumState(
            tasks={
                name: TaskState(level=_up(list(self._options[name]), task.start), levels=list(self._options[name]))
                for name, task in self.config.tasks.items()
            }
        )

    def facts(self) -> dict[str, Any]:
        """What has to be the same in a run that resumes from a checkpoint, as JSON values."""
        options = {
            name: {str(level): options for level, options in by_level.items()}
            for name, by_level in self._options.items()
        }
        return {"config": self.config.model_dump(mode="json"), "seed": self.seed, "options": options}

    def check(self) -> None:
        """Generate the first questions of each task: what cannot work is reported before training begins.

        Raises:
            InputError, GenerationError: a task has no questions.
        """
        for name, task in self.state.tasks.items():
            self._pool(name, task.level)[0]

    def replace(self, number: int, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows of batch `number`, one a prompt, with those of curriculum tasks at their present levels.

        Raises:
            InputError, GenerationError: a task gives no question at any level up to its present one.
        """
        planned = self.state.prompted.get(number)  # asked for already, before the run was broken off
        if planned is None:
            names = [row["info"]["rg_task"] for row in rows]
            planned = self.state.prompted[number] = [self._next(n) if n in self.state.tasks else None for n in names]
        return [row if asked is None else self._put(row, *asked) for row, asked in zip(rows, planned, strict=True)]

    def measure(self, number: int, accuracies: Iterable[float]) -> None:
        """Count the accuracy of each prompt of batch `number`."""
        for asked, accuracy in zip(self.state.prompted.pop(number), accuracies, strict=True):
            if asked is None or asked[1] != self.state.tasks[asked[0]].level:
                continue
            task = self.state.tasks[asked[0]]
            task.window = [*task.window, accuracy][-self.config.window :]

    def update_levels(self, step: int) -> None:
        """Change the levels that have to, after `step` optimizer steps, with a line for each."""
        if self.config.schedule is None and step - self.state.looked < self.config.check_every:
            return
        self.state.looked = step
        for name, task in self.state.tasks.items():
            level, reason = self._due(task, step)
            if level != task.level:
                self.say(f"step {step}: {name} {'rises' if level > task.level else 'falls'} to level {level} {reason}")
                task.level, task.window = level, []

    def metrics(self) -> dict[str, float]:
        """`curriculum/<task>/level` and, once there is one, `curriculum/<task>/accuracy` over the window."""
        found: dict[str, float] = {}
        for name, task in self.state.tasks.items():
            found[f"curriculum/{name}/level"] = float(task.level)
            if task.window:
                found[f"curriculum/{name}/accuracy"] = statistics.fmean(task.window)
        return found

    def _due(self, task: TaskState, step: int) -> tuple[int, str]:
        """The level that it should have, and why."""
        config = self.config
        if config.schedule is not None:
            passed = [int(start) for start in config.schedule if int(start) <= step]
            levels = {int(start): level for start, level in config.schedule.items()}
            return (_down(task.levels, levels[max(passed)]) if passed else task.level), "(scheduled)"
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
        """The next question of a task, at a level that has one."""
        task = self.state.tasks[name]
        while True:
            level = task.level
            number = task.taken.get(level, 0)
            try:
                self._question(name, level, number)
            except (InputError, GenerationError) as error:
                below = [each for each in task.levels if each < level]
                if not below:
                    raise
                self.say(f"{name}: level {level} gives no questions, going back to level {below[-1]}: {error}")
                task.levels, task.level, task.window = below, below[-1], []
                continue
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
            self._pools[name, level] = QuestionPool(
                f"{name} at level {level}",
                {"name": name, "config": self._options[name][level]},
                seed=self.seed,
                prepare=lambda rows: self.prepare(rows),
                split_by=self._split_by,
                end=self.state.tasks[name].ends.get(level),
                say=lambda line: self.say(line),
            )
        return self._pools[name, level]

    def _put(self, row: dict[str, Any], name: str, level: int, number: int) -> dict[str, Any]:
        """The question instead of `row`, whose share of all rows it keeps."""
        question = self._question(name, level, number)
        return {**row, **question, "info": {**question["info"], "share": row["info"]["share"], LEVEL: str(level)}}


def _up(levels: Sequence[int], wanted: int) -> int:
    """The lowest of `levels` (ascending) from `wanted` on, else the highest there is."""
    return next((level for level in levels if level >= wanted), levels[-1])


def _down(levels: Sequence[int], wanted: int) -> int:
    """The highest of `levels` (ascending) up to `wanted`, else the lowest there is."""
    return next((level for level in reversed(levels) if level <= wanted), levels[0])
