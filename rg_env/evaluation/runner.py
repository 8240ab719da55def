"""Questions are asked, answers scored: of endpoints and local models by `rg-env eval`, of its own model by a trainer.

    ask_local(model, [TaskWork(...)])                      # a local model, by its engine
    outcome = asyncio.run(ask_all(config, folder, works))  # all models of a config

Each model has works: some questions (`TaskWork`) or an external benchmark (`lm_eval.client.Benchmark`), which keep the
answers. `rg-env eval` writes each rollout to `rollouts.jsonl` as soon as it is scored, and an evaluation that was
interrupted resumes with what is missing: figures are made from that file's records alone.

Endpoints are asked at the same time, each with its own number of concurrent calls. Models of this process take turns;
those that vLLM serves have a GPU each, and a GPU that is done helps the model with most work left.
"""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rg_env.core.grading.rollout import Rollout
from rg_env.errors import EngineError, RGEnvError, ServerError
from rg_env.evaluation.config import EvalConfig, EvalModel
from rg_env.evaluation.models import (
    Endpoint,
    LocalModel,
    Request,
    can_serve,
    default_gpus,
    embedded,
    endpoint,
    folds_system,
    require_torch,
    serving,
)
from rg_env.evaluation.questions import Questions, Trained, draw, question_of, trained_on
from rg_env.evaluation.records import RecordFile, record_of
from rg_env.evaluation.requests import CallFailed, EndpointFailed, Reply
from rg_env.evaluation.scores import FAILED, Tally
from rg_env.inference.protocol import Sampling

_IN_A_ROW = 32
"""Consecutive failed calls of a model, after all tries, before it is given up."""
ROLLOUTS = "rollouts.jsonl"


@dataclass
class Answered:
    """The outcome of one call: a reply, or an error."""

    key: Any
    reply: Reply | None
    error: str | None = None
    seconds: float | None = None
    """Time that the call took; None for those of a batch."""
    rollout: Rollout | None = None
    """The reply as a rollout, once `Work.grade` has made it."""


@dataclass
class Work(ABC):
    """One model on some questions or on a benchmark."""

    model: str
    began: float | None = field(default=None, init=False)
    """On the clock of `time.monotonic`."""
    at_start: int = field(default=0, init=False)
    """Answers that existed when it began."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it asks, in a word."""

    @property
    @abstractmethod
    def asked(self) -> int:
        """Answers wanted in all."""

    @property
    @abstractmethod
    def made(self) -> int:
        """Answers so far, failed calls included."""

    @property
    @abstractmethod
    def failed(self) -> int:
        """Calls without an answer, after all tries."""

    @abstractmethod
    def open(self) -> list[Any]:
        """Keys of the answers still to be made, calls that failed in an earlier run included."""

    @abstractmethod
    def request(self, key: Any) -> Request: ...

    def grade(self, answered: Sequence[Answered]) -> None:  # noqa: B027  (nothing to do for most)
        """Do what takes long and may run in a thread, before `take`."""

    @abstractmethod
    def take(self, answered: Sequence[Answered]) -> None:
        """Keep answers, and the errors of calls that failed for good."""

    @property
    def seconds_left(self) -> float | None:
        """By its speed so far; None if that is not known yet."""
        made = self.made - self.at_start
        if self.began is None or made <= 0:
            return None
        return (time.monotonic() - self.began) / made * (self.asked - self.made)

    def begin(self) -> None:
        """Note that the first call is about to be made."""
        if self.began is None:
            self.began, self.at_start = time.monotonic(), self.made


