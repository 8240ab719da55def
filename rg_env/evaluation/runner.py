"""Run an evaluation: prompt models with questions, score the answers, and write the files.

    results, folder = run_evaluation(load_eval_config("configs/eval/tiny.yaml"))
    results.models["trained"].accuracy
    ask_local(model, answer_sets)                          # one local model, with its engine (for trainers)

config.yaml           the resolved config
rollouts.jsonl        one line per rollout (see `questions`)
results_*.json, summary.md, comparison_*.png, summary_*.png

Endpoints are called in parallel, each with its own limit on concurrent calls. Models in this process take turns. vLLM
serves one model at a time on each GPU. A GPU that becomes idle serves the next model or, if no model is waiting, helps
to serve the model with the most work left.
"""

import asyncio
import contextlib
import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rg_env.core.config import yaml12
from rg_env.core.data.generation import check_options
from rg_env.core.files import FULL, write_aside
from rg_env.core.processes import resume_words
from rg_env.core.run_folder import free_folder, locked, read_yaml, removed_on_error
from rg_env.core.text import counted, one_line, wrapped
from rg_env.errors import EngineError, InputError, OutputFolderError, RGEnvError, ServerError
from rg_env.evaluation import endpoints, local_models
from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.endpoints import Endpoint, EndpointFailed
from rg_env.evaluation.local_models import LocalModel
from rg_env.evaluation.questions import ROLLOUTS, AnswerKey, Questions, Reply, TaskAnswers, draw, record_file
from rg_env.evaluation.results import Results
from rg_env.evaluation.scores import ModelSource, results_of, write_results
from rg_env.evaluation.trained import as_trained, changes_since_training, trained_on
from rg_env.inference.machine import Machine
from rg_env.inference.protocol import PromptEncoder, Sampling

CONFIG_FILE = "config.yaml"
_MAY_DIFFER = ("requests", "serving", "output")
"""Sections that do not affect rollouts and may therefore differ when an evaluation is resumed."""
_LINE_EVERY_S = 15.0
Call = tuple[TaskAnswers, AnswerKey]


def run_evaluation(config: EvalConfig, *, resume: bool = False, trial: int = 0) -> tuple[Results, Path]:
    """Evaluate all models, write all files, and return the results and the output folder.

    Args:
        resume: whether to continue the evaluation in `config.output.dir`. Resuming repeats failed calls.
        trial: number of answers to each task after which the task is stopped if none of them has the required form. 0
            means that no task is stopped.

    Raises:
        InputError: a model or task cannot be evaluated as configured.
        GenerationError: a draw takes too long, or a generation process cannot be started or dies.
        MissingExtraError: a package needed for local models is not installed.
        OutputFolderError: the folder already contains files, or is not writable.
        RewardError: a reward raised an error or did not return a finite number.
        ServerError: a model could not be evaluated completely. The answers so far are kept for `resume`.
    """
    config, notes, folder = prepared(config, resume=resume, create=True)
    _say(*config.plan(), *notes, f"files in {folder}")
    drawn = list(_drawn(config))
    changes = changes_since_training(config, drawn)
    _say(*changes)
    answer_sets = answer_sets_of(config, drawn, trial)
    with ExitStack() as stack:
        stack.enter_context(removed_on_error(folder))
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(folder, empty=not resume))
        stack.enter_context(_removed_if_unanswered(folder, answer_sets))
        write_aside(folder / CONFIG_FILE, yaml12.to_yaml(config.model_dump(mode="json")))
        try:
            with Bars(answer_sets) as bars:
                run = asyncio.run(ask_all(config, folder, answer_sets, bars.show))
        except OSError as error:
            if error.errno not in FULL:
                raise
            made = sum(len(each.by_key) for each in answer_sets)
            raise RGEnvError(
                f"cannot write {error.filename}: {error.strerror}; {counted(made, 'rollout')} kept; free some space "
                f"and resume with {resume_words(folder)}"
            ) from error
        stack.callback(_print_notes, run)  # printed after the files are written because standard output may be closed
        _check_complete(run)
        sources = {name: ModelSource.of(config, name) for name in config.models}
        results = results_of(answer_sets, sources, notes=[*notes, *changes])
        from rg_env.evaluation.plots.results import plot_results

        try:
            for name, file in write_results(results, folder).items():
                kind, shown = ("comparison", results.of_task(name)) if name else ("summary", results)
                plot_results(shown, file.with_name(f"{kind}_{file.stem.removeprefix('results_')}.png"))
        except OutputFolderError as error:
            raise OutputFolderError(f"{error}; fix the problem and resume with {resume_words(folder)}") from error
    return results, folder


