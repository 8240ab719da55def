"""Models that run on this machine, in this process or served by vLLM.

async with embedded("tiny", config) as model: model.replies(requests)
async with served("outputs/RUN/checkpoint-25", "0", folder, config) as endpoint: ...
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rg_env.core.processes import ProcessGroup
from rg_env.core.run_folder import adapter_config, base_model
from rg_env.core.text import reason_of
from rg_env.errors import InputError, MissingExtraError, ServerError, install_command
from rg_env.evaluation.config import EvalConfig, EvalModel, ServingConfig, run_of
from rg_env.evaluation.questions import ChatRequest, Reply
from rg_env.inference.chat_templates import require_chat_template, unused_variables
from rg_env.inference.machine import HOST, Machine
from rg_env.inference.protocol import Engine, PromptEncoder, Sampling
from rg_env.inference.vllm.client import VllmServer
from rg_env.inference.vllm.command import served_name, vllm_command

if TYPE_CHECKING:
    from rg_env.evaluation.endpoints import Endpoint


_GRACE_S = 15.0


@dataclass(frozen=True)
class LocalModel:
    """A model with an engine in this process, for evaluations and trainers."""

    name: str
    engine: Engine
    encoder: PromptEncoder

    def replies(self, requests: Sequence[ChatRequest]) -> Iterator[list[tuple[int, Reply]]]:
        """Yield batches of (request index, reply) pairs. Prompts must fit in the context (see `check_fits`).

        The engine would form the same batches if it received all requests at once, so batching here does not change the
        answers. Errors raised by the engine are propagated.
        """
        by_sampling: dict[Sampling, list[tuple[list[int], int]]] = {}
        for number, (prompt, sampling) in enumerate(requests):
            try:
                ids = self.encoder(prompt)
            except Exception as error:  # a template can raise any exception
                reason = f"the chat template rejects these messages: {reason_of(error)}"
                yield [(number, Reply(error=reason))]
                continue
            by_sampling.setdefault(sampling, []).append((ids, number))
        for sampling, prompts in by_sampling.items():
            prompts.sort(key=lambda each: (len(each[0]), each[0]))
            size = self.engine.max_batch_size
            for batch in (prompts[start : start + size] for start in range(0, len(prompts), size)):
                replies = generated(self.engine, self.encoder, [ids for ids, _ in batch], sampling)
                numbers = [number for _, number in batch]
                prefixes = [self.encoder.prefix(requests[number].prompt) for number in numbers]
                opened = zip(numbers, replies, prefixes, strict=True)
                yield [(number, replace(reply, prefix=prefix)) for number, reply, prefix in opened]

    def check_fits(self, label: str, prompts: Iterable[Any], max_tokens: int | None) -> int:
        """Return the number of tokens of the longest prompt and its completion together. Raise `InputError` if they
        exceed the context length."""
        longest = max((len(self.encoder(prompt)) for prompt in prompts), default=0)
        if (room := self.engine.max_context - longest) < (max_tokens or 1):
            fix = f"max_tokens={max_tokens} does not fit: use at most {room}, or a task or level with shorter prompts"
            fix = fix if room > 0 else "remove the task, or choose an easier level or another model"
            raise InputError(
                f"{self.name} has a context of {self.engine.max_context} tokens, and the longest prompt from {label} "
                f"has {longest}; {fix}"
            )
        return longest + (max_tokens or room)

    def limit_batches(self, tokens: int) -> None:
        """On a CPU, decode at most as many sequences of `tokens` tokens at once as fit in memory."""
        from rg_env.inference.embedded.engine import EmbeddedEngine, sequences_that_fit

        if isinstance(self.engine, EmbeddedEngine) and self.engine.model.device.type == "cpu":
            self.engine.max_batch_size = sequences_that_fit(self.engine.model, tokens, self.engine.max_batch_size)


def generated(engine: Engine, encoder: PromptEncoder, prompts: list[list[int]], sampling: Sampling) -> list[Reply]:
    """Generate one reply per prompt (token ids), in order. Errors raised by the engine are propagated."""
    completions = engine.generate(prompts, sampling)
    texts = encoder.decode([each.token_ids for each in completions], frozenset(engine.end_ids))
    return [
        Reply(
            text,
            truncated=each.finish_reason == "length",
            prompt_tokens=len(ids),
            completion_tokens=len(each.token_ids),
            token_ids=each.token_ids,
            logprobs=each.logprobs,
        )
        for ids, each, text in zip(prompts, completions, texts, strict=True)
    ]


@asynccontextmanager
async def embedded(name: str, config: EvalConfig) -> AsyncIterator[LocalModel]:
    """Load a local model into the embedded engine, and stop generating on exit. On a GPU, the model computes in
    bfloat16, unless its training run did not.

    Raises:
        InputError: the model cannot be loaded.
    """
    import torch

    from rg_env.inference.embedded.engine import EmbeddedEngine, round_linear_layers
    from rg_env.inference.models import best_device, load_policy, with_adapters

    policy = load_policy(base_model(name))
    if adapter_config(name) is not None:
        policy = with_adapters(policy, name)
    device = best_device()
    half = torch.bfloat16 if device == "cuda" and _trained_in_bf16(name) is not False else None
    if half is not None:
        round_linear_layers(policy.model, half)
    policy.model.to(device)
    engine = EmbeddedEngine(policy.model, policy.tokenizer, seed=config.seed, autocast=half)
    try:
        yield LocalModel(name, engine, _encoder(policy.tokenizer, config))
    finally:
        engine.cancel()


def _trained_in_bf16(model: str) -> bool | None:
    """Return the value of `bf16` in a model's training run, or None if the run did not record it."""
    training = run.arguments().get("training") if (run := run_of(model)) else None
    return training.get("bf16") if isinstance(training, dict) else None


