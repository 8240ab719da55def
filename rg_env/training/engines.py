"""What a trainer's rollouts come from: the model itself (`Embedded`), or a `vf-vllm` server (`Vllm`)."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rg_env.errors import InputError, ServerError, TrainingError
from rg_env.inference.engine import EmbeddedEngine, end_ids
from rg_env.inference.protocol import Completion, Sampling
from rg_env.inference.vllm import VllmServer, start_hint
from rg_env.training.collective import on_main
from rg_env.training.config_sections import EngineConfig
from rg_env.training.weight_line import WeightLine
from rg_env.training.weight_sources import check_sendable, largest_bucket, sources
from rg_env.training.weight_sync import WeightSync, shape_of

RETRIES = 4
"""Retries of a request that failed for a reason that may pass (connection, time-out, 5xx), with growing pauses."""
HEALTH_EVERY_S = 5.0
SICK_S = 30.0
"""How long a server may give no sign of life while completions are awaited."""


class Engine(Protocol):
    """Samples completions with the newest weights it was given."""

    name: str
    max_context: int
    """Most tokens of prompt and completion together."""
    end_ids: frozenset[int]
    """Tokens that end a completion."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """One completion for each prompt (token ids), in order. On the main process only."""

    def cancel(self) -> None:
        """Make running generation end soon."""

    def resume(self) -> None:
        """Generate again after `cancel`."""

    def sync(self) -> None:
        """Give it the model's weights. A collective operation."""

    def weights_fixed(self) -> AbstractContextManager[Any]:
        """Within: nothing is generated from weights that are being written."""

    def random_state(self) -> torch.Tensor | None:
        """State of the random numbers that it samples with; None if they are not this process's."""

    def set_random_state(self, state: torch.Tensor | None) -> None:
        """Continue from what `random_state` returned."""

    def aside(self) -> AbstractContextManager[Any]:
        """Within: sampling uses none of the random numbers of training."""

    def metrics(self) -> dict[str, float]:
        """What to log of the last `sync`."""

    def close(self) -> None: ...


