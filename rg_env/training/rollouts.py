"""Rollout batches for the trainer, generated in a worker thread with its own event loop.

`RolloutGenerator` is verifiers' `AsyncBatchGenerator` with three differences: the client comes from a factory (so that
the embedded engine can answer), whatever goes wrong in the thread is raised where the batch is awaited (the original's
thread dies, and the trainer waits until its time-out), and other jobs, evaluation above all, run in the same loop.
"""

import asyncio
import contextlib
import queue
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import openai
from verifiers.trainers.async_batch_generator import AsyncBatchGenerator, BatchRequest

from rg_env.adapters.reward_errors import record_reward_errors
from rg_env.errors import TrainingError
from rg_env.training.generated_batch import GeneratedBatch

HEALTH_EVERY_S = 5.0
SICK_S = 30.0
"""How long a server may give no sign of life while rollouts are awaited."""

Job = Callable[[Any], Awaitable[Any]]


class _Watch:
    """Over a server from which something is awaited."""

    def __init__(self, health: Callable[[], str | None], awaited: str):
        self._health, self._awaited = health, awaited
        self._sick_since: float | None = None

    def look(self) -> None:
        """Raise `TrainingError` once there has been no sign of life for `SICK_S`."""
        problem = self._health()
        self._sick_since = None if problem is None else self._sick_since or time.monotonic()
        if self._sick_since is not None and time.monotonic() - self._sick_since > SICK_S:
            raise TrainingError(f"{self._awaited} will not come: {problem}, for {SICK_S:g} s")


