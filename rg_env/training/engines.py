"""What a trainer's rollouts come from: the model itself (`Embedded`), or a `vf-vllm` server (`Vllm`)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol, cast

import httpx
import torch
from accelerate import Accelerator
from openai import AsyncOpenAI
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from verifiers import Environment

from rg_env.errors import InputError, ServerError
from rg_env.inference.client import InProcessClient
from rg_env.inference.engine import EmbeddedEngine
from rg_env.inference.grouping import GroupingClient
from rg_env.inference.vllm import VllmServer, start_hint
from rg_env.training.arguments import GRPOConfig
from rg_env.training.collective import on_main
from rg_env.training.weight_line import TransportChoice, WeightLine
from rg_env.training.weight_sources import check_sendable, largest_bucket, sources
from rg_env.training.weight_sync import WeightSync, shape_of

RETRIES = 4
"""Of a request that failed for a cause that may pass (connection, time-out, 5xx), with growing pauses."""


class Engine(Protocol):
    """Answers rollouts under the newest weights it was given."""

    name: str
    model_name: str
    """Which requests must ask for."""
    max_context: int
    """Prompt and completion tokens together, at most."""

    def client(self) -> Any:
        """A client with the surface of `AsyncOpenAI`, for the event loop that this is called in."""

    def cancel(self) -> None:
        """Make running generation end soon."""

    def health_problem(self) -> str | None:
        """Why nothing can be expected of it; None if all is well."""

    def sync(self) -> None:
        """Give it the model's weights. A collective act."""

    def weights_fixed(self) -> AbstractContextManager[Any]:
        """Within: nothing is generated from weights that are being written."""

    def random_state(self) -> torch.Tensor | None:
        """Of the random numbers that it samples with; None if they are not this process's."""

    def set_random_state(self, state: torch.Tensor | None) -> None:
        """Go on from what `random_state` gave."""

    def aside(self) -> AbstractContextManager[Any]:
        """Within: what is sampled uses none of the random numbers of training."""

    def metrics(self) -> dict[str, float]:
        """What to log of the last `sync`."""

    def close(self) -> None: ...


class Embedded:
    """The very model that is being trained, in this process."""

    name = "embedded"

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, model_name: str, seed: int):
        self.engine = EmbeddedEngine(model, tokenizer, model_name=model_name, seed=seed)
        self.model_name, self.max_context = model_name, self.engine.max_context

    def client(self) -> Any:
        self.engine.resume()
        return InProcessClient(self.engine)

    def cancel(self) -> None:
        self.engine.cancel()

    def health_problem(self) -> str | None:
        return None

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

    Raises:
        ServerError, InputError: it cannot; `StoppedTogether` where there are several processes.
    """

    name = "vllm"

    def __init__(
        self,
        accelerator: Accelerator,
        model: PreTrainedModel,
        env: Environment,
        tokenizer: PreTrainedTokenizerBase,
        args: GRPOConfig,
        longest_prompt: int,
    ):
        check_sendable(model)
        self._args, self.server = args, VllmServer(args.vllm_server_host, args.vllm_server_port)
        self._line: WeightLine | None = None
        prompt = env.dataset[0]["prompt"]
        if env.message_type == "chat":
            proof = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)
        else:
            proof = tokenizer(prompt)["input_ids"]

        def meet() -> tuple[str, int]:
            self.server.wait(args.vllm_server_timeout)
            served = self.server.model()
            needed = longest_prompt + (args.max_tokens or 1)
            if needed > served.max_model_len:
                raise ServerError(
                    f"the server at {self.server} takes {served.max_model_len} tokens, prompt and completion together; "
                    f"the longest prompt ({longest_prompt}) and max_tokens={args.max_tokens} make {needed}: start it "
                    f"with --max-model-len {needed} or more"
                )
            if env.message_type == "chat" and self.server.tokenize(served.name, prompt) != proof:
                raise ServerError(
                    f"the server at {self.server} serves another model: it makes other tokens of a prompt than the "
                    f"trainer's tokenizer; start it with `{start_hint(model.config._name_or_path, self.server.port)}`"
                )
            transport = cast(TransportChoice, args.weight_sync_transport)
            line = WeightLine(self.server, timeout_s=args.weight_sync_timeout, transport=transport)
            try:
                line.connect(accelerator.device, shape_of(model), largest_bucket(sources(model)))
                check_sampler_logprobs(args, line.logprobs_mode, str(self.server))
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
            zero3=is_deepspeed_zero3_enabled(),
            check_every=args.weight_sync_check_every,
        )

    def client(self) -> Any:
        limits = httpx.Limits(max_connections=self._args.max_concurrent)
        http = httpx.AsyncClient(limits=limits, timeout=self._args.async_generation_timeout, trust_env=False)
        url = f"http://{self.server}/v1"
        return GroupingClient(AsyncOpenAI(base_url=url, api_key="EMPTY", http_client=http, max_retries=RETRIES))

    def cancel(self) -> None:
        """Nothing to do: closing the client ends its requests."""

    def health_problem(self) -> str | None:
        problem = self.server.health_problem(timeout_s=10.0)
        return None if problem is None else f"the vf-vllm server at {self.server}: {problem}"

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


def check_sampler_logprobs(args: GRPOConfig, mode: str, server: str) -> None:
    """Raise `InputError` if rollouts are to be corrected by log-probabilities of another distribution than theirs."""
    if not args.vllm_importance_sampling_correction or mode == "processed_logprobs":
        return
    neutral = {
        "temperature": 1.0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    asked = {name: getattr(args, name) for name in neutral}
    shifts = [f"{name}={value}" for name, value in asked.items() if value not in (neutral[name], None)]
    shifts += [f"top_k={args.top_k}"] if args.top_k not in (-1, 0, None) else []
    if shifts or mode != "raw_logprobs":
        raise InputError(
            "the correction for the sampler (in a config engine.importance_sampling_correction; in GRPOConfig "
            "vllm_importance_sampling_correction) needs the probabilities that tokens were sampled with, and the "
            f"server at {server} reports {mode}, without {', '.join(shifts) or 'normalisation'}: start it with "
            "`--logprobs-mode processed_logprobs`"
        )


class WeightsGuard(TrainerCallback):
    """Keeps an engine that shares the weights from generating while the optimizer writes them."""

    def __init__(self, sampler: Engine):
        self._sampler = sampler
        self._held: ExitStack | None = None

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._held = ExitStack()
        self._held.enter_context(self._sampler.weights_fixed())

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.release()

    def release(self) -> None:
        if self._held:
            self._held.close()
            self._held = None