class Embedded:
    """The model that is being trained, in this process."""

    name = "embedded"

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int):
        self.engine = EmbeddedEngine(model, tokenizer, seed=seed)
        self.max_context, self.end_ids = self.engine.max_context, frozenset(self.engine.end_ids)

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        return self.engine.generate(prompts, sampling)

    def cancel(self) -> None:
        self.engine.cancel()

    def resume(self) -> None:
        self.engine.resume()

    def sync(self) -> None:
        """Nothing to do."""

    def weights_fixed(self) -> AbstractContextManager[Any]:
        return self.engine.weights_fixed()

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
            self.engine.generator.manual_seed(self.engine.seed)  # the same for each evaluation
        try:
            yield
        finally:
            self.set_random_state(before)

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Nothing to do."""


class Vllm:
    """A `vf-vllm` server with rg_env's plugin. The constructor checks that it can work; all processes take part.

    Args:
        proof: token ids of a prompt, and `messages` of the same prompt, by which the server's tokenizer is compared.
        longest: most tokens of prompt and completion together.

    Raises:
        ServerError, InputError: it cannot work; `StoppedTogether` if there are several processes.
    """

    name = "vllm"

    def __init__(
        self,
        accelerator: Accelerator,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: EngineConfig,
        sampling: Sampling,
        *,
        messages: Any,
        proof: list[int],
        longest: int,
        zero3: bool,
    ):
        check_sendable(model)
        self._config, self.server = config, VllmServer(config.host, config.port)
        self._line: WeightLine | None = None
        self.end_ids = end_ids(model, tokenizer)

        def meet() -> tuple[str, int]:
            self.server.wait(config.connect_timeout)
            served = self.server.model()
            if longest > served.max_model_len:
                raise ServerError(
                    f"the server at {self.server} takes {served.max_model_len} tokens, prompt and completion together, "
                    f"and this run needs {longest}: start it with --max-model-len {longest} or more"
                )
            if not isinstance(messages, str) and self.server.tokenize(served.name, messages) != proof:
                raise ServerError(
                    f"the server at {self.server} serves another model: it makes other tokens of a prompt than the "
                    f"trainer's tokenizer; start it with `{start_hint(model.config._name_or_path, self.server.port)}`"
                )
            line = WeightLine(self.server, timeout_s=config.weight_sync_timeout, transport=config.weight_sync_transport)
            try:
                line.connect(accelerator.device, shape_of(model), largest_bucket(sources(model)))
                if config.importance_sampling_correction:
                    check_sampler_logprobs(sampling, line.logprobs_mode, str(self.server))
            except BaseException:
                line.close()
                raise
            self._line = line
            return served.name, served.max_model_len

        self.model_name, self.max_context = on_main(accelerator, meet)
        self._sync = WeightSync(
            accelerator,
            self._line,
            model,
            proof=proof,
            served=self.model_name,
            zero3=zero3,
            check_every=config.weight_sync_check_every,
        )

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """One request for all. Raises `TrainingError` if the server fails, dies or takes too long."""
        executor = ThreadPoolExecutor(1, "rg-env-vllm")
        try:
            request = executor.submit(self._request, prompts, sampling)
            deadline, sick_since = time.monotonic() + self._config.generation_timeout, None
            while True:
                try:
                    return request.result(timeout=HEALTH_EVERY_S)
                except NotYet:
                    problem = self.server.health_problem(timeout_s=10.0)
                    now = time.monotonic()
                    sick_since = None if problem is None else sick_since or now
                    if sick_since is not None and now - sick_since > SICK_S:
                        raise TrainingError(f"completions will not come: the vf-vllm server at {self.server}: "
                                            f"{problem}, for {SICK_S:g} s") from None  # fmt: skip
                    if now > deadline:
                        raise TrainingError(
                            f"completions were not there after {self._config.generation_timeout:g} s: is the server "
                            "alive? A slow one needs a longer engine.generation_timeout"
                        ) from None
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _request(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        for attempt in range(RETRIES + 1):
            try:
                return self.server.complete(self.model_name, prompts, sampling, self._config.generation_timeout)
            except ServerError as error:
                if attempt == RETRIES:
                    problem = self.server.health_problem(timeout_s=10.0)
                    state = f" (the vf-vllm server at {self.server}: {problem})" if problem else ""
                    raise TrainingError(f"a rollout failed, retries included: {error}{state}") from error
                time.sleep(min(0.5 * 2**attempt, 8.0))
        raise AssertionError("unreachable")

    def cancel(self) -> None:
        """Nothing to do: the server is asked no more."""

    def resume(self) -> None:
        """Nothing to do."""

    def sync(self) -> None:
        self._sync.run()

    def weights_fixed(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def random_state(self) -> torch.Tensor | None:
        return None

    def set_random_state(self, state: torch.Tensor | None) -> None:
        """Nothing to do: the server has its own."""

    def aside(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def metrics(self) -> dict[str, float]:
        found = {"weight_sync/seconds": self._sync.seconds}
        if self._sync.difference is not None:
            found["weight_sync/logprob_difference"] = self._sync.difference
        return found

    def close(self) -> None:
        self._sync.close()


def check_sampler_logprobs(sampling: Sampling, mode: str, server: str) -> None:
    """Raise `InputError` if the server reports log-probabilities of another distribution than it samples from."""
    if mode == "processed_logprobs":
        return
    neutral = Sampling(max_tokens=sampling.max_tokens)
    shifts = [f"{name}={value}" for name, value in vars(sampling).items() if value != getattr(neutral, name)]
    if shifts or mode != "raw_logprobs":
        raise InputError(
            "engine.importance_sampling_correction needs the probabilities that tokens were sampled with, and the "
            f"server at {server} reports {mode}, without {', '.join(shifts) or 'normalisation'}: start it with "
            "`--logprobs-mode processed_logprobs`"
        )
