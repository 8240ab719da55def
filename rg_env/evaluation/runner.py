"""Prompt models with questions and score the answers, for `rg-env eval` and for trainers.

    outcome = asyncio.run(ask_all(config, folder, works))  # all models of a config
    ask_local(model, works)                                # one local model, with its engine

A `Work` is one model on a task's questions (`TaskWork`) or an external benchmark (`external.Benchmark`), with the
answers so far. `rg-env eval` appends each rollout to `rollouts.jsonl` as soon as it is scored. An interrupted
evaluation resumes with the missing rollouts, because figures are computed only from the records in that file.

Endpoints are called in parallel, each with its own number of concurrent calls. Models in this process take turns. vLLM
serves each model on its own GPU, and an idle GPU also serves the model with the most work left.
"""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rg_env.core.grading.scoring import Rollout
from rg_env.core.text import counted
from rg_env.errors import EngineError, RGEnvError, ServerError
from rg_env.evaluation.config import EvalConfig, EvalModel
from rg_env.evaluation.models import (
    CallFailed,
    Endpoint,
    EndpointFailed,
    LocalModel,
    Reply,
    Request,
    default_gpus,
    embedded,
    endpoint,
    folds_system,
    local_engine,
    require_torch,
    serving,
)
from rg_env.evaluation.questions import Questions, draw, question_of
from rg_env.evaluation.records import FAILED, Answer, RecordFile, record_of
from rg_env.evaluation.trained import Trained, trained_on
from rg_env.inference.protocol import Sampling

Draw = Literal["sampled", "greedy"]
Record = dict[str, Any]
ROLLOUTS = "rollouts.jsonl"


@dataclass
class Answered:
    """Outcome of a call: a reply or an error."""

    key: Any
    reply: Reply | None = None
    error: str | None = None
    seconds: float | None = None
    """Duration of the call; None for calls in a batch."""
    rollout: Rollout | None = None
    """The reply as a rollout, set by `Work.grade`."""


class Work(ABC):
    """One model on a task or a benchmark, with the answers so far by key.

    Args:
        keep: called with each record.
    """

    def __init__(
        self, model: str, label: str, keys: Iterable[Any], keep: Callable[[Record], Any] = lambda record: None
    ):
        self.model, self.label, self.keys, self.keep = model, label, dict.fromkeys(keys), keep
        self.answers: dict[Any, Answer] = {}
        self._began: tuple[float, int] | None = None

    @property
    def asked(self) -> int:
        """Number of answers wanted."""
        return len(self.keys)

    @property
    def made(self) -> int:
        """Number of answers so far, including failed calls."""
        return len(self.answers)

    @property
    def failed(self) -> int:
        """Number of calls that failed after all attempts."""
        return sum(answer.status == FAILED for answer in self.answers.values())

    def open(self) -> list[Any]:
        """Keys of missing answers, including calls that failed."""
        return [key for key in self.keys if key not in self.answers or self.answers[key].status == FAILED]

    @property
    def has_begun(self) -> bool:
        return self._began is not None

    def begin(self) -> None:
        """Record the time before the first call."""
        self._began = self._began or (time.monotonic(), self.made)

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining time; None if unknown."""
        if self._began is None or self.made <= self._began[1]:
            return None
        start, before = self._began
        return (time.monotonic() - start) / (self.made - before) * (self.asked - self.made)

    @abstractmethod
    def request(self, key: Any) -> Request: ...

    @property
    def graded_aside(self) -> bool:
        """Whether `grade` waits for worker processes and should run in a thread."""
        return False

    def grade(self, answered: Sequence[Answered]) -> None:
        """Do the slow part of `take`, which may run in a thread."""

    def take(self, answered: Sequence[Answered]) -> None:
        """Add answers, and errors of calls that failed permanently. Raises like `records`."""
        for each, own in zip(answered, self.records(answered), strict=True):
            reply = each.reply or Reply("")
            common = {"model": self.model, "reasoning": reply.reasoning, "prompt_tokens": reply.prompt_tokens}
            record = {**common, **own, "error": each.error, "seconds": each.seconds}
            self.keep(record)
            self.put(record)

    @abstractmethod
    def records(self, answered: Sequence[Answered]) -> Iterator[Record]:
        """The answers' records, without the keys added by `take`."""

    @abstractmethod
    def put(self, record: Record) -> bool:
        """Add a record, replacing an earlier one of the same answer; returns False if it is not part of this work."""


