"""Prompt models with questions and score the answers, for `rg-env eval` and for trainers.

    outcome = asyncio.run(ask_all(config, folder, works))  # all models of a config
    ask_local(model, works)                                # one local model, with its engine

A `Work` is one model on a task's questions (`TaskWork`) or an external benchmark (`external.Benchmark`), with the
answers so far. `rg-env eval` appends each answer's record to the work's file as soon as it is scored. Results are
computed only from these records, so an interrupted evaluation can resume with the missing answers. Record format:

{"model", "draw": "sampled" or "greedy", "part", "task": name or label, "level", "row": hash of the question, "problem":
 index of the question, "rollout": index of the answer, "question", "answer": gold answer, "completion", "reasoning",
 "prompt_tokens", "completion_tokens", "truncated", "extracted", "score", "correct", "reward", "rewards": {name: value},
 "status", "detail", "error", "seconds"}

A call that failed permanently counts as a wrong answer, with the status "failed" and the reason in `error`.

Endpoints are called in parallel, each with its own limit on concurrent calls. Models in this process take turns. vLLM
serves each model on its own GPU, and an idle GPU also serves the model with the most work left.
"""

import asyncio
import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rg_env.core.grading.scoring import Rollout
from rg_env.core.run_folder import damaged, json_lines
from rg_env.core.text import counted
from rg_env.errors import EngineError, InputError, OutputFolderError, RGEnvError, ServerError
from rg_env.evaluation.config import EvalConfig, EvalModel
from rg_env.evaluation.models import (
    Endpoint,
    EndpointFailed,
    LocalModel,
    Reply,
    Request,
    embedded,
    endpoint,
    folds_system,
    local_engine,
    require_torch,
    serving,
)
from rg_env.evaluation.questions import Questions, question_of, record_of
from rg_env.evaluation.trained import Trained, trained_on
from rg_env.inference.machine import Machine
from rg_env.inference.protocol import Sampling

Record = dict[str, Any]
Graded = tuple[Any, Reply, Rollout | None]
"""Key, reply, and the rollout made from the reply; the rollout is None for failed calls and external benchmarks."""
ROLLOUTS = "rollouts.jsonl"
FAILED = "failed"
"""Status of a failed call."""


class Answer(NamedTuple):
    """Record fields used to compute results."""

    correct: bool | None = None
    reward: float = 0.0
    status: str | None = None
    truncated: bool | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    text: str = ""
    """The answer's text; only for external benchmarks, which are graded at the end."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Answer":
        """The answer in a record."""
        return cls(*(record[name] for name in cls._fields[:-1]))


class Work(ABC):
    """One model on a task or a benchmark, with the answers so far by key."""

    file: str
    """Name of the records file in the evaluation folder."""

    def __init__(self, model: str, label: str, keys: Iterable[Any]):
        self.model, self.label, self.keys = model, label, dict.fromkeys(keys)
        self.answers: dict[Any, Answer] = {}
        self.has_begun = False
        """Whether calls to the model have begun."""
        self.keep: Callable[[Record], Any] = lambda record: None
        """Called with each new record."""
        self.last_error: str | None = None

    @property
    def asked(self) -> int:
        """Number of answers to generate in total."""
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
        """Keys of missing answers, including those of failed calls."""
        return [key for key in self.keys if key not in self.answers or self.answers[key].status == FAILED]

    def groups(self) -> list[list[Answer]]:
        """The answers, grouped by how they were sampled."""
        return [list(self.answers.values())]

    @abstractmethod
    def request(self, key: Any) -> Request: ...

    @property
    def graded_aside(self) -> bool:
        """Whether `graded` waits for worker processes and should run in a thread."""
        return False

    def graded(self, replies: Mapping[Any, Reply]) -> list[Graded]:
        """Do the slow part of `take`; this may run in a thread."""
        return [(key, reply, None) for key, reply in replies.items()]

    def take(self, graded: Sequence[Graded]) -> None:
        """Add replies. Raises the same errors as `records`."""
        for (_, reply, _), own in zip(graded, self.records(graded), strict=True):
            common = {"model": self.model, "reasoning": reply.reasoning, "prompt_tokens": reply.prompt_tokens}
            record = {**common, **own, "error": reply.error, "seconds": reply.seconds}
            self.keep(record)
            self.put(record)
            self.last_error = reply.error or self.last_error

    @abstractmethod
    def records(self, graded: Sequence[Graded]) -> Iterator[Record]:
        """The replies' records, without the keys added by `take`."""

    @abstractmethod
    def put(self, record: Record) -> bool:
        """Add a record, replacing any earlier one for the same answer. Returns False if the record is not part of this
        work."""


