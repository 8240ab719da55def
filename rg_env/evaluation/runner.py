"""Asking models the frozen questions: every model each task, so many answers a question, in one folder.

    results = asyncio.run(evaluate(config, folder))

Each rollout is a line of `rollouts.jsonl` as soon as it is scored, and an evaluation that was broken off goes on with
those that are missing: figures are made from that file's records alone. Endpoints are asked at the same time, each with
its own number of calls under way; as soon as one ends, the next begins. Models of this process take turns; those that
vLLM serves have a GPU each, and a GPU that is done helps with the model that has most left.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rg_env.core.rewards.builtin import resolve_rewards
from rg_env.errors import EngineError, RGEnvError, ServerError
from rg_env.evaluation.config import EvalConfig, EvalModel
from rg_env.evaluation.counts import Tally
from rg_env.evaluation.jobs import Jobs, Work
from rg_env.evaluation.lm_eval.requests import Benchmark
from rg_env.evaluation.models import Ready, embedded, endpoint, folds_system, require_torch
from rg_env.evaluation.questions import TaskQuestions, Trained, draw, trained_on
from rg_env.evaluation.requests import CallFailed, EndpointFailed, Reply, ask
from rg_env.evaluation.rollouts import Records, RolloutFile
from rg_env.evaluation.servers import can_serve, default_gpus, serving

_IN_A_ROW = 32
"""Calls of a model that failed one after another, after all tries, before it is given up for this time."""


@dataclass
class Pair(Work):
    """One model on one task."""

    task: TaskQuestions
    tally: Tally

    @property
    def label(self) -> str:
        return self.task.name

    @property
    def asked(self) -> int:
        return self.tally.asked

    @property
    def made(self) -> int:
        return self.tally.made

    @property
    def left(self) -> int:
        return len(self.tally.open())

    @property
    def failed(self) -> int:
        return self.tally.failed


@dataclass
class Outcome:
    """What an evaluation has come to."""

    pairs: list[Pair]
    benchmarks: Sequence[Benchmark] = ()
    """What models are asked besides."""
    problems: dict[str, str] = field(default_factory=dict)
    """Models that could not be asked to the end, and why."""
    answered_as: dict[str, set[str]] = field(default_factory=dict)
    """By model, under which other names it answered."""
    strangers: int = 0
    """Rollouts in the file that are of no question that is asked."""

    @property
    def works(self) -> list[Work]:
        return [*self.pairs, *self.benchmarks]

    def of(self, model: str, task: str) -> Pair:
        return next(pair for pair in self.pairs if pair.model == model and pair.task.name == task)


Watch = Callable[[Outcome], Any]


def questions_of(config: EvalConfig) -> list[TaskQuestions]:
    """The questions of all tasks. Raises `InputError` and `GenerationError` as `draw`."""
    return [
        draw(
            name, config.gym(name), config.count(name), config.eval_seed, config.prompt, config.grading, config.split_by
        )
        for name in config.tasks
    ]


def make_pairs(config: EvalConfig, tasks: list[TaskQuestions]) -> list[Pair]:
    """All models on all tasks, without the questions that a checkpoint was trained on."""
    pairs = []
    for name, model in config.models.items():
        trained = Trained() if model.url else trained_on(model.model)
        times = config.rollouts_per_example
        pairs += [Pair(name, task, Tally(task.hashes, times, trained.among(task))) for task in tasks]
    return pairs


async def evaluate(
    config: EvalConfig,
    folder: Path,
    pairs: list[Pair],
    watch: Watch | None = None,
    benchmarks: Sequence[Benchmark] = (),
) -> Outcome:
    """Make the rollouts that `rollouts.jsonl` in `folder` does not have yet.

    Args:
        watch: called with the outcome so far, now and then.
        benchmarks: what models are asked besides; it keeps its answers itself.

    Raises:
        RewardError: a reward raised or returned no finite number.
        InputError: a local model cannot be loaded, or an endpoint cannot be asked at all.
        MissingExtraError: what serves a local model is not installed.
    """
    outcome = Outcome(pairs, benchmarks)
    with RolloutFile(folder / "rollouts.jsonl") as file:
        named = {(pair.model, pair.task.name): pair for pair in pairs}
        for record in file.records():
            pair = named.get((record["model"], record["task"]))
            outcome.strangers += pair is None or not pair.tally.put(record)
        run = _Run(config, folder, outcome, file)
        watcher = asyncio.create_task(_watching(watch, outcome)) if watch else None
        try:
            await run.all()
        except BaseExceptionGroup as group:  # of tasks that ended together: one is told
            raise _first(group) from group
        finally:
            if watcher:
                watcher.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watcher
    return outcome


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
    def __init__(self, config: EvalConfig, folder: Path, outcome: Outcome, file: RolloutFile):
        self.config, self.folder, self.outcome, self.file = config, folder, outcome, file
        self.records = Records(resolve_rewards(config.reward_list))
        # One source of jobs a model: whoever asks it takes the next one.
        self._jobs = {name: self._jobs_of(name) for name in config.models}
        self._failed_in_a_row = dict.fromkeys(config.models, 0)
        self._folds: dict[str, bool] = {}
        """By model that is served here, as `Ready.folds`."""

    async def all(self) -> None:
        missing = [name for name in self.config.models if self._left(name)]
        remote = [name for name in missing if self.config.models[name].url]
        local = [name for name in missing if name not in remote]
        if local:
            require_torch()
            self._folds = {name: folds_system(self.config.models[name].model) for name in local}
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            # All are looked at before one is asked: a wrong address ends the evaluation where nothing was paid for yet.
            models = self.config.models
            ready = {name: await stack.enter_async_context(endpoint(models[name], self.config)) for name in remote}
            for name in remote:
                group.create_task(self._guarded(name, self._ask_all(name, ready[name])))
            if local and self._by_vllm():
                waiting = list(local)
                gpus: list[str | None] = [str(gpu) for gpu in self.config.serving.gpus or default_gpus()] or [None]
                for gpu in gpus:
                    group.create_task(self._on_gpu(gpu, waiting))
            elif local:
                group.create_task(self._in_turn(local))

    def _by_vllm(self) -> bool:
        kind = self.config.serving.kind
        return kind == "vllm" or (kind == "auto" and can_serve())

    def _pairs(self, model: str) -> list[Pair]:
        return [pair for pair in self.outcome.pairs if pair.model == model]

    def _left(self, model: str) -> int:
        return sum(work.left for work in self.outcome.works if work.model == model)

    def _jobs_of(self, model: str) -> Jobs:
        for pair in self._pairs(model):
            for number, rollout in pair.tally.open():
                yield _RolloutJob(self, pair, number, rollout)
        for benchmark in self.outcome.benchmarks:
            if benchmark.model == model:
                yield from benchmark.jobs()

    async def _guarded(self, name: str, asking: Awaitable[None]) -> None:
        """A model that fails is told in the end; the others go on."""
        try:
            await asking
        except (ServerError, EngineError, BaseExceptionGroup) as error:
            first = _first(error)
            if not isinstance(first, ServerError | EngineError):
                raise
            self.outcome.problems[name] = str(first)

    async def _in_turn(self, names: list[str]) -> None:
        for name in names:
            tasks = [pair.task for pair in self._pairs(name)]
            async with embedded(self.config.models[name], self.config, tasks) as ready:
                await self._guarded(name, self._ask_all(name, ready))

    async def _on_gpu(self, gpu: str | None, waiting: list[str]) -> None:
        """Serve one model after the other; where none waits, another one of those with most left."""
        while True:
            local = [name for name, model in self.config.models.items() if not model.url]
            left = {name: self._left(name) for name in local if name not in self.outcome.problems}
            if waiting:
                name = waiting.pop(0)
            elif left and max(left.values()) > self.config.requests.concurrency:
                name = max(left, key=left.__getitem__)  # what its first server has under way is as much
            else:
                return
            await self._guarded(name, self._served(name, gpu))

    async def _served(self, name: str, gpu: str | None) -> None:
        model = self.config.models[name]
        async with (
            serving(model.model, gpu, self.folder, self.config) as (url, served),
            endpoint(EvalModel(model=served, url=url), self.config) as ready,
        ):
            await self._ask_all(name, replace(ready, folds=self._folds[name]))

    async def _ask_all(self, name: str, ready: Ready) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(ready.concurrency, self._left(name))):
                group.create_task(self._worker(name, ready))

    async def _worker(self, name: str, ready: Ready) -> None:
        for job in self._jobs[name]:
            if name in self.outcome.problems:
                return
            job.work.begin()
            start = time.monotonic()
            request = job.request()
            request = {**request, "model": ready.served_name, "messages": ready.put(request["messages"])}
            tries = self.config.requests.tries
            reply: Reply | None = None
            error = None
            try:
                reply = await ask(ready.client, request, tries=tries, timeout_s=ready.timeout_s)
                self._failed_in_a_row[name] = 0
            except CallFailed as failure:
                error = str(failure)
                self._failed_in_a_row[name] += 1
            except EndpointFailed as failure:
                self.outcome.problems.setdefault(name, str(failure))
                return
            await job.take(reply, error, round(time.monotonic() - start, 3))
            if reply and reply.model not in (None, ready.served_name):
                self.outcome.answered_as.setdefault(name, set()).add(str(reply.model))
            if error and self._failed_in_a_row[name] >= _IN_A_ROW:
                self.outcome.problems.setdefault(name, f"{_IN_A_ROW} calls failed one after another: {error}")
                return


@dataclass
class _RolloutJob:
    """One answer to one question."""

    run: _Run
    work: Pair
    number: int
    rollout: int

    def request(self) -> dict[str, Any]:
        return {"messages": self._messages(), **self.run.config.sampling_of(self.work.task.name).model_dump()}

    async def take(self, reply: Reply | None, error: str | None, seconds: float) -> None:
        pair = self.work
        record = await self.run.records.of(
            pair.model, pair.task, self.number, self.rollout, self._messages(), reply, error
        )
        record["seconds"] = seconds
        self.run.file.append(record)
        pair.tally.put(record)

    def _messages(self) -> list[dict[str, Any]]:
        return self.work.task.messages(self.number, self.run.config.models[self.work.model].system_prompt)
