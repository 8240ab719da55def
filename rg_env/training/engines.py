"""Engines sample the trainer's rollouts: from the model being trained (`Embedded`), or a vLLM server (`Vllm`).

The trainer sends new weights to the server after each step. Then, the server's log-probabilities of a fixed prompt are
compared with the model's. Wrong, missing or misplaced weights end the run, instead of silently making it learn worse.
The server keeps running when the trainer ends.
"""

import fcntl
import os
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rg_env.errors import RefusedError, ServerError, TrainingError
from rg_env.inference.embedded.engine import EmbeddedEngine, end_ids
from rg_env.inference.protocol import Completion, Sampling
from rg_env.inference.vllm.client import ServerInfo, VllmServer, start_hint
from rg_env.training.collectives import on_main
from rg_env.training.config.sections import EngineConfig
from rg_env.training.strategy import DataParallel
from rg_env.training.weight_sync.parameters import check_sendable
from rg_env.training.weight_sync.transfer import NcclTransfer, SharedMemoryTransfer, Weights, open_transfer

T = TypeVar("T")

RETRIES = 4
"""Number of retries, with growing pauses, after a transient request failure (connection, timeout, 5xx)."""
PROOF_TOKENS = 64
"""Maximum number of prompt tokens to compare log-probabilities for."""
TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Largest mean absolute difference of log-probabilities that rounding explains, by the server's data type."""


class Engine(ABC):
    """Samples completions with the weights of the last `sync`. Optional methods do nothing by default."""

    name: str
    max_context: int
    """Maximum number of tokens in prompt plus completion."""
    end_ids: frozenset[int]
    """Ids of the tokens that end a completion."""

    @abstractmethod
    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """One completion for each prompt (token ids), in order. On the main process only."""

    def cancel(self) -> None:
        """Ask running calls of `generate` to return soon."""

    def resume(self) -> None:
        """Allow generation again after `cancel`."""

    def sync(self) -> None:
        """Update the engine's weights to the model's. A collective operation."""

    def check_parity(self, difference: float) -> None:
        """Raise `TrainingError` if `difference`, the mean absolute difference between the engine's and the trainer's
        log-probabilities of rollouts from the current weights, exceeds what rounding explains. On the main process
        only."""

    def random_state(self) -> torch.Tensor | None:
        """State of the random number generator used for sampling; None if it is in another process."""
        return None

    def set_random_state(self, state: torch.Tensor | None) -> None:
        """Restore a state that `random_state` returned."""

    def aside(self) -> AbstractContextManager[Any]:
        """Context manager that keeps sampling from advancing training's random numbers."""
        return nullcontext()

    def metrics(self) -> dict[str, float]:
        """Metrics of the last `sync`."""
        return {}

    def close(self) -> None:
        """Release the engine's resources."""


class Embedded(Engine):
    """The model being trained, in this process."""

    name = "embedded"

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int, max_batch_size: int = 512
    ):
        self.engine = EmbeddedEngine(model, tokenizer, seed=seed, max_batch_size=max_batch_size)
        self.max_context, self.end_ids = self.engine.max_context, frozenset(self.engine.end_ids)

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        return self.engine.generate(prompts, sampling)

    def cancel(self) -> None:
        self.engine.cancel()

    def resume(self) -> None:
        self.engine.resume()

    def random_state(self) -> torch.Tensor | None:
        generator = self.engine.generator
        return None if generator is None else generator.get_state()

    def set_random_state(self, state: torch.Tensor | None) -> None:
        if state is not None and self.engine.generator is not None:
            self.engine.generator.set_state(state)

    @contextmanager
    def aside(self) -> Iterator[None]:
        before = self.random_state()
        if self.engine.generator is not None and self.engine.seed is not None:
            self.engine.generator.manual_seed(self.engine.seed)  # every evaluation uses the same random numbers
        try:
            yield
        finally:
            self.set_random_state(before)