class TaskWork(Work):
    """The work of one model on a task's questions, with answers by (draw, question index, answer index).

    Args:
        times: number of sampled answers per question.
        greedy: whether there is also one greedy answer per question.
        left_out: indices of questions to skip for this model.
        system_prompt: the model's own system prompt, instead of the environment's.
    """

    file = ROLLOUTS

    def __init__(
        self,
        model: str,
        questions: Questions,
        sampling: Sampling,
        times: int = 1,
        greedy: bool = False,
        *,
        left_out: frozenset[int] = frozenset(),
        system_prompt: str | None = None,
    ):
        self.numbers = [number for number in questions.numbers if number not in left_out]
        sampled = [("sampled", number, k) for number in self.numbers for k in range(times)]
        super().__init__(model, questions.name, sampled + [("greedy", number, 0) for number in self.numbers if greedy])
        self.questions, self.sampling, self.times, self.greedy = questions, sampling, times, greedy
        self.system_prompt = system_prompt

    @property
    def left_out(self) -> int:
        """Number of questions skipped for this model."""
        return len(self.questions.numbers) - len(self.numbers)

    def of(self, number: int, draw: str = "sampled") -> list[Answer]:
        """Answers to a question, in order; empty if the question is skipped."""
        return [self.answers[draw, number, k] for k in range(self.times) if (draw, number, k) in self.answers]

    def groups(self) -> list[list[Answer]]:
        draws = ("sampled", "greedy") if self.greedy else ("sampled",)
        return [[answer for number in self.numbers for answer in self.of(number, draw)] for draw in draws]

    def put(self, record: Record) -> bool:
        key = record["draw"], record["problem"], record["rollout"]
        if key not in self.keys or self.questions.hashes[key[1]] != record["row"]:
            return False
        self.answers[key] = Answer.of(record)
        return True

    def request(self, key: tuple[str, int, int]) -> Request:
        sampling = replace(self.sampling, temperature=0.0) if key[0] == "greedy" else self.sampling
        return Request(self.questions.prompt(key[1], self.system_prompt), sampling)

    @property
    def graded_aside(self) -> bool:
        rubric = getattr(self.questions.env, "rubric", None)  # Verifiers environments do their own scoring
        return rubric is not None and rubric.in_workers

    def graded(self, replies: Mapping[Any, Reply]) -> list[Graded]:
        env = self.questions.env
        graded: list[Graded] = [
            (key, reply, None if reply.error else self._rollout(key[1], reply)) for key, reply in replies.items()
        ]
        if self.graded_aside:
            env.rubric.grade([rollout for *_, rollout in graded if rollout])
        return graded

    def _rollout(self, number: int, reply: Reply) -> Rollout:
        env = self.questions.env
        return env.rollout(
            env.eval_rows[number],
            reply.text,
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
            completion_tokens=reply.completion_tokens,
            truncated=reply.truncated,
        )

    def records(self, graded: Sequence[Graded]) -> Iterator[Record]:
        """Score the answers, and yield their records.

        Raises:
            RewardError: a reward raised an error or did not return a finite number.
        """
        env = self.questions.env
        scored = iter(env.score([rollout for *_, rollout in graded if rollout]))
        for (draw, number, k), reply, rollout in graded:
            row = env.eval_rows[number]
            record = {
                "draw": draw,
                "part": self.questions.part,
                "row": self.questions.hashes[number],
                "problem": number,
                "rollout": k,
                "question": question_of(row),
                "answer": row["answer"],
                **(record_of(rollout, next(scored)) if rollout else self._failed_record()),
                "task": self.label,
            }
            if reply.refusal and not record["detail"]:
                record["detail"] = f"refusal: {reply.refusal}"
            yield record

    def _failed_record(self) -> Record:
        rewards = dict.fromkeys(self.questions.env.reward_weights, 0.0)
        unknown = dict.fromkeys(("completion_tokens", "truncated", "extracted"))
        wrong = {"score": 0.0, "correct": False, "reward": 0.0, "rewards": rewards, "status": FAILED, "detail": ""}
        return {"completion": "", **unknown, **wrong}


