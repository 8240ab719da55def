"""The engine that samples the trainer's rollouts from a vLLM server.

The trainer sends its current weights to the server before each new batch and each evaluation. The server's weights are
then read back, and the server's log-probabilities for a fixed prompt are compared with the model's. Wrong, missing or
misplaced weights end the run instead of silently degrading it. The server keeps running when the trainer ends.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rg_env.core.files import opened_to_append
from rg_env.core.processes import print_once
from rg_env.core.text import counted, reason_of
from rg_env.errors import InputError, RefusedError, ServerError, TrainingError
from rg_env.inference.chat_templates import end_ids
from rg_env.inference.protocol import Completion, Engine, Sampling
from rg_env.inference.vllm.client import POLL_S, ServerInfo, VllmServer, in_daemon_thread
from rg_env.inference.vllm.command import start_hint
from rg_env.training.collectives import on_main
from rg_env.training.config.schema import EngineConfig
from rg_env.training.strategy import DataParallel
from rg_env.training.weight_sync import (
    ModelWeights,
    NcclTransfer,
    ServerModel,
    SharedMemoryTransfer,
    open_transfer,
    unmergeable,
)

T = TypeVar("T")

RETRIES = 4
"""Number of retries, with growing pauses, after a transient request failure (connection, timeout, 5xx)."""
PROOF_TOKENS = 64
"""Maximum number of tokens, from the start of the probe prompt, whose log-probabilities are compared."""
GRACE_S = 5.0
"""Additional seconds before a transfer counts as stopped, so that a request that times out is reported first."""
PARITY_TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Largest mean absolute difference between log-probabilities that rounding can explain, by the server's data type."""