def prepared(config: EvalConfig, *, resume: bool = False, create: bool = False) -> tuple[EvalConfig, list[str], Path]:
    """Return the config with settings filled in from training runs, notes about these settings, and the output folder,
    which is created only with `create` and only if `output.dir` is not set. Heavy packages are not imported.

    Raises:
        InputError: a model's folder or an API key is missing, a file in a run's folder or in `data` is damaged, a
            task's options are invalid, or the output folder contains a different evaluation.
        OutputFolderError: the folder already contains files, or is not writable.
    """
    config, notes = as_trained(config)
    for model in config.models.values():
        if model.url:
            endpoints.key_of(model)
    if config.data and config.data.is_file:
        config.data.rows()
    check_options({f"tasks.{name}": config.mixture(name).tasks[0] for name in config.tasks})
    return config, notes, _folder(config, resume, create)


def answer_sets_of(config: EvalConfig, drawn: Iterable[Questions], trial: int = 0) -> list[TaskAnswers]:
    """Return a `TaskAnswers` for each model on each task, without the questions that the model was trained on."""
    tasks, answer_sets = list(drawn), []
    for name, model in config.models.items():
        trained = frozenset[str]() if model.url else trained_on(model.model)
        for task in tasks:
            sampling = Sampling(**config.sampling_of(task.name).model_dump())
            more: Any = {"left_out": task.among(trained), "system_prompt": model.system_prompt}
            more |= {"lenient": config.extraction == "lenient", "trial": trial}
            answer_sets.append(TaskAnswers(name, task, sampling, config.rollouts_per_example, config.greedy, **more))
    return answer_sets


def _drawn(config: EvalConfig) -> Iterator[Questions]:
    """Yield the questions for each task. Progress is printed occasionally because generating questions can take
    minutes."""
    last = time.monotonic()
    for number, name in enumerate(config.names):
        if time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            _say(f"drawing questions: {number} of {len(config.names)} tasks")
        yield draw(config, name)


# The output folder


@contextmanager
def _removed_if_unanswered(folder: Path, answer_sets: Sequence[TaskAnswers]) -> Iterator[None]:
    """On an error or Ctrl-C before the first answer, remove the new files so that the corrected command can use the
    folder.

    Nothing is removed if the folder contained files beforehand, or if it now contains more than the config (for
    example, a server's log). If files remain after Ctrl-C, the command that resumes the evaluation is printed.
    """
    had_files = any(folder.iterdir())
    try:
        yield
    except BaseException as error:
        written = {file for file in folder.rglob("*") if file.is_file() and file.stat().st_size}
        if not had_files and written <= {folder / CONFIG_FILE}:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
        if isinstance(error, KeyboardInterrupt) and any(folder.iterdir()):
            made, total = (sum(len(getattr(each, name)) for each in answer_sets) for name in ("by_key", "keys"))
            found = f"{made:,} of {total:,} rollouts are" if made else "an unfinished evaluation is"
            print(f"{found} in {folder}: resume with {resume_words(folder)}", flush=True)
        raise


def _folder(config: EvalConfig, resume: bool, create: bool) -> Path:
    if resume and config.output.dir is None:
        raise InputError("--resume needs output.dir, the folder of the evaluation to resume")
    name = f"eval-{'+'.join(config.names[:3])}"
    folder = free_folder(
        config.output.dir,
        name,
        may_have_files=resume,
        remedy="choose another output.dir",
        resume="--resume",
        create=create,
    )
    if resume and folder.exists():
        _check_same(config, folder)
    return folder


def _check_same(config: EvalConfig, folder: Path) -> None:
    """Raise an error unless `folder` contains an evaluation with the same config, apart from the sections in
    `_MAY_DIFFER`."""
    if not (folder / CONFIG_FILE).exists():
        raise OutputFolderError(f"{folder} does not contain an evaluation to resume, because it has no {CONFIG_FILE}")
    before, now = read_yaml(folder / CONFIG_FILE), config.model_dump(mode="json")
    if differing := [key for key in now if key not in _MAY_DIFFER and now[key] != before.get(key)]:
        keys = ", ".join(differing)
        raise InputError(f"the evaluation in {folder} has different {keys}: use the same values, or another output.dir")