class TaskWork(Work):
    """One model on a task's questions, keyed by (question index, answer index).

    Args:
        times: number of answers per question.
        left_out: indices of questions to skip for this model.
        system_prompt: the model's own system prompt, instead of the environment's.
        keep: called with each record.
    """

    def __init__(
        self,
        model: str,
        questions: Questions,
        sampling: Sampling,
        times: int = 1,
        draw: Draw = "sampled",
        *,
        left_out: frozenset[int] = frozenset(),
        system_prompt: str | None = None,
        keep: Callable[[Record], Any] = lambda record: None,
    ):
        self.numbers = [number for number in questions.numbers if number not in left_out]
        super().__init__(model, questions.name, [(n, k) for n in self.numbers for k in range(times)], keep)
        self.questions, self.sampling, self.times, self.draw = questions, sampling, times, draw
        self.system_prompt = system_prompt

    @property
    def left_out(self) -> int:
        """Number of questions skipped for this model."""
        return len(self.questions.numbers) - len(self.numbers)

    def of(self, number: int) -> list[Answer]:
        """Answers to a question, in order; empty if the question is skipped."""
        return [self.answers[number, k] for k in range(self.times) if (number, k) in self.answers]

    def put(self, record: Record) -> bool:
        key = record["problem"], record["rollout"]
        if key not in self.keys or self.questions.hashes[key[0]] != record["row"]:
            return False
        self.answers[key] = Answer.of(record)
        return True

    def request(self, key: tuple[int, int]) -> Request:
        return Request(self.questions.prompt(key[0], self.system_prompt), self.sampling)

    @property
    def graded_aside(self) -> bool:
        rubric = getattr(self.questions.env, "rubric", None)  # environments of Verifiers score by themselves
        return rubric is not None and rubric.in_workers

    def grade(self, answered: Sequence[Answered]) -> None:
        env = self.questions.env
        for each in answered:
            if each.reply is not None and each.rollout is None:
                reply = each.reply
                each.rollout = env.rollout(
                    env.eval_rows[each.key[0]],
                    reply.text,
                    token_ids=reply.token_ids,
                    logprobs=reply.logprobs,
                    completion_tokens=reply.completion_tokens,
                    truncated=reply.truncated,
                )
        if self.graded_aside:
            env.rubric.grade([each.rollout for each in answered if each.rollout is not None])

    def records(self, answered: Sequence[Answered]) -> Iterator[Record]:
        """The records of scored answers.

        Raises:
            RewardError: a reward raised an error or did not return a finite number.
        """
        self.grade(answered)
        scored = iter(self.questions.env.score([each.rollout for each in answered if each.rollout is not None]))
        for each in answered:
            number, rollout = each.key
            row = self.questions.env.eval_rows[number]
            record = {
                "draw": self.draw,
                "part": self.questions.part,
                "row": self.questions.hashes[number],
                "problem": number,
                "rollout": rollout,
                "question": question_of(row),
                "answer": row["answer"],
                **(self._failed_record() if each.rollout is None else record_of(each.rollout, next(scored))),
                "task": self.label,
            }
            if each.reply and each.reply.refusal and not record["detail"]:
                record["detail"] = f"refusal: {each.reply.refusal}"
            yield record

    def _failed_record(self) -> dict[str, Any]:
        rewards = dict.fromkeys(self.questions.env.reward_weights, 0.0)
        unknown = dict.fromkeys(("completion_tokens", "truncated", "extracted"))
        wrong = {"score": 0.0, "correct": False, "reward": 0.0, "rewards": rewards, "status": FAILED, "detail": ""}
        return {"completion": "", **unknown, **wrong}


@dataclass
class Outcome:
    """State of an evaluation."""

    works: Sequence[Work]
    problems: dict[str, str] = field(default_factory=dict)
    """Reasons why models could not be evaluated completely, by model."""
    answered_as: dict[str, set[str]] = field(default_factory=dict)
    """Other names reported in a server's replies, by model."""
    strangers: int = 0
    """Number of records in the file that do not belong to this evaluation."""


Watch = Callable[[Outcome], Any]