@dataclass
class TaskWork(Work):
    """One model on some questions, so many answers each."""

    questions: Questions
    sampling: Sampling
    tally: Tally
    draw: Literal["sampled", "greedy"] = "sampled"
    system_prompt: str | None = None
    """The model's own, instead of the environment's."""
    keep: Callable[[dict[str, Any]], Any] = field(default=lambda record: None, repr=False)
    """Gets each record."""

    @property
    def label(self) -> str:
        return self.questions.label or self.questions.part or "questions"

    @property
    def asked(self) -> int:
        return self.tally.asked

    @property
    def made(self) -> int:
        return self.tally.made

    @property
    def failed(self) -> int:
        return self.tally.failed

    def open(self) -> list[tuple[int, int]]:
        return self.tally.open()

    def request(self, key: tuple[int, int]) -> Request:
        return Request(self.questions.prompt(key[0], self.system_prompt), self.sampling)

    @property
    def in_workers(self) -> bool:
        """Whether grading waits for worker processes."""
        return bool(getattr(getattr(self.questions.env, "rubric", None), "in_workers", False))

    def grade(self, answered: Sequence[Answered]) -> None:
        env = self.questions.env
        for each in answered:
            if each.reply is not None and each.rollout is None:
                row = self.questions.rows[each.key[0]]
                each.rollout = env.rollout(
                    row,
                    each.reply.text,
                    token_ids=each.reply.token_ids,
                    logprobs=each.reply.logprobs,
                    completion_tokens=each.reply.completion_tokens,
                    truncated=each.reply.truncated,
                )
        if self.in_workers:
            env.rubric.grade([each.rollout for each in answered if each.rollout is not None])

    def take(self, answered: Sequence[Answered]) -> None:
        """Score and keep the answers.

        Raises:
            RewardError: a reward raised or returned no finite number.
        """
        self.grade(answered)
        rollouts = [each.rollout for each in answered if each.rollout is not None]
        scored = iter(self.questions.env.score(rollouts))
        for each in answered:
            record = self._asked(each)
            if each.rollout is None or each.reply is None:
                record |= self._failed()
            else:
                record |= record_of(each.rollout, next(scored))
                record["detail"] = record["detail"] or (f"refusal: {each.reply.refusal}" if each.reply.refusal else "")
            record |= {"task": self.questions.name(each.key[0]), "error": each.error, "seconds": each.seconds}
            self.keep(record)
            self.tally.put(record)

    def _asked(self, each: Answered) -> dict[str, Any]:
        number, rollout = each.key
        return {
            "model": self.model,
            "draw": self.draw,
            "part": self.questions.part,
            "row": self.questions.hashes[number],
            "problem": number,
            "rollout": rollout,
            "reasoning": each.reply.reasoning if each.reply else None,
            "prompt_tokens": each.reply.prompt_tokens if each.reply else None,
            "question": question_of(self.questions.rows[number]),
            "answer": self.questions.rows[number]["answer"],
        }

    def _failed(self) -> dict[str, Any]:
        nothing = ("completion_tokens", "truncated", "extracted")
        rewards = dict.fromkeys(self.questions.env.reward_weights, 0.0)
        wrong = {"correct": False, "reward": 0.0, "rewards": rewards, "status": FAILED, "detail": ""}
        return {"completion": "", **dict.fromkeys(nothing), "score": 0.0, **wrong}


@dataclass
class Outcome:
    """The state of an evaluation."""

    works: Sequence[Work]
    problems: dict[str, str] = field(default_factory=dict)
    """Models that could not be asked to the end, and why."""
    answered_as: dict[str, set[str]] = field(default_factory=dict)
    """By model, the other names that it answered under."""
    strangers: int = 0
    """Records in the file that belong to no question asked."""


Watch = Callable[[Outcome], Any]


def make_works(config: EvalConfig) -> list[TaskWork]:
    """All models on all tasks, without the questions that a checkpoint was trained on. Raises as `draw`."""
    tasks = [draw(config, name) for name in config.tasks]
    works = []
    for name, model in config.models.items():
        trained = Trained() if model.url else trained_on(model.model)
        for task in tasks:
            tally = Tally(task.hashes, config.rollouts_per_example, trained.among(task))
            sampling = Sampling(**config.sampling_of(str(task.label)).model_dump())
            works.append(TaskWork(name, task, sampling, tally, system_prompt=model.system_prompt))
    return works


def ask_local(model: LocalModel, works: Sequence[Work], lock: AbstractContextManager[Any] | None = None) -> None:
    """Ask a local model for all that is missing, in as few batches as it takes.

    Args:
        lock: held while answers are scored, if rewards must not run next to others.
    """
    for work in works:
        for answered in _batches(model, work):
            with lock or nullcontext():
                work.take(answered)


def _batches(model: LocalModel, work: Work) -> Iterator[list[Answered]]:
    keys = work.open()
    size = model.batch_size or len(keys)
    work.begin()
    for start in range(0, len(keys), size or 1):
        batch = keys[start : start + size]
        replies = model.replies([work.request(key) for key in batch])
        pairs = zip(batch, replies, strict=True)
        yield [Answered(key, None, reply) if isinstance(reply, str) else Answered(key, reply) for key, reply in pairs]