# Answers


def ask_local(
    model: LocalModel, answer_sets: Sequence[TaskAnswers], lock: AbstractContextManager[Any] | None = None
) -> None:
    """Generate all missing answers with a local model, in as few batches as possible.

    Args:
        lock: lock to hold while answers are scored, for rewards that must not be computed concurrently.
    """
    for batch in _batches(model, _missing(answer_sets)):
        for answers, replies in batch.items():
            with lock or nullcontext():
                answers.add(replies, answers.rollouts(replies))


def _missing(answer_sets: Iterable[TaskAnswers], trial: bool = False) -> Iterator[Call]:
    """Yield the calls for all missing answers, or only for those in trials. Calls are computed when they are needed."""
    return ((each, key) for each in answer_sets for key in each.missing() if not trial or key in each.trial)


def _batches(model: LocalModel, calls: Iterable[Call]) -> Iterator[dict[TaskAnswers, dict[AnswerKey, Reply]]]:
    every = list(calls)
    for batch in model.replies([answers.request(key) for answers, key in every]):
        by_set: dict[TaskAnswers, dict[AnswerKey, Reply]] = {}
        for number, reply in sorted(batch, key=lambda each: each[0]):
            answers, key = every[number]
            by_set.setdefault(answers, {})[key] = reply
        yield by_set


async def ask_all(
    config: EvalConfig, folder: Path, answer_sets: Sequence[TaskAnswers], watch: Callable[[], Any] = lambda: None
) -> "EvaluationRun":
    """Generate all missing answers. New answers are appended to `rollouts.jsonl` in `folder`.

    Args:
        watch: function to call whenever answers are added.

    Raises:
        RewardError: a reward raised an error or did not return a finite number.
        InputError: a local model cannot be loaded, or an endpoint cannot be used.
        MissingExtraError: a package needed to serve local models is not installed.
    """
    run = EvaluationRun(config, folder, answer_sets, watch)
    with record_file(folder / ROLLOUTS, answer_sets) as run.unmatched:
        try:
            await run.all()
        except BaseExceptionGroup as group:  # if several asyncio tasks failed, one of the errors is reported
            raise _first(group) from group
    return run


def _first(error: BaseException) -> BaseException:
    """Return one of several simultaneous errors, preferably an `RGEnvError`."""
    while isinstance(error, BaseExceptionGroup):
        error = next((each for each in error.exceptions if isinstance(each, RGEnvError)), error.exceptions[0])
    return error