class Vllm(Engine):
    """A vLLM server with rg_env's plugin. The constructor checks that the server is usable; it is a collective
    operation.

    Args:
        proof: token ids of the prompt `messages`, to check that the server's tokenizer is the same.
        longest: maximum number of tokens in prompt plus completion.

    Raises:
        ServerError, InputError: the server or the model is unusable. With several processes, `StoppedTogether`.
    """

    name = "vllm"
    health_every_s = 5.0
    sick_s = 30.0
    """Maximum time a server may be unhealthy during generation, in seconds."""
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
        check_sendable(model)
        self._accelerator, self._model, self._config = accelerator, model, config
        self.server = VllmServer(config.host, config.port)
        self.end_ids = end_ids(model, tokenizer)
        self.weights = Weights(model, strategy)
        self._proof = proof[:PROOF_TOKENS]
        self._syncs, self._seconds = 0, 0.0
        self._difference: float | None = None
        self._lock: IO[str] | None = None
        self._transfer: SharedMemoryTransfer | NcclTransfer | None = None  # on the main process only

        def connect() -> ServerInfo:
            try:
                return self._connect(messages, proof, longest)
            except BaseException:
                self.close()
                raise

        info = on_main(accelerator, connect)
        self.model_name, self.max_context = info.name, info.max_model_len

    def _connect(self, messages: Any, proof: list[int], longest: int) -> ServerInfo:
        """Check that the server fits the run, and connect to it as its only trainer."""
        self.server.wait(self._config.connect_timeout)
        info = self.server.info()
        if longest > info.max_model_len:
            raise ServerError(
                f"the server at {self.server} takes {info.max_model_len} tokens, prompt and completion together, "
                f"and this run needs {longest}: start it with --max-model-len {longest} or more"
            )
        if not isinstance(messages, str) and self.server.tokenize(info.name, messages) != proof:
            start = start_hint(self._model.config._name_or_path, self.server.port)
            raise ServerError(
                f"the server at {self.server} serves another model: it makes other tokens of a prompt than the "
                f"trainer's tokenizer; start it with `{start}`"
            )
        self._lock = _held(self.server)
        self._transfer = open_transfer(self.server, info, self.weights, self._config.weight_sync_timeout)
        self.server.check_logprobs(info.name)
        return info

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Send one request for all prompts. Raises `TrainingError` if the server fails, dies or takes too long."""
        request = in_daemon_thread(lambda: self._request(prompts, sampling))
        deadline, sick_since = time.monotonic() + self._config.generation_timeout, None
        while True:
            try:
                return request.result(min(self.health_every_s, max(0.0, deadline - time.monotonic())))
            except NotYet:
                problem = self.server.health_problem(timeout_s=10.0)
                now = time.monotonic()
                sick_since = None if problem is None else sick_since or now
                if sick_since is not None and now - sick_since > self.sick_s:
                    raise TrainingError(
                        f"no completions will arrive: the vLLM server at {self.server}: {problem}, for "
                        f"{self.sick_s:g} s"
                    ) from None
                if now > deadline:
                    raise TrainingError(
                        f"no completions within {self._config.generation_timeout:g} s: is the server alive? A slow one "
                        "needs a longer engine.generation_timeout"
                    ) from None

    def _request(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        for attempt in range(RETRIES + 1):
            try:
                return self.server.complete(self.model_name, prompts, sampling, self._config.generation_timeout)
            except ServerError as error:
                if attempt == RETRIES or isinstance(error, RefusedError):
                    problem = self.server.health_problem(timeout_s=10.0)
                    state = f" (the vLLM server at {self.server}: {problem})" if problem else ""
                    raise TrainingError(f"sampling failed after {attempt + 1} attempts: {error}{state}") from error
                time.sleep(min(self.pause_s * 2**attempt, 8.0))
        raise AssertionError("unreachable")

    def sync(self) -> None:
        """Send the weights and prove that they arrived.

        Raises:
            TrainingError: the weights did not arrive. With several processes, `StoppedTogether`.
        """
        start = time.monotonic()
        failure: Exception | None = None
        try:
            if self._transfer is not None:
                self._transfer.send(self.weights)
            else:
                for _ in self.weights:
                    pass  # takes part in the gathering
        except Exception as error:
            failure = error
            self.weights.drain()
        on_main(self._accelerator, lambda: self._end_sync(failure))
        ours = model_logprobs(self._model, self._proof, self._accelerator.device)  # a collective operation with ZeRO-3
        self._difference = on_main(self._accelerator, lambda: self._prove(ours))
        self._syncs += 1
        self._seconds = time.monotonic() - start

    def _end_sync(self, failure: Exception | None) -> None:
        if failure is not None:
            problem = self.server.health_problem(timeout_s=5.0)
            state = f"; the server: {problem}" if problem else ""
            reason = (str(failure).strip().splitlines() or [type(failure).__name__])[0]
            raise TrainingError(
                f"the weights did not arrive at the vLLM server {self.server}: {reason}{state}"
            ) from failure
        with _in_a_run():
            self.server.post("/reset_prefix_cache", timeout_s=self._config.weight_sync_timeout)

    def _prove(self, ours: torch.Tensor) -> float:
        """Mean absolute difference of the server's log-probabilities from the model's. Raises `TrainingError`."""
        with _in_a_run():
            theirs = torch.tensor(self.server.logprobs(self.model_name, self._proof))
        difference = float((ours - theirs).abs().mean())
        if not difference <= self._tolerance:  # NaN included
            raise TrainingError(
                f"the server at {self.server} does not compute what the trainer does: after sync {self._syncs} "
                f"the log-probabilities of a prompt differ by {difference:.3g} on average (tolerance "
                f"{self._tolerance:g}): its weights are not those that were sent"
            )
        return difference

    @property
    def _tolerance(self) -> float:
        assert self._transfer is not None
        return TOLERANCE.get(self._transfer.dtype, 0.15)

    def check_parity(self, difference: float) -> None:
        if not difference <= self._tolerance:
            raise TrainingError(
                f"the server at {self.server} does not sample from the trained weights: log-probabilities of the "
                f"rollouts differ by {difference:.3g} on average (tolerance {self._tolerance:g})"
            )

    def metrics(self) -> dict[str, float]:
        found = {"weight_sync/seconds": self._seconds}
        if self._difference is not None:
            found["weight_sync/logprob_difference"] = self._difference
        return found

    def close(self) -> None:
        """Disconnect from the server, which keeps running and accepts the next trainer."""
        if self._transfer is not None:
            self._transfer.close()
        if self._lock is not None:
            self._lock.close()
        self._transfer = self._lock = None


def model_logprobs(model: Any, ids: list[int], device: torch.device) -> torch.Tensor:
    """Log-probabilities (L - 1,) float32 of `ids` (L,)[1:], each given the preceding ids; on the CPU, at temperature
    1."""
    tokens = torch.tensor([ids], device=device)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    finally:
        model.train(training)
    return torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None])[:, 0].cpu()


def _held(server: VllmServer) -> IO[str]:
    """Acquire this machine's lock for trainers of a server. It is released when its holder ends for any reason."""
    path = Path(tempfile.gettempdir()) / f"rg-env-{os.getuid()}-{server.host}-{server.port}.lock".replace(":", "_")
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read().strip()
        lock.close()
        raise ServerError(
            f"the server at {server} serves another trainer (process {holder or 'unknown'}): wait for it, or start "
            f"another server on another port with `{start_hint(port=server.port + 1)}`"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


@contextmanager
def _in_a_run() -> Iterator[None]:
    """Context that raises `ServerError` as `TrainingError`: a server that disappears during a run is not invalid
    input."""
    try:
        yield
    except ServerError as error:
        raise TrainingError(str(error)) from error


def in_daemon_thread(act: Callable[[], T]) -> "Future[T]":
    """Run `act()` in a thread that, unlike an executor's, does not keep the process from exiting."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="rg-env-vllm", daemon=True).start()
    return future