def make_works(config: EvalConfig, drawn: Callable[[int], Any] = lambda number: None) -> list[TaskWork]:
    """Combine all models with all tasks, without questions a checkpoint was trained on. Raises like `draw`.

    `drawn` is called after each task with the number of tasks drawn so far.
    """
    tasks: list[Questions] = []
    for name in config.names:
        tasks.append(draw(config, name))
        drawn(len(tasks))
    works = []
    for name, model in config.models.items():
        trained = Trained() if model.url else trained_on(model.model)
        for task in tasks:
            works += works_on(
                name,
                task,
                Sampling(**config.sampling_of(task.name).model_dump()),
                config.rollouts_per_example,
                config.greedy,
                left_out=trained.among(task),
                system_prompt=model.system_prompt,
            )
    return works


def works_on(
    model: str, questions: Questions, sampling: Sampling, times: int, greedy: bool, **options: Any
) -> list[TaskWork]:
    """Work for `times` sampled answers per question, and for one greedy answer each if `greedy`.

    `options` are those of `TaskWork`.
    """
    works = [TaskWork(model, questions, sampling, times, **options)]
    if greedy:
        works.append(TaskWork(model, questions, replace(sampling, temperature=0.0), 1, "greedy", **options))
    return works


def ask_local(model: LocalModel, works: Sequence[Work], lock: AbstractContextManager[Any] | None = None) -> None:
    """Generate all missing answers with a local model, in as few batches as possible.

    Args:
        lock: held while answers are scored, if rewards must not run concurrently with others.
    """
    for batch in _batches(model, works):
        for work, answered in batch:
            with lock or nullcontext():
                work.take(answered)


def _batches(model: LocalModel, works: Sequence[Work]) -> Iterator[list[tuple[Work, list[Answered]]]]:
    calls = [(work, key) for work in works for key in work.open()]
    for work in works:
        work.begin()
    for batch in model.replies([work.request(key) for work, key in calls]):
        by_work: dict[Work, list[Answered]] = {}
        for number, reply in sorted(batch, key=lambda each: each[0]):
            work, key = calls[number]
            answered = Answered(key, error=reply) if isinstance(reply, str) else Answered(key, reply)
            by_work.setdefault(work, []).append(answered)
        yield list(by_work.items())


async def ask_all(config: EvalConfig, folder: Path, works: Sequence[Work], watch: Watch | None = None) -> Outcome:
    """Generate all missing answers; those of `TaskWork` are appended to `rollouts.jsonl` in `folder`.

    Args:
        watch: called regularly with the outcome so far.

    Raises:
        RewardError: a reward raised an error or did not return a finite number.
        InputError: a local model cannot be loaded, or an endpoint cannot be used.
        MissingExtraError: a package to serve local models is not installed.
    """
    outcome = Outcome(works)
    named = {(work.model, work.label, work.draw): work for work in works if isinstance(work, TaskWork)}
    with RecordFile(folder / ROLLOUTS) as file:
        for record in file.records("model", "task", "draw", "row", "problem", "rollout", *Answer._fields[:-1]):
            known = named.get((record["model"], record["task"], record["draw"]))
            outcome.strangers += known is None or not known.put(record)
        for work in named.values():
            work.keep = file.append
        watcher = asyncio.create_task(_watching(watch, outcome)) if watch else None
        try:
            await _Run(config, folder, outcome).all()
        except BaseExceptionGroup as group:  # tasks that failed together; one is reported
            raise _first(group) from group
        finally:
            if watcher:
                watcher.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watcher
    return outcome


def _first(error: BaseException) -> BaseException:
    """One of several simultaneous errors, preferably one of rg_env's."""
    while isinstance(error, BaseExceptionGroup):
        error = next((each for each in error.exceptions if isinstance(each, RGEnvError)), error.exceptions[0])
    return error


async def _watching(watch: Watch, outcome: Outcome) -> None:
    while True:
        await asyncio.sleep(0.5)
        watch(outcome)


