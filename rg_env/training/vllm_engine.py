"""The engine that samples from a separate vLLM server, to which the trainer sends new weights after each step."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any, TypeVar

from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rg_env.errors import RefusedError, ServerError, TrainingError
from rg_env.inference.embedded.engine import end_ids
from rg_env.inference.protocol import Completion, Sampling
from rg_env.inference.vllm.client import ServerInfo, VllmServer, start_hint
from rg_env.training.config.sections import EngineConfig
from rg_env.training.distributed import everywhere, on_main
from rg_env.training.engines import Engine
from rg_env.training.strategy import Strategy
from rg_env.training.weight_sync.parameters import check_sendable
from rg_env.training.weight_sync.transfer import WeightSync

T = TypeVar("T")

RETRIES = 4
"""Number of retries after a transient failure of a request (connection, timeout, 5xx), with growing pauses."""


class Vllm(Engine):
    """A vLLM server with rg_env's plugin. The constructor checks that the server is usable; it is a collective
    operation.

    Args:
        proof: token ids of the prompt `messages`, to check that the server's tokenizer is the same.
        longest: maximum number of tokens of prompt and completion together.

    Raises:
        ServerError, InputError: the server or the model is unusable. With several processes, `StoppedTogether`.
    """

    name = "vllm"
    health_every_s = 5.0
    sick_s = 30.0
    """Seconds that a server may be unhealthy during generation."""
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
        strategy: Strategy,
    ):
        check_sendable(model)
        self._config, self.server = config, VllmServer(config.host, config.port)
        self.end_ids = end_ids(model, tokenizer)

        def meet() -> ServerInfo:
            self.server.wait(config.connect_timeout)
            info = self.server.info()
            if longest > info.max_model_len:
                raise ServerError(
                    f"the server at {self.server} takes {info.max_model_len} tokens, prompt and completion together, "
                    f"and this run needs {longest}: start it with --max-model-len {longest} or more"
                )
            if not isinstance(messages, str) and self.server.tokenize(info.name, messages) != proof:
                raise ServerError(
                    f"the server at {self.server} serves another model: it makes other tokens of a prompt than the "
                    f"trainer's tokenizer; start it with `{start_hint(model.config._name_or_path, self.server.port)}`"
                )
            return info

        info = on_main(accelerator, meet)
        self.model_name, self.max_context = info.name, info.max_model_len

        def make() -> WeightSync:
            main = accelerator.is_main_process
            return WeightSync(
                accelerator,
                self.server if main else None,
                model,
                info=info,
                proof=proof,
                strategy=strategy,
                timeout_s=config.weight_sync_timeout,
            )

        self._sync = everywhere(accelerator, make)

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
        self._sync.run()

    def check_parity(self, difference: float) -> None:
        if not difference <= self._sync.tolerance:
            raise TrainingError(
                f"the server at {self.server} does not sample from the trained weights: log-probabilities of the "
                f"rollouts differ by {difference:.3g} on average (tolerance {self._sync.tolerance:g})"
            )

    def metrics(self) -> dict[str, float]:
        found = {"weight_sync/seconds": self._sync.seconds}
        if self._sync.difference is not None:
            found["weight_sync/logprob_difference"] = self._sync.difference
        return found

    def close(self) -> None:
        self._sync.close()


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