class Vllm(Engine):
    """Engine that samples from a vLLM server with rg_env's plugin. The constructor is a collective operation and checks
    that the server is usable.

    Args:
        proof: token IDs of the probe prompt `messages`, used to check the server's tokenizer and weights.
        longest: maximum number of tokens in a prompt and its completion together.

    Raises:
        ServerError, InputError: the server or the model is unusable. With several processes, `StoppedTogether` is
            raised instead.
    """

    name = "vllm"
    health_every_s = 5.0
    sick_s = 30.0
    """Maximum time that a server may be unhealthy during generation, in seconds."""
    pause_s = 0.5
    """Seconds before the first retry."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: EngineConfig,
        *,
        messages: Any,
        proof: list[int],
        longest: int,
        strategy: DataParallel,
    ):
        if reason := unmergeable(model):
            raise InputError(f"the vLLM engine cannot serve the trained model: {reason}")
        self._accelerator, self._model, self._config = accelerator, model, config
        self.server = VllmServer(config.host, config.port)
        self.end_ids = end_ids(model, tokenizer)
        self.weights = ModelWeights(model, strategy)
        self._proof = proof[:PROOF_TOKENS]
        self._metrics: dict[str, float] = {}
        self._canceled = False
        self._lock: IO[bytes] | None = None
        self._transfer: SharedMemoryTransfer | NcclTransfer | None = None  # only the main process has a transfer

        try:
            info, self.weights.server = on_main(accelerator, lambda: self._connect(messages, proof, longest))
        except BaseException:
            self.close()
            raise
        self.model_name, self.max_context = info.name, info.max_model_len

    def _connect(self, messages: Any, proof: list[int], longest: int) -> tuple[ServerInfo, ServerModel | None]:
        """Check that the server is suitable for the run, and connect to it as its only trainer."""
        self.server.wait(self._config.connect_timeout)
        info = self.server.info()
        if longest > info.max_model_len:
            raise ServerError(
                f"the server at {self.server} accepts at most {info.max_model_len} tokens for a prompt and its "
                f"completion, but this run needs {longest}: start the server with --max-model-len {longest} or more"
            )
        if not isinstance(messages, str) and self.server.tokenize(info.name, messages) != proof:
            start = start_hint(self._model.config._name_or_path, self.server.port)
            raise ServerError(
                f"the server at {self.server} serves another model: its tokenizer splits a prompt differently "
                f"from the trainer's tokenizer; start the server with `{start}`"
            )
        self._lock = _acquire_lock(self.server)
        limit = self._config.weight_sync_timeout
        self._transfer = self._in_time(lambda: open_transfer(self.server, info, self.weights, limit))
        self.server.check_logprobs(info.name)
        return info, self.weights.server

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Send one request for all prompts. Raises `TrainingError` if the server fails, becomes unhealthy or takes too
        long."""
        request = in_daemon_thread(lambda: self._request(prompts, sampling), "rg-env-vllm")
        deadline, sick_since = time.monotonic() + self._config.generation_timeout, None
        check_at = time.monotonic() + self.health_every_s
        while True:
            try:
                return request.result(min(POLL_S, self.health_every_s, max(0.0, deadline - time.monotonic())))
            except NotYet:
                if self._canceled:
                    raise self._cancellation() from None
                if time.monotonic() < min(check_at, deadline):
                    continue
                problem = self.server.health_problem(timeout_s=10.0)
                now = time.monotonic()
                check_at = now + self.health_every_s
                sick_since = None if problem is None else sick_since or now
                if sick_since is not None and now - sick_since > self.sick_s:
                    raise TrainingError(
                        f"the vLLM server at {self.server} has been unhealthy for {self.sick_s:g} s during generation: "
                        f"{problem}"
                    ) from None
                if now > deadline:
                    raise TrainingError(
                        f"no completions within {self._config.generation_timeout:g} s: is the server running? If it "
                        "is only slow, raise engine.generation_timeout"
                    ) from None

    def _request(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        for attempt in range(RETRIES + 1):
            if self._canceled:
                raise self._cancellation()
            try:
                return self.server.complete(self.model_name, prompts, sampling, self._config.generation_timeout)
            except ServerError as error:
                if self._canceled:
                    raise self._cancellation() from error
                if attempt == RETRIES or isinstance(error, RefusedError):
                    attempts = counted(attempt + 1, "attempt")
                    raise TrainingError(f"sampling failed after {attempts}: {error}{self._health()}") from error
                time.sleep(min(self.pause_s * 2**attempt, 8.0))
        raise AssertionError("unreachable")

    def cancel(self) -> None:
        """Let running and new calls to `generate` fail, and let the server end its requests."""
        self._canceled = True
        if self.server.cancel():
            self.server.abort()

    def resume(self) -> None:
        self._canceled = False

    def _cancellation(self) -> TrainingError:
        return TrainingError(f"generation by the server at {self.server} was canceled")

    def _health(self) -> str:
        """Return a description of the server's problem for the end of an error message, or an empty string if the
        server is healthy."""
        problem = self.server.health_problem(timeout_s=10.0)
        return f"; the server: {problem}" if problem else ""

    def sync(self) -> None:
        """Send the weights and verify that they arrived.

        Raises:
            TrainingError: the weights did not arrive. With several processes, `StoppedTogether` is raised instead.
        """
        start = time.monotonic()
        failure: Exception | None = None
        try:
            if (transfer := self._transfer) is not None:
                assert self.weights.arrival is not None
                self.weights.arrival.start()
                self._in_time(lambda: transfer.send(self.weights))
            else:
                for _ in self.weights:
                    pass  # by iterating, this process takes part in gathering the weights
        except Exception as error:
            failure = error
            self._abort_transfer(error)
        ours = model_logprobs(self._model, self._proof, self._accelerator.device)  # a collective operation with ZeRO-3
        difference = on_main(self._accelerator, lambda: self._prove(failure, ours))
        unproven = len(self.weights.arrival.unproven) if self.weights.arrival else 0
        self._metrics = {
            "weight_sync/seconds": time.monotonic() - start,
            "weight_sync/logprob_difference": difference,
            "weight_sync/unproven_tensors": float(unproven),
        }

    def _abort_transfer(self, cause: Exception) -> None:
        """After a failure, let the transfer's threads end, and let the other processes finish gathering weights.

        Raises:
            TrainingError: a thread is stuck in the gathering, so the other processes cannot complete it.
        """
        if self._transfer is not None:
            self._transfer.abort()
            self.server.cancel()
        if self._accelerator.num_processes > 1:
            try:
                self.weights.drain()
            except ValueError:  # the generator is running in the transfer's thread
                raise self._not_arrived(cause) from cause

    def _not_arrived(self, cause: Exception) -> TrainingError:
        return TrainingError(
            f"the weights did not arrive at the vLLM server at {self.server}: {reason_of(cause)}{self._health()}"
        )

    def _in_time(self, act: Callable[[], T]) -> T:
        """Return the result of `act()`, which transfers weights, from a thread of its own. NCCL would block this thread
        forever if the server dies, even for Ctrl-C.

        Raises:
            ServerError: the transfer has not progressed for `engine.weight_sync_timeout` seconds.
        """
        device, limit = self._accelerator.device, self._config.weight_sync_timeout
        self.weights.has_moved()

        def run() -> T:
            if device.type == "cuda":  # each thread has its own current device
                torch.cuda.set_device(device)
            return act()

        running = in_daemon_thread(run, "rg-env-transfer")
        while True:
            try:
                return running.result(POLL_S)
            except NotYet:
                if running.done():  # `act` itself raised a timeout
                    return running.result()
                if time.monotonic() - self.weights.moved_at > limit + GRACE_S:
                    raise ServerError(f"the transfer stopped for {limit:g} s (engine.weight_sync_timeout)") from None

    def _prove(self, failure: Exception | None, ours: torch.Tensor) -> float:
        """Return the mean absolute difference between the server's log-probabilities for the probe prompt and `ours`.
        Raises `TrainingError` if a tensor did not arrive, if the difference is too large, or if sending the weights
        failed (`failure`)."""
        if failure is not None:
            raise self._not_arrived(failure) from failure
        limit, arrival = self._config.weight_sync_timeout, self.weights.arrival
        assert arrival is not None
        try:
            self.server.post("/reset_prefix_cache", timeout_s=limit)
            missing = arrival.missing(self.server, limit)
            theirs = torch.tensor(self.server.logprobs(self.model_name, self._proof))
        except ServerError as error:  # a server that disappears during a run is not an input error
            raise TrainingError(str(error)) from error
        if missing:
            raise TrainingError(
                f"the server at {self.server} does not use the trained weights: after the update, {len(missing)} of "
                f"{arrival.sent} tensors differ from the trainer's: {', '.join(missing[:3])}"
                f"{', ...' if len(missing) > 3 else ''}"
            )
        if arrival.unproven and not self._metrics:  # this is the first update
            problem = f" ({self.weights.server.problem})" if self.weights.server and self.weights.server.problem else ""
            print_once(
                f"warning: {len(arrival.unproven)} of {arrival.sent} tensors on the server at {self.server} cannot be "
                f"compared with the trainer's, starting with {arrival.unproven[0]}{problem}: for these, only "
                "log-probabilities show whether updates arrive"
            )
        difference = float((ours - theirs).abs().mean())
        self.check_parity(difference, "a prompt")
        return difference

    def check_parity(self, difference: float, of: str = "the rollouts") -> None:
        assert self.weights.server is not None
        tolerance = PARITY_TOLERANCE.get(self.weights.server.dtype, 0.15)
        if not difference <= tolerance:  # this condition is also true for NaN
            raise TrainingError(
                f"the server at {self.server} does not use the trained weights: log-probabilities of {of} "
                f"differ by {difference:.3g} on average (tolerance {tolerance:g})"
            )

    def metrics(self) -> dict[str, float]:
        return self._metrics

    def close(self) -> None:
        """Disconnect from the server, which keeps running and accepts the next trainer."""
        if self._transfer is not None:
            self._transfer.close()
        if self._lock is not None:
            self._lock.close()
        self._transfer = self._lock = None


def model_logprobs(model: Any, ids: list[int], device: torch.device) -> torch.Tensor:
    """Return the log-probabilities of `ids[1:]` at temperature 1, each given the preceding IDs, as a float32 tensor on
    the CPU."""
    tokens = torch.tensor([ids], device=device)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    finally:
        model.train(training)
    return torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None])[:, 0].cpu()


def _acquire_lock(server: VllmServer) -> IO[bytes]:
    """Acquire the lock that lets only one trainer on this machine use a server. The lock is released when the process
    that holds it ends, for whatever reason."""
    path = Path(tempfile.gettempdir()) / f"rg-env-{os.getuid()}-{server.host}-{server.port}.lock".replace(":", "_")
    lock = opened_to_append(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read().decode(errors="replace").strip()
        lock.close()
        raise ServerError(
            f"the server at {server} serves another trainer (process {holder or 'unknown'}): wait for that trainer to "
            f"finish, or start a server on another port with `{start_hint(port=server.port + 1)}`"
        ) from None
    lock.truncate(0)
    lock.write(b"%d\n" % os.getpid())
    lock.flush()
    return lock