class EvaluationRun:
    """The calls in an evaluation, and any problems with them."""

    def __init__(self, config: EvalConfig, folder: Path, answer_sets: Sequence[TaskAnswers], watch: Callable[[], Any]):
        self.config, self.folder, self.answer_sets, self.watch = config, folder, answer_sets, watch
        self.problems: dict[str, str] = {}
        """Reasons why models could not be evaluated completely, by model."""
        self.answered_as: dict[str, set[str]] = {}
        """Model names in replies that differ from the name in the requests, by model."""
        self.unmatched = 0
        """Number of records in the file that do not belong to this evaluation."""
        self.tokens = Counter[str]()
        """Number of new answer tokens, by model."""
        self.began, self.ended = dict[str, float](), dict[str, float]()
        """Times of the first call and of the last answer, in seconds, by model."""
        # All workers for a model share one iterator over its calls.
        self._calls = {name: _missing(self._of(name)) for name in config.models}
        self._trial = {name: asyncio.Lock() for name in config.models}
        self._failed_in_a_row: Counter[str] = Counter()

    async def all(self) -> None:
        """Generate all missing answers."""
        missing = {name: model for name, model in self.config.models.items() if self._left(name)}
        remote = {name: model for name, model in missing.items() if model.url}
        local = [name for name in missing if name not in remote]
        if local:
            local_models.require_torch()
            encoders = {name: local_models.encoder_of(missing[name].model, self.config) for name in local}
        # All endpoints are checked before the first call so that a wrong URL does not waste paid calls.
        served = {name: await endpoints.endpoint(model, self.config) for name, model in remote.items()}
        async with asyncio.TaskGroup() as group:
            for name, ready in served.items():
                group.create_task(self._guarded(name, self._ask_endpoint(name, ready)))
            if local and local_models.local_engine(self.config) == "vllm":
                waiting = list(local)
                gpus: list[str | None] = [str(gpu) for gpu in self.config.serving.gpus or Machine.here().gpus] or [None]
                for gpu in gpus:
                    group.create_task(self._on_gpu(gpu, waiting, encoders))
            elif local and self.config.serving.gpus:
                raise InputError(
                    "serving.gpus (--gpus) is for vLLM servers, but vLLM cannot use a GPU here, so the embedded engine "
                    "would generate the answers: omit the option, or run `rg-env doctor`"
                )
            elif local:
                group.create_task(self._in_turn(local))

    def _of(self, model: str) -> list[TaskAnswers]:
        return [each for each in self.answer_sets if each.model == model]

    def _left(self, model: str) -> int:
        return sum(len(each.missing()) for each in self._of(model))

    async def _guarded(self, name: str, asking: Awaitable[None]) -> None:
        """Record a model's failure so that the other models can continue."""
        try:
            await asking
        except* (ServerError, EngineError) as group:
            self.problems[name] = str(_first(group))

    async def _ask(self, name: str, make_calls: Callable[[Iterator[Call]], Awaitable[None]]) -> None:
        """Make the calls for all missing answers of a model with `make_calls`: first those in trials."""
        self.began.setdefault(name, time.monotonic())
        async with self._trial[name]:  # a second server waits until the trials have ended
            if trial := list(_missing(self._of(name), trial=True)):
                await make_calls(iter(trial))
            for each in self._of(name):
                each.end_trial()
        await make_calls(self._calls[name])

    async def _add(self, answers: TaskAnswers, replies: Mapping[AnswerKey, Reply]) -> None:
        rollouts, rubric = answers.rollouts(replies), answers.questions.env.rubric
        # Grade in a thread so that the event loop is not blocked.
        if rubric.in_workers:
            await asyncio.to_thread(rubric.grade, list(rollouts.values()))
        answers.add(replies, rollouts)
        self.tokens[answers.model] += sum(reply.completion_tokens or 0 for reply in replies.values())
        self.ended[answers.model] = time.monotonic()
        self.watch()

    async def _in_turn(self, names: list[str]) -> None:
        for name in names:
            began = time.monotonic()
            _say(f"loading {name} ...")
            async with local_models.embedded(self.config.models[name].model, self.config) as model:
                _say(f"loaded {name} in {time.monotonic() - began:.1f} s")
                tokens = [1]
                for each in self._of(name):
                    prompts = (each.request(("sampled", number, 0)).prompt for number in each.numbers)
                    tokens.append(model.check_fits(each.task, prompts, each.sampling.max_tokens))
                model.limit_batches(max(tokens))
                await self._guarded(name, self._ask(name, partial(self._ask_embedded, model)))

    async def _ask_embedded(self, model: LocalModel, calls: Iterator[Call]) -> None:
        batches = _batches(model, calls)
        while batch := await asyncio.to_thread(next, batches, None):
            for answers, replies in batch.items():
                await self._add(answers, replies)

    async def _on_gpu(self, gpu: str | None, waiting: list[str], encoders: Mapping[str, PromptEncoder]) -> None:
        """Serve the waiting models one after another, then help with the model that has the most calls left."""
        while True:
            left = {name: self._left(name) for name in encoders if name not in self.problems}
            if waiting:
                name = waiting.pop(0)
            elif left and max(left.values()) > self.config.requests.concurrency:
                # If at most `concurrency` calls are left, the model's first server has already started all of them.
                name = max(left, key=left.__getitem__)
            else:
                return
            await self._guarded(name, self._served(name, gpu, encoders[name]))

    async def _served(self, name: str, gpu: str | None, encoder: PromptEncoder) -> None:
        model = self.config.models[name].model
        async with local_models.served(model, gpu, self.folder, self.config, encoder) as ready:
            await self._ask_endpoint(name, ready)

    async def _ask_endpoint(self, name: str, ready: Endpoint) -> None:
        async def make_calls(calls: Iterator[Call]) -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.config.requests.concurrency, self._left(name))):
                    group.create_task(self._worker(name, ready, calls))

        await self._ask(name, make_calls)

    async def _worker(self, name: str, ready: Endpoint, calls: Iterator[Call]) -> None:
        most = self.config.requests.give_up_after
        async with ready.client() as client:
            for answers, key in calls:
                if name in self.problems:
                    return
                start = time.monotonic()
                try:
                    reply = await ready.reply(answers.request(key), client)
                except EndpointFailed as failure:
                    self.problems.setdefault(name, str(failure))
                    return
                reply = replace(reply, seconds=round(time.monotonic() - start, 3))
                self._failed_in_a_row[name] = self._failed_in_a_row[name] + 1 if reply.error else 0
                await self._add(answers, {key: reply})
                if reply.model not in (None, ready.served_name):
                    self.answered_as.setdefault(name, set()).add(str(reply.model))
                if reply.error and self._failed_in_a_row[name] >= most:
                    self.problems.setdefault(name, f"{counted(most, 'call')} failed in a row: {reply.error}")