def make_works(config: EvalConfig, drawn: Iterable[Questions]) -> list[TaskWork]:
    """Create a `TaskWork` for each model on each task, without the questions that the model was trained on."""
    tasks, works = list(drawn), []
    for name, model in config.models.items():
        trained = Trained() if model.url else trained_on(model.model)
        for task in tasks:
            work = TaskWork(
                name,
                task,
                Sampling(**config.sampling_of(task.name).model_dump()),
                config.rollouts_per_example,
                config.greedy,
                left_out=trained.among(task),
                system_prompt=model.system_prompt,
            )
            works.append(work)
    return works


@contextmanager
def record_file(path: Path, works: Sequence[Work]) -> Iterator[int]:
    """Load a file's records into `works`, and append new records to the file. Yields the number of records that do not
    belong to any of the works. Only one process at a time may write to the file.

    Raises:
        InputError: the file cannot be opened, or is damaged.
        OutputFolderError: the file was removed while records were being appended.
        OSError: the disk is full.
    """

    def append(record: Record) -> None:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        try:
            file.write(text.encode("utf-8", "backslashreplace") + b"\n")
            file.flush()  # if the write is interrupted, the partial line is dropped when the file is opened again
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        if not os.fstat(file.fileno()).st_nlink:
            raise OutputFolderError(f"{path} was removed during the evaluation: its rollouts are lost")

    try:
        if path.exists() and not path.is_file():  # reading a device might never end
            raise InputError(f"cannot write {path}: not a regular file")
        path.parent.mkdir(exist_ok=True)
        file = path.open("a+b")
        file.seek(0)
        file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    try:
        by_name, strangers = {(work.model, work.label): work for work in works}, 0
        for record in json_lines(path):
            try:
                work = by_name.get((record["model"], record["benchmark" if "benchmark" in record else "task"]))
                strangers += work is None or not work.put(record)
            except (KeyError, TypeError) as error:
                raise damaged(path, f"a record is incomplete or malformed: {error}") from error
        for each in works:
            each.keep = append
        yield strangers
    except BaseException:
        with contextlib.suppress(OSError):  # do not hide the error that ended the evaluation
            file.close()
        raise
    file.close()


def ask_local(model: LocalModel, works: Sequence[Work], lock: AbstractContextManager[Any] | None = None) -> None:
    """Generate all missing answers with a local model, in as few batches as possible.

    Args:
        lock: held while answers are scored, if rewards must not be computed concurrently.
    """
    for batch in _batches(model, works):
        for work, replies in batch.items():
            with lock or nullcontext():
                work.take(work.graded(replies))


def _batches(model: LocalModel, works: Sequence[Work]) -> Iterator[dict[Work, dict[Any, Reply]]]:
    calls = [(work, key) for work in works for key in work.open()]
    for work in works:
        work.has_begun = True
    for batch in model.replies([work.request(key) for work, key in calls]):
        by_work: dict[Work, dict[Any, Reply]] = {}
        for number, reply in sorted(batch, key=lambda each: each[0]):
            work, key = calls[number]
            by_work.setdefault(work, {})[key] = reply
        yield by_work


@dataclass
class Outcome:
    """State of an evaluation."""

    works: Sequence[Work]
    problems: dict[str, str] = field(default_factory=dict)
    """Reasons why models could not be evaluated completely, by model."""
    answered_as: dict[str, set[str]] = field(default_factory=dict)
    """Other model names reported in the server's replies, by model."""
    strangers: dict[str, int] = field(default_factory=dict)
    """Number of records that do not belong to this evaluation, by file."""


Watch = Callable[[Outcome], Any]


async def ask_all(config: EvalConfig, folder: Path, works: Sequence[Work], watch: Watch | None = None) -> Outcome:
    """Generate all missing answers; new ones are appended to the works' files in `folder`.

    Args:
        watch: called regularly with the outcome so far.

    Raises:
        RewardError: a reward raised an error or did not return a finite number.
        InputError: a local model cannot be loaded, or an endpoint cannot be used.
        MissingExtraError: a package needed to serve local models is not installed.
    """
    outcome = Outcome(works)
    with contextlib.ExitStack() as stack:
        for file in dict.fromkeys(work.file for work in works):
            of_file = [work for work in works if work.file == file]
            outcome.strangers[file] = stack.enter_context(record_file(folder / file, of_file))
        watcher = asyncio.create_task(_watching(watch, outcome)) if watch else None
        try:
            await _Run(config, folder, outcome).all()
        except BaseExceptionGroup as group:  # several asyncio tasks failed; one of the errors is reported
            raise _first(group) from group
        finally:
            if watcher:
                watcher.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watcher
    return outcome