class RolloutGenerator(AsyncBatchGenerator):
    """Generates batches in a worker thread.

    Args:
        client_factory: makes the `AsyncOpenAI`-like client, inside the worker's event loop.
        on_cancel: called when the generator is stopped, to make a running generation end soon.
        health: asked every few seconds while a batch is awaited; says why none will come, None if all is well.
        The others are `AsyncBatchGenerator`'s.
    """

    def __init__(
        self,
        *args: Any,
        client_factory: Callable[[], Any],
        on_cancel: Callable[[], None],
        health: Callable[[], str | None] = lambda: None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self._client_factory, self._on_cancel, self._health = client_factory, on_cancel, health
        self._reward_errors = record_reward_errors(self.env.rubric)
        self._task: asyncio.Task[Any] | None = None
        self._extra = 0  # batches that are no part of the run's count have negative numbers

    def start(self) -> None:
        """Start the worker thread, if it is not running; nothing of an earlier one is left."""
        if not self.started:
            self.stop_event.clear()
            self.request_queue: queue.Queue[Any] = queue.Queue()
            self.result_queue: queue.Queue[Any] = queue.Queue()
            self.pending_batches.clear()
            self.completed_batches.clear()
        super().start()

    def stop(self) -> None:
        """End the worker thread, in the middle of a batch if need be."""
        if self.started:
            self._on_cancel()
            loop, task = self.worker_loop, self._task
            if loop is not None and task is not None:
                with contextlib.suppress(RuntimeError):  # the loop closed meanwhile
                    loop.call_soon_threadsafe(task.cancel)
        super().stop()
        self.pending_batches.clear()  # nobody works on them any more: waiting for them would never end

    def submit(self, trainer: Any, number: int, prompts: Any, answers: Any, tasks: Any, infos: Any) -> None:
        """Ask for batch `number`, under the trainer's settings."""
        self.start()
        request = BatchRequest(
            batch_id=number,
            env_inputs={"prompt": prompts, "answer": answers, "task": tasks, "info": infos},
            processing_class=trainer.processing_class,
            mask_env_responses=trainer.mask_env_responses,
            max_seq_len=trainer.max_seq_len or -1,
            mask_truncated_completions=True,  # what is cut to max_seq_len is not what was sampled
            zero_truncated_completions=trainer.zero_truncated_completions,
            max_concurrent=trainer.max_concurrent,
        )
        self.submit_batch(request)

    def extra(self, trainer: Any, columns: Sequence[Any]) -> GeneratedBatch:
        """The rollouts of prompts besides those of the batches, with their answers, tasks and infos. Raises as
        `get_batch`."""
        self._extra -= 1
        self.submit(trainer, self._extra, *columns)
        return self.get_batch(self._extra)

    def get_batch(self, batch_id: int, timeout: float | None = None) -> GeneratedBatch:
        """Wait for a batch.

        Raises:
            TrainingError: it took longer than `timeout` (default: the generation time-out), counted from the batch that
                came before it; or the server is gone.
            Exception: whatever ended its generation.
        """
        self._await(lambda: batch_id in self.completed_batches, f"rollout batch {batch_id}", timeout)
        batch: GeneratedBatch = self.completed_batches.pop(batch_id)
        return batch

    def wait_idle(self) -> None:
        """Wait until nothing is being generated. Raises as `get_batch`."""
        self._await(lambda: not self.pending_batches, "the batches under way")

    def _await(self, done: Callable[[], bool], what: str, timeout: float | None = None) -> None:
        timeout = timeout or self.generation_timeout
        deadline = time.monotonic() + timeout
        watch = _Watch(self._health, what)
        while not done():
            left = deadline - time.monotonic()
            try:
                result = self.result_queue.get(timeout=max(0.0, min(left, HEALTH_EVERY_S)))
            except queue.Empty:
                if left <= 0:
                    raise TrainingError(
                        f"{what} was not there after {timeout:g} s: is the inference server alive? "
                        "A slow one needs longer (in a config engine.generation_timeout; in GRPOConfig "
                        "async_generation_timeout)"
                    ) from None
                watch.look()
                continue
            if isinstance(result, BaseException):
                raise result
            self.completed_batches[result.batch_id] = result
            self.pending_batches.discard(result.batch_id)
            deadline = time.monotonic() + timeout  # they are made one after another, and each may take so long

    def _explained(self, error: BaseException) -> BaseException:
        """A failed request as one line that says what is the matter with the server; other errors as they are."""
        if not isinstance(error, openai.OpenAIError):
            return error
        problem = self._health()
        reason = " ".join(str(error).split()) or type(error).__name__
        state = f" ({problem})" if problem else ""
        told = TrainingError(f"a rollout failed, retries included: {reason[:300]}{state}")
        told.__cause__ = error
        return told

    def run_job(self, job: Job) -> Any:
        """Run `await job(client)` in the worker's loop, after the batches submitted before, and return its result.

        Raises:
            TrainingError: the server is gone, or `stop` was called.
            Exception: whatever ended it.
        """
        self.start()
        future: Future[Any] = Future()
        self.request_queue.put((job, future))
        watch = _Watch(self._health, "the evaluation")
        while not wait([future], HEALTH_EVERY_S).done:
            watch.look()
        try:
            return future.result()
        except CancelledError:
            raise TrainingError("generation was stopped") from None

    def evaluate(self, num_samples: int = -1) -> Any:
        """The environment's evaluation set, once, with the training sampling arguments."""

        async def job(client: Any) -> Any:
            dataset = self.env.get_eval_dataset(n=num_samples)
            return await self.env.a_generate(
                dataset, client=client, model=self.model_name, sampling_args=self.sampling_args, use_tqdm=False
            )

        return self.run_job(job)

    def _generation_worker(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self.worker_loop, self.client = loop, self._client_factory()
        try:
            while not self.stop_event.is_set():
                item = self.request_queue.get()
                if item is None:
                    return
                if isinstance(item, BatchRequest):
                    self._run_batch(loop, item)
                else:
                    self._run_job(loop, *item)
        finally:
            self._drop_waiting()
            loop.run_until_complete(self._leave())
            loop.close()
            asyncio.set_event_loop(None)

    def _run_batch(self, loop: asyncio.AbstractEventLoop, request: BatchRequest) -> None:
        start = time.monotonic()
        try:
            result = self._run(loop, self._generate_batch_async(request))
        except BaseException as error:  # raised again in the thread that waits for the batch
            self.result_queue.put(self._explained(error))
            return
        result.generation_time = time.monotonic() - start
        self.generation_times.append(result.generation_time)
        self.result_queue.put(result)

    def _run_job(self, loop: asyncio.AbstractEventLoop, job: Job, future: "Future[Any]") -> None:
        try:
            result = self._run(loop, job(self.client))
            self._reward_errors.raise_first()
            future.set_result(result)
        except BaseException as error:
            future.set_exception(self._explained(error))

    def _run(self, loop: asyncio.AbstractEventLoop, coroutine: Any) -> Any:
        """Run to its end, or until `stop` cancels it."""
        self._task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            raise TrainingError("generation was stopped") from None
        finally:
            self._task = None

    async def _leave(self) -> None:
        """Close the client, and let what still runs in the loop end."""
        await self.client.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _drop_waiting(self) -> None:
        while not self.request_queue.empty():
            item = self.request_queue.get_nowait()
            if isinstance(item, tuple):
                item[1].cancel()

    async def _generate_batch_async(self, request: BatchRequest) -> GeneratedBatch:
        # The parent's, but no progress bar for each batch, no state left behind by an error, and rewards that raised
        # end the batch: verifiers' Rubric logs them and goes on with 0.0.
        self.is_generating = True
        try:
            outputs = await self.env.a_generate(
                request.env_inputs,
                client=self.client,
                model=self.model_name,
                sampling_args=self.sampling_args,
                score_rollouts=True,
                max_concurrent=request.max_concurrent,
                use_tqdm=False,
            )
        finally:
            self.is_generating = False
        self._reward_errors.raise_first()
        processed = self.env.process_env_results_vllm(
            prompts=outputs.prompt,
            completions=outputs.completion,
            states=outputs.state,
            rewards=outputs.reward,
            processing_class=request.processing_class,
            max_seq_len=request.max_seq_len,
            mask_env_responses=request.mask_env_responses,
            mask_truncated_completions=request.mask_truncated_completions,
            zero_truncated_completions=request.zero_truncated_completions,
        )
        return GeneratedBatch(
            outputs=outputs,
            batch_id=request.batch_id,
            processed_results=processed,
            all_reward_dict={"reward": outputs.reward, **outputs.metrics},
            completions=outputs.completion,
            prompts=outputs.prompt,
        )