@asynccontextmanager
async def served(
    name: str, gpu: str | None, folder: Path, config: EvalConfig, encoder: PromptEncoder
) -> AsyncIterator["Endpoint"]:
    """Serve a local model with vLLM on `gpu`, or on the CPU if `gpu` is None. The server's log is in `folder`.

    Args:
        encoder: the model's `encoder_of`.

    Raises:
        ServerError: the server does not start.
        MissingExtraError: vLLM is not installed.
    """
    from rg_env.evaluation.endpoints import endpoint  # imported here because a trainer needs no HTTP client

    async with _running_server(name, gpu, folder / f"vllm-{gpu or 'cpu'}.log", config.serving) as server:
        ready = await endpoint(EvalModel(model=served_name(name), url=f"http://{server}/v1"), config)
        yield replace(ready, encoder=encoder)


@asynccontextmanager
async def _running_server(model: str, gpu: str | None, log: Path, options: ServingConfig) -> AsyncIterator[VllmServer]:
    """Run a server for `model`, with output to `log`. Yield it once it is healthy."""
    Machine.here().check_installed()
    server = VllmServer(HOST, _free_port())
    command = vllm_command(model, ["--port", str(server.port), *options.vllm_args], on_gpu=gpu is not None)
    command = replace(command, environment={**command.environment, "CUDA_VISIBLE_DEVICES": gpu or ""})
    group = await asyncio.to_thread(ProcessGroup, command, log)
    try:
        try:
            await asyncio.to_thread(server.wait, options.start_timeout_s, lambda: group.code is None)
        except ServerError as error:
            what = f"was not ready after {options.start_timeout_s:g} s (serving.start_timeout_s)"
            if group.code is not None:
                what = f"exited with code {group.code} ({' '.join(group.last_lines(1))[:200]})"
            raise ServerError(f"vLLM for {model} {what}: see {log}") from error
        yield server
    finally:
        # `end` is deliberately not called in a thread: Ctrl-C could interrupt the wait for a thread.
        group.end(lambda: _GRACE_S)


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def require_torch() -> None:
    """Raise `MissingExtraError` unless the packages needed for local models are installed."""
    if missing := next((each for each in ("torch", "transformers", "peft") if find_spec(each) is None), None):
        raise MissingExtraError(
            f"a local model needs {missing}, which is not installed: run `{install_command('train')}`, or use an "
            "endpoint (MODEL@URL)"
        )


def encoder_of(name: str, config: EvalConfig) -> PromptEncoder:
    """Return the prompt encoder of a local model.

    Raises:
        InputError: the model's configuration or tokenizer cannot be loaded, or its chat template cannot be used.
    """
    from rg_env.inference.models import describe_model

    tokenizer = describe_model(base_model(name)).tokenizer
    require_chat_template(tokenizer)
    return _encoder(tokenizer, config)


def _encoder(tokenizer: Any, config: EvalConfig) -> PromptEncoder:
    """Return a prompt encoder. If several models are compared, templates of some models may lack variables that others
    have."""
    kwargs = config.prompt.chat_template_kwargs
    unused = unused_variables(tokenizer, kwargs) if len(config.models) > 1 else []
    return PromptEncoder(tokenizer, {name: value for name, value in kwargs.items() if name not in unused})


def local_engine(config: EvalConfig) -> Literal["embedded", "vllm"]:
    """Return the engine for models without a URL. "auto" means vLLM if it is installed and there is a GPU, and the
    embedded engine otherwise."""
    if config.serving.kind != "auto":
        return config.serving.kind
    return "vllm" if Machine.here().runs_vllm_on_gpu else "embedded"