class _Run:
    def __init__(self, config: EvalConfig, folder: Path, outcome: Outcome):
        self.config, self.folder, self.outcome = config, folder, outcome
        # All workers of a model share one source of calls.
        self._calls = {name: self._calls_of(name) for name in config.models}
        self._failed_in_a_row = dict.fromkeys(config.models, 0)
        self._folds: dict[str, bool] = {}
        """`Endpoint.folds` of each model served on this machine."""

    async def all(self) -> None:
        models = self.config.models
        missing = [name for name in models if self._left(name)]
        remote = [name for name in missing if models[name].url]
        local = [name for name in missing if name not in remote]
        if local:
            require_torch()
            self._folds = {name: folds_system(models[name].model) for name in local}
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            # All endpoints are checked before the first call, so a wrong URL does not waste paid calls.
            ready = {name: await stack.enter_async_context(endpoint(models[name], self.config)) for name in remote}
            for name in remote:
                group.create_task(self._guarded(name, self._ask_endpoint(name, ready[name])))
            if local and local_engine(self.config) == "vllm":
                waiting = list(local)
                gpus: list[str | None] = [str(gpu) for gpu in self.config.serving.gpus or default_gpus()] or [None]
                for gpu in gpus:
                    group.create_task(self._on_gpu(gpu, waiting))
            elif local:
                group.create_task(self._in_turn(local))

    def _works(self, model: str) -> list[Work]:
        return [work for work in self.outcome.works if work.model == model]

    def _left(self, model: str) -> int:
        return sum(len(work.open()) for work in self._works(model))

    def _calls_of(self, model: str) -> Iterator[tuple[Work, Any]]:
        for work in self._works(model):
            for key in work.open():
                yield work, key

    async def _guarded(self, name: str, asking: Awaitable[None]) -> None:
        """Record a model's failure, so the others continue."""
        try:
            await asking
        except (ServerError, EngineError, BaseExceptionGroup) as error:
            first = _first(error)
            if not isinstance(first, ServerError | EngineError):
                raise
            self.outcome.problems[name] = str(first)

    async def _in_turn(self, names: list[str]) -> None:
        for name in names:
            async with embedded(self.config.models[name].model, self.config) as model:
                for work in self._works(name):
                    if isinstance(work, TaskWork):
                        prompts = (work.request((number, 0)).prompt for number in work.numbers)
                        model.check_fits(work.label, prompts, work.sampling.max_tokens)
                await self._guarded(name, self._ask_embedded(name, model))

    async def _ask_embedded(self, name: str, model: LocalModel) -> None:
        batches = _batches(model, self._works(name))
        while batch := await asyncio.to_thread(next, batches, None):
            for work, answered in batch:
                await asyncio.to_thread(work.grade, answered)
                work.take(answered)

    async def _on_gpu(self, gpu: str | None, waiting: list[str]) -> None:
        """Serve one waiting model after the other, then also the model with the most calls left."""
        while True:
            local = [name for name, model in self.config.models.items() if not model.url]
            left = {name: self._left(name) for name in local if name not in self.outcome.problems}
            if waiting:
                name = waiting.pop(0)
            elif left and max(left.values()) > self.config.requests.concurrency:
                name = max(left, key=left.__getitem__)  # with fewer calls, its first server has started them all
            else:
                return
            await self._guarded(name, self._served(name, gpu))

    async def _served(self, name: str, gpu: str | None) -> None:
        async with (
            serving(self.config.models[name].model, gpu, self.folder, self.config) as (url, served),
            endpoint(EvalModel(model=served, url=url), self.config, folds=self._folds[name]) as ready,
        ):
            await self._ask_endpoint(name, ready)

    async def _ask_endpoint(self, name: str, ready: Endpoint) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.config.requests.concurrency, self._left(name))):
                group.create_task(self._worker(name, ready))

    async def _worker(self, name: str, ready: Endpoint) -> None:
        problems = self.outcome.problems
        for work, key in self._calls[name]:
            if name in problems:
                return
            work.begin()
            start, answered = time.monotonic(), Answered(key)
            try:
                answered.reply = await ready.reply(work.request(key))
                self._failed_in_a_row[name] = 0
            except CallFailed as failure:
                answered.error = str(failure)
                self._failed_in_a_row[name] += 1
            except EndpointFailed as failure:
                problems.setdefault(name, str(failure))
                return
            answered.seconds = round(time.monotonic() - start, 3)
            if work.graded_aside:
                await asyncio.to_thread(work.grade, [answered])
            work.take([answered])
            if answered.reply and answered.reply.model not in (None, ready.served_name):
                self.outcome.answered_as.setdefault(name, set()).add(str(answered.reply.model))
            if answered.error and self._failed_in_a_row[name] >= self.config.requests.give_up_after:
                failed = self.config.requests.give_up_after
                problems.setdefault(name, f"{counted(failed, 'call')} failed in a row: {answered.error}")
                return