async def ask_all(config: EvalConfig, folder: Path, works: Sequence[Work], watch: Watch | None = None) -> Outcome:
    """Make the answers that are missing; those of `TaskWork` go to `rollouts.jsonl` in `folder`.

    Args:
        watch: called with the outcome so far, now and then.

    Raises:
        RewardError: a reward raised or returned no finite number.
        InputError: a local model cannot be loaded, or an endpoint cannot be asked at all.
        MissingExtraError: what serves a local model is not installed.
    """
    outcome = Outcome(works)
    named = {(work.model, work.label): work for work in works if isinstance(work, TaskWork)}
    with RecordFile(folder / ROLLOUTS, _NEEDED) as file:
        for record in file.records():
            known = named.get((record["model"], record["task"]))
            outcome.strangers += known is None or not known.tally.put(record)
        for work in named.values():
            work.keep = file.append
        watcher = asyncio.create_task(_watching(watch, outcome)) if watch else None
        try:
            await _Run(config, folder, outcome).all()
        except BaseExceptionGroup as group:  # of tasks that ended together: one is reported
            raise _first(group) from group
        finally:
            if watcher:
                watcher.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watcher
    return outcome


_NEEDED = frozenset({"model", "task", "row", "problem", "rollout", "correct", "reward", "status", "truncated",
                     "prompt_tokens", "completion_tokens"})  # fmt: skip


def _first(error: BaseException) -> BaseException:
    """Of errors that came together, one of ours."""
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
        # One source of calls for each model: whoever asks it takes the next one.
        self._calls = {name: self._calls_of(name) for name in config.models}
        self._failed_in_a_row = dict.fromkeys(config.models, 0)
        self._folds: dict[str, bool] = {}
        """By model that is served here, as `Endpoint.folds`."""

    async def all(self) -> None:
        models = self.config.models
        missing = [name for name in models if self._left(name)]
        remote = [name for name in missing if models[name].url]
        local = [name for name in missing if name not in remote]
        if local:
            require_torch()
            self._folds = {name: folds_system(models[name].model) for name in local}
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            # All are checked before one is asked: a wrong address ends the evaluation before anything was paid for.
            ready = {name: await stack.enter_async_context(endpoint(models[name], self.config)) for name in remote}
            for name in remote:
                group.create_task(self._guarded(name, self._ask_endpoint(name, ready[name])))
            if local and (self.config.serving.kind == "vllm" or (self.config.serving.kind == "auto" and can_serve())):
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
        """A model that fails is reported in the end; the others continue."""
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
                        prompts = (work.request((number, 0)).prompt for number in work.tally.asked_questions())
                        model.check_fits(work.label, prompts, work.sampling.max_tokens)
                await self._guarded(name, self._ask_embedded(name, model))

    async def _ask_embedded(self, name: str, model: LocalModel) -> None:
        for work in self._works(name):
            batches = _batches(model, work)
            while answered := await asyncio.to_thread(next, batches, None):
                await asyncio.to_thread(work.grade, answered)
                work.take(answered)

    async def _on_gpu(self, gpu: str | None, waiting: list[str]) -> None:
        """Serve one model after the other; when none waits, another one of those with most left."""
        while True:
            local = [name for name, model in self.config.models.items() if not model.url]
            left = {name: self._left(name) for name in local if name not in self.outcome.problems}
            if waiting:
                name = waiting.pop(0)
            elif left and max(left.values()) > self.config.requests.concurrency:
                name = max(left, key=left.__getitem__)  # with less left, its first server has it all under way
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
            start = time.monotonic()
            answered = Answered(key, None)
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
            if isinstance(work, TaskWork) and work.in_workers:
                await asyncio.to_thread(work.grade, [answered])
            work.take([answered])
            if answered.reply and answered.reply.model not in (None, ready.served_name):
                self.outcome.answered_as.setdefault(name, set()).add(str(answered.reply.model))
            if answered.error and self._failed_in_a_row[name] >= _IN_A_ROW:
                problems.setdefault(name, f"{_IN_A_ROW} calls failed one after another: {answered.error}")
                return