def _check_complete(run: EvaluationRun) -> None:
    """Raise `ServerError` if a model could not be evaluated completely, or if all of its sampled calls or all of its
    greedy calls for a task failed."""
    if run.problems:
        problems = "; ".join(f"{name}: {problem}" for name, problem in run.problems.items())
        raise ServerError(f"{problems}; no results are written. Resume with {resume_words(run.folder)}")
    for answers in run.answer_sets:
        made = Counter(draw for draw, *_ in answers.by_key)
        for kind, calls in made.items():
            errors = [each.error for (draw, *_), each in answers.by_key.items() if draw == kind and each.error]
            if len(errors) == calls:
                which = f"{kind} calls" if len(made) > 1 else "calls"
                raise ServerError(
                    f"{answers.model}, {answers.task}: all {calls:,} {which} failed, so there is no result; {ROLLOUTS} "
                    f"contains the reasons, such as {errors[-1]}"
                )


def _print_notes(run: EvaluationRun) -> None:
    """Print notes needed to interpret the results."""
    for each in run.answer_sets:
        if each.left_out:
            print(f"{each.model}, {each.task}: {counted(each.left_out, 'question')} left out (used to train the model)")
        if each.failed:
            print(f"{each.model}, {each.task}: {counted(each.failed, 'failed call')} (counted as wrong)")
    for name, tokens in run.tokens.items():
        if tokens:
            seconds = run.ended[name] - run.began[name]
            print(f"{name}: {tokens:,} answer tokens in {seconds:,.0f} s ({tokens / seconds:,.0f} tokens/s)")
    if run.unmatched:
        print(f"{ROLLOUTS} has {counted(run.unmatched, 'rollout')} for other questions (not counted)")
    for name, others in run.answered_as.items():
        print(f"{name}: the server reports the model as {', '.join(one_line(each) for each in sorted(others)[:3])}")


class Bars(Progress):
    """Progress of an evaluation, shown as one bar per model on a terminal and as an occasional line otherwise."""

    def __init__(self, answer_sets: Iterable[TaskAnswers]) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        is_terminal = sys.stdout.isatty()
        # Without a terminal, the bars are used only to estimate the remaining time.
        more: Any = {"console": Console(highlight=False, quiet=not is_terminal), "disable": not is_terminal}
        super().__init__(*columns, TimeRemainingColumn(), speed_estimate_period=600, **more)
        self._by_model: dict[str, list[TaskAnswers]] = {}
        for answers in answer_sets:
            self._by_model.setdefault(answers.model, []).append(answers)
        for name, of_model in self._by_model.items():
            self.add_task(name, total=sum(len(each.keys) for each in of_model))
        self._updated = self._printed = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._update()
        self.stop()

    def show(self) -> None:
        """Update the display, at most twice a second."""
        if time.monotonic() - self._updated > 0.5:
            self._update()
            self._updated = time.monotonic()

    def _update(self) -> None:
        due = time.monotonic() - self._printed >= _LINE_EVERY_S
        for bar, of_model in zip(self.tasks, self._by_model.values(), strict=True):
            before, was_finished = bar.completed, bar.finished
            made, total = (sum(len(getattr(each, name)) for each in of_model) for name in ("by_key", "keys"))
            self.update(bar.id, completed=made, total=total)
            if self.disable and not was_finished and (bar.finished or (due and bar.completed > before)):
                self._printed = time.monotonic()
                left = f", {timedelta(seconds=round(bar.time_remaining))} left" if bar.time_remaining else ""
                _say(f"{bar.description}: {bar.completed:,.0f} of {bar.total:,.0f}{left}")


def _say(*lines: str) -> None:
    with contextlib.suppress(OSError):  # closed output or a full disk is reported later, after the results are written
        print(*map(wrapped, lines), sep="\n", flush=True)