def _first(error: BaseException) -> BaseException:
    """One of several simultaneous errors, preferably an `RGEnvError`."""
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
        self._works = {name: [work for work in outcome.works if work.model == name] for name in config.models}
        # All workers of a model share one iterator over its calls.
        self._calls = {
            name: ((work, key) for work in works for key in work.open()) for name, works in self._works.items()
        }
        self._failed_in_a_row = dict.fromkeys(config.models, 0)

    async def all(self) -> None:
        models = self.config.models
        missing = [name for name in models if self._left(name)]
        remote = [name for name in missing if models[name].url]
        local = [name for name in missing if name not in remote]
        if local:
            require_torch()
            folds = {name: folds_system(models[name].model) for name in local}
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            # All endpoints are checked before the first call, so that a wrong URL does not waste paid calls.
            ready = {name: await stack.enter_async_context(endpoint(models[name], self.config)) for name in remote}
            for name in remote:
                group.create_task(self._guarded(name, self._ask_endpoint(name, ready[name])))
            if local and local_engine(self.config) == "vllm":
                waiting = list(local)
                gpus: list[str | None] = [str(gpu) for gpu in self.config.serving.gpus or Machine.here().gpus] or [None]
                for gpu in gpus:
                    group.create_task(self._on_gpu(gpu, waiting, folds))
            elif local:
                group.create_task(self._in_turn(local))

    def _left(self, model: str) -> int:
        return sum(len(work.open()) for work in self._works[model])

    async def _guarded(self, name: str, asking: Awaitable[None]) -> None:
        """Record a model's failure, so that the other models continue."""
        try:
            await asking
        except* (ServerError, EngineError) as group:
            self.outcome.problems[name] = str(_first(group))

    async def _take(self, work: Work, replies: Mapping[Any, Reply]) -> None:
        work.take(await asyncio.to_thread(work.graded, replies) if work.graded_aside else work.graded(replies))

    async def _in_turn(self, names: list[str]) -> None:
        for name in names:
            async with embedded(self.config.models[name].model, self.config) as model:
                for work in self._works[name]:
                    if isinstance(work, TaskWork):
                        prompts = (work.request(("sampled", number, 0)).prompt for number in work.numbers)
                        model.check_fits(work.label, prompts, work.sampling.max_tokens)
                await self._guarded(name, self._ask_embedded(name, model))

    async def _ask_embedded(self, name: str, model: LocalModel) -> None:
        batches = _batches(model, self._works[name])
        while batch := await asyncio.to_thread(next, batches, None):
            for work, replies in batch.items():
                await self._take(work, replies)

    async def _on_gpu(self, gpu: str | None, waiting: list[str], folds: Mapping[str, bool]) -> None:
        """Serve the waiting models one after another, then help with the model that has the most calls left."""
        while True:
            left = {name: self._left(name) for name in folds if name not in self.outcome.problems}
            if waiting:
                name = waiting.pop(0)
            elif left and max(left.values()) > self.config.requests.concurrency:
                name = max(left, key=left.__getitem__)  # if fewer calls are left, its first server has started them all
            else:
                return
            await self._guarded(name, self._served(name, gpu, folds[name]))

    async def _served(self, name: str, gpu: str | None, folds: bool) -> None:
        async with (
            serving(self.config.models[name].model, gpu, self.folder, self.config) as (url, served),
            endpoint(EvalModel(model=served, url=url), self.config, folds=folds) as ready,
        ):
            await self._ask_endpoint(name, ready)

    async def _ask_endpoint(self, name: str, ready: Endpoint) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.config.requests.concurrency, self._left(name))):
                group.create_task(self._worker(name, ready))

    async def _worker(self, name: str, ready: Endpoint) -> None:
        problems, most = self.outcome.problems, self.config.requests.give_up_after
        for work, key in self._calls[name]:
            if name in problems:
                return
            work.has_begun = True
            try:
                reply = await ready.reply(work.request(key))
            except EndpointFailed as failure:
                problems.setdefault(name, str(failure))
                return
            self._failed_in_a_row[name] = self._failed_in_a_row[name] + 1 if reply.error else 0
            await self._take(work, {key: reply})
            if reply.model not in (None, ready.served_name):
                self.outcome.answered_as.setdefault(name, set()).add(str(reply.model))
            if reply.error and self._failed_in_a_row[name] >= most:
                problems.setdefault(name, f"{counted(most, 'call')} failed in a row: {reply.error}")
                return
